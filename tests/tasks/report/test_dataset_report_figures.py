"""The figures of a dataset report: every token is counted once, under the right name, and the sums come out."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_report_samples import CORPUS
from dataset_report_samples import Prepared, rich

from storage.store import StoreError
from tasks.report.dataset import collect_dataset, notices
from tasks.report.queries import Row
from tasks.tokens.tokenizer_kinds import AsciiTokenizer


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return rich(tmp_path_factory.mktemp("rich"))


@pytest.fixture(scope="module")
def figures(sample: Prepared) -> Row:
    return collect_dataset(sample.catalog(), CORPUS)


def tokens_of(sample: Prepared, *doc_ids: str) -> int:
    return sum(len(sample.ids_of(doc_id)) for doc_id in doc_ids)


def counted(slices: list[Row]) -> dict[str, tuple[int, int]]:
    return {item.name: (item.documents, item.tokens) for item in slices}


def test_tokens_are_counted_by_side_kind_and_source(sample: Prepared, figures: Row) -> None:
    assert counted(figures.splits) == {
        "train": (4, tokens_of(sample, "a1", "a2", "b1", "c1")),
        "validation": (1, tokens_of(sample, "v1")),
    }
    assert counted(figures.kinds)["code"] == (1, tokens_of(sample, "b1"))
    assert counted(figures.kinds)["text"] == (3, tokens_of(sample, "a1", "a2", "v1"))
    assert counted(figures.sources)["code"] == (1, tokens_of(sample, "b1")), "the duplicate's source does not count"
    assert counted(figures.sources)["books"] == (3, tokens_of(sample, "a1", "c1", "v1"))


def test_every_division_adds_up_to_all_tokens(figures: Row) -> None:
    for division in (figures.splits, figures.kinds, figures.sources, figures.licences):
        for name in ("documents", "tokens", "n_bytes", "lost_bytes", "held_out"):
            assert sum(getattr(item, name) for item in division) == getattr(figures.total, name)


def test_bytes_a_token_are_those_of_the_text(sample: Prepared, figures: Row) -> None:
    (code,) = figures.programming_languages
    assert code.n_bytes == len(sample.texts["b1"][0].encode())
    assert code.tokens == tokens_of(sample, "b1")


def test_lengths_count_each_document_once_on_its_side(sample: Prepared, figures: Row) -> None:
    for plot in figures.plots:
        train, validation = (layer.counts for layer in plot.layers)
        assert sum(train) == 4 and sum(validation) == 1
        assert len(plot.edges) == len(train) + 1 == len(validation) + 1
    lengths = sorted(tokens_of(sample, doc_id) for doc_id in sample.texts)
    tokens = figures.plots[0]
    assert tokens.edges[0] <= lengths[0] and lengths[-1] < tokens.edges[-1]
    assert (figures.total.longest, tokens.median) == (lengths[-1], lengths[2])
    assert figures.total.longer == sum(length > sample.seq_len for length in lengths)


def test_a_mix_shows_what_was_asked_and_what_came_of_it(figures: Row) -> None:
    rest, code = figures.packed.groups
    assert (code.name, code.share_asked, code.share_realised, code.passes) == ("code", 0.5, 0.5, 2.0)
    assert (rest.share_asked, rest.share_realised, rest.passes) == (0.5, 0.5, 0.5)


def test_without_a_mix_everything_is_read_once(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    made.text("a", "one text")
    packed = collect_dataset(made.catalog(), CORPUS).packed
    assert packed.mix is None
    assert [(group.name, group.passes, group.share_asked) for group in packed.groups] == [("all", 1.0, None)]


def test_the_vocabulary_is_counted_over_what_training_predicts(sample: Prepared, figures: Row) -> None:
    used = figures.vocabulary
    predicted = [index for doc_id in ("a1", "a2", "b1", "c1") for index in sample.ids_of(doc_id)[1:]]
    assert used.predicted == len(predicted)
    assert [token.count for token in used.frequent] == sorted((token.count for token in used.frequent), reverse=True)
    for token in used.frequent:
        assert token.count == predicted.count(token.index)
    unused = set(range(4, sample.tokenizer.vocab_size)) - set(predicted)
    assert used.n_unused == len(unused) and {token.index for token in used.unused} <= unused


def test_lost_bytes_and_unknown_tokens_are_counted_and_noted(tmp_path: Path) -> None:
    made = Prepared(tmp_path, AsciiTokenizer())
    made.text("a", "grün und blau")
    made.text("v", "held out", "validation")
    found = collect_dataset(made.catalog(), CORPUS)
    assert found.total.lost_bytes == 2 and found.vocabulary.unknown == 1
    assert any(note.title.startswith("2 bytes of the text") and note.level == "check" for note in notices(found))


def test_samples_are_the_documents_as_the_shard_holds_them(sample: Prepared, figures: Row) -> None:
    by_path = {item.path: item for item in figures.samples}
    assert len(figures.samples) == 3 and "held.txt" not in by_path
    code = next(item for item in figures.samples if item.kind == "code")
    assert [piece.index for piece in code.pieces] == sample.ids_of("b1")[: len(code.pieces)]
    assert code.pieces[0].special and code.tokens == tokens_of(sample, "b1")


def test_a_short_document_is_a_sample_only_where_there_is_no_longer_one(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    made.text("a", "short")
    made.text("b", "long enough to be shown " * 20)
    (shown,) = collect_dataset(made.catalog(), CORPUS).samples
    assert shown.path == "b.txt" and len(shown.pieces) == 320 < shown.tokens


def test_documents_that_are_not_encoded_yet_are_noted(tmp_path: Path) -> None:
    made = Prepared(tmp_path)
    made.text("a", "a text")
    made.document("new", "new.txt")
    found = collect_dataset(made.catalog(), CORPUS)
    assert found.total.not_encoded == 1
    assert any("1 document of the corpus" in note.title for note in notices(found))


def test_a_corpus_that_is_not_prepared_is_refused(tmp_path: Path) -> None:
    from corpus_report_samples import Sample

    made = Sample(tmp_path)
    made.document("a", "a.txt")
    with pytest.raises(StoreError, match="run `sheepfold prepare SOURCE`"):
        collect_dataset(made.catalog(), CORPUS)
