"""What child processes that serve requests have in common: they end with their parent, and their memory is bounded."""

from __future__ import annotations

import os
import queue
import resource
from pathlib import Path
from typing import Any

from tasks.ingest.pool.messages import queue_messages


def take_requests(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests from standard input on, and end this process when its parent closes it or dies."""
    queue_messages(0, requests)
    os._exit(1)


def limit_added_memory(n_bytes: int) -> None:
    """Limit the address space to what this process has by now and so many bytes more; only Linux enforces it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError):
        return
    wanted = pages * resource.getpagesize() + n_bytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
