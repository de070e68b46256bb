"""Tracing over a real run: lineage leads from a model to the texts that it read, and from a span to a file."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from dedup_samples import plain_runs
from tiny_run import Ran, copy_of_store, direct_run, text_of

from flows.evaluate import trace_model
from storage.digest import sha256_json
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest, describe_inputs
from storage.schemas import COMPLETIONS, EVALSET, SPANS_FILE
from storage.tables import read_columns, read_rows, write_table
from tasks.core.run import Run
from tasks.core.settings import EvaluationSettings
from tasks.evaluation.tables import Evaluated, read_metrics
from tasks.lineage.contamination import by_share_seen, read_contamination
from tasks.lineage.memorised import MEMORISED_FILE, explain_memorised, explain_text
from tasks.lineage.trace_index import trace_indexes
from tasks.lineage.training_data import datasets_of, training_texts


@pytest.fixture(scope="module")
def home(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The tiny run with its names, to which tests add."""
    home = copy_of_store(tiny, tmp_path_factory.mktemp("traced") / "home")
    shutil.copytree(Path(tiny.run.home.store) / ".refs", Path(home.store) / ".refs", dirs_exist_ok=True)
    return home


@pytest.fixture(scope="module")
def sides(tiny: Ran) -> dict[str, dict[str, str]]:
    """Training and validation texts by document."""
    held_out = read_rows(tiny.folder(tiny.prepared.evalset) / "documents.parquet", ["doc_id", "text"])
    validation = {row["doc_id"]: row["text"] for row in held_out}
    rows = [
        row
        for ref in tiny.ingested.refined
        for row in read_rows(tiny.folder(ref) / "documents.parquet", ["doc_id", "text"])
    ]
    train = {row["doc_id"]: row["text"] for row in rows if row["doc_id"] not in validation}
    return {"train": train, "validation": validation}


def completions_of(run: Run, checkpoint: ArtifactRef, *texts: str) -> ArtifactRef:
    """A generation with these texts."""
    key = sha256_json([asdict(checkpoint), texts])
    rows = [
        {
            "id": str(number),
            "sample": 0,
            "prompt": "",
            "text": text,
            "finish_reason": "length",
            "n_tokens": 1,
            "logprobs": [0.0],
            "model": checkpoint.digest,
            "settings": "{}",
            "seed": 0,
            "ids": [0],
            "top_ids": [],
            "top_logprobs": [],
            "fields": None,
            "error": None,
        }
        for number, text in enumerate(texts)
    ]
    with run.store.workspace("generate", key) as work:
        write_table(work.out / "completions.parquet", COMPLETIONS, rows)
        inputs = describe_inputs({"checkpoint": checkpoint})
        return run.store.commit(work, Manifest("generate", 1, key, key, inputs, {}, [], created="2030")).ref


def traced(
    run: Run, tiny: Ran, completions: ArtifactRef, evalset: ArtifactRef | None = None
) -> tuple[ArtifactRef | None, ArtifactRef | None]:
    """The artefacts `memorised` and `contamination` of a model, each None if it was not made."""
    assert tiny.checkpoint is not None
    return trace_model(run, EvaluationSettings(), tiny.checkpoint, evalset or tiny.prepared.evalset, completions)


def words_of(text: str, begin: int, n: int) -> str:
    return " ".join(text.split()[begin : begin + n])


def test_a_model_leads_to_the_texts_of_its_training_documents_alone(
    tiny: Ran, home: Home, sides: dict[str, dict[str, str]]
) -> None:
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        texts = training_texts(run.store, datasets_of(run.store, tiny.checkpoint))
    assert set(texts.refs) <= set(tiny.ingested.refined)
    assert texts.live is not None
    assert set().union(*texts.live) == set(sides["train"])


def test_memorised_spans_are_measured_marked_and_found_again(
    tiny: Ran, home: Home, sides: dict[str, dict[str, str]]
) -> None:
    assert tiny.checkpoint is not None
    doc_id, source = min(sides["train"].items())
    echo, short = words_of(source, 30, 20), words_of(source, 10, 9)
    with direct_run(home) as run:
        made = completions_of(run, tiny.checkpoint, f"unheard of words {echo}", "never written", f"x {short} y", "")
        ref = traced(run, tiny, made)[0]
        assert ref is not None
        folder, metrics = run.store.folder(ref), read_metrics(run.store, ref)
        again = traced(run, tiny, made)[0]
        assert again == ref
        assert run.reports["trace_index"].computed == len(run.store.keys("trace_index"))
    rows = {row["id"]: row for row in read_rows(folder / MEMORISED_FILE)}
    assert [rows[name]["longest"] >= least for name, least in (("0", 20), ("2", 9))] == [True, True]
    assert [rows[name]["longest"] for name in ("1", "3")] == [0, 0]
    assert rows["0"]["covered_chars"] >= len(echo.rstrip("."))
    spans = [row for row in read_rows(folder / SPANS_FILE) if row["id"] == "0"]
    assert doc_id in {row["doc_id"] for row in spans if row["words"] == rows["0"]["longest"]}
    assert metrics["completions/memorised_share"] == sum(row["longest"] >= 13 for row in rows.values()) / 4
    assert metrics["completions/longest_memorised"] == rows["0"]["longest"]
    n_chars = sum(row["n_chars"] for row in rows.values())
    assert metrics["completions/memorised_chars"] == sum(row["covered_chars"] for row in rows.values()) / n_chars


