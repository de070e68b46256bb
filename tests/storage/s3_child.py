"""Actions on a store elsewhere, in processes that can be killed: the child of `test_s3_kill`.

It reads lines `ACTION<tab>ADDRESS<tab>CACHE<tab>TEXT` and does each in a process of its own, which the server knows
by its user agent; it answers with the exit status, negative for a signal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import obstore  # noqa: F401  # once, not in each process
from commit_child import KEY, REF, STAGE, make

from storage import s3


def act(action: str, address: str, cache: str, text: str) -> None:
    """Carry out one action."""
    s3.CLIENT["user_agent"] = f"app/pid-{os.getpid()}"
    store = s3.S3Store(address, Path(cache))
    if action == "ref":
        store.write_ref(REF, {"text": text})
    elif action == "remove":
        store.remove(STAGE, KEY, keep_manifest=True)
    else:
        make(store, text, refresh=action == "refresh")


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if not process:
            act(*line.rstrip("\n").split("\t"))
            sys.exit(0)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
