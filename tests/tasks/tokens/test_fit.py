"""Fitting: which documents are read, that nothing else shapes the result, and tokenisers from elsewhere."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import TinyMachine, home_at
from tokenizer_samples import prose

from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import Manifest, RefSet
from storage.schemas import SELECTION
from tasks.core.run import Run
from tasks.core.stage import Work, stage
from tasks.tokens.foreign import ForeignTokenizerError, digest_of_tokenizer_file, read_tokenizer_file, tokenizer_files
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenizer import FitSettings, check_tokenizer, fit_bpe, fit_tokenizer, learn_merges, tokenizer
from tasks.tokens.tokenizer_kinds import (
    BpeTokenizer,
    CharTokenizer,
    HfTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
)


def name_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def rank(text: str) -> str:
    return hashlib.sha256(name_of(text).encode()).hexdigest()


@stage("curate", version=1)
def some_selection(work: Work, settings: dict[str, str]) -> str:
    """The side of each text."""
    rows = [
        {
            "doc_id": name_of(text),
            "segment": "s",
            "cluster": name_of(text),
            "split": split,
            "kept": split != "dropped",
            "licence": None,
            "n_bytes": len(text.encode()),
        }
        for text, split in settings.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SELECTION), work.out / "selection.parquet")
    return name_of(json.dumps(settings))


@stage("refine", version=1)
def some_documents(work: Work, settings: list[str]) -> str:
    """Documents of these texts."""
    table = pa.table({"doc_id": [name_of(text) for text in settings], "text": pa.array(settings, pa.large_string())})
    pq.write_table(table, work.out / "documents.parquet", row_group_size=2)
    return name_of(json.dumps(settings))


Fit = Callable[..., tuple[Manifest, Tokenizer]]


@pytest.fixture
def fit(tmp_path: Path) -> Iterator[Fit]:
    """Fits on segments of texts; all of them are trained on unless `splits` says otherwise."""

    def fitted(
        segments: Sequence[Sequence[str]],
        asked: FitSettings,
        splits: dict[str, str] | None = None,
        file: Path | None = None,
    ) -> tuple[Manifest, Tokenizer]:
        run = Run(home_at(tmp_path), machine, refresh=["tokenizer"])
        sides = {text: "train" for segment in segments for text in segment} | (splits or {})
        refs = [some_documents(run, list(texts)) for texts in segments]
        live = tuple({name_of(text) for text in texts} for texts in segments)
        inputs: dict[str, Any] = {
            "curated": some_selection(run, sides),
            "documents": RefSet(tuple(refs), name_of(str(sorted(sides))), ("s",) * len(refs), live),
        }
        if file is not None:
            inputs["file"], _ = run.add("tokenizer_file", tokenizer_files(file))
        ref = tokenizer(run, asked, **inputs)
        return manifest_of(run.store, ref), load_tokenizer(run.store.folder(ref) / "tokenizer.json", ref.digest)

    with TinyMachine(workers=1) as machine:
        yield fitted


def letters(texts: Sequence[str], fit: Fit, fit_bytes: int, **options: Any) -> str:
    """The characters that a fit on one segment saw."""
    made = fit([texts], FitSettings("char", fit_bytes=fit_bytes), **options)[1]
    assert isinstance(made, CharTokenizer)
    return made.alphabet


TEXTS = [letter * 10 for letter in "abcdefgh"]
BY_RANK = sorted(TEXTS, key=rank)


def seen(texts: Sequence[str]) -> str:
    return "".join(sorted({text[0] for text in texts}))


@pytest.mark.parametrize(("limit", "n_read"), [(1, 1), (10, 1), (11, 2), (40, 4), (41, 5), (10_000, 8)])
def test_documents_of_lowest_hash_are_read_up_to_the_limit(limit: int, n_read: int, fit: Fit) -> None:
    assert letters(TEXTS, fit, limit) == seen(BY_RANK[:n_read])


def test_of_the_last_document_only_the_beginning_is_read(fit: Fit) -> None:
    text = "ab" * 50 + "z" * 100
    assert letters([text], fit, 100) == "ab"
    assert letters(["é" * 50], fit, 1) == ""  # no half characters


@pytest.mark.parametrize("split", ["validation", "dropped"])
def test_nothing_is_fitted_on_what_is_held_out_or_dropped(split: str, fit: Fit) -> None:
    assert letters(TEXTS, fit, 10_000, splits={TEXTS[3]: split}) == seen([*TEXTS[:3], *TEXTS[4:]])


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_how_documents_lie_in_segments_does_not_matter(kind: str, fit: Fit) -> None:
    texts = [prose(seed, 300) for seed in range(9)]
    asked = FitSettings(kind, vocab_size=300, fit_bytes=12_000)
    layouts = [[texts], [texts[:4], texts[4:]], [texts[::-1][:2], texts[::-1][2:]], [[text] for text in texts]]
    assert len({fit(layout, asked)[0].digest for layout in layouts}) == 1


def test_a_document_in_two_segments_is_read_once(fit: Fit) -> None:
    texts = ["aab", "c"]
    made = fit([texts, texts], FitSettings("word", vocab_size=10))[0]
    assert (made.counts["documents"], made.counts["bytes"]) == (2, 4)


def test_no_training_document_is_told(fit: Fit) -> None:
    with pytest.raises(UserError, match="no training document to fit a tokeniser on"):
        fit([["a"]], FitSettings("char"), splits={"a": "validation"})


def test_the_choice_is_told_beside_the_tokeniser(fit: Fit, tmp_path: Path) -> None:
    made, found = fit([TEXTS], FitSettings(reserved=2))
    told = json.loads((tmp_path / "store" / "tokenizer" / made.key / "choice.json").read_text())
    assert told == {
        "kind": "char",
        "why": "character level: 80 bytes of training text are less than 200,000",
        "vocab_size": 14,
        "reserved": 2,
        "fingerprint": found.fingerprint,
    }


def test_auto_looks_at_all_training_text_not_at_what_it_reads(fit: Fit) -> None:
    made, found = fit([[prose(1, 60_000)]], FitSettings(fit_bytes=1_000))
    assert isinstance(found, BpeTokenizer)
    assert made.counts["bytes"] <= 1_000


# -- merges ---------------------------------------------------------------------------------------------------------


def as_bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def varied(seed: int, n_words: int) -> str:
    """Text with enough different words for thousands of merges."""
    letters = random.Random(seed)
    words = ["".join(letters.choices("etaoinshrdlu", k=letters.randint(1, 9))) for _ in range(n_words)]
    return " ".join(words) + "\n    <|bos|> über 東京 1234 it's\n\n"


def test_both_trainers_learn_the_same_tokeniser(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = as_bytes([*(varied(seed, 3_000) for seed in range(4)), prose(1)])
    slow, slow_tools = fit_bpe(texts, 1_000, 5)
    monkeypatch.setattr("tasks.tokens.tokenizer.WORTH_A_TRAINER", 0)
    fast, fast_tools = fit_bpe(texts, 1_000, 5)
    assert slow_tools["trainer"].startswith("tokenizers ")
    assert fast_tools["trainer"].startswith("gigatoken ")
    assert fast.saved == slow.saved
    assert fast.vocab_size == 1_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["", "a", "aaaa" * 1_000, "the sheep " * 50])
def test_where_text_is_too_poor_for_the_fast_trainer_the_other_learns(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.tokens.tokenizer.WORTH_A_TRAINER", 0)
    found, tools = fit_bpe([text.encode()], 400)
    assert found.saved == learn_merges([text], 400).saved
    assert tools["trainer_reason"]


def test_a_failing_trainer_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise ValueError("not today")

    monkeypatch.setattr("tasks.tokens.tokenizer.WORTH_A_TRAINER", 0)
    monkeypatch.setattr("gigatoken.train_bpe", fails)
    _, tools = fit_bpe([prose(1).encode()], 300)
    assert tools["trainer"].startswith("tokenizers ")
    assert tools["trainer_reason"] == "gigatoken: it failed (ValueError: not today)"


def test_units_of_training_change_no_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [varied(seed, 2_000) for seed in range(2)]
    monkeypatch.setattr("tasks.tokens.tokenizer.UNIT_BYTES", 500)
    assert fit_bpe(as_bytes(texts), 600)[0].saved == learn_merges(texts, 600).saved


# -- tokenisers from elsewhere --------------------------------------------------------------------------------------


def foreign_file(folder: Path, **beside: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "some-tokenizer.json"
    path.write_text(learn_merges([prose()], 300).spec, encoding="utf-8")
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return path


def settings_of(path: Path, **asked: Any) -> FitSettings:
    return FitSettings.of(TokenizerSettings(kind="file", file=str(path), **asked))


def test_a_file_becomes_the_tokeniser_with_the_special_ids_beside_it(tmp_path: Path, fit: Fit) -> None:
    path = foreign_file(tmp_path / "in", tokenizer_config={"bos_token": "<|bos|>"}, config={"eos_token_id": [3, 2]})
    made, found = fit([TEXTS], settings_of(path, reserved=4), file=path)
    assert isinstance(found, HfTokenizer)
    assert (found.bos_id, found.eos_id, found.unk_id, found.vocab_size) == (2, 3, None, 304)
    assert made.counts["rows"] == 304


def test_a_tokeniser_of_another_corpus_is_taken_as_it_is(tmp_path: Path, fit: Fit) -> None:
    WordTokenizer({"Hi": 4, "Thomas": 8, "Nguyen": 9}).save(tmp_path / "words.json")
    path = tmp_path / "words.json"
    found = fit([TEXTS], settings_of(path), file=path)[1]
    assert found.encode(["Hi Thomas"])[0].tolist() == [4, 8]
    with pytest.raises(ForeignTokenizerError, match="it reserves 0 ids, but tokenizer"):
        read_tokenizer_file(tmp_path / "words.json", reserved=3)


def test_the_digest_follows_what_lies_beside_a_file_and_not_where(tmp_path: Path) -> None:
    config = {"eos_token_id": 3}
    one, same, other = (
        digest_of_tokenizer_file(foreign_file(tmp_path / name, config=content))
        for name, content in (("a", config), ("b", config), ("c", {"eos_token_id": 2}))
    )
    assert one == same != other


def test_a_file_that_changed_since_is_refused(tmp_path: Path, fit: Fit) -> None:
    path = foreign_file(tmp_path / "in")
    asked = settings_of(path)
    path.write_text(learn_merges(["other"], 280).spec, encoding="utf-8")
    with pytest.raises(UserError, match="changed since this run began: run again"):
        fit([TEXTS], asked, file=path)


def test_a_missing_file_is_told_before_anything_runs(tmp_path: Path) -> None:
    for ask in (settings_of, check):
        with pytest.raises(UserError, match=r"tokenizer\.file: there is no file"):
            ask(tmp_path / "none.json")


def check(path: Path, pinned: FitSettings | None = None, **asked: Any) -> None:
    wanted = TokenizerSettings(kind="file", file=str(path), **asked)
    check_tokenizer(wanted, None if pinned is None else asdict(pinned))


def test_what_is_wrong_with_a_file_is_told_before_anything_runs(tmp_path: Path) -> None:
    path = foreign_file(tmp_path / "in")
    check(path)
    path.write_text("{}")
    with pytest.raises(ForeignTokenizerError, match=r"some-tokenizer\.json: "):
        check(path)
    check_tokenizer(TokenizerSettings())


def test_a_pinned_tokeniser_is_had_without_its_file(tmp_path: Path) -> None:
    path = foreign_file(tmp_path / "in")
    pinned = settings_of(path)
    path.unlink()
    check(path, pinned)
    assert FitSettings.of(TokenizerSettings(kind="file", file=str(path)), asdict(pinned)) == pinned
    for other in (FitSettings("char"), None):
        with pytest.raises(UserError, match="there is no file"):
            check(path, other)
    with pytest.raises(UserError, match="there is no file"):
        check(path, pinned, reserved=3)  # another tokeniser than the pinned one


def test_a_file_that_is_there_counts_before_the_pinned_tokeniser(tmp_path: Path) -> None:
    path = foreign_file(tmp_path / "in")
    pinned = settings_of(path)
    path.write_text(learn_merges(["other"], 280).spec, encoding="utf-8")
    assert FitSettings.of(TokenizerSettings(kind="file", file=str(path)), asdict(pinned)) == settings_of(path) != pinned


@pytest.mark.parametrize("change", [{"bos": False}, {"eos": False}, {"engine": "reference"}])
def test_what_is_done_around_ids_asks_for_no_other_fit(change: dict[str, Any]) -> None:
    assert FitSettings.of(TokenizerSettings(**change)) == FitSettings.of(TokenizerSettings())


def test_kinds_that_fit_nothing_do_not_depend_on_how_much_is_read() -> None:
    assert FitSettings.of(TokenizerSettings(kind="bytes", fit_bytes=5)).fit_bytes == 0
    found, why, _ = fit_tokenizer([], FitSettings.of(TokenizerSettings(kind="bytes")))
    assert (found.vocab_size, why) == (260, "bytes: asked for")
