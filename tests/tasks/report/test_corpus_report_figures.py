"""The figures of a corpus report: everything is counted once, and nothing that happened is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_report_samples import Sample, rich

from tasks.report.corpus import STATUSES, collect
from tasks.report.queries import Row


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Row:
    return collect(rich(tmp_path_factory.mktemp("rich")).catalog())


def named(figures: Row, name: str) -> Row:
    return next(data for data in figures.histograms if data.name == f"histogram-{name}")


def test_every_row_has_one_status_and_the_order_is_from_used_to_lost(figures: Row) -> None:
    assert [(item.name, item.n) for item in figures.statuses] == [
        ("train", 3), ("validation", 1), ("container", 1), ("duplicate", 1), ("dropped", 3), ("skipped", 1),
        ("rejected", 1), ("failed", 1),
    ]  # fmt: skip
    assert sum(item.n for item in figures.statuses) == figures.total.files == 12
    assert {item.name for item in figures.statuses} <= STATUSES.keys()


def test_members_are_counted_as_files_but_their_bytes_lie_in_their_archive(figures: Row) -> None:
    assert figures.total.members == 2
    sizes = {item.name: item.size for item in figures.statuses}
    assert figures.total.size == sum(sizes.values()) - sizes["skipped"] - 100  # the two members


def test_statuses_come_with_their_reason_and_the_first_path(figures: Row) -> None:
    found = {(item.status, item.code): (item.n, item.path) for item in figures.outcomes}
    assert found["rejected", "encrypted"] == (1, "locked.pdf")
    assert found["ok", ""][0] == 8
    assert sum(item.n for item in figures.outcomes) == figures.total.files


def test_what_curation_dropped_is_counted_by_reason(figures: Row) -> None:
    assert {item.code: item.n for item in figures.dropped} == {
        "evaluation_set": 1, "near_duplicate": 1, "too_short": 1,
    }  # fmt: skip


def test_documents_are_counted_by_kind_language_and_licence_with_those_that_are_kept(figures: Row) -> None:
    assert {item.name: (item.n, item.kept) for item in figures.kinds} == {"text": (5, 2), "pdf": (1, 1), "code": (1, 1)}
    assert {item.name: item.n for item in figures.languages} == {"en": 4, "de": 1, "und": 1}, "code has no language"
    assert {item.name: item.n for item in figures.programming_languages} == {"Python": 1}
    assert {item.name: item.n for item in figures.licences} == {"unknown": 6, "MIT": 1}


def test_pages_are_counted_by_method_and_engine_with_errors_and_mean_confidence(figures: Row) -> None:
    found = {(kind.method, kind.engine): kind for kind in figures.pages}
    assert found["ocr", "tesseract"].n == 14
    assert found["ocr", "tesseract"].confidence == pytest.approx(0.525)
    assert found["none", "pypdfium2"].errors == 1 and found["none", "pypdfium2"].confidence is None
    assert [(item.path, item.page) for item in figures.page_errors] == [("scans/one.pdf", 15)]


def test_the_least_sure_pages_come_first_with_what_was_read(figures: Row) -> None:
    assert [page.page for page in figures.worst_pages] == list(range(1, 13))
    assert all(page.text.startswith(f"read {page.page - 1} ") for page in figures.worst_pages)
    assert sum(kind.doubtful for kind in figures.pages) == 8


def test_a_histogram_counts_each_document_once_apart_by_what_became_of_it(figures: Row) -> None:
    length = named(figures, "n-chars")
    kept, dropped = (layer.counts for layer in length.layers)
    assert length.log and sum(kept) == 4 and sum(dropped) == 3
    assert length.edges[0] <= 3 and length.edges[-1] > 100_000
    assert len(length.edges) == len(kept) + 1 == len(dropped) + 1


def test_clusters_of_several_documents_come_largest_first_with_their_paths(figures: Row) -> None:
    (cluster,) = figures.clusters
    assert (cluster.size, cluster.kept, cluster.texts) == (3, 1, 3)
    assert "scans/one.pdf" in cluster.paths and "bag.zip/in.txt" in cluster.paths
    assert (figures.total.in_clusters, figures.total.clusters) == (3, 1)


def test_cuts_and_personal_data_say_what_was_done_with_them(figures: Row) -> None:
    assert [(cut.code, cut.spans, cut.documents, cut.chars) for cut in figures.cuts] == [("evaluation_set", 1, 1, 20)]
    found = [(item.kind, item.spans, item.documents, item.redacted) for item in figures.private]
    assert found == [("email", 2, 1, True), ("phone", 1, 1, False)]


def test_the_sides_of_the_split_add_up_to_what_is_kept(figures: Row) -> None:
    assert [(side.name, side.documents, side.size) for side in figures.sides] == [
        ("train", 3, 100_200), ("validation", 1, 100),
    ]  # fmt: skip
    assert figures.total.kept == sum(side.documents for side in figures.sides)


def test_tokens_are_those_of_the_documents_that_are_encoded(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.document("a", "a.txt", tokens=20)
    sample.document("b", "b.txt")
    (side,) = collect(sample.catalog()).sides
    assert (side.documents, side.encoded, side.tokens) == (2, 1, 20)


def test_a_document_in_two_segments_counts_once_as_the_live_one_has_it(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.document("a", "a.txt", n_bytes=50)
    sample.document("b", "b.txt", n_bytes=70)
    sample.stale = {"a": 999_999, "gone": 888_888}
    found = collect(sample.catalog())
    assert [(side.documents, side.size) for side in found.sides] == [(2, 120)]
    length = named(found, "n-chars")
    assert sum(length.layers[0].counts) == 2 and length.edges[-1] < 1000
