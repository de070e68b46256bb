"""A base whose vocabulary is extended by pieces of the corpus: rows, later rounds, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from generation_samples import model_folder
from tiny_run import direct_run, home_at, run_prepare, tiny_settings, train_in, write_texts

from model.checkpoint import load_weights
from storage.catalog import Catalog
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.run import Run
from tasks.core.settings import Settings, load_settings, parse_assignments
from tasks.registry.base import BaseError, check_base, continuing
from tasks.report.dataset import collect_dataset, dataset_page
from tasks.tokens.extend import parts_of_new_ids
from tasks.tokens.tokenizer import CHOICE_FILE, learn_merges
from tasks.tokens.tokenizer_kinds import CharTokenizer
from tasks.training.bundle import Bundle

EXTEND = 12
STILL = ("train.lr=1e-12", "train.weight_decay=0")  # weights stay as they begin
TEXT = "the shepherd counts his sheep at dusk and closes the fold"


def settings_from(base: Path | str, *assignments: str) -> Settings:
    return load_settings(
        None,
        parse_assignments(
            [
                *("curate.validation_share=0.3", "train.max_steps=2", "train.batch_size=4", "evaluate.trace=false"),
                *(f"train.base={base}", f"tokenizer.extend={EXTEND}", *assignments),
            ]
        ),
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with direct_run(home_at(tmp_path / "home")) as found:
        yield found


def tokenizer_of(run: Run, checkpoint: ArtifactRef) -> ArtifactRef:
    return manifest_of(run.store, checkpoint).input_refs("tokenizer")[0]


@pytest.mark.parametrize("spare", [0, 5, 40])
def test_a_base_grows_by_rows_that_are_means_of_the_rows_they_replace(spare: int, run: Run, tmp_path: Path) -> None:
    own = learn_merges(["a shepherd in the fold. " * 9], 300, reserved=spare)
    base = model_folder(tmp_path / "base", own, {"tie_weights": False})
    checkpoint = train_in(run, write_texts(tmp_path / "texts"), settings_from(base, *STILL))
    made, old = Bundle(run.store.folder(checkpoint)), Bundle(base)
    parts = parts_of_new_ids(old.tokenizer, made.tokenizer)
    assert [index for index, _ in parts] == list(range(own.used_ids, own.used_ids + EXTEND))
    assert made.model_config.vocab_size == made.tokenizer.vocab_size == own.used_ids + max(EXTEND, spare)
    expected = load_weights(base / "model.safetensors", made.model_config, new_rows=parts).state_dict()
    for name, value in made.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)
    (before,), (after,) = (one.tokenizer.encode([TEXT]) for one in (old, made))
    assert len(after) < len(before)
    assert made.tokenizer.decode(after.tolist()) == TEXT


def test_a_base_with_the_pieces_of_its_corpus_gets_no_more(run: Run, tmp_path: Path) -> None:
    own = learn_merges(["a shepherd. " * 9], 264)
    base = model_folder(tmp_path / "base", own)
    source = write_texts(tmp_path / "texts")
    first = train_in(run, source, settings_from(base))
    write_texts(source, range(12, 15))
    second = train_in(run, source, settings_from(run.store.folder(first)))
    assert second != first and tokenizer_of(run, second) == tokenizer_of(run, first)
    one, other = (Bundle(run.store.folder(ref)) for ref in (first, second))
    assert one.model_config.vocab_size == other.model_config.vocab_size == own.used_ids + EXTEND
    third = train_in(run, source, settings_from(run.store.folder(first), "tokenizer.extend=3"))
    assert Bundle(run.store.folder(third)).model_config.vocab_size == own.used_ids + EXTEND + 3


def test_the_choice_tells_what_the_pieces_save(tmp_path: Path) -> None:
    learn_merges(["a shepherd. " * 9], 300).save(tmp_path / "own.json")
    file = ("tokenizer.kind=file", f"tokenizer.file={tmp_path / 'own.json'}", f"tokenizer.extend={EXTEND}")
    source = write_texts(tmp_path / "texts", range(40))
    ran = run_prepare(home_at(tmp_path / "home"), source, tiny_settings(*file))
    why = json.loads((ran.folder(ran.prepared.tokenizer) / CHOICE_FILE).read_text())["why"]
    assert why.startswith("the file tokenizer.json, extended by 12 pieces: 1.")
    assert why.endswith("documents that were not counted")
    figures = collect_dataset(Catalog(ran.run.store, ran.run.corpus), ran.run.corpus)
    assert f"Choice: {why}." in dataset_page(figures, ran.run.corpus)[0]


def test_another_file_is_extended_anew(tmp_path: Path) -> None:
    folder, source, home = tmp_path / "file", write_texts(tmp_path / "texts"), home_at(tmp_path / "home")
    folder.mkdir()
    asked = tiny_settings("tokenizer.kind=file", f"tokenizer.file={folder}", f"tokenizer.extend={EXTEND}")
    computed = []
    for text in ("a shepherd. ", "a shepherd. ", "the fold. "):
        learn_merges([text * 9], 264).save(folder / "tokenizer.json")
        computed.append(run_prepare(home, source, asked).reports["tokenizer"].computed)
    assert computed == [1, 0, 1]


def test_before_there_is_a_champion_nothing_is_extended(run: Run) -> None:
    settings = continuing(run, tiny_settings("tokenizer.extend=5"), "champion")
    assert settings.tokenizer == tiny_settings().tokenizer


def test_adapters_are_refused(run: Run, tmp_path: Path) -> None:
    base = model_folder(tmp_path / "base")
    with pytest.raises(BaseError, match=r"tokenizer\.extend=12 adds rows to the embedding, which train\.adapter=lora"):
        check_base(run, settings_from(base, "train.adapter=lora"))


def test_a_base_of_characters_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    base = model_folder(tmp_path / "base", CharTokenizer("abc"))
    with pytest.raises(UserError, match=r"adds merges to byte-pair encoding, but the tokeniser is of kind char;"):
        train_in(run, tmp_path / "nothing", settings_from(base))


def test_pieces_without_a_vocabulary_to_add_them_to_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"tokenizer\.extend=5 adds pieces to an existing vocabulary, and there is none"
    ):
        train_in(run, tmp_path / "nothing", tiny_settings("tokenizer.extend=5"))
