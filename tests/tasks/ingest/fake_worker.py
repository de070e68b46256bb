"""A stand-in for the extraction process that does what a hostile document would make it do.

The name of the job's file says what: mute, hang, stall, crash, crash-unless-fresh, oom, exit, garbage, pages, worse,
rough, endless, endless-blank, shared, shared-then-gone, blank-rest, changed-rest, text or archive; any other name is
a success.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.core.child import MessageReader, write_message

OUT = 3  # the file of the part in work
PAGE = {"text": "some text", "method": "text", "engine": "decoder", "confidence": None, "error": None}


def turn(page: int, **own: Any) -> None:
    """Write a page, and report it."""
    write_message(OUT, {**PAGE, "page": page, **own})
    write_message(1, {"page": page, "deferred": own.get("method") == "deferred", "end": os.lseek(OUT, 0, os.SEEK_CUR)})


def main() -> None:
    """Serves jobs until standard input ends."""
    reader = MessageReader(0)
    write_message(1, {"ready": True})
    served = 0
    while (messages := reader.read_available()) is not None:
        for job in messages:
            name = Path(job["path"]).name
            os.dup2(os.open(job["out"], os.O_WRONLY | os.O_APPEND), OUT)
            if name == "archive":
                unpack(job["settled"])
            elif name in ("pages", "worse", "hang", "rough", "endless", "endless-blank", "shared", "shared-then-gone"):
                turn_pages(name, job)
            elif name in ("blank-rest", "changed-rest"):
                die_on_page_five(name, job, served)
            elif name == "text":
                die_behind_the_page(job["settled"])
            else:
                misbehave(name, served)
                turn(1, text=str(os.getpid()))
                write_message(1, {"done": {"status": "ok", "pages": []}})
            served += 1


def turn_pages(name: str, job: dict[str, Any]) -> None:
    """Six pages: of `pages` the third crashes, of `worse` all but the first, `shared` is to be read by OCR.

    `hang` hangs on the third. `rough` has 40 pages, of which each eighth crashes, and `endless` a million, of which all
    but the first do.
    """
    if name == "shared-then-gone" and job["pages"]:
        gone = {"status": "failed", "reason_code": "changed", "reason": "the file is gone since its folder was walked"}
        write_message(1, {"done": gone})
        return
    n_pages = {"rough": 40, "endless": 10**6, "endless-blank": 10**6}.get(name, 6)
    wanted = job["pages"] or range(job["settled"] + 1, n_pages + 1)
    for page in wanted:
        if name == "hang" and page == 3:
            subprocess.run(["sleep", "600"], check=True)
        kills_all = name in ("worse", "endless", "endless-blank")
        if (name == "pages" and page == 3) or (kills_all and page > 1) or (name == "rough" and page % 8 == 0):
            os.kill(os.getpid(), signal.SIGSEGV)
        put_off = job["ocr_pages"] is not None and (name == "shared" or (name == "shared-then-gone" and page > 1))
        text = "" if put_off or name == "endless-blank" else f"{page} by {os.getpid()}"
        own = {"method": "deferred" if put_off else "ocr", "text": text}
        turn(page, **own)
    write_message(1, {"done": {"status": "ok", "kind": "pdf", "pages": []}})


def die_on_page_five(name: str, job: dict[str, Any], served: int) -> None:
    """Four pages of text, then death unless the process is fresh; the rest is blank, or the file is another by then."""
    if job["settled"] + 1 > 1 and name == "changed-rest":
        write_message(1, {"done": {"status": "failed", "reason_code": "changed", "reason": "the file changed"}})
        return
    for page in range(job["settled"] + 1, 7):
        if page == 5 and served:
            os.kill(os.getpid(), signal.SIGSEGV)
        turn(page, text="some text" if page < 5 else "")
    verdict = {"status": "rejected", "reason_code": "no_text", "reason": "no text on any of 2 pages"}
    write_message(1, {"done": {**verdict, "kind": "pdf"}})


def die_behind_the_page(settled: int) -> None:
    """The one page of a text, whatever was asked for, and death before the verdict unless the page was there before."""
    write_message(1, {"detected": {"kind": "text", "media_type": "text/plain"}})
    turn(1)
    if not settled:
        os.kill(os.getpid(), signal.SIGKILL)
    write_message(1, {"done": {"status": "ok", "kind": "text", "media_type": "text/plain", "encoding": "utf-8"}})


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
        write_message(OUT, {"status": "ok", "locator": f"{number}.txt", "pages": [page]})
        write_message(1, {"member_done": True, "end": os.lseek(OUT, 0, os.SEEK_CUR)})
    write_message(1, {"done": {"status": "ok", "kind": "archive", "pages": []}})


def misbehave(name: str, served: int) -> None:
    """Hangs or dies, if the name says so."""
    if name == "mute":
        signal.sigtimedwait([], 600)
    if name == "stall":
        subprocess.Popen(["sleep", "600"])
        for page in itertools.count(1):  # Never late with a page, never done.
            turn(page)
            signal.sigtimedwait([], 0.05)
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
