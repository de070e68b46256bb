"""Shared spans against plain Python, in documents of which some count and some do not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from dedup_samples import plain_words, prose
from trace_samples import longest_shared, segment_at

from tasks.lineage import memorised as module
from tasks.lineage.memorised import SharedSpan, outstanding, shared_spans
from tasks.lineage.trace_index import TracedSegment

DOCUMENTS = {f"doc-{seed}": prose(60 + 40 * seed, seed) for seed in range(6)}


def found_in(segment: TracedSegment, text: str, min_words: int = 8) -> list[SharedSpan]:
    return shared_spans([text], [segment], [set(segment.doc_ids)], min_words)[0]


def mixed(seed: int) -> str:
    """Pieces of the documents, of 3 to 30 words, with words of its own between some of them."""
    draw, words = random.Random(seed), list[str]()
    for _ in range(8):
        source = draw.choice(list(DOCUMENTS.values())).split()
        begin, length = draw.randrange(len(source) - 30), draw.randint(3, 30)
        words += source[begin : begin + length]
        words += [f"own{draw.randrange(10**6)}" for _ in range(draw.choice([0, 0, 1, 3]))]
    return " ".join(words)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> TracedSegment:
    return segment_at(tmp_path_factory.mktemp("segment"), DOCUMENTS)


@pytest.mark.parametrize("min_words", [8, 13])
@pytest.mark.parametrize("seed", range(10))
def test_the_longest_span_and_all_that_is_covered_are_those_of_plain_python(
    segment: TracedSegment, seed: int, min_words: int
) -> None:
    text = mixed(seed)
    spans = found_in(segment, text, min_words)
    longest, covered = longest_shared(text, DOCUMENTS, min_words)
    assert (spans[0].words if spans else 0) == (longest if longest >= min_words else 0)
    places, begin = [], 0
    for word in plain_words(text):
        begin = text.lower().index(word, begin)
        places.append(begin)
        begin += len(word)
    reached = {n for n, at in enumerate(places) if any(s.start <= at < s.start + s.length for s in spans)}
    assert reached == covered


@pytest.mark.parametrize("seed", range(3))
def test_what_is_reported_stands_there(segment: TracedSegment, seed: int) -> None:
    text = mixed(seed)
    for span in found_in(segment, text):
        document = DOCUMENTS[span.doc_id]
        assert span.passage == document[span.doc_start : span.doc_start + span.doc_length]
        words = plain_words(text[span.start : span.start + span.length])
        assert words == plain_words(span.passage)
        assert len(words) == span.words
        around = document[max(0, span.doc_start - 100) : span.doc_start + span.doc_length + 100]
        assert span.before + span.passage + span.after == around


def test_capitals_punctuation_and_white_space_make_no_difference(segment: TracedSegment) -> None:
    words = DOCUMENTS["doc-3"].split()[20:40]
    (span,) = found_in(segment, "  " + ",\n\t ".join(words).upper() + "!!")
    assert (span.words, span.doc_id, span.start) == (20, "doc-3", 2)


def test_documents_that_do_not_count_are_not_named(segment: TracedSegment) -> None:
    text = DOCUMENTS["doc-2"]
    assert shared_spans([text], [segment], [set(DOCUMENTS) - {"doc-2"}])[0] == []


def test_documents_of_several_segments_are_found_and_each_text_has_its_own(tmp_path: Path) -> None:
    ours, theirs = {"a": prose(50, 1)}, {"b": prose(50, 2), "c": prose(30, 3)}
    segments = [segment_at(tmp_path / "1", ours), segment_at(tmp_path / "2", theirs)]
    texts = [theirs["b"], "nothing of the kind", ours["a"] + " " + theirs["c"]]
    found = shared_spans(texts, segments, [{"a"}, {"b", "c"}])
    assert [[(span.doc_id, span.words) for span in spans] for spans in found] == [
        [("b", 50)],
        [],
        [("a", 50), ("c", 30)],
    ]


def test_a_phrase_that_stands_everywhere_hides_no_rare_one(tmp_path: Path) -> None:
    stock, rare = prose(12, 1), prose(20, 2)
    documents = {f"{number:04}": f"{stock} {prose(10, number)}" for number in range(1000)}
    documents["9999"] = f"{prose(10, 7)} {stock} {rare}"
    segment = segment_at(tmp_path / "segment", documents)
    spans = found_in(segment, f"{stock} {rare}")
    assert (spans[0].words, spans[0].doc_id) == (32, "9999")


def test_a_document_that_counts_is_found_behind_a_thousand_copies_that_do_not(tmp_path: Path) -> None:
    licence = prose(30, 1)
    segment = segment_at(tmp_path / "segment", {f"{n:04}": f"{licence} {prose(10, n)}" for n in range(1000)})
    (spans,) = shared_spans([licence], [segment], [{"0900"}])
    assert [(span.words, span.doc_id) for span in spans] == [(30, "0900")]


def test_spans_that_a_block_of_a_long_text_cuts_are_whole(
    segment: TracedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(["own words before it"] * 5 + [DOCUMENTS["doc-5"]])
    whole = found_in(segment, text)
    monkeypatch.setattr(module, "BLOCK_WORDS", 24)
    assert found_in(segment, text) == whole
    assert whole[0].words == 260


def test_a_long_span_in_parts_that_a_block_cuts_is_found(
    segment: TracedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_WORDS", 20)
    piece = " ".join(DOCUMENTS["doc-4"].split()[50:70])
    for n_before in range(20):
        text = " ".join([*(f"own{number}" for number in range(n_before)), piece])
        assert found_in(segment, text, min_words=20)[0].words == 20


def span_at(start: int, length: int, doc_id: str = "d", words: int = 8) -> SharedSpan:
    return SharedSpan(start, length, words, doc_id, 0, length, "", "", "")


@pytest.mark.parametrize("seed", range(5))
def test_spans_of_which_none_lies_within_another_are_those_of_plain_python(seed: int) -> None:
    draw = random.Random(seed)
    spans = sorted((span_at(draw.randrange(40), draw.randint(1, 12)) for _ in range(60)), key=lambda one: -one.length)
    places = {(one.start, one.start + one.length) for one in spans}
    inner = {one for one in places for other in places - {one} if other[0] <= one[0] and one[1] <= other[1]}
    found = outstanding(spans)
    assert {(group[0].start, group[0].start + group[0].length) for group in found} == places - inner
    assert [group[0].length for group in found] == sorted((group[0].length for group in found), reverse=True)
    assert sum(map(len, found)) == sum((one.start, one.start + one.length) not in inner for one in spans)
