"""Limits of the gates; what each gate measures is said in `tasks.gates.definitions`."""

from __future__ import annotations

from dataclasses import dataclass

RULES = ("better", "clearly_better", "not_worse")
_SHARES = ("max_rejected_share", "max_duplicate_share", "min_ocr_confidence")


@dataclass(frozen=True)
class GateSettings:
    """What a model has to pass before it may become champion.

    The first three speak of the corpus that it was trained on, and hold for the first model as well. Those of the
    corpus are wide, so that they hold back what has gone wrong, not what is merely untidy.

    Attributes:
        max_rejected_share: of the files that were looked into, 0 to 1; those refused and those that failed count.
        max_duplicate_share: of the files with a document, 0 to 1; the same bytes and nearly the same text count.
        min_ocr_confidence: mean over the pages that were read by OCR, 0 to 1.
        rule: what bits per byte have to be, on the documents of the evaluation set: `better` than the champion's;
            `clearly_better`, so that the 95 % interval of the difference leaves out 0; or `not_worse`, where the
            champion gives way unless it is clearly better. With `better`, a tie within the interval goes to the model
            with fewer bits, and to the champion where both have as many.
        max_slice_loss: by how much a slice of the evaluation set may be clearly worse than under the champion, as a
            share of the champion's bits per byte there.
        slice_documents: slices of fewer documents do not count; their figures say little.
        max_size_mb: of the weights, in megabytes (10**6 bytes); 0 sets no limit.
        min_tokens_per_second: that the evaluation read, on the machine that did it; 0 sets no limit.
    """

    max_rejected_share: float = 0.5
    max_duplicate_share: float = 0.9
    min_ocr_confidence: float = 0.5
    rule: str = "better"
    max_slice_loss: float = 0.05
    slice_documents: int = 8
    max_size_mb: float = 0.0
    min_tokens_per_second: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"gates.rule is {self.rule!r}, expected {', '.join(RULES[:-1])} or {RULES[-1]}")
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"gates.{name} is {getattr(self, name)}, expected a share from 0 to 1")
        for name in ("max_slice_loss", "max_size_mb", "min_tokens_per_second"):
            if getattr(self, name) < 0:
                raise ValueError(f"gates.{name} is {getattr(self, name)}, expected 0 or more")
        if self.slice_documents < 2:
            raise ValueError(
                f"gates.slice_documents is {self.slice_documents}, expected 2 or more: one document says nothing of "
                "others"
            )
