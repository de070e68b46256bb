"""Forgotten documents are gone from the store, stay away, and the models that saw them are named."""

from __future__ import annotations

import itertools
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from forgotten_texts import SECRET, holders_of, secret_text
from ingest_run import ingest, prose, write
from tiny_run import Ran, direct_run, home_at, run_prepare, tiny_settings

from flows.report import publish
from flows.stages import stage_facts
from storage.catalog import read_state, waits_for_run
from storage.digest import sha256_json
from storage.errors import UserError
from storage.home import Home
from storage.locks import owner_lock
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.store import Store, open_store
from storage.tables import read_columns, read_rows, write_table
from storage.tombstones import read_tombstones
from tasks.evaluation.texts import evaluation_texts
from tasks.generation.prompts import PROMPTS
from tasks.lineage.documents import find_targets
from tasks.lineage.memorised import DATASET_GONE, explain_memorised
from tasks.lineage.training_data import exposures, first_paths
from tasks.lineage.why import explain
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, CharTokenizer, Tokenizer, WordTokenizer
from tasks.training.telemetry import read_notes
from tasks.upkeep import forget as sweep
from tasks.upkeep.forget import finish_forgetting, forget, refuse_forgotten
from tasks.upkeep.garbage import collect_garbage
from tasks.upkeep.verify import verify_home


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty texts, of which three have a sentence of their own; read only."""
    files: dict[str, str | bytes] = {f"{number:02}.txt": prose(number) for number in range(17)}
    files |= {f"secret/{number}.txt": secret_text(number) for number in range(3)}
    return write(tmp_path_factory.mktemp("texts") / "in", files)


@dataclass(frozen=True)
class Trained:
    """A prepared corpus and what stands for a model of it: a training with its samples, and completions."""

    ran: Ran
    checkpoint: ArtifactRef


def put(store: Store, stage: str, files: dict[str, str], **inputs: Any) -> ArtifactRef:
    """Commit an artefact of some text files."""
    key = sha256_json([stage, files])
    with store.workspace(stage, key) as workspace:
        for name, text in files.items():
            (workspace.out / name).write_text(text, encoding="utf-8")
        manifest = Manifest(stage, 1, key, key, describe_inputs(inputs), {}, [])
        return store.commit(workspace, manifest).ref


def keep_prompts(store: Store, name: str, words: str) -> ArtifactRef:
    """Commit a list of one prompt."""
    key = sha256_json([name, words])
    with store.workspace("prompts", key) as workspace:
        rows = [{"id": name, "prompt": words, "fields": None, "error": None}]
        write_table(workspace.out / "prompts.parquet", PROMPTS, rows)
        return store.commit(workspace, Manifest("prompts", 1, key, key, {}, {}, [])).ref


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Trained:
    """A model of them; read only. Training itself takes longer than all of these tests."""
    ran = run_prepare(home_at(tmp_path_factory.mktemp("trained") / "home"), source)
    run = ran.run
    dataset, fitted = ran.prepared.dataset, ran.prepared.tokenizer
    samples = [{"step": 1, "prompt": prompt, "text": "and so on"} for prompt in (f"{SECRET} 0", prose(3)[:48])]
    journal = json.dumps({"starts": [], "events": [], "samples": samples})
    checkpoint = put(run.store, "train", {"journal.json": journal}, dataset=dataset, tokenizer=fitted)
    for words in (SECRET, "Once upon a time there lived"):
        prompts = keep_prompts(run.store, "0", words)
        put(run.store, "generate", {"words.txt": f"{words} and so on"}, checkpoint=checkpoint, prompts=prompts)
    run.remember(train=checkpoint)
    publish(run)
    return Trained(ran, checkpoint)


@pytest.fixture
def home(trained: Trained, tmp_path: Path) -> Home:
    """A home with that model, to be spoiled; without MLflow's database."""
    found = home_at(tmp_path / "home")
    shutil.copytree(Path(trained.ran.run.home.store), found.store, dirs_exist_ok=True)
    return found


def tokens_stand(home: Home, words: str) -> bool:
    """Return True if the words occur in a token shard, decoded by the store's tokeniser."""
    from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, load_tokenizer

    (folder,) = (Path(home.store) / "tokenizer").iterdir()
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    return any(
        words in tokenizer.decode(np.load(path, allow_pickle=False).tolist())
        for path in (Path(home.store) / "tokenise").glob("*/tokens.npy")
    )


