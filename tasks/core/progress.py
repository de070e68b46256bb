"""Progress of a run: a live view on a terminal; else lines in the flow run's log, and a Prefect artefact in the UI.

The live view has a line for each running stage; what is printed meanwhile stands above it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task

    from tasks.core.run import StageReport

SECONDS = 15.0  # between two updates of the Prefect artefact
LOG_SECONDS = 60.0  # between two lines in a log
SLOWEST = 3  # stages named in the line of a flow

logger = logging.getLogger("sheepfold")
Listener = Callable[[float], None]


@cache
def _view() -> Progress:
    """Return the live view, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class State(ProgressColumn):
        """Units done, the note of the stage, and rate and time left unless the note has them."""

        def render(self, task: Task) -> Text:
            """Return the text of one line."""
            if not task.total:
                return Text(f"{task.elapsed or 0:.0f} s")
            state = f"{task.completed:,.0f}/{task.total:,.0f} {task.fields['note']}"
            if task.speed and not state.endswith("left"):
                state += f", {task.speed:.3g}/s, {task.time_remaining or 0:.0f} s left"
            return Text(state, no_wrap=True, overflow="ellipsis")

    return Progress(
        TextColumn("{task.description:>9}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=5)),
        State(table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )


def show(text: str) -> None:
    """Print a line on standard error, above the live view."""
    _view().console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def show_stages(name: str, stages: Iterable[StageReport], seconds: float) -> None:
    """Print on a terminal what a flow computed and what it found in the store."""
    lines = list(stages)
    computed = sorted((line for line in lines if line.computed), key=lambda line: -line.seconds)
    if not lines or not sys.stderr.isatty():
        return
    slowest = ", ".join(f"{line.stage} {line.seconds:.1f} s" for line in computed[:SLOWEST] if line.seconds >= 0.05)
    cached = f", {len(lines) - len(computed)} cached" if len(computed) < len(lines) else ""
    found = f"{len(lines)} stage{'s' * (len(lines) > 1)}{cached}, {seconds:.1f} s"
    show(f"{name:>9} {found}{f' ({slowest})' if slowest else ''}")


class TerminalHandler(logging.Handler):
    """Prints the records of a command: warnings, on a terminal also the project's own information."""

    def __init__(self) -> None:
        super().__init__(logging.INFO if sys.stderr.isatty() else logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out Prefect's records, which are in the log of the flow run."""
        return not record.name.startswith("prefect.")

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        show(self.format(record))


class StageProgress:
    """Progress of one running stage.

    Args:
        name: Shown before the bar.
        listener: Called with the percentage every `SECONDS` and at the end, of a stage that takes longer.
    """

    _lock = threading.Lock()

    def __init__(self, name: str, listener: Listener | None = None) -> None:
        self.name = name
        self._listener = listener
        self._told = self._percent = 0.0
        self._heard_at = self._logged_at = time.monotonic()
        self._line = None
        if sys.stderr.isatty():
            with self._lock:
                self._line = _view().add_task(name, total=None, note="")
                _view().start()

    def update(self, done: float, total: float, note: str = "") -> None:
        """Show that `done` of `total` units are done."""
        now = time.monotonic()
        if self._line is not None:
            _view().update(self._line, completed=done, total=total, note=note)
        elif now - self._logged_at > LOG_SECONDS:
            self._logged_at = now
            logger.info("%s: %g of %g %s", self.name, done, total, note)
        self._percent = 100.0 * done / total if total else 100.0
        if now - self._heard_at > SECONDS:
            self._heard_at = now
            self._tell()

    def _tell(self) -> None:
        if self._listener is not None and self._percent != self._told:
            self._told = self._percent
            self._listener(self._percent)

    def close(self) -> None:
        """Tell the end of a stage that took long, and remove the line; the last one gives the terminal back."""
        if self._told:
            self._tell()
        if self._line is None:
            return
        with self._lock:
            _view().remove_task(self._line)
            self._line = None
            if not _view().tasks:
                _view().stop()
