"""The stage `memorised`: find memorised spans, which occur word for word in a model's completions and training text.

    memorised.parquet   per completion: characters in memorised spans, and the longest span
    spans.parquet       each of these spans, with its document and position
    metrics.parquet     metrics over all completions

`sheepfold why` shows the same spans of one text.

6-grams of a text that the index finds with the same offset between text and document form one candidate. Of the
candidates that may be long enough, the longest are verified, and others only for words that these do not cover; this
bounds the cost of stock phrases, and still finds the longest span and all covered words. Verified spans are compared
word by word with the document and extended to both sides as far as the words agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.catalog import read_state
from storage.digest import sha256_json
from storage.errors import UserError
from storage.home import Home
from storage.lineage import ancestors
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import COMPLETIONS_FILE, MEMORISED, MEMORISED_SPANS, METRICS, SPANS_FILE
from storage.store import Store
from storage.tables import read_columns, read_places, read_rows, write_table
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Work, stage
from tasks.evaluation.tables import METRICS_FILE
from tasks.lineage.places import spot_on_page
from tasks.lineage.trace_index import ANCHOR_WORDS, FOUND_WORDS, STRIDE, TracedSegment, trace_indexes
from tasks.lineage.training_data import datasets_of, pairs_of, sources_of, training_texts
from tasks.text.cleaning import PRINT
from tasks.text.words import I64, U64, word_hashes

MEMORISED_FILE = "memorised.parquet"
MOST_DOCUMENTS = 3  # recorded per span; a stock phrase is in thousands
SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3
MOST_STRETCHES = 16  # candidates per block and segment that are always verified; others if they cover more words
BLOCK_WORDS = 2048  # words of a text that are looked up at once
AROUND = 100  # characters of context on either side of a span
FROM_ELSEWHERE = "the model was not trained in this home, so its training text is unknown"
DATASET_GONE = "the dataset of its model went with documents that were forgotten, or was cleared away"

_Words = tuple[U64, I64, I64]  # hashes, starts and ends in characters
_Stretch = tuple[int, int, int]  # index of a text, first word of a candidate in it and in a document


@dataclass(frozen=True)
class MemorisedSettings:
    """Lengths of spans.

    Attributes:
        min_words: Minimum length of a span in words.
        reproduced_words: Minimum length of a span with which a completion counts as reproducing training text.
    """

    min_words: int = FOUND_WORDS
    reproduced_words: int = 13


@stage(
    "memorised",
    version=1,
    tables={MEMORISED_FILE: MEMORISED, SPANS_FILE: MEMORISED_SPANS, METRICS_FILE: METRICS},
    keep_with=("completions",),
)
def memorised(
    work: Work, settings: MemorisedSettings, *, completions: ArtifactRef, texts: RefSet, indexes: RefSet
) -> str:
    """Find the memorised spans of completions.

    `texts.live` has the ids of the training documents in each segment; the indexes are in the same order.
    """
    rows = read_rows(work.folder(completions) / COMPLETIONS_FILE, ["id", "sample", "text"])
    found = _spans_in(work.store, [row["text"] for row in rows], texts, indexes, settings.min_words)
    covered, listed = [], []
    for row, spans in zip(rows, found, strict=True):
        own = {"id": row["id"], "sample": row["sample"]}
        longest = spans[0].words if spans else 0
        covered.append({**own, "n_chars": len(row["text"]), "covered_chars": covered_chars(spans), "longest": longest})
        for group in outstanding(spans):
            for span in group[:MOST_DOCUMENTS]:
                names = ("start", "length", "words", "doc_id", "doc_start", "doc_length")
                listed.append({**own, **{name: getattr(span, name) for name in names}})
    metrics = [{"metric": name, "value": value} for name, value in sorted(memorised_metrics(covered, settings).items())]
    work.counts["rows"] = write_table(work.out / MEMORISED_FILE, MEMORISED, covered)
    work.counts["spans"] = write_table(work.out / SPANS_FILE, MEMORISED_SPANS, listed)
    write_table(work.out / METRICS_FILE, METRICS, metrics)
    return sha256_json([covered, listed])


def memorised_metrics(covered: list[dict[str, Any]], settings: MemorisedSettings) -> dict[str, float]:
    """Return the metrics of a generation.

    Returns:
        `completions/memorised_share`, the share of completions with a span of at least `reproduced_words`;
        `completions/memorised_chars`, the share of all characters in spans of at least `min_words`; and
        `completions/longest_memorised`, in words. All are 0 without completions.
    """
    n_chars = sum(row["n_chars"] for row in covered)
    reproducing = sum(row["longest"] >= settings.reproduced_words for row in covered)
    return {
        "completions/memorised_share": reproducing / max(1, len(covered)),
        "completions/memorised_chars": sum(row["covered_chars"] for row in covered) / max(1, n_chars),
        "completions/longest_memorised": float(max((row["longest"] for row in covered), default=0)),
    }


def explain_text(home: Home, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: The corpus has no dataset.
    """
    with Machine() as machine:
        run = Run(home, machine, corpus)
        datasets = read_state(run.store, corpus).get("dataset")
        if not datasets:
            raise UserError(
                f"corpus {corpus!r} has no dataset yet, and so no training text: run `sheepfold prepare SOURCE` or "
                "`run` first"
            )
        return {"text": text, "memorised": memorised_spans(run, text, datasets, min_words)}