def prompts_of(store: Store, training: Manifest) -> list[str]:
    """Prompts of the samples drawn during a training."""
    return [sample.prompt for sample in read_notes(store.folder(training.ref)).samples]


def problems(home: Home) -> list[str]:
    """Return the problems that `verify` finds."""
    return [
        problem
        for check in verify_home(home, open_store(home.store), stage_facts(), "default")["checks"]
        for problem in check["problems"]
    ]


def test_the_text_of_a_forgotten_folder_stands_nowhere_in_the_home_and_verify_is_clean(home: Home) -> None:
    assert holders_of(home, SECRET) and tokens_stand(home, SECRET)
    done = forget(home, open_store(home.store), "secret", "asked by its author", "default", dry_run=False)
    assert [item["path"] for item in done["documents"]] == [f"secret/{number}.txt" for number in range(3)]
    assert holders_of(home, SECRET) == []
    assert not tokens_stand(home, SECRET)
    assert problems(home) == []
    store = Store(Path(home.store))
    assert [len(store.keys(stage)) for stage in ("train", "prompts", "generate")] == [1, 1, 1]
    (training,) = store.manifests("train")
    assert prompts_of(store, training) == [prose(3)[:48]]


def test_the_next_run_does_not_revive_a_forgotten_document_wherever_it_lies(
    home: Home, source: Path, tmp_path: Path
) -> None:
    forget(home, open_store(home.store), "secret/1.txt", "", "default", dry_run=False)
    moved = Path(shutil.copytree(source, tmp_path / "moved"))
    shutil.copyfile(source / "secret" / "1.txt", moved / "copy.md")
    with zipfile.ZipFile(moved / "box.zip", "w") as box:
        box.write(source / "secret" / "1.txt", "inside.txt")
        box.writestr("other.txt", prose(77))
    ran = run_prepare(home, moved)
    rows = {row["path"]: row for row in pq.read_table(ran.folder(ran.ingested.snapshot) / "files.parquet").to_pylist()}
    for path in ("secret/1.txt", "copy.md", "box.zip/inside.txt"):
        assert (rows[path]["status"], rows[path]["reason_code"]) == ("skipped", "forgotten"), path
    assert rows["box.zip/other.txt"]["status"] == "ok"
    assert holders_of(home, f"{SECRET} 1") == []
    assert problems(home) == []


@pytest.mark.full
def test_copies_in_other_files_are_listed_with_the_document_that_was_named(
    home: Home, source: Path, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(source, tmp_path / "both"))
    with zipfile.ZipFile(both / "box.zip", "w") as box:
        box.write(source / "secret" / "1.txt", "inside.txt")
    run_prepare(home, both)
    done = forget(home, open_store(home.store), "secret/1.txt", "", "default", dry_run=False)
    assert sorted(item["path"] for item in done["documents"]) == ["box.zip/inside.txt", "secret/1.txt"]


@pytest.mark.full
def test_each_forgotten_document_names_the_models_that_saw_it_and_a_folder_is_known_by_its_name(
    trained: Trained, home: Home, source: Path, tmp_path: Path
) -> None:
    later = Path(shutil.copytree(source, tmp_path / "later"))
    (later / "secret" / "new.txt").write_text(secret_text(7))
    ran = run_prepare(home, later)
    new = next(
        row["doc_id"] for row in read_rows(ran.folder(ran.ingested.snapshot) / "files.parquet") if "new" in row["path"]
    )
    forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    buried = read_tombstones(open_store(home.store)).documents
    assert buried[new].seen_by == ()
    assert {item.seen_by for name, item in buried.items() if name != new} == {(f"train/{trained.checkpoint.key}",)}
    assert forget(home, open_store(home.store), "secret", "", "default", dry_run=False)["known"] == len(buried)


@pytest.mark.full
def test_nothing_that_is_still_there_is_extracted_again(home: Home, source: Path) -> None:
    forget(home, open_store(home.store), "secret/0.txt", "", "default", dry_run=False)
    ran = run_prepare(home, source)
    assert "extract" not in ran.computed()
    assert ran.reports["extract"].reused == 19
    assert run_prepare(home, source).computed() == {}


