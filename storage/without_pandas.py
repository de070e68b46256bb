"""Keeps pandas out of processes that make tables: Arrow looks for it at its first array.

That takes half a second and 50 MB, for nothing: no table comes from pandas here, and none becomes one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class WithoutPandas:
    """Refuses pandas as if it were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuses pandas, and finds nothing else."""
        if fullname == "pandas":
            raise ModuleNotFoundError("tables are made without pandas here", name=fullname)


@contextmanager
def without_pandas() -> Iterator[None]:
    """No import of pandas succeeds meanwhile; one that is there already stays."""
    finder = WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
