"""Processes that can be killed, and start in a blink although they need libraries that take seconds to import.

A process imports them once and forks a child for each request. It says the child's process id and how it ended, a line
each; a request is a line of JSON: the name of a function, and its arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self


class Zygote:
    """The process that forks children.

    Args:
        script: the program to be run, which calls `serve`.
        folders: where it may import from besides the project.
    """

    def __init__(self, script: str, *folders: Path) -> None:
        paths = os.pathsep.join(map(str, (Path(__file__).parents[1], *folders)))
        self._process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )

    def start(self, function: str, **arguments: Any) -> int:
        """Starts a child; returns its process id."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """Waits for the child; returns its exit code, negative for a signal."""
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the process that forks has died"
        return int(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(functions: Mapping[str, Callable[..., None]]) -> None:
    """Fork a child for each request on standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what children print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            code = 1
            try:
                functions[request["function"]](**request["arguments"])
                code = 0
            except Exception:  # noqa: BLE001 - the exit code tells the test
                traceback.print_exc()
            finally:
                os._exit(code)
        print(child, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
    os._exit(0)  # at once: what libraries put away at the end takes its time
