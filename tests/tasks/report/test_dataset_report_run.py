"""The page and the card of a dataset that a run made: their numbers are those of its files, and they follow changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_run import Ran, direct_run, home_at, run_prepare, text_of, write_texts

from storage.catalog import Catalog, read_state
from storage.home import Home
from tasks.report.dataset import collect_dataset, write
from tasks.report.page import Outcome
from tasks.report.queries import Row

CODE = "def f_{0}(x):\n    # the sum of {0} and x\n    return {0} + x\n\n\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve texts, one of them twice, and three files of code."""
    folder = write_texts(tmp_path_factory.mktemp("report") / "texts")
    (folder / "again.txt").write_text(text_of(3), encoding="utf-8")
    for number in range(3):
        (folder / f"code_{number}.py").write_text("".join(CODE.format(20 * number + line) for line in range(20)))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return home_at(tmp_path_factory.mktemp("report") / "home")


@pytest.fixture(scope="module")
def ran(home: Home, source: Path) -> Ran:
    return run_prepare(home, source)


@pytest.fixture(scope="module")
def figures(ran: Ran) -> Row:
    return collect_dataset(Catalog(ran.run.store, "default"), "default")


def written(home: Home) -> tuple[Path, Path, str]:
    with direct_run(home) as run:
        run.produced.update(read_state(run.store, "default"))
        made = write(Outcome(run))
    assert made is not None
    page, card = made.files
    return page, card, made.summary


def test_tokens_equal_the_ids_in_the_shards(ran: Ran, figures: Row) -> None:
    shards = [np.load(ran.folder(ref) / "tokens.npy", allow_pickle=False) for ref in ran.prepared.shards]
    assert figures.total.documents == 15
    assert figures.total.tokens == sum(len(shard) for shard in shards)
    assert {item.name: item.documents for item in figures.kinds} == {"text": 12, "code": 3}


def test_what_is_predicted_equals_the_labels_of_training(figures: Row) -> None:
    (train,) = (account for account in figures.packed.accounts if account.split == "train")
    assert figures.vocabulary.predicted == train.labels == train.ids - train.documents


def test_the_page_and_the_card_are_written_and_only_drawn_again_after_a_change(home: Home, ran: Ran) -> None:
    page, card, summary = written(home)
    assert page.name == "dataset.html" and card.name == "data-card.md"
    assert page.read_text().startswith("<!doctype html>") and card.read_text().startswith("# Data card: default")
    assert "| Tokens |" in summary
    page.write_text("by hand")
    assert written(home) == (page, card, summary) and page.read_text() == "by hand"
    card.unlink()
    written(home)
    assert page.read_text().startswith("<!doctype html>") and card.is_file()


def test_the_same_sources_give_the_same_card_in_another_home(
    home: Home, ran: Ran, source: Path, tmp_path: Path
) -> None:
    other = home_at(tmp_path / "other")
    run_prepare(other, source)
    assert written(other)[1].read_text() == written(home)[1].read_text()


def test_a_run_that_prepared_nothing_has_no_page(tmp_path: Path) -> None:
    with direct_run(home_at(tmp_path / "empty")) as run:
        assert write(Outcome(run)) is None