def test_a_text_leads_to_the_files_that_it_repeats(home: Home, sides: dict[str, dict[str, str]]) -> None:
    number = next(n for n in range(12) if text_of(n).strip() in {text.strip() for text in sides["train"].values()})
    text = words_of(text_of(number), 25, 30)
    found = explain_text(home, f"never seen {text.upper()}", "default", 8)["memorised"]
    first = found["spans"][0]
    assert first["words"] == 30
    place = first["found_in"][0]
    assert place["path"].endswith(f"text-{number:02}.txt")
    assert place["kind"] == "text"
    assert place["passage"].split() == [*text.removesuffix(".").split()]
    assert 0.8 < found["covered"] < 1


def test_a_completion_is_traced_to_what_its_model_read(tiny: Ran, home: Home, sides: dict[str, dict[str, str]]) -> None:
    assert tiny.checkpoint is not None
    source = min(sides["train"].values())
    with direct_run(home) as run:
        made = completions_of(run, tiny.checkpoint, words_of(source, 5, 25))
    tree = {"artifact": f"generate/{made.key}", "completion": {"text": words_of(source, 5, 25)}}
    assert explain_memorised(home, tree, 8)["memorised"]["spans"][0]["words"] >= 25


def test_a_model_from_elsewhere_has_no_training_text(tiny: Ran, home: Home) -> None:
    with direct_run(home) as run:
        made = completions_of(run, ArtifactRef("bundle", "none", "none"), "text")
        (Path(home.store) / "generate" / made.key / "manifest.json").write_text(
            Manifest("generate", 1, made.key, made.key, {}, {}, []).to_json()
        )
    found = explain_memorised(home, {"artifact": f"generate/{made.key}", "completion": {"text": "text"}}, 8)
    assert found["memorised"] is None
    assert "not trained in this home" in found["memorised_unknown"]


def test_a_corpus_that_was_never_prepared_is_told(home: Home) -> None:
    with pytest.raises(UserError, match="corpus 'other' has no dataset yet"):
        explain_text(home, "text", "other", 8)


def test_contamination_is_the_share_of_runs_of_thirteen_words_in_training_text(
    tiny: Ran, home: Home, sides: dict[str, dict[str, str]]
) -> None:
    assert tiny.checkpoint is not None
    source = min(sides["train"].values())
    texts = {
        "copied": words_of(source, 0, 40),
        "mixed": f"{words_of(source, 20, 20)} {' '.join(f'own{number}' for number in range(20))}",
        "own": " ".join(f"own{number}" for number in range(30)),
        "short": "own words",
        **sides["validation"],
    }
    with direct_run(home) as run:
        evalset = evalset_of(run, texts)
        _, made = traced(run, tiny, completions_of(run, tiny.checkpoint, ""), evalset)
        assert made is not None
        found = read_contamination(run.store.folder(made))
    trained = {run for text in sides["train"].values() for run in plain_runs(text, 13)}
    for doc_id, text in texts.items():
        runs = plain_runs(text, 13)
        assert found[doc_id] == pytest.approx(sum(run in trained for run in runs) / len(runs))
    assert found["copied"] == 1
    assert 0 < found["mixed"] < 1
    assert found["own"] == found["short"] == 0


def evalset_of(run: Run, texts: dict[str, str]) -> ArtifactRef:
    key = sha256_json(texts)
    with run.store.workspace("evalset", key) as work:
        told = {"kind": "text", "language": "en", "source": "texts", "method": "text"}
        rows = [{"doc_id": doc_id, **told, "text": text} for doc_id, text in texts.items()]
        write_table(work.out / "documents.parquet", EVALSET, rows)
        return run.store.commit(work, Manifest("evalset", 3, key, key, {}, {}, [])).ref


def test_bits_per_byte_of_seen_and_unseen_documents_add_up() -> None:
    sums = {"tokens": [2, 3, 1], "nll_nats": [1.5, 3.0, 1.0], "charged_nats": [0.5, 0.0, 0.0]}
    sums |= {"bytes": [4, 6, 2], "lost_bytes": [0, 1, 0]}
    documents = Evaluated(["a", "b", "c"], {}, {name: np.array(column) for name, column in sums.items()})
    slices = by_share_seen({"a": 0.0, "b": 0.5, "c": 0.0}, documents)
    assert [item.value for item in slices] == ["unseen", "partly seen", "mostly seen"]
    unseen, partly, mostly = (item.sums for item in slices)
    assert (unseen.documents, unseen.bytes) == (2, 6)
    assert unseen.bits_per_byte == pytest.approx(3 / 0.6931471805599453 / 6)
    assert (partly.documents, mostly.documents) == (0, 1)
    assert mostly.bits_per_byte == pytest.approx((3 / 0.6931471805599453 + 8) / 6)


def test_a_plan_says_that_tracing_waits_and_computes_nothing(tiny: Ran, home: Home) -> None:
    run, waiting = Run(home, plan=True), ArtifactRef("train", "", "")
    for made in trace_model(run, EvaluationSettings(), waiting, tiny.prepared.evalset, waiting):
        assert made is not None and not made.made
    reasons = {report.stage: report.reason for report in run.reports.values()}
    assert reasons == {
        **dict.fromkeys(("trace_index", "memorised", "gram_overlap"), "waits for train"),
        "contamination": "waits for gram_overlap",
    }


def test_another_segment_adds_an_index_and_leaves_the_others(tiny: Ran, home: Home) -> None:
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        texts = training_texts(run.store, datasets_of(run.store, tiny.checkpoint))
        before = trace_indexes(run, texts)
    with direct_run(home) as run:
        assert trace_indexes(run, texts) == before
        assert run.reports["trace_index"].computed == 0
        doc_ids = read_columns(run.store.folder(before.refs[0]) / "traced.parquet", ["doc_id"])["doc_id"]
    assert set(doc_ids) >= set().union(*texts.live or ())
