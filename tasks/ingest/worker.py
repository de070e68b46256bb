"""An extraction process: reads jobs from stdin, writes pages and members to files, reports on stdout.

Started by `tasks.ingest.pool`, one per core, as the leader of its own process group. It may be killed at any moment;
the pages written by then are kept. It exits when its parent dies. Prefect, mlflow, torch, pyarrow and pandas must not
be imported here: each costs every worker up to seconds and hundreds of MB.
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
    """The file for pages cannot be written: an error of the pool, not of the document."""


def main() -> None:
    """Serve jobs until standard input ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")  # killed first if memory runs out
    logging.disable(logging.CRITICAL)  # pypdf logs many warnings for a broken file; the outcome has the error
    jobs, send = serve(_leave, errors="replace")
    try:
        send({"ready": True})
        for job in jobs:
            # set again for each document: libraries that an earlier one loaded keep address space
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
        _leave()  # the parent is gone; the thread that watches it would be ended with this one before it cleans up


def _run_job(job: dict[str, Any], out: int, send: _Send) -> Extraction:
    """Extract one document, or the requested part of it.

    Args:
        job: The request that `tasks.ingest.pool` sends.
        out: Descriptor of the file for pages and finished members, a line each.
        send: Called with `{"detected": ...}` first, then with `{"page": number, ...}` for each written page; for each
            member of a container with `{"member": locator}`, with `{"alive": ...}` after each of its pages, and with
            `{"member_done": ...}` when it is written. `end` is the size of the file then.

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
        # sent before anything that may kill this process, so that the row has the type of the document
        send({"detected": asdict(detected)})
        settled, pages = job["settled"], job["pages"]
        if settled and pages is None:  # numbers beyond the last page are ignored
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
            send(_write(item, out))
    except MemoryError:
        needed = f"more than {Limits(**job['limits']).memory_bytes // 1024**2} MiB of memory (limits.memory_bytes)"
        return Extraction("failed", f"the extraction needed {needed}", "memory", **asdict(detected))
    except (BrokenPipeError, _CannotWrite):
        raise
    # a hostile file may make a library raise any exception
    except Exception as error:  # noqa: BLE001
        reason = stable_text(f"the extractor failed: {type(error).__name__}: {error}")
        return Extraction("failed", reason, "crashed", **asdict(detected))


def _write(item: PageText | str | Extraction | None, out: int) -> dict[str, Any]:
    """Write a page or member to the file; return the message for the parent."""
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
    """Return the file's bytes, or the outcome if they cannot be read or do not have the digest of the job."""
    try:
        with open_regular(path) as file:
            size = min(os.fstat(file.fileno()).st_size, options.max_file_bytes)  # the listing rejects larger ones
            # buffered, because a single raw read may return less; one more byte shows whether the file grew
            data = io.BufferedReader(file).read(size + 1)
    except FileNotFoundError:
        return Extraction("failed", "the file is gone since its folder was walked", "changed")
    except OSError as error:
        return Extraction("failed", f"the file cannot be read: {error.strerror or error}", "unreadable")
    if hashlib.sha256(data).hexdigest() != sha256:
        return Extraction("failed", "the file changed since its folder was walked; run again", "changed")
    return data


def _leave() -> None:
    """Remove the temporary files, which a killed parent could not, and kill the process group."""
    folder = Path(os.environ.get("TMPDIR", "")).parent
    if folder.name.startswith(TEMPORARY_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    # the whole group: a parent-death signal would reach only this process
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # started by hand in another process group: end only this process


if __name__ == "__main__":
    main()
