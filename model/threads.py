"""Computing in a thread that ends.

OpenMP keeps a team of threads for each thread that ever computed. Those of a team wait for the next product by
spinning, but where the teams of a process have more threads than there are processors they sleep instead, and a
training, which waits some thousand times a second, then takes up to a third longer. A team ends with its thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_thread_that_ends(function: Callable[[], T]) -> T:
    """Calls a function that computes in a thread of its own, which is gone when this returns.

    Raises:
        Exception: what the function raises.
    """
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(function).result()