def test_the_models_that_saw_a_document_are_named_before_and_after_it_is_forgotten(
    trained: Trained, home: Home
) -> None:
    sides = sides_of(trained.ran)
    one = next(doc for doc, side in sides.items() if side == "train")
    held_out = next(doc for doc, side in sides.items() if side == "validation")
    training = f"train/{trained.checkpoint.key}"
    (seen,) = explain(open_store(home.store), one, "default")["seen_by"]
    assert (seen["training"], seen["documents_trained_on"]) == (training, 1)
    (seen,) = explain(open_store(home.store), held_out, "default")["seen_by"]
    assert (seen["documents_trained_on"], seen["documents_held_out"]) == (0, 1)
    forget(home, open_store(home.store), one, "a mistake", "default", dry_run=False)
    known = explain(open_store(home.store), one, "default")
    assert known["forgotten"][0]["reason"] == "a mistake"
    assert [item["training"] for item in known["seen_by"]] == [training]


def test_a_model_read_what_it_was_trained_on_and_what_the_one_it_continues_was(
    trained: Trained, home: Home, source: Path
) -> None:
    ran = run_prepare(home, source, tiny_settings("curate.salt=other"))
    store = open_store(home.store)
    dataset = ran.prepared.dataset
    later = put(store, "train", {"words.txt": "later"}, dataset=dataset, base=trained.checkpoint)
    before, now = (sides_of(item) for item in (trained.ran, ran))
    twice = min(doc for doc, side in before.items() if side == now[doc] == "train")
    once = min(doc for doc, side in before.items() if (side, now[doc]) == ("train", "validation"))

    def seen(*doc_ids: str) -> tuple[int, int, str]:
        found = next(item for item in exposures(store, doc_ids) if item["training"] == f"train/{later.key}")
        return found["documents_trained_on"], found["documents_held_out"], found["through"]

    assert seen(once, twice) == (2, 1, trained.checkpoint.key)
    assert seen(once) == (1, 1, trained.checkpoint.key)
    assert seen(twice) == (1, 0, "")


def sides_of(ran: Ran) -> dict[str, str]:
    """The side of every kept document."""
    rows = read_rows(ran.folder(ran.ingested.curated) / "selection.parquet", ["doc_id", "split", "kept"])
    return {row["doc_id"]: row["split"] for row in rows if row["kept"]}


@pytest.mark.full
def test_a_forgotten_document_goes_by_id_eight_digits_and_path_also_when_a_run_has_seen_its_file_again(
    home: Home, source: Path
) -> None:
    done = forget(home, open_store(home.store), "secret/1.txt", "a mistake", "default", dry_run=False)
    (doc_id,) = (item["doc_id"] for item in done["documents"])
    names = (doc_id, doc_id[:8], "secret/1.txt", "./secret/1.txt", str(source / "secret" / "1.txt"))
    for name in names:
        assert explain(open_store(home.store), name, "default")["forgotten"][0]["doc_id"] == doc_id, name
    assert forget(home, open_store(home.store), "secret/1.txt", "", "default", dry_run=False)["known"] == 1
    run_prepare(home, source)
    for name in names:
        assert explain(open_store(home.store), name, "default")["forgotten"][0]["reason"] == "a mistake", name
    kept = (Path(home.store) / ".refs" / "forgotten" / "documents.json").read_text()
    assert "secret/" not in kept


def test_a_file_and_a_folder_go_by_where_they_are_listed_and_by_where_they_lie(home: Home, source: Path) -> None:
    store = open_store(home.store)
    for name, n_documents in (("secret/1.txt", 1), ("secret", 3)):
        listed = find_targets(store, "default", name)
        assert len({target.doc_id for target in listed}) == n_documents
        for other in (f"./{name}", f"{name}/", str(source / name)):
            assert find_targets(store, "default", other) == listed, other
    assert find_targets(store, "default", "") == find_targets(store, "default", "secre") == []


@pytest.mark.full
def test_a_path_at_which_several_forgotten_documents_lay_is_answered_with_all_of_them(
    home: Home, source: Path, tmp_path: Path
) -> None:
    changed = Path(shutil.copytree(source, tmp_path / "in"))
    run_prepare(home, changed)
    (changed / "secret" / "2.txt").write_text(secret_text(9))
    run_prepare(home, changed)
    done = forget(home, open_store(home.store), "secret/2.txt", "", "default", dry_run=False)
    found = explain(open_store(home.store), "secret/2.txt", "default")["forgotten"]
    assert len(found) == 2
    assert {item["doc_id"] for item in found} == {item["doc_id"] for item in done["documents"]}


