"""The figures of a dataset report, as plain data: what `queries`, `artefacts` and `vocabulary` find, and pages show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Slice(NamedTuple):
    """Documents that have something in common.

    Attributes:
        n_bytes: of the text that was encoded.
        lost_bytes: of these, how many no id gives back.
        held_out: tokens of those that are held out for validation.
    """

    name: str
    documents: int
    tokens: int
    n_bytes: int
    lost_bytes: int
    held_out: int

    @property
    def bytes_per_token(self) -> float | None:
        """How much text a token stands for."""
        return self.n_bytes / self.tokens if self.tokens else None


@dataclass(frozen=True)
class Histogram:
    """In how many documents a value falls where.

    Attributes:
        edges: of the bins, one more than there are bins.
        train, validation: documents in each bin.
        log: whether the bins grow by a factor.
        median: of all values; None where there are none.
    """

    name: str
    edges: tuple[float, ...]
    train: tuple[int, ...]
    validation: tuple[int, ...]
    log: bool
    median: float | None


@dataclass(frozen=True)
class Lengths:
    """How long documents are, and how much text their tokens stand for.

    Attributes:
        longest: tokens of the longest document.
        longest_train: tokens of the longest one that is trained on.
        longer: documents that do not fit one sequence.
    """

    tokens: Histogram
    bytes_per_token: Histogram
    longest: int
    longest_train: int
    longer: int


@dataclass(frozen=True)
class Account:
    """What became of the ids of one side of the split, in input places of its sequences.

    Attributes:
        ids: of all its documents.
        kept: different ids that are inputs.
        repeated: further times that they are, where chunks overlap.
        padded: places without an id.
        cut: ids that are in no sequence.
        labels: places that have something to predict.
    """

    split: str
    documents: int
    ids: int
    n_bytes: int
    sequences: int
    kept: int
    repeated: int
    padded: int
    cut: int
    labels: int

    @property
    def places(self) -> int:
        """Input places of its sequences."""
        return self.kept + self.repeated + self.padded

    @property
    def fill(self) -> float:
        """Share of the places that hold an id."""
        return (self.kept + self.repeated) / self.places if self.places else 0.0


class Check(NamedTuple):
    """Two numbers that must be equal.

    Attributes:
        split: the side they are of.
        words: what is compared, with an equals sign between.
        found: the numbers, in this order.
    """

    split: str
    words: str
    found: tuple[int, int]

    @property
    def holds(self) -> bool:
        """Whether they are."""
        return self.found[0] == self.found[1]


class MixedGroup(NamedTuple):
    """A group of training documents in the mix.

    Attributes:
        sequences: of its documents; 0 where the mix leaves it out.
        reads: of its sequences in one epoch.
        tokens: that its sequences predict.
        asked: its share of an epoch's tokens as the settings say it; None where they do not.
        share: its share of an epoch's tokens as it came out.
    """

    name: str
    documents: int
    sequences: int
    reads: int
    tokens: int
    asked: float | None
    share: float

    @property
    def passes(self) -> float:
        """How often it is read in one epoch."""
        return self.reads / self.sequences if self.sequences else 0.0


@dataclass(frozen=True)
class Packed:
    """The sequences of a dataset.

    Attributes:
        stride: ids from one chunk's start to the next.
        accounts: of training and validation.
        indexed: input ids and sequences of each side as the index has them.
        mixed: whether the settings ask for a mix; without one there is one group.
    """

    packing: str
    seq_len: int
    stride: int
    drop_last: bool
    accounts: list[Account]
    indexed: dict[str, tuple[int, int]]
    groups: list[MixedGroup]
    mixed: bool
    notes: list[str]


class Engine(NamedTuple):
    """What encoded some of the segments, or fitted the tokeniser, and why it."""

    name: str
    reason: str
    segments: int


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokeniser of a dataset.

    Attributes:
        why: why this kind and size, in words.
        special: names of the special ids it has, by id.
        bos, eos: whether documents begin and end with one.
        trainer: what fitted it; None where nothing says so.
    """

    kind: str
    vocab_size: int
    why: str
    fingerprint: str
    special: dict[int, str]
    bos: bool
    eos: bool
    engines: list[Engine]
    trainer: Engine | None = None


@dataclass(frozen=True)
class Token:
    """One entry of a vocabulary.

    Attributes:
        text: as a person can see it.
        code: its bytes in hexadecimal, the first of them; empty for special ids.
        n_bytes: how many it has.
        count: how often the training split predicts it.
    """

    index: int
    text: str
    code: str
    n_bytes: int
    count: int


@dataclass(frozen=True)
class Vocabulary:
    """How a vocabulary is used by the training split.

    Attributes:
        size: ids, special ones included.
        spelled: ids that stand for text.
        predicted: occurrences of all ids as labels.
        unknown: occurrences of the unknown id.
        unused: ids that stand for text and never occur, the first of them.
        n_unused: how many there are.
        unused_merges: share that never occurs of the ids that stand for more than a byte.
        rare: ids that occur, but fewer times than `RARE`.
        covering: how many of the most frequent ids make up which share of all occurrences.
    """

    size: int
    spelled: int
    predicted: int
    unknown: int
    frequent: list[Token]
    longest: list[Token]
    unused: list[Token]
    n_unused: int
    unused_merges: float
    rare: int
    covering: list[tuple[float, int]]


@dataclass(frozen=True)
class Piece:
    """A token in its place in a text."""

    index: int
    text: str
    code: str
    special: bool


@dataclass(frozen=True)
class Sample:
    """The beginning of a document, cut into tokens."""

    kind: str
    path: str
    tokens: int
    pieces: list[Piece]


@dataclass(frozen=True)
class DatasetFigures:
    """All that the report of a dataset shows.

    Attributes:
        not_encoded: documents that the corpus uses and this dataset does not know yet.
        licences: by the licence that was found.
        redactions: spans of personal data that were replaced, and the documents they stood in.
    """

    total: Slice
    splits: list[Slice]
    kinds: list[Slice]
    sources: list[Slice]
    languages: list[Slice]
    programming_languages: list[Slice]
    licences: list[Slice]
    not_encoded: int
    redactions: tuple[int, int]
    lengths: Lengths
    packed: Packed
    tokenizer: TokenizerFacts
    vocabulary: Vocabulary
    samples: list[Sample] = field(default_factory=list)

    def split(self, name: str) -> Slice:
        """One side of the split; an empty one where it has no document."""
        return next((item for item in self.splits if item.name == name), Slice(name, 0, 0, 0, 0, 0))

    @property
    def checks(self) -> list[Check]:
        """Every sum that must come out: documents, sequences and the index have to agree."""
        found = []
        for account in self.packed.accounts:
            name = account.split
            ids, sequences = self.packed.indexed.get(name, (0, 0))
            found += [
                Check(name, "places of all sequences = kept + repeated + padded",
                      (account.sequences * self.packed.seq_len, account.places)),
                Check(name, "ids of the documents = kept + cut", (account.ids, account.kept + account.cut)),
                Check(name, "ids of the documents = tokens counted", (account.ids, self.split(name).tokens)),
                Check(name, "kept + repeated = ids in the index", (account.kept + account.repeated, ids)),
                Check(name, "sequences = sequences in the index", (account.sequences, sequences)),
            ]  # fmt: skip
        return found
