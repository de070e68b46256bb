"""An import hook that refuses pandas, which Arrow imports at its first array although no table here needs it.

That import takes 0.7 s and 50 MB. `importlib.util.find_spec` still finds a module, without an origin: torch's compiler
probes many packages with it. None in `sys.modules` does not work, because Arrow's compiled code uses it as the module.
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
        """Return a spec for pandas whose loading raises ModuleNotFoundError; None for other modules."""
        return ModuleSpec(fullname, self) if fullname == "pandas" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Raise ModuleNotFoundError."""
        raise ModuleNotFoundError("tables are made without pandas here", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` raises first."""