def test_a_model_that_goes_on_from_one_that_saw_a_forgotten_document_is_named(trained: Trained, home: Home) -> None:
    done = forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    store = Store(Path(home.store))
    dataset = put(store, "dataset", {"words.txt": "later"}, curated=ArtifactRef("curate", "gone", "gone"))
    saw = [item["training"] for item in done["seen_by"]]
    assert saw == [f"train/{trained.checkpoint.key}"]
    later = put(store, "train", {"words.txt": "later"}, dataset=dataset, base=trained.checkpoint)
    latest = put(store, "train", {"words.txt": "latest"}, dataset=dataset, base=later)
    put(store, "train", {"words.txt": "of its own"}, dataset=dataset)
    seen = explain(open_store(home.store), done["documents"][0]["doc_id"], "default")["seen_by"]
    assert {item["training"]: item["through"] for item in seen} == {
        saw[0]: "",
        f"train/{later.key}": trained.checkpoint.key,
        f"train/{latest.key}": trained.checkpoint.key,
    }


def test_the_lineage_of_a_model_leads_back_to_what_was_removed(trained: Trained, home: Home) -> None:
    forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    stages = {
        entry["stage"] for entry in explain(open_store(home.store), trained.checkpoint.key, "default")["made_from"]
    }
    assert {"dataset", "curate", "tokenise", "extract"} <= stages


@pytest.mark.full
def test_until_the_next_run_other_documents_are_not_said_to_be_gone(home: Home) -> None:
    shutil.rmtree(Path(home.store) / "generate")  # what stands for completions has no table
    forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    found = explain(open_store(home.store), "03.txt", "default")
    assert [file["path"] for file in found["files"]] == ["03.txt"]
    assert "forgotten since its last run, so its tables are empty until the next" in found["note"]


def test_a_completion_of_a_model_whose_dataset_went_says_so(home: Home) -> None:
    forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    (left,) = Store(Path(home.store)).manifests("generate")
    tree = {"artifact": f"generate/{left.key}", "completion": {"text": "Once upon a time"}}
    found = explain_memorised(home, tree, 8)
    assert found == {"memorised": None, "memorised_unknown": DATASET_GONE}


def test_a_dry_run_says_the_same_and_changes_nothing(home: Home) -> None:
    before = {path: path.read_bytes() for path in Path(home.store).rglob("*") if path.is_file()}
    said = forget(home, open_store(home.store), "secret", "", "default", dry_run=True)
    assert {path: path.read_bytes() for path in Path(home.store).rglob("*") if path.is_file()} == before
    done = forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    assert {**said, "dry_run": False} == done


def test_an_evaluation_set_is_kept_without_the_document_and_stays_pinned(trained: Trained, home: Home) -> None:
    frozen = read_columns(trained.ran.folder(trained.ran.prepared.evalset) / "documents.parquet", ["doc_id"])["doc_id"]
    forget(home, open_store(home.store), frozen[0], "", "default", dry_run=False)
    store = Store(Path(home.store))
    pinned = store.read_ref("evalset/default")
    assert pinned is not None
    left = read_columns(store.root / "evalset" / pinned["key"] / "documents.parquet", ["doc_id"])["doc_id"]
    assert left == frozen[1:]
    assert len(store.keys("evalset")) == 1


def test_a_run_that_is_at_work_is_waited_for(home: Home) -> None:
    lock = Path(home.store) / ".locks" / "extract-0123.lock"
    with owner_lock(lock), pytest.raises(UserError, match=r"works on extract-0123: wait for it to end"):
        forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    assert not read_tombstones(Store(Path(home.store))).documents


@pytest.mark.full
def test_a_second_document_goes_by_its_path_although_nothing_ran_in_between(home: Home) -> None:
    forget(home, open_store(home.store), "secret/0.txt", "", "default", dry_run=False)
    collect_garbage(home, open_store(home.store), stage_facts(), -1, dry_run=False)
    done = forget(home, open_store(home.store), "secret/1.txt", "", "default", dry_run=False)
    assert [item["path"] for item in done["documents"]] == ["secret/1.txt"]
    assert problems(home) == []


