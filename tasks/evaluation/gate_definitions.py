"""The gates, as a table: what each measures, what it is held against, and how that is said.

A gate looks at facts and settings and at nothing else: the same model beside the same champion gets the same verdict. A
model that fails any gate does not become champion; one that passes all of them does. What cannot be measured (no
champion to compare with, no page read by OCR) holds nobody back; a champion whose figures do not compare does, for
nobody knows which of the two is better.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasks.evaluation.bootstrap import Difference
from tasks.evaluation.compare import Comparison, SlicePair
from tasks.evaluation.gate_facts import Facts
from tasks.evaluation.gate_settings import GateSettings
from tasks.evaluation.gate_verdicts import Outcome, Verdict


class Measured(NamedTuple):
    """A number, and what it says."""

    number: float
    sentence: str


@dataclass(frozen=True)
class Gate:
    """One gate.

    Attributes:
        name: by which its verdict is found, in tags too.
        title: what it is about.
        measure: the number with its sentence; a sentence alone where there is nothing to measure.
        limit: what the number is held against; None where there is no limit.
        passes: whether a number and a limit let a model through; NaN never does.
    """

    name: str
    title: str
    measure: Callable[[Facts, GateSettings], Measured | str]
    limit: Callable[[GateSettings], float | None]
    passes: Callable[[float, float], bool]

    def judge(self, facts: Facts, settings: GateSettings) -> Verdict:
        """The verdict on a model."""
        found, limit = self.measure(facts, settings), self.limit(settings)
        if isinstance(found, str):
            return Verdict(self.name, "skipped", None, limit, found)
        if limit is None:
            return Verdict(self.name, "skipped", found.number, None, f"{found.sentence}; no limit is set")
        outcome: Outcome = "passed" if self.passes(found.number, limit) else "failed"
        return Verdict(self.name, outcome, found.number, limit, found.sentence)


def judge(facts: Facts, settings: GateSettings) -> list[Verdict]:
    """The verdicts of all gates, in their order."""
    return [gate.judge(facts, settings) for gate in GATES]


def _rejected(facts: Facts, settings: GateSettings) -> Measured | str:
    corpus = facts.corpus
    if not corpus.files:
        return "no files are known of the corpus"
    share = corpus.rejected / corpus.files
    return Measured(
        share,
        f"{corpus.rejected:,} of {corpus.files:,} files were refused or failed ({share:.1%}, at most "
        f"{settings.max_rejected_share:.1%})",
    )


def _repeated(facts: Facts, settings: GateSettings) -> Measured | str:
    corpus = facts.corpus
    if not corpus.documents:
        return "no documents are known of the corpus"
    share = corpus.repeated / corpus.documents
    return Measured(
        share,
        f"{corpus.repeated:,} of {corpus.documents:,} documents repeat others ({share:.1%}, at most "
        f"{settings.max_duplicate_share:.1%})",
    )


def _ocr(facts: Facts, settings: GateSettings) -> Measured | str:
    confidence = facts.corpus.ocr_confidence
    if confidence is None:
        return "no page of the documents in use was read by OCR"
    return Measured(
        confidence,
        f"OCR was sure of its words to {confidence:.1%} on {facts.corpus.ocr_pages:,.0f} pages (at least "
        f"{settings.min_ocr_confidence:.1%})",
    )


def _leaks(facts: Facts, _: GateSettings) -> Measured | str:
    if facts.leaks is None:
        return "nobody looked for text of the evaluation set in the training text"
    if not facts.leaks:
        return Measured(0, "no document of the evaluation set stands in the training text")
    return Measured(facts.leaks, f"{facts.leaks:,} documents stand on both sides, in training and evaluation set")


def _bits(facts: Facts, settings: GateSettings) -> Measured | str:
    if facts.champion_knew:
        return Measured(
            math.nan,
            "the champion was trained on documents of this evaluation set, so the two cannot be compared "
            f"({facts.bits_per_byte:.4f} bits per byte); `sheepfold rollback --to VERSION` makes this one champion all "
            "the same",
        )
    if facts.comparison is None:
        return f"there is no champion to compare with ({facts.bits_per_byte:.4f} bits per byte)"
    found = facts.comparison
    own, other = found.metrics["val/bits_per_byte"]
    fewer = "fewer" if found.difference.value < 0 else "not fewer"
    words = f"{own:.4f} bits per byte are {fewer} than the champion's {other:.4f} ({_reach(found.difference)})"
    if settings.rule == "clearly_better" and not found.difference.high < 0 and found.difference.value < 0:
        words += ", but not clearly"
    return Measured(_deciding(found.difference, settings.rule), words)


def _deciding(difference: Difference, rule: str) -> float:
    """The number that has to be below 0; of one document, whose interval is endless, the difference itself."""
    if rule == "clearly_better":
        return difference.high
    if rule == "not_worse" and math.isfinite(difference.low):
        return difference.low
    return difference.value


def _reach(difference: Difference) -> str:
    n = f"{difference.documents:,} document{'' if difference.documents == 1 else 's'}"
    if not math.isfinite(difference.high - difference.low):
        return f"on {n}, which says nothing of others"
    return f"95 % interval of the difference {difference.low:+.4f} to {difference.high:+.4f} on {n}"


def _slices(facts: Facts, settings: GateSettings) -> Measured | str:
    if facts.champion_knew:
        return "the champion was trained on documents of this evaluation set, so no slice was compared"
    if facts.comparison is None:
        return "there is no champion to compare with"
    counted = _counted(facts.comparison, settings.slice_documents)
    if not counted:
        return f"no slice has {settings.slice_documents} documents or more"
    worst = max(counted, key=clear_loss)
    loss = clear_loss(worst)
    if not loss:
        return Measured(0, f"none of {len(counted)} slices is clearly worse than under the champion")
    return Measured(
        loss,
        f"{worst.dimension} {worst.value or '(none)'} is {loss:.1%} worse than under the champion, "
        f"{worst.a.bits_per_byte:.4f} to {worst.b.bits_per_byte:.4f} bits per byte (at most "
        f"{settings.max_slice_loss:.1%})",
    )


def _counted(comparison: Comparison, documents: int) -> Sequence[SlicePair]:
    return [item for item in comparison.slices if item.a.documents >= documents]


def clear_loss(item: SlicePair) -> float:
    """By how much a slice is worse, as a share of the champion's bits per byte; 0 where that is not clear."""
    return item.difference.value / item.b.bits_per_byte if item.difference.low > 0 else 0.0


