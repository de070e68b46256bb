"""Progress of long stages: a bar on a terminal, a line now and then elsewhere, and a Prefect artefact in the UI."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger("sheepfold")

LINE_SECONDS = 15.0  # between two lines where there is no terminal
UI_SECONDS = 15.0  # between two updates of the Prefect artefact

Listener = Callable[[float], None]


class Bars:
    """All bars of one command, on standard error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: Progress | None = None
        self._open = 0

    def _started(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._live is None:
            self._live = Progress(
                TextColumn("{task.description:>12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._live.start()
        return self._live

    def open(self, name: str) -> tuple[Progress, TaskID]:
        """Add a bar."""
        with self._lock:
            live = self._started()
            self._open += 1
            return live, live.add_task(name, total=None, note="")

    def close(self, task: TaskID) -> None:
        """Remove a bar; the last one gives the terminal back."""
        with self._lock:
            if self._live is None:
                return
            self._live.remove_task(task)
            self._open -= 1
            if self._open == 0:
                self._live.stop()
                self._live = None


_BARS = Bars()


class StageProgress:
    """What a running stage reports to.

    Args:
        name: shown before the bar.
        listener: also told the percentage, at most every few seconds.
        quiet: show nothing on the terminal.
    """

    def __init__(self, name: str, listener: Listener | None = None, quiet: bool = False) -> None:
        self._name = name
        self._listener = listener
        self._bar: tuple[Progress, TaskID] | None = None
        self._terminal = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._line_at = time.monotonic()
        self._told_at = 0.0

    def update(self, done: float, total: float, note: str = "") -> None:
        """So much is done of so much."""
        now = time.monotonic()
        if self._terminal:
            if self._bar is None:
                self._bar = _BARS.open(self._name)
            live, task = self._bar
            live.update(task, completed=done, total=total, note=note)
        elif not self._quiet and now - self._line_at > LINE_SECONDS:
            self._line_at = now
            logger.info("%s: %g of %g %s", self._name, done, total, note)
        if self._listener is not None and (now - self._told_at > UI_SECONDS or done >= total):
            self._told_at = now
            self._listener(100.0 * done / total if total else 100.0)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            _BARS.close(self._bar[1])
            self._bar = None
