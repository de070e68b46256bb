"""The model that MLflow serves: its files, requirements and signature."""

from __future__ import annotations

import shutil
from dataclasses import fields
from importlib.metadata import version as installed
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tasks.core.settings import GenerateSettings

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature

SERVED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
SERVED_CODE = (
    "tasks/__init__.py",
    "tasks/training/__init__.py",
    "tasks/training/bundle.py",
    "tasks/tokens/__init__.py",
    *(f"tasks/tokens/{name}.py" for name in ("hf_spec", "tokenizers")),
)
_MLFLOW_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


def prepare_bundle(checkpoint_folder: Path, target: Path) -> Path:
    """Copy a checkpoint and the code that runs it into one folder."""
    skipped = ("manifest.json", "history.parquet", "telemetry.parquet", "journal.json")  # of the training
    shutil.copytree(checkpoint_folder, target, ignore=shutil.ignore_patterns(*skipped))
    root = Path(__file__).resolve().parents[2]
    code = target / "code"
    shutil.copytree(root / "model", code / "model", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "__init__.py").write_text('"""The code this model version was trained with."""\n')
    for name in SERVED_CODE:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, code / name)
    return target


def requirements() -> list[str]:
    """Return the packages that serve the model, in the installed versions without local build tags such as +cpu."""
    pinned = [f"{name}=={installed(name).partition('+')[0]}" for name in SERVED_PACKAGES]
    return [f"mlflow=={installed('mlflow')}", *pinned]


def served_parameters() -> dict[str, tuple[str, Any]]:
    """Return MLflow's type and the default of each parameter of a request; a list's type is that of its items.

    `logit_bias` is a JSON object, and `details` asks for more than texts (see `tasks.registry.serving`).
    """
    from model.config import GenerationConfig

    defaults, found = GenerateSettings(), {}
    hints = get_type_hints(GenerationConfig)
    for name in (item.name for item in fields(GenerationConfig) if item.name != "eos_id"):
        (kind, *_) = [item for item in get_args(hints[name]) or (hints[name],) if item is not NoneType]
        default: Any = getattr(defaults, name)
        if kind in _MLFLOW_TYPES:
            found[name] = (_MLFLOW_TYPES[kind], list(default) if isinstance(default, tuple) else default)
        else:
            found[name] = ("string", "")
    return {**found, "ignore_eos": ("boolean", defaults.ignore_eos), "details": ("boolean", False)}


def signature() -> ModelSignature:
    """Return MLflow's signature of the served model: texts to texts, with the parameters of generation."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    params = [
        ParamSpec(name, DataType[kind], default, (-1,) if isinstance(default, list) else None)
        for name, (kind, default) in served_parameters().items()
    ]
    texts = Schema([ColSpec(DataType.string)])
    return ModelSignature(inputs=texts, outputs=texts, params=ParamSchema(params))
