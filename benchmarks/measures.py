"""Measures and policy on English text of 5 kB: documents per second on one core.

The text is that of the manuals in the development corpus if they are available, else drawn from a fixed list of words
with the frequencies of English; both are the same in every run.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from storage.schemas import MEASURES
from tasks.curate.measure import measure_documents
from tasks.curate.policy import PolicySettings, refusal

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "documents"
MANUALS = ("R-intro.pdf", "R-exts.pdf", "memman.pdf", "beameruserguide.pdf")
DOCUMENT_CHARS = 5_000
BATCH = 256
ROUNDS = 5

# consonants and vowels of the fixed list of words
_ONSETS = ["b", "br", "c", "ch", "d", "f", "g", "h", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "tr", "w", "th"]
_RHYMES = ["a", "ain", "and", "ar", "e", "ed", "en", "er", "ing", "ion", "it", "o", "on", "ore", "ound", "y"]
_COMMON = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "is",
    "was",
    "for",
    "it",
    "with",
    "as",
    "be",
    "have",
    "on",
    "not",
    "by",
]


def documents_per_second(n: int = 512) -> float:
    """Return documents per second on one core, the median of five rounds.

    Args:
        n: documents per round.
    """
    rows = english_documents(n)
    settings = PolicySettings(preset="web")
    _judge(rows[:8], settings)  # load tables and the language model before the measurement
    return statistics.median(n / _judge(rows, settings) for _ in range(ROUNDS))


def _judge(rows: list[dict[str, Any]], settings: PolicySettings) -> float:
    """Return the seconds to measure documents and to apply a policy."""
    started = time.process_time()
    measured = [row for first in range(0, len(rows), BATCH) for row in measure_documents(rows[first : first + BATCH])]
    table = pa.Table.from_pylist(measured, schema=pa.schema(field for field in MEASURES if field.name != "digest"))
    scored = table
    for name, kind in (("classifier_score", pa.float64()), ("error_rate", pa.float64()), ("date", pa.string())):
        scored = scored.append_column(name, pa.nulls(len(table), kind))
    duckdb.sql(f"select {refusal(settings, [])} from scored").fetchall()
    return time.process_time() - started


def english_documents(n: int) -> list[dict[str, Any]]:
    """Return `n` different documents of 5,000 characters."""
    text = _manuals() or _drawn_text(60 * DOCUMENT_CHARS)
    last = len(text) - DOCUMENT_CHARS
    starts = [(number * DOCUMENT_CHARS) % last + number * DOCUMENT_CHARS // last for number in range(n)]
    return [
        {
            "doc_id": f"{number:064x}",
            "kind": "pdf",
            "title": None,
            "programming_language": None,
            "text": text[start : start + DOCUMENT_CHARS],
        }
        for number, start in enumerate(starts)
    ]


def _manuals() -> str:
    """Return the text of the manuals; empty if they are not available."""
    import pypdfium2

    parts = []
    for path in (CORPUS / name for name in MANUALS):
        if not path.is_file():
            return ""
        document = pypdfium2.PdfDocument(path)
        for page in document:
            parts.append(page.get_textpage().get_text_range().replace("\r\n", "\n"))
            page.close()
        document.close()
    return "\n\n".join(parts)


def _drawn_text(n_chars: int) -> str:
    source = random.Random(0)
    rare = [source.choice(_ONSETS) + source.choice(_RHYMES) + source.choice(["", *_RHYMES]) for _ in range(4_000)]
    weights = [1 / rank for rank in range(1, len(rare) + 1)]
    lines: list[str] = []
    size = 0
    while size < n_chars:
        words = [*source.choices(_COMMON, k=6), *source.choices(rare, weights, k=7)]
        source.shuffle(words)
        lines.append(
            " ".join(words).capitalize() + ("." if len(lines) % 3 else ",") + ("\n" if len(lines) % 9 == 8 else "")
        )
        size += len(lines[-1]) + 1
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{documents_per_second():.0f} documents/s on one core")