def explain_memorised(home: Home, found: Mapping[str, Any], min_words: int) -> dict[str, Any]:
    """Return the spans that a completion, as returned by `why.explain`, shares with the training text of its model."""
    with Machine() as machine:
        run = Run(home, machine)
        made = run.store.find(*found["artifact"].split("/"))
        datasets = datasets_of(run.store, made.ref) if made is not None else []
        if not datasets:
            trained = made is not None and any(one.stage == "dataset" for _, one in ancestors(run.store, made.ref))
            return {"memorised": None, "memorised_unknown": DATASET_GONE if trained else FROM_ELSEWHERE}
        return {"memorised": memorised_spans(run, found["completion"]["text"], datasets, min_words)}


def memorised_spans(run: Run, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    """Return the longest spans that a text shares with training documents, each with its documents.

    Args:
        datasets: Datasets of the model's trainings; their texts are indexed on first use.
        min_words: Minimum length of a span.
    """
    texts = training_texts(run.store, datasets)
    (spans,) = _spans_in(run.store, [text], texts, trace_indexes(run, texts), min_words)
    groups = outstanding(spans)
    shown = groups[:SHOWN_SPANS]
    doc_ids = {one.doc_id for group in shown for one in group[:SHOWN_DOCUMENTS]}
    sources, pairs = sources_of(run.store, datasets, texts, doc_ids), pairs_of(run.store, datasets, doc_ids)
    places = ("doc_id", "doc_start", "doc_length", "before", "passage", "after")

    def place(span: SharedSpan) -> dict[str, Any]:
        source = sources[span.doc_id]
        told = {name: value for name, value in source.items() if name != "segment"}
        spot = spot_on_page(run.store, source["segment"], span.doc_id, span.passage) if source["kind"] in PRINT else {}
        end = span.doc_start + span.doc_length
        own = [
            pair
            for pair in pairs[span.doc_id]
            if pair["start"] < end and span.doc_start < pair["start"] + pair["length"]
        ]
        return {**told, **spot, **{name: getattr(span, name) for name in places}, **({"pairs": own} if own else {})}

    return {
        "characters": len(text),
        "covered": covered_chars(spans) / max(1, len(text)),
        "spans": [
            {
                "words": group[0].words,
                "start": group[0].start,
                "text": text[group[0].start : group[0].start + group[0].length],
                "documents": len({span.doc_id for span in group}),
                "found_in": [place(span) for span in group[:SHOWN_DOCUMENTS] if span.doc_id in sources],
            }
            for group in shown
        ],
        "more_spans": len(groups) - len(shown),
    }


# spans


@dataclass(frozen=True)
class SharedSpan:
    """A longest common span of words of a text and a document; positions are in characters.

    Attributes:
        start, length: Position in the text.
        words: Number of its words.
        doc_id: Id of the document.
        doc_start, doc_length: Position in the document; white space and punctuation may differ.
        before, passage, after: The span in the document, with the text before and after it.
    """

    start: int
    length: int
    words: int
    doc_id: str
    doc_start: int
    doc_length: int
    before: str
    passage: str
    after: str

    @property
    def place(self) -> tuple[int, int]:
        """Return start and end in the text."""
        return self.start, self.start + self.length


def _spans_in(
    store: Store, texts: Sequence[str], trained: RefSet, indexes: RefSet, min_words: int
) -> list[list[SharedSpan]]:
    pairs = zip(indexes.refs, trained.refs, strict=True)
    segments = [TracedSegment(store.folder(index), store.folder(documents)) for index, documents in pairs]
    return shared_spans(texts, segments, trained.live or (), min_words)


def shared_spans(
    texts: Sequence[str],
    segments: Sequence[TracedSegment],
    live: Sequence[Collection[str]],
    min_words: int = FOUND_WORDS,
) -> list[list[SharedSpan]]:
    """Find spans of texts that documents contain.

    Args:
        live: For each segment, the ids of the documents to search.
        min_words: Minimum length of a span; shorter ones than `FOUND_WORDS` are not all found.

    Returns:
        For each text its spans, the longest first; a span in several documents is listed for each.
    """
    words = [word_hashes(text) for text in texts]
    found: list[set[SharedSpan]] = [set() for _ in texts]
    for segment, wanted in zip(segments, live, strict=True):
        counting = np.array([doc_id in wanted for doc_id in segment.doc_ids], bool)
        stretches: dict[str, list[_Stretch]] = defaultdict(list)
        for number, (hashes, _, _) in enumerate(words):
            for document, query, word in _candidates(segment, hashes, counting, min_words):
                stretches[segment.doc_ids[document]].append((number, query, word))
        doc_ids = read_columns(segment.texts, ["doc_id"])["doc_id"] if stretches else []
        places = [place for place, doc_id in enumerate(doc_ids) if doc_id in stretches]
        for place, text in read_places(segment.texts, "text", places).items():
            for number, span in _verified(doc_ids[place], text, words, stretches[doc_ids[place]], min_words):
                found[number].add(span)
    return [sorted(spans, key=lambda span: (-span.words, span.start, span.doc_id, span.doc_start)) for spans in found]


def outstanding(spans: Sequence[SharedSpan]) -> list[list[SharedSpan]]:
    """Return the spans of a text without those within a longer one, grouped by position."""
    groups: dict[tuple[int, int], list[SharedSpan]] = defaultdict(list)
    for span in spans:
        groups[span.place].append(span)
    reached = 0
    for start, end in sorted(groups, key=lambda place: (place[0], -place[1])):
        if end <= reached:  # within an earlier one
            del groups[start, end]
        reached = max(reached, end)
    return list(groups.values())


def covered_chars(spans: Sequence[SharedSpan]) -> int:
    """Return the number of characters of the text in any of its spans."""
    covered = reached = 0
    for start, end in sorted(span.place for span in spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _candidates(segment: TracedSegment, words: U64, counting: np.ndarray, min_words: int) -> Iterator[_Stretch]:
    """Yield row of the document, first word in the text and in the document of each candidate to verify."""
    for begin in range(0, len(words), BLOCK_WORDS):
        first, reach = _stretches(segment.find(words[begin : begin + BLOCK_WORDS + ANCHOR_WORDS - 1], counting))
        # a candidate may extend on both sides up to a word before it would contain the next anchor
        worth = reach + ANCHOR_WORDS + 2 * (STRIDE - 1) >= min_words
        if len(words) > BLOCK_WORDS:  # one at the edge of the block may be longer
            worth |= (first[:, 1] < STRIDE) | (first[:, 1] + reach >= BLOCK_WORDS - STRIDE)
        covered = np.zeros(BLOCK_WORDS + ANCHOR_WORDS, bool)
        taken = 0
        for place in sorted(np.flatnonzero(worth).tolist(), key=lambda place: -reach[place]):
            row, query, word = first[place].tolist()
            own = slice(query, query + int(reach[place]) + ANCHOR_WORDS)
            if taken < MOST_STRETCHES or not covered[own].all():
                covered[own] = True
                taken += 1
                yield row, begin + query, word


def _stretches(hits: I64) -> tuple[I64, I64]:
    """Join consecutive hits in one document into candidates.

    Returns:
        (n, 3) the first hit of each candidate, and (n,) the number of words from it to the last hit.
    """
    document, query, word = hits.T
    hits = hits[np.lexsort((query, word - query, document))]
    document, query, word = hits.T
    begins = np.ones(len(hits), bool)
    begins[1:] = (np.diff(document) != 0) | (np.diff(word - query) != 0) | (np.diff(query) > STRIDE)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(hits))[: len(first)] - 1
    return hits[first], query[last] - query[first]


def _verified(
    doc_id: str, text: str, words: Sequence[_Words], stretches: Sequence[_Stretch], min_words: int
) -> Iterator[tuple[int, SharedSpan]]:
    """Compare candidates with the words of the document; yield spans with the index of their text."""
    theirs = word_hashes(text)
    for number, query, word in stretches:
        ours = words[number]
        back, ahead = _agreement(ours[0], theirs[0], query, word)
        if not ahead or back + ahead < min_words:  # none ahead: a collision of hashes
            continue
        start, length = _chars(ours, query - back, back + ahead)
        doc_start, doc_length = _chars(theirs, word - back, back + ahead)
        end = doc_start + doc_length
        span = SharedSpan(
            start=start,
            length=length,
            words=back + ahead,
            doc_id=doc_id,
            doc_start=doc_start,
            doc_length=doc_length,
            before=text[max(0, doc_start - AROUND) : doc_start],
            passage=text[doc_start:end],
            after=text[end : end + AROUND],
        )
        yield number, span


def _agreement(ours: U64, theirs: U64, query: int, word: int) -> tuple[int, int]:
    """Return the numbers of equal words before two positions, and from them on."""
    n = min(len(ours) - query, len(theirs) - word)
    differ = np.flatnonzero(ours[query : query + n] != theirs[word : word + n])
    ahead = int(differ[0]) if len(differ) else n
    n = min(query, word)
    differ = np.flatnonzero(ours[query - n : query] != theirs[word - n : word])
    return n - 1 - int(differ[-1]) if len(differ) else n, ahead


def _chars(words: _Words, first: int, n: int) -> tuple[int, int]:
    """Return start and length in characters of some words."""
    _, starts, ends = words
    start = int(starts[first])
    return start, int(ends[first + n - 1]) - start
