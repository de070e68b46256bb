"""An extraction process: takes jobs from standard input, writes pages and members to files, reports on standard output.

Started by `tasks.ingest.pool`, one per core, as the leader of a process group of its own. It may be killed at any
moment: what it has written by then counts. It goes by itself when its parent is gone.
Neither prefect, mlflow, torch, pyarrow nor pandas is imported here; each would cost every worker up to seconds and
hundreds of MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.core.child import limit_added_memory, serve, write_message
from tasks.readers.detect import HEAD_BYTES, detect
from tasks.readers.document import yield_document
from tasks.readers.records import (
    TEMPORARY_PREFIX,
    Detected,
    Extraction,
    ExtractOptions,
    Limits,
    PageText,
    stable_text,
)
from tasks.sources.folder import open_regular

_Send = Callable[[dict[str, Any]], None]


class _CannotWrite(OSError):
    """The file for pages cannot be written, which is no document's fault."""


def main() -> None:
    """Serve jobs until standard input ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")  # the first to go when the machine is out of memory
    logging.disable(logging.CRITICAL)  # pypdf warns about every oddity of a broken file; the outcome says enough.
    jobs, send = serve(_leave, errors="replace")
    try:
        send({"ready": True})
        for job in jobs:
            # Anew for each document: libraries that an earlier one needed keep address space, though little memory.
            limit_added_memory(Limits(**job["limits"]).memory_bytes)
            try:
                with Path(job["out"]).open("ab", buffering=0) as out:
                    outcome = _run_job(job, out.fileno(), send)
            except BrokenPipeError:
                raise
            except OSError as error:
                send({"broken": str(error)})
                continue
            limit_added_memory(None)  # sending the outcome must not fail for lack of memory
            send({"done": outcome})
    except BrokenPipeError:
        _leave()  # The parent is gone. The other thread, which sees that too, would be cut short by this one's end.


def _run_job(job: dict[str, Any], out: int, send: _Send) -> Extraction:
    """Extract one document, or the part of it that is asked for.

    Args:
        job: As `tasks.ingest.pool` makes it.
        out: Descriptor of the file for pages and finished members, a line each.
        send: Called with `{"detected": ...}` first, then with `{"page": number, ...}` for each page that was written.
            For each member of a container with `{"member": locator}`, an `{"alive": ...}` now and then, and
            `{"member_done": ...}` when it was written. `end` is the size of the file by then.

    Returns:
        The outcome, without the pages and members.
    """
    options = ExtractOptions(**job["options"])
    detected = Detected()
    try:
        data = _read_file(Path(job["path"]), job["sha256"], options)
        if isinstance(data, Extraction):
            return data
        detected = detect(data[:HEAD_BYTES], len(data), job["suffix"])
        # Ahead of everything that may kill this process: the row of a document that did should say what it was.
        send({"detected": asdict(detected)})
        settled, pages = job["settled"], job["pages"]
        if settled and pages is None:  # numbers after the last page do no harm
            pages = range(settled + 1, options.max_pages + 2)
        items = yield_document(
            data, job["suffix"], options, job["passwords"], skip=settled, pages=pages, ocr_pages=job["ocr_pages"]
        )
        while True:
            try:
                item = next(items)
            except StopIteration as end:
                outcome: Extraction = end.value
                return outcome
            send(_written(item, out))
    except MemoryError:
        needed = f"more than {Limits(**job['limits']).memory_bytes // 1024**2} MiB of memory (limits.memory_bytes)"
        return Extraction("failed", f"the extraction needed {needed}", "memory", **asdict(detected))
    except (BrokenPipeError, _CannotWrite):
        raise
    # A hostile file may make a library raise anything; it is that file's outcome.
    except Exception as error:  # noqa: BLE001
        reason = stable_text(f"the extractor failed: {type(error).__name__}: {error}")
        return Extraction("failed", reason, "crashed", **asdict(detected))


def _written(item: PageText | str | Extraction | None, out: int) -> dict[str, Any]:
    """Write a page or member to its file; return what the parent needs to know of it."""
    if item is None:
        return {"alive": True}
    if isinstance(item, str):
        return {"member": item}
    try:
        write_message(out, vars(item), "replace")
    except OSError as error:
        raise _CannotWrite(error) from None
    if isinstance(item, Extraction):
        return {"member_done": True, "end": os.lseek(out, 0, os.SEEK_CUR)}
    return {"page": item.page, "deferred": item.method == "deferred", "end": os.lseek(out, 0, os.SEEK_CUR)}


def _read_file(path: Path, sha256: str, options: ExtractOptions) -> bytes | Extraction:
    """The file's bytes, if they are still those that the job is about."""
    try:
        with open_regular(path) as file:
            size = min(os.fstat(file.fileno()).st_size, options.max_file_bytes)  # the walk rejects larger ones
            # Buffered, because a single raw read may return less; one more byte tells whether the file grew.
            data = io.BufferedReader(file).read(size + 1)
    except FileNotFoundError:
        return Extraction("failed", "the file is gone since its folder was walked", "changed")
    except OSError as error:
        return Extraction("failed", f"the file cannot be read: {error.strerror or error}", "unreadable")
    if hashlib.sha256(data).hexdigest() != sha256:
        return Extraction("failed", "the file changed since its folder was walked; run again", "changed")
    return data


def _leave() -> None:
    """End this process and all that it started; a parent that was killed could not clear up, so this does."""
    folder = Path(os.environ.get("TMPDIR", "")).parent
    if folder.name.startswith(TEMPORARY_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    # The group at once, not a parent-death signal: that one would reach this process alone.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # Run by hand in somebody else's process group: only this process.


if __name__ == "__main__":
    main()
