"""A stand-in for the extraction process that does what a hostile document would make it do.

The name of the job's file says what: mute, hang, stall, crash, crash-unless-fresh, oom, exit, garbage, pages, worse,
shared or archive; any other name is a success.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.ingest.messages import MessageReader, write_message

PAGE = {"text": "some text", "method": "text", "engine": "decoder", "confidence": None, "error": None}


def main() -> None:
    """Serves jobs until standard input ends."""
    reader = MessageReader(0)
    write_message(1, {"ready": {"pid": os.getpid()}})
    served = 0
    while (messages := reader.read_available()) is not None:
        for job in messages:
            name = Path(job["path"]).name
            if name == "archive":
                unpack(job["skip"])
            elif name in ("pages", "worse", "shared"):
                turn_pages(name, job)
            else:
                misbehave(name, served)
                write_message(1, {"page": {**PAGE, "page": 1, "text": str(os.getpid())}})
                write_message(1, {"done": {"status": "ok", "pages": []}})
            served += 1


def turn_pages(name: str, job: dict[str, Any]) -> None:
    """Six pages: of `pages` the third crashes, of `worse` all but the first, `shared` is to be read by OCR."""
    wanted = job["pages"] or range(job["first_page"], 7)
    for page in wanted:
        if (name == "pages" and page == 3) or (name == "worse" and page > 1):
            os.kill(os.getpid(), signal.SIGSEGV)
        put_off = name == "shared" and job["ocr_pages"] is not None
        own = {"method": "deferred", "text": ""} if put_off else {"method": "ocr", "text": f"{page} by {os.getpid()}"}
        write_message(1, {"page": {**PAGE, "page": page, **own}})
    write_message(1, {"done": {"status": "ok", "kind": "pdf", "pages": []}})


def unpack(skip: int) -> None:
    """Four members, of which the second crashes and the third hangs."""
    for number, fate in enumerate(("fine", "crash", "hang", "fine"), start=1):
        if number <= skip:
            continue
        write_message(1, {"member": f"{number}.txt"})
        if fate == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fate == "hang":
            signal.sigtimedwait([], 600)
        page = {**PAGE, "page": 1}
        write_message(1, {"member_done": {"status": "ok", "locator": f"{number}.txt", "pages": [page]}})
    write_message(1, {"done": {"status": "ok", "kind": "archive", "pages": []}})


def misbehave(name: str, served: int) -> None:
    """Hangs or dies, if the name says so."""
    if name == "mute":
        signal.sigtimedwait([], 600)
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
