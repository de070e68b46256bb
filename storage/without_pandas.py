"""Keeps pandas out of processes that make tables: Arrow imports it at its first array.

That takes 0.7 s and 50 MB, for nothing: no table comes from pandas here, and none becomes one. Only an import is
refused: `importlib.util.find_spec`, by which torch's compiler looks for many packages, finds a module without an
origin. (None in `sys.modules` would not do: Arrow's compiled code takes that for the module.)
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType


class WithoutPandas(Loader):
    """Finder and loader that refuse to import pandas as if it were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module that cannot be loaded (ModuleNotFoundError) for pandas, and nothing else."""
        return ModuleSpec(fullname, self) if fullname == "pandas" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Raise ModuleNotFoundError."""
        raise ModuleNotFoundError("tables are made without pandas here", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Never called: there is no module."""
