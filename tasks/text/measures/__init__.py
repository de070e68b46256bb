"""Everything that is measured on documents, in one pass: what a policy decides by, without deciding anything.

In go documents as rows with their normalised text; out come rows of `MEASURES`. A batch of documents is laid end to end
as one array of code points, and words, hashes and counts come from array operations over all of them; what asks for
certain words looks into each text by substring searches. A document's row does not depend on the batch it came in.

Thresholds are elsewhere (`tasks.curate.policy`), so that changing one measures nothing again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.ingest.licences import detect_licence
from tasks.text.measures.batch import (
    DIGIT,
    LETTER,
    MAX_DOCUMENTS,
    SPACE,
    SYMBOL,
    UNSPACED,
    UPPER,
    Batch,
    Hashes,
    highest_between,
    make_batch,
    share,
)
from tasks.text.measures.code import blob_share, comment_share, is_generated, is_minified
from tasks.text.measures.language import UNDETERMINED, identify_language
from tasks.text.measures.private_data import find_pii
from tasks.text.measures.repetition import line_measures, phrase_measures
from tasks.text.measures.wording import STOP_WORDS, wording_measures

MEASURED_CHARS = 2**22  # of one document; all but `n_chars`, `pii` and the licence describe these
BATCH_CHARS = 2**21  # characters that are worked on at once, unless one document alone has more

Row = dict[str, Any]


def measure_documents(rows: Sequence[Row]) -> list[Row]:
    """Measure documents.

    Args:
        rows: with `doc_id`, `kind` (`pdf`, `image`, `text` or `code`), `programming_language` and `text`; other columns
            are ignored.

    Returns:
        One row for each, in order, with every column of `storage.schemas.MEASURES` but the digest.
    """
    measured: list[Row] = []
    for part in _batches(rows):
        measured += _measure(part)
    return measured


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    first, size = 0, 0
    for number, row in enumerate(rows):
        length = min(len(row["text"]), MEASURED_CHARS)
        if number > first and (size + length > BATCH_CHARS or number - first == MAX_DOCUMENTS):
            yield rows[first:number]
            first, size = number, 0
        size += length
    if first < len(rows):
        yield rows[first:]


def _measure(rows: Sequence[Row]) -> list[Row]:
    texts = [row["text"][:MEASURED_CHARS] for row in rows]
    batch = make_batch(texts)
    columns = {**_characters(batch), **_words(batch), **line_measures(batch), **phrase_measures(batch)}
    names, values = list(columns), zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        _finish(row, text, dict(zip(names, numbers, strict=True)))
        for row, text, numbers in zip(rows, texts, values, strict=True)
    ]


def _finish(row: Row, text: str, measures: Row) -> Row:
    """Add what is measured on one text alone."""
    whole = row["text"]
    lowered = whole.lower()
    measures |= wording_measures(text, lowered[:MEASURED_CHARS], measures["n_words"])
    longest = measures["longest_word"] if len(whole) == len(text) else None
    is_code = row["kind"] == "code"
    solid = len(text) - measures.pop("n_spaces")
    language, confidence = (UNDETERMINED, 0.0) if is_code else identify_language(text)
    return {
        "doc_id": row["doc_id"],
        "kind": row["kind"],
        "n_chars": len(whole),
        "measured_chars": len(text),
        **measures,
        "comment_share": comment_share(text, row["programming_language"]) if is_code else 0.0,
        "blob_share": blob_share(text, solid, measures["longest_word"], measures["digit_share"]),
        "generated": is_code and is_generated(lowered),
        "minified": is_code and is_minified(measures["mean_line_length"], measures["space_share"]),
        "language": language,
        "language_confidence": confidence,
        "licence": detect_licence(whole),
        "pii": [span.to_dict() for span in find_pii(whole, lowered, longest)],
    }


def _characters(batch: Batch) -> dict[str, np.ndarray]:
    """Shares of classes of characters; of those that are not white space, if nothing else is said."""
    counts = batch.class_counts
    letters = counts[:, LETTER] + counts[:, UPPER] + counts[:, UNSPACED]
    everything = counts.sum(axis=1)
    return {
        "n_spaces": counts[:, SPACE],
        "letter_share": share(letters, batch.solid),
        "digit_share": share(counts[:, DIGIT], batch.solid),
        "symbol_share": share(counts[:, SYMBOL], batch.solid),
        "upper_share": share(counts[:, UPPER], letters),  # of the letters
        "unspaced_share": share(counts[:, UNSPACED], batch.solid),
        "space_share": share(counts[:, SPACE], everything),  # of all characters, as the next one
        "alnum_share": share(letters + counts[:, DIGIT], everything),
    }


def _words(batch: Batch) -> dict[str, np.ndarray]:
    """Words of each document: how many, how long, with letters, and Gopher's stop words among them."""
    lettered = (
        np.maximum.reduceat(batch.classes, batch.word_starts) >= LETTER if len(batch.word_starts) else np.array([])
    )
    n_words = batch.n_words
    with_letter = np.bincount(batch.word_documents[lettered.astype(bool)], minlength=batch.n_documents)
    mean = np.divide(batch.solid, n_words, out=np.zeros(batch.n_documents), where=n_words > 0)
    return {
        "n_words": n_words,
        "mean_word_length": np.round(mean, 3),
        "longest_word": highest_between(batch.word_lengths, batch.word_bounds),
        "alpha_word_share": share(with_letter, n_words),
        "stop_words": _stop_words(batch),
    }


def _stop_words(batch: Batch) -> np.ndarray:
    """How many of the eight stop words occur in each document, in lower case."""
    wanted = _stop_word_hashes()
    short = np.flatnonzero(batch.word_lengths <= max(map(len, STOP_WORDS)))
    place = np.minimum(np.searchsorted(wanted, batch.word_hashes[short]), len(wanted) - 1)
    hit = wanted[place] == batch.word_hashes[short]
    present = np.zeros((batch.n_documents, len(wanted)), dtype=np.int64)
    present[batch.word_documents[short[hit]], place[hit]] = 1
    return present.sum(axis=1)


@lru_cache(maxsize=1)
def _stop_word_hashes() -> Hashes:
    return np.sort(make_batch([" ".join(STOP_WORDS)]).word_hashes)


def digest_of(measures: Row) -> str:
    """Digest of a document's measures: the same as `sha256_json` gives, for plain values in half the time."""
    content = {name: value for name, value in measures.items() if name not in ("doc_id", "digest")}
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()
