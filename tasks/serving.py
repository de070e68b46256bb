"""The served model: the script that MLflow stores with a model version and runs when it is loaded.

It imports nothing of Sheepfold. The code the model was trained with lies inside the version, and is loaded under a
name of its own, so that two versions with different code live side by side in one process.
"""

import hashlib
import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow

DEFAULTS = {"max_new_tokens": 64, "temperature": 0.8, "top_k": 0, "top_p": 0.95, "seed": 0}


def load_code(folder: Path) -> ModuleType:
    """Load the package in `folder` under a name that is its content's digest."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    name = f"sheepfold_code_{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} holds no Python package: this model version is incomplete")
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
    return sys.modules[name]


def prompts_of(model_input: Any) -> list[str]:
    """The prompts in what MLflow hands over: a table of one column, a list, or one string."""
    if isinstance(model_input, str):
        return [model_input]
    if hasattr(model_input, "iloc"):
        return [str(value) for value in model_input.iloc[:, 0].tolist()]
    return [str(value) for value in model_input]


# MLflow warns, past all filters, of the missing type hints, which are left out on purpose (see `predict`).
_show_warning, warnings.showwarning = warnings.showwarning, lambda *_, **__: None


class SheepfoldModel(mlflow.pyfunc.PythonModel):
    """Continues prompts. `predict(["Once"], params={"max_new_tokens": 20})` returns one text per prompt."""

    def load_context(self, context):  # type: ignore[no-untyped-def]
        folder = Path(context.artifacts["bundle"])
        package = load_code(folder / "code").__name__
        network = importlib.import_module(f"{package}.model")
        self.bundle = importlib.import_module(f"{package}.tasks.bundle").Bundle(folder, network=network)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Continue each prompt; no type hints, because MLflow would drop the parameters' schema for them."""
        settings = {**DEFAULTS, **{name: value for name, value in (params or {}).items() if name in DEFAULTS}}
        return [item.text for item in self.bundle.complete(prompts_of(model_input), **settings)]


warnings.showwarning = _show_warning
mlflow.models.set_model(SheepfoldModel())
