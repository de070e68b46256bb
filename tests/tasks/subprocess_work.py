"""Small pieces of work for the tests of subprocesses."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import UserError

Progress = Callable[[int, int], None]


def echo(value: Any, times: int, progress: Progress) -> dict[str, Any]:
    """Give the arguments back, with a word of progress for each time."""
    for done in range(times):
        progress(done + 1, times)
    return {"value": value, "times": times}


def process_id(progress: Progress) -> int:
    """The process that works."""
    return os.getpid()


def look_for(module: str, progress: Progress) -> dict[str, Any]:
    """Where a module is said to lie, and whether it can be imported."""
    spec = importlib.util.find_spec(module)
    place = spec and spec.origin
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return {"place": place, "imported": False}
    return {"place": place, "imported": True}


def fail(message: str, progress: Progress) -> None:
    """Raise."""
    raise ValueError(message)


def refuse(message: str, progress: Progress) -> None:
    """Raise what the person can mend."""
    raise UserError(message)


def vanish(how: str, progress: Progress) -> None:
    """End without a word."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def vanish_once(note: str, progress: Progress) -> int:
    """End without a word unless another process did so before; else say who works."""
    if Path(note).exists():
        progress(1, 1)
        return os.getpid()
    Path(note).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _log_process(log: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")


def log_and_vanish(log: str, progress: Progress) -> None:
    """Note who works, and end without a word."""
    _log_process(log)
    os.kill(os.getpid(), signal.SIGKILL)


def log_and_fail(log: str, progress: Progress) -> None:
    """Note who works, and raise."""
    _log_process(log)
    raise ValueError("logged")


def chatter(progress: Progress) -> str:
    """Print as some libraries do, also behind Python's back."""
    print("not a message", flush=True)
    os.write(1, b"not a message either\n")
    return "done"


def note_and_fail(note: str, progress: Progress) -> None:
    """Say who works, and raise."""
    Path(note).write_text(str(os.getpid()))
    raise ValueError("noted")


def note_and_hang(note: str, progress: Progress) -> None:
    """Say who works, and never end."""
    whole = Path(f"{note}.part")
    whole.write_text(str(os.getpid()))
    whole.rename(note)
    progress(0, 1)
    threading.Event().wait()


def log_both_ends(log: str, progress: Progress) -> str:
    """Note the beginning and the end."""
    for word in ("begin", "end"):
        with Path(log).open("a") as file:
            file.write(f"{word}\n")
    return "done"


@dataclass(frozen=True)
class Fold:
    """Something with a form of its own."""

    name: str
    sheep: tuple[int, ...]


def describe(fold: Fold, places: list[Path], by_name: dict[str, Path], progress: Progress) -> list[str]:
    """Show what arrived."""
    return [repr(fold), repr(places), repr(by_name)]