def _size(facts: Facts, _: GateSettings) -> Measured:
    return Measured(facts.size / 1e6, f"the weights take {facts.size / 1e6:,.1f} MB")


def _speed(facts: Facts, settings: GateSettings) -> Measured | str:
    if not settings.min_tokens_per_second:
        return "no limit is set"  # and no number: it is never the same twice, and equal inputs shall give equal bits
    if facts.tokens_per_second is None:
        return "the evaluation took no measurable time"
    return Measured(facts.tokens_per_second, f"the evaluation read {facts.tokens_per_second:,.0f} tokens a second")


GATES = (
    Gate("rejected_share", "Files that could not be read", _rejected, lambda s: s.max_rejected_share, operator.le),
    Gate("duplicate_share", "Documents that repeat others", _repeated, lambda s: s.max_duplicate_share, operator.le),
    Gate("ocr_confidence", "Confidence of OCR", _ocr, lambda s: s.min_ocr_confidence, operator.ge),
    Gate("leaked_documents", "Evaluation text in training text", _leaks, lambda _: 0.0, operator.le),
    Gate("bits_per_byte", "Bits per byte beside the champion", _bits, lambda _: 0.0, operator.lt),
    Gate("worst_slice", "The slice that lost most", _slices, lambda s: s.max_slice_loss, operator.le),
    Gate("size_mb", "Size of the weights", _size, lambda s: s.max_size_mb or None, operator.le),
    Gate("tokens_per_second", "Speed", _speed, lambda s: s.min_tokens_per_second or None, operator.ge),
)
