"""Overhead of the train task: the stage with Prefect and MLflow compared with the bare `Trainer`.

    python -m benchmarks.orchestration bare STORE KEY STEPS      seconds of the bare trainer

The command line runs on the same data with the same settings; its time is that of the train stage in its report, from
the call to the artefact. The bare trainer runs before and after it, because the speed of machines drifts; its time is
from loading torch to saved weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import texts
from benchmarks.table import Row

GOAL = 0.03
PROBE_STEPS = 60
PRESET = "modern-1m"  # the same network for the probe and the comparison; short steps, so that overhead is visible
TEXT_BYTES = 4 * 2**20
TEN_MINUTES = 600.0


def train(source: Path, home: Path, steps: int) -> dict[str, Any]:
    """Run the whole command; returns its report's entry for the train stage.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "flows.cli", "train", str(source), "--home", str(home), "--json"]
    done = subprocess.run([*command, "--preset", PRESET, "--max-steps", str(steps)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    stages: list[dict[str, Any]] = json.loads(done.stdout)["stages"]
    return next(stage for stage in stages if stage["stage"] == "train")


def bare_seconds(store: Path, key: str, steps: int) -> float:
    """Return the seconds of the bare trainer in a new process, on the data of a trained artefact."""
    command = [sys.executable, "-m", "benchmarks.orchestration", "bare", str(store), key, str(steps)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def run_bare(store_folder: str, key: str, steps: int) -> float:
    """Return the seconds of the bare trainer, from loading torch to saved weights, with validation and checkpoints."""
    started = time.perf_counter()
    from model import ModelConfig, TrainConfig, Trainer
    from model.checkpoint import save_weights
    from storage.lineage import manifest_of
    from storage.manifest import ArtifactRef
    from storage.store import open_store
    from tasks.tokens.index import groups_of, open_sequences
    from tasks.training.train import VALIDATION_SAMPLE, shard_folders

    store = open_store(store_folder)
    manifest = manifest_of(store, ArtifactRef("train", key, ""))
    (dataset,) = manifest.input_refs("dataset")
    work: Any = SimpleNamespace(store=store, folder=store.folder)
    shards = shard_folders(work, dataset)
    network = ModelConfig.from_dict(manifest.settings["model"])
    settings = {**manifest.settings["train"], "max_steps": steps, "eval_every": max(1, -(-steps // 10))}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            network,
            TrainConfig.from_dict(settings),
            open_sequences(store.folder(dataset), shards, "train", network.max_seq_len),
            open_sequences(store.folder(dataset), shards, "validation", network.max_seq_len, VALIDATION_SAMPLE),
            groups=groups_of(store.folder(dataset)),
            checkpoint_dir=Path(folder),
        )
        save_weights(Path(folder) / "model.safetensors", trainer.fit().model)
        return time.perf_counter() - started


def orchestration_rows(seconds: float) -> Iterator[Row]:
    """Yield the overhead of the train task over a bare training of about `seconds`, as a share."""
    with tempfile.TemporaryDirectory() as folder:
        source, home = Path(folder) / "source", Path(folder) / "home"
        source.mkdir()
        for number, text in enumerate(texts.documents(TEXT_BYTES)):
            (source / f"{number:05d}.txt").write_text(text)
        key = train(source, home, PROBE_STEPS)["key"]
        short, longer = (bare_seconds(home / "store", key, times * PROBE_STEPS) for times in (1, 3))
        per_step = (longer - short) / (2 * PROBE_STEPS)  # without the fixed cost of a run
        steps = PROBE_STEPS + max(0, round((seconds - short) / per_step))
        before = bare_seconds(home / "store", key, steps)
        through = train(source, home, steps + 1)["seconds"] * steps / (steps + 1)  # not the artefact of the probe
        bare = (before + bare_seconds(home / "store", key, steps)) / 2
    yield Row(
        "orchestration: what the train task adds to the bare trainer",
        f"{through:.1f} s for {steps} steps",
        f"{bare:.1f} s",
        through / bare - 1,
        GOAL,
        True,
    )


def ten_minute_rows(full: bool) -> Iterator[Row]:
    """Yield the same for ten minutes, with `--full` only, because it needs three such trainings."""
    if full:
        yield from orchestration_rows(TEN_MINUTES)
    else:
        yield Row("orchestration overhead on a 10-minute run", "not measured without --full", "", float("nan"))


if __name__ == "__main__":
    print(run_bare(sys.argv[2], sys.argv[3], int(sys.argv[4])))