@pytest.mark.parametrize("between", ["nothing", pytest.param("a run", marks=pytest.mark.full)])
def test_no_list_of_files_has_the_path_of_a_forgotten_document_and_each_has_the_others(
    home: Home, source: Path, between: str
) -> None:
    forget(home, open_store(home.store), "secret/2.txt", "", "default", dry_run=False)
    if between == "a run":
        run_prepare(home, source)
    forget(home, open_store(home.store), "secret/0.txt", "", "default", dry_run=False)
    store = Store(Path(home.store))
    listed = [
        read_columns(store.folder(found.ref) / "files.parquet", ["path"])["path"]
        for found in store.manifests("snapshot")
    ]
    assert listed
    for paths in listed:
        assert "secret/0.txt" not in paths
        assert {"secret/1.txt", "05.txt"} <= set(paths)


@pytest.fixture
def foreign(tmp_path: Path) -> tuple[Home, Path]:
    """A home with texts of which one is Chinese, and their folder."""
    folder = write(tmp_path / "in", {"secret.txt": CHINESE, **{f"{n}.txt": prose(n) for n in range(6)}})
    home = home_at(tmp_path / "home")
    ingest(home, folder)
    return home, folder


CHINESE = "\n".join(f"果酱大教堂在第{number}盏紫色灯笼下轻轻地哼着歌，灰尘慢慢落下来。" for number in range(20))


def test_prompts_that_were_drawn_from_a_document_go_however_few_words_they_have(foreign: tuple[Home, Path]) -> None:
    home, _ = foreign
    store = Store(Path(home.store))
    (target,) = find_targets(store, "default", "secret.txt")
    going = [
        keep_prompts(store, target.doc_id[:12], "什么都不一样"),  # by its id, as sampled prompts have it
        keep_prompts(store, "0", "果酱大教堂在第3盏紫色"),  # by its words, between which there are no spaces
        keep_prompts(store, "0", "  果酱大教堂在第4盏紫色\n"),
    ]
    kept = [keep_prompts(store, "0", "果酱"), keep_prompts(store, "1", "今天的天气真好，我们去公园吧")]
    forget(home, open_store(home.store), "secret.txt", "", "default", dry_run=False)
    left = {manifest.ref.key for manifest in store.manifests("prompts")}
    assert left == {ref.key for ref in kept} and not left & {ref.key for ref in going}


TOKENIZERS: dict[str, Callable[[list[str]], Tokenizer]] = {
    "char": CharTokenizer.fit,
    "word": lambda texts: WordTokenizer.fit(texts, 300),
    "ascii": lambda texts: AsciiTokenizer(),
    "bpe": lambda texts: learn_merges(texts, 300),  # nearly bytes: it cuts a character in two
}


@pytest.mark.parametrize(
    "kind", [kind if kind == "bpe" else pytest.param(kind, marks=pytest.mark.full) for kind in TOKENIZERS]
)
def test_a_sample_goes_also_where_its_tokeniser_gave_back_less_than_the_document_has(tmp_path: Path, kind: str) -> None:
    secret = "Der Müller weiß über Nörgler überall Böses, wörtlich: „Ärger, Öl und Übermut“.\n" * 9
    folder = write(tmp_path / "in", {"secret.txt": secret, **{f"{n}.txt": prose(n) for n in range(6)}})
    home = home_at(tmp_path / "home")
    ingest(home, folder)
    store = Store(Path(home.store))
    fitted = TOKENIZERS[kind]([prose(number) + " Der Nörgler überall " for number in range(6)])
    fitted.save(tmp_path / "tokenizer.json")
    prompts = [fitted.decode(fitted.encode([text])[0][:40].tolist()) for text in (secret, prose(2))]
    assert prompts[0].strip() and (kind == "bpe" or " ".join(prompts[0].split()) not in " ".join(secret.split()))
    journal = {"starts": [], "events": [], "samples": [{"step": 1, "prompt": one, "text": ""} for one in prompts]}
    files = {"journal.json": json.dumps(journal), "tokenizer.json": (tmp_path / "tokenizer.json").read_text()}
    dataset = put(store, "dataset", {"words.txt": "of it"}, curated=ArtifactRef("curate", "gone", "gone"))
    training = put(store, "train", files, dataset=dataset)
    forget(home, open_store(home.store), "secret.txt", "", "default", dry_run=False)
    manifest = next(found for found in store.manifests("train") if found.ref == training)
    assert prompts_of(store, manifest) == [prompts[1]]


