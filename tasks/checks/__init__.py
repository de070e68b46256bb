"""Checks of a corpus's meaning, from documents to sequences. They believe no stage: what it noted is computed again."""

from tasks.checks.sequences import check_sequences
from tasks.checks.split import check_split
from tasks.checks.tokens import check_tokens

__all__ = ["check_sequences", "check_split", "check_tokens"]
