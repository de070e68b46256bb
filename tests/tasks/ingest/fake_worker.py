"""A stand-in for the extraction process that does what a hostile document would make it do.

The name of the job's file says what: hang, stall, crash, crash-unless-fresh, oom, exit or garbage; any other name is a
success.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tasks.ingest.messages import MessageReader, write_message

PAGE = {"text": "some text", "method": "text", "engine": "decoder", "confidence": None, "error": None}


def main() -> None:
    """Serves jobs until standard input ends."""
    reader = MessageReader(0)
    write_message(1, {"ready": {"pid": os.getpid()}})
    served = 0
    while (messages := reader.read_available()) is not None:
        for job in messages:
            misbehave(Path(job["path"]).name, served)
            served += 1
            write_message(1, {"page": {**PAGE, "page": 1, "text": str(os.getpid())}})
            write_message(1, {"done": {"status": "ok", "pages": []}})


def misbehave(name: str, served: int) -> None:
    """Hangs or dies, if the name says so."""
    if name in ("hang", "stall"):
        child = subprocess.Popen(["sleep", "600"])
        for page in range(1, 3):
            write_message(1, {"page": {**PAGE, "page": page}})
        while name == "stall":  # Never late with a page, never done.
            page += 1
            write_message(1, {"page": {**PAGE, "page": page}})
            signal.sigtimedwait([], 0.05)
        child.wait()
    elif name == "crash" or (name == "crash-unless-fresh" and served):
        os.kill(os.getpid(), signal.SIGSEGV)
    elif name == "oom":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "exit":
        sys.exit(3)
    elif name == "garbage":
        os.write(1, b"\xff" * 64)


if __name__ == "__main__":
    main()
