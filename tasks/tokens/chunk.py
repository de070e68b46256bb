"""Old place of two names, until those who use them ask `tasks.tokens.packing` and `tasks.tokens.index`."""

from tasks.tokens.index import COUNTS_FILE as COUNTS_FILE
from tasks.tokens.packing import chunk_spans as chunk_spans
