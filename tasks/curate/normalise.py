"""Normalising: the pages of one segment become one clean text per document, with its measures.

Works on each document alone, so a segment that did not change is never normalised again.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import NORMALISED
from storage.tables import read_rows, union_digest, write_table
from tasks.stage import Work, stage

PAGE_BREAK = "\n\n"
MIN_WORDS_TO_JUDGE = 100
PHRASE_WORDS = 5

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # any odd number of no pattern: in a phrase, the order of the words counts

_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": None, "\ufeff": None}
)
# control characters, lone surrogates (no UTF-8 holds them) and two code points that are no characters
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LINE_ENDS = re.compile(r"\r\n?|[\f\x85]")
_WORD = re.compile(r"\S+")
_BLANK_LINES = re.compile(r"\n{3,}")
# only a lower-case continuation is joined: "Baden-\nWürttemberg" keeps its hyphen
_HYPHENATION = re.compile(r"(?<=[^\W\d_])-\n(?=[a-zß-öø-ÿ])")


@dataclass(frozen=True)
class NormaliseSettings:
    """Settings of the stage; there are none yet that change a result."""


def normalise_text(text: str, kind: str) -> str:
    """Canonical form of a document's text.

    NFC, Unix line ends, no control characters, no spaces at line ends. Prose (not code, where such a thing may be
    meant) also loses ligatures and soft hyphens, and print (PDFs, images) the hyphenation of its lines. Normalising
    twice changes nothing.

    Args:
        kind: `pdf`, `image`, `text` or `code`.
    """
    text = _CONTROL.sub("", _LINE_ENDS.sub("\n", text))
    if kind != "code":
        text = text.translate(_LIGATURES)
    # only now: what stood between a letter and its accent is gone
    text = unicodedata.normalize("NFC", text)
    text = strip_line_ends(text)
    if kind in ("pdf", "image"):
        text = _HYPHENATION.sub("", text)
    if kind != "code":
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip("\n") if text.strip() else ""


def strip_line_ends(text: str) -> str:
    """Text without spaces, tabs and no-break spaces at the ends of its lines; linear, as no pattern for it would be."""
    return "\n".join(line.rstrip(" \t\u00a0") for line in text.split("\n"))


def letter_share(text: str) -> float:
    """Share of letters among the characters that are not white space; 0 for a text without any."""
    solid = sum(not char.isspace() for char in text)
    return round(sum(char.isalpha() for char in text) / solid, 4) if solid else 0.0


def distinct_share(text: str) -> float:
    """Share of distinct ones among a text's runs of five words; near 0 for one phrase over and over.

    A text of fewer than a hundred words counts as 1: short ones may well repeat themselves.
    """
    # 8 bytes a word: the phrases themselves would take thirty times the memory of the text
    words = np.fromiter((_word_hash(found[0]) for found in _WORD.finditer(text)), dtype=np.uint64)
    if len(words) < MIN_WORDS_TO_JUDGE:
        return 1.0
    phrases = np.zeros(len(words) - PHRASE_WORDS + 1, dtype=np.uint64)
    for place in range(PHRASE_WORDS):
        phrases *= _MULTIPLIER
        phrases += words[place : place + len(phrases)]
    phrases.sort()
    distinct = 1 + int(np.count_nonzero(phrases[1:] != phrases[:-1]))
    return round(distinct / len(phrases), 4)


@lru_cache(maxsize=2**16)
def _word_hash(word: str) -> int:
    """64 bits that stand for a word, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def document_row(record: dict[str, Any], pages: list[dict[str, Any]]) -> dict[str, Any]:
    """Row of `normalised` from a document's extraction record and its pages in order."""
    text = normalise_text(PAGE_BREAK.join(page["text"] for page in pages if page["text"]), record["kind"])
    encoded = text.encode()
    row = {
        "doc_id": record["doc_id"],
        "kind": record["kind"],
        "title": record["title"],
        "programming_language": record["programming_language"],
        "text": text,
        "text_sha256": hashlib.sha256(encoded).hexdigest(),
        "n_chars": len(text),
        "n_bytes": len(encoded),
        "n_lines": text.count("\n") + 1 if text else 0,
        "letter_share": letter_share(text),
        "distinct_share": distinct_share(text),
    }
    content = {name: value for name, value in row.items() if name not in ("text", "doc_id")}
    return {**row, "digest": sha256_json(content)}


@stage("normalise", version=1, unit="document")
def normalise(work: Work, settings: NormaliseSettings, *, segment: ArtifactRef) -> str:
    """Turn the pages of one segment into one clean text per document."""
    folder = work.folder(segment)
    records = [row for row in read_rows(folder / "extracts.parquet") if row["status"] == "ok"]
    pages: dict[str, list[dict[str, Any]]] = {}
    for page in read_rows(folder / "pages.parquet", ["doc_id", "page", "text"]):
        pages.setdefault(page["doc_id"], []).append(page)

    def rows() -> Iterator[dict[str, Any]]:
        for done, record in enumerate(sorted(records, key=lambda row: str(row["doc_id"]))):
            own = sorted(pages.get(record["doc_id"], []), key=lambda page: int(page["page"]))
            yield document_row(record, own)
            work.progress.update(done + 1, len(records), "documents")

    table = work.out / "documents.parquet"
    work.counts["rows"] = work.counts["units"] = write_table(table, NORMALISED, rows())
    return union_digest([table])
