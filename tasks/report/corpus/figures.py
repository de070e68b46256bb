"""The figures of a corpus report, as plain data: what `queries` counts and `sections` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Fate(NamedTuple):
    """What became of some files and members: one of the `FATES`, so that all of them add up to every row."""

    name: str
    n: int
    size: int


class Outcome(NamedTuple):
    """Files or documents with one status and reason.

    Attributes:
        status: of the file; `dropped` for a document that curation refused.
        size: bytes of the files.
        path: the first of them, with its reason in words.
    """

    status: str
    code: str
    n: int
    size: int
    path: str
    reason: str


class Tally(NamedTuple):
    """How many documents (or files) are of one kind, language, licence and so on, and how many of them are kept."""

    name: str
    n: int
    kept: int


class PageKind(NamedTuple):
    """Pages that one engine read in one way."""

    method: str
    engine: str
    n: int
    errors: int
    confidence: float | None


class PageError(NamedTuple):
    """A page that could not be read, of a document that could."""

    path: str
    page: int
    error: str


class WorstPage(NamedTuple):
    """A page that OCR was unsure of.

    Attributes:
        container: the archive it lies in, or None.
        kept: whether curation kept its document; None where there was no curation.
        text: the beginning of what was read.
    """

    doc_id: str
    path: str
    container: str | None
    sha256: str | None
    media_type: str | None
    page: int
    confidence: float
    kept: bool | None
    text: str


class Cluster(NamedTuple):
    """Documents that equal or nearly equal each other, directly or through others."""

    size: int
    kept: int
    texts: int
    paths: list[str]


class Pair(NamedTuple):
    """Two documents that nearly equal each other."""

    similarity: float
    path: str
    other: str


class Archive(NamedTuple):
    """A container, and what became of its members."""

    path: str
    media_type: str
    members: int
    documents: int
    size: int


class Cut(NamedTuple):
    """Stretches of text that were left out for one reason."""

    code: str
    spans: int
    documents: int
    chars: int


class Private(NamedTuple):
    """Personal data and secrets of one kind in the documents that are kept."""

    kind: str
    spans: int
    documents: int
    redacted: bool


class Side(NamedTuple):
    """One side of the split.

    Attributes:
        size: bytes of the text that models see.
        encoded: bytes of the documents that were tokenised, and their tokens.
    """

    name: str
    documents: int
    clusters: int
    size: int
    encoded: int
    tokens: int


@dataclass(frozen=True)
class Histogram:
    """How often a value falls where.

    Attributes:
        edges: of the bins, one more than there are bins.
        kept, dropped: documents in each bin; what is not judged counts as kept.
        log: whether the bins grow by a factor.
        median: of all values; None where there are none.
    """

    name: str
    title: str
    note: str
    edges: tuple[float, ...]
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    log: bool = False
    median: float | None = None

    @property
    def n(self) -> int:
        """Number of values."""
        return sum(self.kept) + sum(self.dropped)


# In the order of the bar: what is used comes first, what was lost last.
FATES = {
    "train": "used for training",
    "validation": "held out for validation",
    "document": "read, not curated yet",
    "container": "archives and tables",
    "duplicate": "same bytes as another file",
    "dropped": "dropped by curation",
    "skipped": "not looked into",
    "rejected": "refused",
    "failed": "failed",
}


@dataclass(frozen=True)
class TokenEstimate:
    """How many tokens a corpus has, and how that is known.

    Attributes:
        basis: `counted` where every document is tokenised, `measured` where some are, `rule` where none is.
    """

    bytes_per_token: float
    basis: str

    def tokens(self, side: Side) -> int:
        """Tokens of one side of the split."""
        return side.tokens if self.basis == "counted" else round(side.size / self.bytes_per_token)


RULE_OF_THUMB = 4.0  # bytes of text in the Latin alphabet that make one token of a large vocabulary


@dataclass(frozen=True)
class Figures:
    """All that the report shows.

    Attributes:
        n_rows: files and members of containers.
        n_documents: distinct documents that were read.
        measured: documents that were measured.
        cluster_sizes: documents in clusters of more than one, and the number of such clusters.
        capped: buckets of look-alikes that were too many to be compared in full.
        preset: the policy that was applied; empty where that is not recorded.
    """

    n_rows: int
    n_members: int
    n_documents: int
    size: int
    fates: list[Fate]
    outcomes: list[Outcome]
    dropped: list[Outcome]
    media_types: list[Tally]
    kinds: list[Tally]
    languages: list[Tally]
    programming_languages: list[Tally]
    licences: list[Tally]
    pages: list[PageKind]
    page_errors: list[PageError]
    worst_pages: list[WorstPage]
    doubtful_pages: int
    histograms: list[Histogram]
    clusters: list[Cluster]
    cluster_sizes: tuple[int, int]
    pairs: list[Pair]
    n_pairs: int
    capped: int
    cuts: list[Cut]
    private: list[Private]
    archives: list[Archive]
    n_archives: int
    sides: list[Side]
    estimate: TokenEstimate
    preset: str = ""
    sources: list[Tally] = field(default_factory=list)

    def fate(self, name: str) -> int:
        """How many files and members have one fate."""
        return next((fate.n for fate in self.fates if fate.name == name), 0)

    def count(self, code: str) -> int:
        """How many files and documents have one reason."""
        return sum(item.n for item in (*self.outcomes, *self.dropped) if item.code == code)

    @property
    def kept(self) -> int:
        """Documents in use."""
        return self.fate("train") + self.fate("validation")
