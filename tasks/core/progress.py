"""Progress of long stages: a bar on a terminal, a line now and then elsewhere, and a Prefect artefact in the UI."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger("sheepfold")

SECONDS = 15.0  # between two lines where there is no terminal, and two updates of the Prefect artefact

Listener = Callable[[float], None]

_lock = threading.Lock()


@cache
def _bars() -> Progress:
    """Return the bars of all stages, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


class StageProgress:
    """Progress of one running stage.

    Args:
        name: Shown before the bar.
        listener: Called with the percentage, at most every few seconds.
    """

    def __init__(self, name: str, listener: Listener | None = None) -> None:
        self._name = name
        self._listener = listener
        self._bar: TaskID | None = None
        self._line_at = time.monotonic()
        self._heard_at = 0.0

    def update(self, done: float, total: float, note: str = "") -> None:
        """Show that `done` of `total` units are done."""
        now = time.monotonic()
        if sys.stderr.isatty():
            if self._bar is None:
                with _lock:
                    self._bar = _bars().add_task(self._name, total=None, note="")
                    _bars().start()
            _bars().update(self._bar, completed=done, total=total, note=note)
        elif now - self._line_at > SECONDS:
            self._line_at = now
            logger.info("%s: %g of %g %s", self._name, done, total, note)
        if self._listener is not None and (now - self._heard_at > SECONDS or done >= total):
            self._heard_at = now
            self._listener(100.0 * done / total if total else 100.0)

    def close(self) -> None:
        """Remove the bar; the last one gives the terminal back."""
        if self._bar is None:
            return
        with _lock:
            _bars().remove_task(self._bar)
            self._bar = None
            if not _bars().tasks:
                _bars().stop()
