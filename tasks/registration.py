"""Registering a model: the bundle with the code that runs it, what versions are searched by, and the book of them."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registered import Registered, newest_number, note_version, noted_version
from storage.registry import ModelVersion, Registry
from storage.store import Store
from storage.tracking import Tracking
from tasks.evaluation.tables import read_metrics
from tasks.model_card import parameters_of

LOCK = "promote"  # held by whatever moves names
DECIDES = "val/bits_per_byte"
RUN_TAGS = ("prefect.", "sheepfold.", "git.")  # beginnings of the tags that a version takes over from its run
SERVED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
TRAVELLING_CODE = (
    "tasks/__init__.py",
    "tasks/bundle.py",
    "tasks/tokens/__init__.py",
    *(f"tasks/tokens/{name}.py" for name in ("interface", "subword", "tables", "tokenizer")),
)


def prepare_bundle(checkpoint_folder: Path, target: Path) -> Path:
    """Copy a bundle and the code that runs it into one folder."""
    beside = ("manifest.json", "history.parquet", "telemetry.parquet", "journal.json")  # of the training, not the model
    shutil.copytree(checkpoint_folder, target, ignore=shutil.ignore_patterns(*beside))
    root = Path(__file__).resolve().parent.parent
    code = target / "code"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "model", code / "model", ignore=skip)
    (code / "__init__.py").write_text('"""The code this model version was trained with."""\n')
    for name in TRAVELLING_CODE:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, code / name)
    return target


def requirements() -> list[str]:
    """What a machine needs to serve the model, as it is installed here."""
    # a local build tag such as +cpu is no part of a release's name
    pinned = [f"{name}=={installed(name).partition('+')[0]}" for name in SERVED_PACKAGES]
    return [f"mlflow=={installed('mlflow')}", *pinned]


def register(
    store: Store,
    registry: Registry,
    run_id: str,
    checkpoint: ArtifactRef,
    card: str,
    tags: Mapping[str, str],
    number: str = "",
) -> ModelVersion:
    """Register a checkpoint, unless its weights are registered already.

    Args:
        card: its description.
        number: which the version is to have; empty for the next one.
    """
    with tempfile.TemporaryDirectory(prefix="sheepfold-") as folder:
        bundle = prepare_bundle(store.folder(checkpoint), Path(folder) / "bundle")
        script = Path(__file__).with_name("serving.py")
        return registry.register(bundle, script, run_id, checkpoint, requirements(), card, tags, number)


def search_tags(
    store: Store, tracking: Tracking, run_id: str, checkpoint: ArtifactRef, evaluation: ArtifactRef
) -> dict[str, str]:
    """What versions are searched by, beside the verdicts: figures, size, and what they were made from."""
    made, measured = manifest_of(store, checkpoint), manifest_of(store, evaluation)
    metrics = read_metrics(store, evaluation)
    figures = {name: f"{metrics[name]:.6f}" for name in (DECIDES, "val/loss", "val/perplexity")}
    return {
        **tracking.tags(run_id, RUN_TAGS),
        **{name.replace("val/", "sheepfold."): value for name, value in figures.items()},
        "sheepfold.evalset": measured.inputs["evalset"]["digest"],
        "sheepfold.dataset": made.inputs["dataset"]["digest"],
        "sheepfold.tokenizer": made.inputs["tokenizer"]["digest"],
        "sheepfold.base": made.inputs["base"]["digest"] if "base" in made.inputs else "none",
        "sheepfold.parameters": str(parameters_of(made)),
        "sheepfold.python": platform.python_version(),
    }


def is_lost(store: Store, registry: Registry) -> bool:
    """Whether the store's book has versions that the registry never had: it is new, or from before them.

    Versions that somebody deleted there are no loss, nor are names that somebody moved.
    """
    return newest_number(store) > registry.newest_number()


def note(
    store: Store,
    registry: Registry,
    number: str,
    evaluation: ArtifactRef | None = None,
    gates: ArtifactRef | None = None,
    traced: bool | None = None,
) -> None:
    """Write a version into the store's book as the registry has it, and those from before there was a book.

    Args:
        evaluation, gates, traced: what it rests on and was measured with, where that is known anew.
    """
    for version in registry.versions():
        known = noted_version(store, version.version)
        if known is not None and version.version != number:
            continue
        known = known or Registered(version.version, version.checkpoint)
        if version.version == number:
            known = replace(
                known,
                evaluation=evaluation or known.evaluation,
                gates=gates or known.gates,
                traced=known.traced if traced is None else traced,
            )
        noted = replace(
            known,
            checkpoint=version.checkpoint,
            tags=version.tags,
            description=registry.description(version.version),
            run_tags=registry.tracking.tags(version.run_id, RUN_TAGS) if version.run_id else {},
        )
        note_version(store, noted)
