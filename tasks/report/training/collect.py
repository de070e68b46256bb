"""The figures of a training, read from its artefact and those it was made from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DATASET_FILE
from storage.store import Store
from tasks.report.training.figures import Ancestor, Cost, Curve, Epoch, TrainingFigures
from tasks.tokens.index import read_record
from tasks.training.journal import TELEMETRY_FILE, read_notes
from tasks.training.throughput import flops_per_token

HISTORY_FILE = "history.parquet"
PAGES = {"dataset": "dataset.html", "snapshot": "corpus.html", "curate": "corpus.html"}


def collect_training(
    store: Store, training: ArtifactRef, evaluation: Mapping[str, float] | None = None, pages: Collection[str] = ()
) -> TrainingFigures:
    """Read all that the report shows.

    Args:
        training: the artefact.
        evaluation: figures on the whole evaluation set, where they are known.
        pages: files of other reports that lie beside this one.

    Raises:
        StoreError: if the training, or what it was made from, is gone.
    """
    manifest, folder = manifest_of(store, training), store.folder(training)
    curves = read_curves(folder / HISTORY_FILE)
    telemetry = folder / TELEMETRY_FILE
    if telemetry.is_file():
        curves |= read_curves(telemetry)
    model, train = manifest.settings["model"], manifest.settings["train"]
    return TrainingFigures(
        key=training.key,
        digest=training.digest,
        created=manifest.created,
        model=model,
        train=train,
        curves=curves,
        cost=_cost(model),
        notes=read_notes(folder),
        epoch=_epoch(store, manifest),
        tools=manifest.tools,
        modes=manifest.modes,
        evaluation=evaluation or {},
        ancestors=list(_ancestors(store, manifest, pages)),
    )


def read_curves(path: Path) -> dict[str, Curve]:
    """The curves of a table of (step, metric, value)."""
    table = pq.read_table(path, columns=["step", "metric", "value"])
    found = {}
    for name in sorted(pc.unique(table["metric"]).to_pylist()):
        rows = table.filter(pc.equal(table["metric"], name))
        steps, values = rows["step"].to_numpy(), rows["value"].to_numpy()
        order = np.argsort(steps, kind="stable")
        found[name] = Curve(steps[order].tolist(), values[order].tolist())
    return found


def _cost(model: dict[str, Any]) -> Cost:
    from model.accounting import count_parameters
    from model.architecture import ModelConfig

    network = ModelConfig.from_dict(model)
    return Cost(count_parameters(network)["total"], flops_per_token(network))


def _epoch(store: Store, manifest: Manifest) -> Epoch | None:
    (dataset,) = manifest.input_refs("dataset")
    folder = store.folder(dataset)
    if not (folder / DATASET_FILE).is_file():  # one that was made before there was such a record
        return None
    record = read_record(folder)
    groups = [group for group in record["groups"] if group["reads"]]
    tokens = sum(group["tokens"] * group["reads"] / group["count"] for group in groups)
    documents = record["splits"].get("train", {}).get("documents")
    return Epoch(sum(group["reads"] for group in groups), tokens, documents)


def _ancestors(store: Store, manifest: Manifest, pages: Collection[str]) -> list[Ancestor]:
    """What the training was made from, and what its dataset was made from."""
    found = []
    (dataset,) = manifest.input_refs("dataset")
    seen = set()
    for made in (manifest, manifest_of(store, dataset)):
        for name, entry in made.inputs.items():
            refs = made.input_refs(name)
            if not refs or entry["digest"] in seen:
                continue
            seen.add(entry["digest"])
            page = PAGES.get(refs[0].stage, "")
            keys = [ref.key for ref in refs]
            found.append(Ancestor(name, refs[0].stage, entry["digest"], keys, page if page in pages else ""))
    return found
