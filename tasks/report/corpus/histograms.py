"""Histograms of a corpus's measures: which ones, into which bins, counted in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tasks.report.corpus.figures import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.catalog import Catalog

_PER_DECADE = 4  # bins between a power of ten and the next
_BINS = 20


class Spec(NamedTuple):
    """One histogram.

    Attributes:
        measure: column of the measures.
        top: the upper end of the last bin, which takes what lies above; 0 for powers of ten.
        where: the documents it says something about.
    """

    measure: str
    title: str
    note: str
    top: float = 1.0
    where: str = "true"


_PROSE = "kind <> 'code'"

MEASURES = (
    Spec("n_chars", "Length", "characters, in powers of ten", 0),
    Spec("language_confidence", "Language confidence", "how sure the language is; prose", where=_PROSE),
    Spec("alpha_word_share", "Words with a letter", "share of words; low in tables and badly read scans", where=_PROSE),
    Spec("mean_word_length", "Length of words", "characters a word on average, from 20 on in one bar", 20, _PROSE),
    Spec("symbol_share", "Symbols", "share of characters; high in garbled text", where=_PROSE),
    Spec("terminal_line_share", "Lines that end a sentence", "share of lines; low in lists and tables", where=_PROSE),
    Spec("distinct_share", "Distinct runs of words", "share of runs of five words; low where text repeats itself"),
    Spec("compression_ratio", "Size when compressed", "share of its size that is left; low where text repeats itself"),
    Spec("duplicate_line_char_share", "Repeated lines", "share of characters that stand in repeated lines"),
    Spec("blob_share", "Encoded data", "share of characters in base64 or hexadecimal data"),
    Spec("comment_share", "Comments", "share of lines of code", where="kind = 'code'"),
)


def count_histograms(catalog: Catalog, documents: str) -> list[Histogram]:
    """Histograms over a table of documents; one without any document is left out.

    Args:
        documents: name of a table with the measures, `kind` and `kept`.
    """
    made = (_count(catalog, documents, spec) for spec in MEASURES)
    return [histogram for histogram in made if histogram.n]


def _count(catalog: Catalog, documents: str, spec: Spec) -> Histogram:
    column = spec.measure
    if spec.top:
        place = f"floor({column} * {_BINS / spec.top!r})"
    else:
        place = f"floor(log10(greatest({column}, 1)) * {_PER_DECADE})"
    rows = catalog.query(
        f"select {place}::int as bin, count(*) filter (coalesce(kept, true)) as kept, "
        f"count(*) filter (not coalesce(kept, true)) as dropped from {documents} "
        f"where {spec.where} and {column} is not null group by 1 order by 1"
    )
    (middle,) = catalog.query(
        f"select median({column})::double as value from {documents} where {spec.where} and {column} is not null"
    )
    last = _BINS - 1 if spec.top else max((row["bin"] for row in rows), default=0)
    first = 0 if spec.top else min((row["bin"] for row in rows), default=0)
    kept, dropped = [0] * (last - first + 1), [0] * (last - first + 1)
    for row in rows:
        bin_ = min(max(row["bin"], first), last) - first  # what lies outside belongs to the bins at the ends
        kept[bin_] += row["kept"]
        dropped[bin_] += row["dropped"]
    bins = range(first, last + 2)
    edges = [place * spec.top / _BINS if spec.top else 10 ** (place / _PER_DECADE) for place in bins]
    return Histogram(
        spec.measure.replace("_", "-"), spec.title, spec.note, tuple(edges), tuple(kept), tuple(dropped),
        not spec.top, middle["value"],
    )  # fmt: skip


def confidence_histogram(bins: Sequence[int]) -> Histogram:
    """The histogram of OCR's confidence from counted bins, from 0 to 1."""
    edges = tuple(place / len(bins) for place in range(len(bins) + 1))
    note = "mean confidence of a page's words"
    return Histogram("ocr-confidence", "OCR confidence", note, edges, tuple(bins), (0,) * len(bins))
