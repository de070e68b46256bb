"""Limits of the gates; `tasks.evaluation.gates` defines what each gate measures."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option


@dataclass(frozen=True, config=STRICT)
class GateSettings:
    """Requirements that a model must meet before promotion to champion.

    The first three concern the corpus it was trained on, and hold for the first model as well. Their defaults are wide:
    they stop what has gone wrong, not what is merely untidy.
    """

    max_rejected_share: float = option(
        0.5, "Largest share of refused and failed files among the files that were read.", ge=0, le=1
    )
    max_duplicate_share: float = option(
        0.9, "Largest share of exact and near-duplicates among the files with a document.", ge=0, le=1
    )
    min_ocr_confidence: float = option(0.5, "Least mean confidence of the pages that were read by OCR.", ge=0, le=1)
    rule: Literal["better", "clearly_better", "not_worse"] = option(
        "better",
        "Required bits per byte on the evaluation set against the champion's: `better` (a tie within the 95 % "
        "interval goes to the lower figure), `clearly_better` (the interval of the difference excludes 0) or "
        "`not_worse` (the champion stays only if it is clearly better).",
    )
    max_slice_loss: float = option(
        0.05,
        "Largest significant loss on a slice of the evaluation set, relative to the champion's bits per byte there.",
        ge=0,
    )
    slice_documents: int = option(8, "Ignore slices of fewer documents.", ge=2)
    max_size_mb: float = option(0.0, "Largest size of the weights in megabytes (10**6 bytes); 0 sets no limit.", ge=0)
    min_tokens_per_second: float = option(0.0, "Least speed of the evaluation on its machine; 0 sets no limit.", ge=0)
