"""What the stages after extraction need, loaded in a process that will serve them while files are still extracted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tasks.curate.measures.language import automaton, look_in

MODULES = (
    "tasks.ingest.snapshot",
    "tasks.curate.measure",
    "tasks.curate.refine",
    "tasks.curate.curate",
    "duckdb",  # of the page at the end
    "tasks.corpus_report",
    "tasks.corpus_report.thumbnails",
)


def get_ready(cache: str, progress: Callable[[int, int], None]) -> None:
    """Load it.

    Args:
        cache: folder for what need not be unpacked again.
    """
    for module in MODULES:
        import_module(module)
    look_in(Path(cache), keep=True)
    automaton()
    progress(1, 1)
