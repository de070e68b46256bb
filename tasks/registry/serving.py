"""The served model: the script that MLflow stores with a model version and runs to load it.

It imports nothing of Sheepfold. The code of the model's training is stored in the version and imported under a unique
package name, so that versions with different code can be loaded in one process.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

DETAILS, ECHO = "details", "echo"  # parameters other than sampling settings
PROMPT_COLUMN = "prompt"


def load_code(folder: Path) -> ModuleType:
    """Import the package in `folder` under a name derived from its content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    name = f"sheepfold_code_{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is not a Python package: the model version is incomplete; register it again")
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
    return sys.modules[name]


def prompts_of(model_input: Any) -> list[str]:
    """Return the prompts of a request: a string, a list, or the column `prompt` (else the first one) of a table."""
    if isinstance(model_input, str):
        return [model_input]
    if hasattr(model_input, "iloc"):
        named = PROMPT_COLUMN in model_input.columns
        model_input = (model_input[PROMPT_COLUMN] if named else model_input.iloc[:, 0]).tolist()
    for place, value in enumerate(model_input, 1):
        if not isinstance(value, str):
            raise ValueError(f"prompt {place} is {value!r}, expected a text")
    return list(model_input)


def settings_of(params: dict[str, Any] | None) -> dict[str, Any]:
    """Return the sampling settings in the parameters of a request.

    Raises:
        ValueError: `logit_bias` is not valid JSON.
    """
    settings = {name: value for name, value in (params or {}).items() if value is not None}
    for name in (DETAILS, ECHO):
        settings.pop(name, None)
    bias = settings.pop("logit_bias", None) or "{}"
    try:
        settings["logit_bias"] = json.loads(bias) if isinstance(bias, str) else bias
    except ValueError as error:
        raise ValueError(
            f'logit_bias is {bias!r}, expected a JSON object of token ids and numbers such as {{"17": -100}} ({error})'
        ) from error
    return settings


@contextmanager
def refusals() -> Iterator[None]:
    """Convert ValueError to MLflow's invalid-parameter error, HTTP status 400."""
    try:
        yield
    except ValueError as error:
        raise MlflowException.invalid_parameter_value(str(error)) from error


# MLflow warns, ignoring filters, about missing type hints, which are left out on purpose (see `predict`).
_show_warning, warnings.showwarning = warnings.showwarning, lambda *_, **__: None


class SheepfoldModel(mlflow.pyfunc.PythonModel):
    """Completes prompts: `predict(["Once"], params={"max_new_tokens": 20})` returns one text per prompt.

    With `n_samples` above 1 it returns that many texts per prompt, in order of prompts; with `details`, dictionaries of
    text, finish reason, ids and log-probabilities; with `echo`, texts that begin with their prompts.
    """

    def load_context(self, context):  # type: ignore[no-untyped-def]
        folder = Path(context.artifacts["bundle"])
        package = load_code(folder / "code").__name__
        network = importlib.import_module(f"{package}.model")
        kind = importlib.import_module(f"{package}.tasks.training.bundle").Bundle
        self.bundle = kind(folder, network=network).loaded()

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Complete each prompt. No type hints: they would make MLflow drop the schema of the parameters."""
        with refusals():
            prompts, settings = prompts_of(model_input), settings_of(params)
            found = self.bundle.complete(prompts, **settings)
        if (params or {}).get(ECHO):
            asked = [prompt for prompt in prompts for _ in range(settings.get("n_samples", 1))]
            found = [
                dataclasses.replace(item, text=prompt + item.text) for prompt, item in zip(asked, found, strict=True)
            ]
        if (params or {}).get(DETAILS):
            return [dataclasses.asdict(item) for item in found]
        return [item.text for item in found]

    def predict_stream(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Complete one prompt, piece by piece."""
        with refusals():
            prompts = prompts_of(model_input)
            if len(prompts) != 1:
                raise ValueError(f"{len(prompts)} prompts to stream, expected one; predict takes several")
            if (params or {}).get(ECHO):
                yield prompts[0]
            for piece in self.bundle.stream(prompts[0], **settings_of(params)):
                if isinstance(piece, str):
                    yield piece


warnings.showwarning = _show_warning
mlflow.models.set_model(SheepfoldModel())