def test_texts_from_outside_go_where_they_hold_the_document_with_what_was_measured_on_them(
    trained: Trained, home: Home, tmp_path: Path
) -> None:
    files = {"same": secret_text(0), "part": prose(50) + prose(1001)[:200], "other": prose(51)}
    rows = json.dumps({"text": secret_text(2).replace(".", " ;")})
    with direct_run(home) as run:
        for name, text in {**files, "rows": rows}.items():
            path = tmp_path / f"{name}.{'jsonl' if name == 'rows' else 'txt'}"
            path.write_text(text)
            texts = evaluation_texts(run, str(path))
            put(run.store, "evaluate", {"figures.txt": name}, checkpoint=trained.checkpoint, evalset=texts)
        put(run.store, "evaluate", {"figures.txt": "usual"}, checkpoint=trained.checkpoint)
    removed = forget(home, open_store(home.store), "secret", "", "default", dry_run=False)["removed"]
    assert (removed["texts"], removed["evaluate"]) == (3, 3)
    left = sorted(path.read_text() for path in (Path(home.store) / "evaluate").glob("*/figures.txt"))
    assert left == ["other", "usual"]
    assert holders_of(home, SECRET) == []


KILLED_EVERY = 3  # calls


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.mark.full
def test_killed_before_any_write_or_removal_it_is_finished_by_whoever_comes_next(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count(0, KILLED_EVERY):
        home = home_at(tmp_path / str(number))
        shutil.copytree(Path(trained.ran.run.home.store), home.store, dirs_exist_ok=True)
        home.reports_of("default").mkdir(parents=True)
        (home.reports_of("default") / "report.md").write_text(SECRET)
        store, calls, killed = Store(Path(home.store)), itertools.count(), False

        def counted(function: Any, calls: Iterator[int] = calls, number: int = number) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                if next(calls) >= number:
                    raise Killed
                return function(*arguments, **named)

            return call

        with monkeypatch.context() as patch:
            for name in ("remove", "commit", "write_ref", "remove_work"):
                patch.setattr(Store, name, counted(getattr(Store, name)))
            try:
                forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
            except Killed:
                killed = True
        if read_tombstones(store).documents:
            finish_forgetting(home, store)
        else:
            forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
        assert holders_of(home, SECRET) == [], f"killed at call {number}"
        assert problems(home) == [], f"killed at call {number}"
        assert read_state(store, "default")
        shutil.rmtree(home.path)
        if not killed:
            break
    assert number > 4 * KILLED_EVERY


def test_killed_after_its_last_removal_it_is_finished_by_the_same_command(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "show_samples", killed)
        with pytest.raises(Killed):
            forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    assert read_tombstones(Store(Path(home.store))).pending is None
    assert holders_of(home, SECRET) == []


def test_killed_on_the_way_it_is_finished_although_a_run_that_had_read_the_documents_ended_meanwhile(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = Store.remove

    def killed(store: Store, stage: str, key: str, keep_manifest: bool = False) -> None:
        if stage == "normalise":  # the segments, by which it is known what was made from a document, are gone
            raise Killed
        remove(store, stage, key, keep_manifest)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", killed)
        with pytest.raises(Killed):
            forget(home, open_store(home.store), "secret", "", "default", dry_run=False)
    with pytest.raises(UserError, match="documents were forgotten during this run"):
        refuse_forgotten(open_store(home.store), ())
    assert finish_forgetting(home, open_store(home.store)) is not None
    assert holders_of(home, SECRET) == []


@pytest.mark.full
def test_what_is_left_is_named_by_its_path_before_and_after_the_corpus_was_listed_anew(
    home: Home, trained: Trained, source: Path
) -> None:
    store = Store(Path(home.store))
    evalset = trained.ran.prepared.evalset
    doc_ids = [row["doc_id"] for row in read_rows(store.folder(evalset) / "documents.parquet", ["doc_id"])]
    expected = first_paths(store, evalset, doc_ids)
    assert len(expected) == len(doc_ids) > 0
    assert waits_for_run(store, "default") == ""
    forget(home, open_store(home.store), "secret/0.txt", "", "default", dry_run=False)
    kept = {doc_id: path for doc_id, path in expected.items() if path != "secret/0.txt"}
    assert first_paths(store, evalset, doc_ids) == kept
    assert "`sheepfold ingest SOURCE` makes them again without these documents" in waits_for_run(store, "default")
    run_prepare(home, source)
    assert first_paths(store, evalset, doc_ids) == kept
    assert waits_for_run(store, "default") == ""
