"""What the codes of reasons mean, how grave each is, and what a person can do about it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Weight = Literal["lost", "check", "by design"]


class Reason(NamedTuple):
    """One code.

    Attributes:
        weight: `lost`: text is missing that can be had; `check`: somebody should look; `by design`: as it should be.
        meaning: what happened, for people, after "n files: ".
        remedy: what to do; empty where there is nothing to do.
    """

    weight: Weight
    meaning: str
    remedy: str = ""


_AGAIN = "Run the same command with --retry-failed on a quieter machine; if it fails again, look at the file."

REASONS = {
    # files
    "empty": Reason("by design", "empty files"),
    "unsupported": Reason("by design", "files of a type that is not read"),
    "not_walked": Reason("by design", "not looked into: no regular files, excluded, or unreachable"),
    "forgotten": Reason("by design", "asked to be forgotten"),
    "duplicate_bytes": Reason("by design", "the same bytes as another file"),
    "encrypted": Reason(
        "lost", "encrypted", "Write their passwords into a file, name it by the setting passwords.file and run again."
    ),
    "no_ocr_engine": Reason(
        "lost", "scans without an OCR engine", "Install the language data of Tesseract and run again."
    ),
    "timeout": Reason("lost", "stopped by the deadline", _AGAIN),
    "memory": Reason("lost", "stopped by the memory limit", _AGAIN),
    "crashed": Reason("lost", "crashed the extractor", _AGAIN),
    "changed": Reason("lost", "changed or vanished while they were read", "Run the same command again."),
    "unreadable": Reason("lost", "could not be read from disk", "Mend the permissions or the disk and run again."),
    "too_large": Reason(
        "lost", "larger than allowed", "Raise extract.max_file_bytes or extract.archive_max_bytes if they are wanted."
    ),
    "too_many": Reason("lost", "with too many members", "Raise extract.archive_max_members if they are wanted."),
    "too_deep": Reason("lost", "archives nested too deep", "Raise extract.archive_depth if they are wanted."),
    "corrupt": Reason("check", "damaged", "Open them in their own program; get another copy if that fails too."),
    "no_text": Reason("check", "nothing to read on any page", "Look whether they show text that OCR should have read."),
    "unsafe_path": Reason("check", "a name that climbs out of its archive", "Ask where the archive is from."),
    "no_column": Reason(
        "lost", "tables without a column of text", "Name the column in extract.table_columns and run again."
    ),
    # documents
    "duplicate_text": Reason("by design", "the same text as another document"),
    "near_duplicate": Reason("by design", "nearly the same text as another document"),
    "evaluation_set": Reason("by design", "mostly text of an external evaluation set"),
    "contained_in_training": Reason("by design", "held-out text that stands in training text as well"),
    "contained_in_validation": Reason("by design", "training text that stands in held-out text as well"),
    "language": Reason("by design", "in a language that is not wanted"),
    "licence": Reason("by design", "under a licence that is not wanted"),
    "low_score": Reason("by design", "scored low by the classifier"),
}

# Which groups of reasons for dropping a document there are; all other codes are thresholds of the policy.
GROUPS = {
    "duplicate_text": "duplicates",
    "near_duplicate": "duplicates",
    "evaluation_set": "evaluation set",
    "contained_in_training": "containment",
    "contained_in_validation": "containment",
}


def reason_of(code: str) -> Reason:
    """What a code means; one that is not known here says its own name."""
    return REASONS.get(code) or Reason("check", code.replace("_", " "))


def group_of(code: str) -> str:
    """Why a document was dropped, in one or two words."""
    return GROUPS.get(code, "policy")
