"""Promotion: registers a model version and moves names. It makes nothing, and run again it changes nothing.

A challenger becomes champion if its bits per byte are lower than the champion's on the same evaluation set. A champion
that was trained on documents of that set has no figures that compare; the challenger, which was not, takes its place.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from storage.lineage import ancestor, manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHALLENGER, CHAMPION, MODEL_NAME, PREVIOUS, ModelVersion, Registry
from storage.store import Store
from tasks.curate.evalset import trains_on_evalset
from tasks.evaluation.sums import baselines_of

DECIDES = "val/bits_per_byte"
SERVED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
TRAVELLING_CODE = (
    "tasks/__init__.py",
    "tasks/bundle.py",
    "tasks/tokens/__init__.py",
    *(f"tasks/tokens/{name}.py" for name in ("interface", "subword", "tables", "tokenizer")),
)


@dataclass(frozen=True)
class Promotion:
    """What promotion did.

    Attributes:
        alias: name the version stands under now.
        moved: whether any name moved.
        reason: the comparison in one sentence.
    """

    version: ModelVersion
    alias: str
    moved: bool
    reason: str


@dataclass(frozen=True)
class Rival:
    """The champion that was measured.

    Attributes:
        version: its number in the registry.
        metrics: its figures on the challenger's evaluation set; None if it was trained on documents of that set.
    """

    version: str
    metrics: Mapping[str, float] | None


class ChampionChanged(RuntimeError):
    """Another version is champion than the one that was measured; nothing was written."""


def trained_on(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Whether a model was trained on documents of an evaluation set; False for one that was trained elsewhere."""
    if checkpoint.stage != "train":
        return False
    (curated,) = ancestor(store, checkpoint, "dataset").input_refs("curated")
    return trains_on_evalset(store, curated, evalset)


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


def decide(challenger: Mapping[str, float], rival: Rival | None, same_model: bool) -> tuple[bool, str]:
    """Whether the challenger becomes (or stays) champion, and why.

    Args:
        challenger: its metrics.
        rival: the champion; None when there is none.
        same_model: the challenger is the champion.
    """
    own = challenger[DECIDES]
    if same_model:
        return True, f"it is the champion already ({own:.4f} bits per byte)"
    if rival is None:
        return True, f"there was no champion ({own:.4f} bits per byte)"
    if rival.metrics is None:
        return True, (
            "the champion was trained on documents of this evaluation set, so the two cannot be compared "
            f"({own:.4f} bits per byte)"
        )
    other = rival.metrics[DECIDES]
    if own < other:
        return True, f"{own:.4f} bits per byte are fewer than the champion's {other:.4f}"
    return False, f"{own:.4f} bits per byte are not fewer than the champion's {other:.4f}"


def model_card(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef, metrics: Mapping[str, float]) -> str:
    """Description of a version, Markdown: what it is, how good, made from what, how to use it."""
    made = manifest_of(store, checkpoint)
    network, plan = made.settings["model"], made.settings["train"]
    curated = ancestor(store, checkpoint, "curate").counts
    dataset = ancestor(store, checkpoint, "dataset").counts
    rows = [
        ("this model", metrics["val/loss"], metrics[DECIDES]),
        *((name, metrics[f"val/{of}_loss"], metrics[f"val/{of}_bits_per_byte"]) for name, of in baselines_of(metrics)),
    ]
    table = "\n".join(f"| {name} | {loss:.4f} | {bits:.4f} |" for name, loss, bits in rows)
    shape = f"{network['n_layer']} layers, width {network['d_model']}, context {network['max_seq_len']}"
    return f"""## Language model of {shape}

Evaluated on {metrics["val/documents"]:.0f} held-out documents ({metrics["val/bytes"]:,.0f} bytes, evaluation set \
`{evalset.digest[:12]}`). Perplexity {metrics["val/perplexity"]:.2f}.

| | loss (nats per token) | bits per byte |
|---|---|---|
{table}
| zstd -19 | | {metrics["val/zstd19_bits_per_byte"]:.4f} |

Trained on {curated["train"]:,} documents, {dataset["train_tokens"]:,} tokens, for {plan["max_steps"]:,} steps in \
{plan["precision"]} with seed {plan["seed"]}; vocabulary of {network["vocab_size"]:,}.

```python
import mlflow
model = mlflow.pyfunc.load_model("models:/{MODEL_NAME}@champion")
model.predict(["Once"], params={{"max_new_tokens": 40, "temperature": 0.8}})
```

Checkpoint `{checkpoint.stage}/{checkpoint.key}`; `sheepfold why {MODEL_NAME}@champion` leads back to its documents.
"""


def promote(
    store: Store,
    registry: Registry,
    run_id: str,
    checkpoint: ArtifactRef,
    evalset: ArtifactRef,
    metrics: Mapping[str, float],
    rival: Rival | None,
) -> Promotion:
    """Register a model and let it stand where it belongs.

    Args:
        rival: the champion as it was measured; None when there was none.

    Raises:
        ChampionChanged: another version became champion in the meantime: measure that one.
    """
    with store.lock("promote"):
        champion = registry.by_alias(CHAMPION)
        measured = None if rival is None else rival.version
        if champion is not None and champion.version != measured:
            found = "none" if measured is None else f"version {measured}"
            raise ChampionChanged(f"version {champion.version} is champion, but {found} was measured")
        version = registry.by_digest(checkpoint.digest)
        if version is None:
            with tempfile.TemporaryDirectory(prefix="sheepfold-") as folder:
                bundle = prepare_bundle(store.folder(checkpoint), Path(folder) / "bundle")
                version = registry.register(
                    bundle,
                    Path(__file__).with_name("serving.py"),
                    run_id,
                    checkpoint,
                    requirements(),
                    model_card(store, checkpoint, evalset, metrics),
                    _tags(evalset, metrics),
                )
        same = champion is not None and champion.version == version.version
        wins, reason = decide(metrics, rival if champion is not None else None, same)
        before = set(version.aliases)
        if wins:
            if champion is not None and not same:
                registry.move_alias(PREVIOUS, champion.version)
            registry.move_alias(CHAMPION, version.version)
            challenger = registry.by_alias(CHALLENGER)
            if challenger is not None and challenger.version == version.version:
                registry.drop_alias(CHALLENGER)  # it has won; a name that stands for a loser would mislead
        else:
            registry.move_alias(CHALLENGER, version.version)
        alias = CHAMPION if wins else CHALLENGER
        moved = alias not in before
        if moved:
            registry.tag(version.version, {"sheepfold.verdict": reason})
        current = registry.by_number(version.version) or version
    return Promotion(current, alias, moved, reason)


def _tags(evalset: ArtifactRef, metrics: Mapping[str, float]) -> dict[str, Any]:
    figures = {name: f"{metrics[name]:.6f}" for name in (DECIDES, "val/loss", "val/perplexity")}
    tags = {name.replace("val/", "sheepfold."): value for name, value in figures.items()}
    return {**tags, "sheepfold.evalset": evalset.digest, "sheepfold.python": platform.python_version()}
