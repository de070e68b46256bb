"""A tiny corpus and direct runs over it: twelve short texts, a network of one layer, twenty steps."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.evaluate import evaluate_model
from flows.generate import sample
from flows.ingest import Ingested
from flows.plan import plan_retraining
from flows.prepare import Prepared, ingest_and_prepare
from flows.report import publish
from flows.train import train_model
from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.core.run import Run, StageReport
from tasks.core.settings import Settings, load_settings, parse_assignments
from tests.tasks.warm import WarmMachine

TEXT = """the shepherd counts his sheep at dusk and closes the fold before rain comes over the hill while a dog
watches from the gate and every lamb finds its mother in the straw near the old stone wall"""

SETTINGS = (
    "curate.validation_share=0.3",
    "model.preset=tiny",
    "model.n_layer=1",
    "model.d_model=32",
    "model.max_seq_len=32",
    "train.max_steps=20",
    "train.batch_size=4",
    "train.seed=7",
    "generate.max_new_tokens=12",
    "evaluate.trace=false",
)


def hash_share(text_sha256: str, salt: str) -> float:
    """Place of a text in [0, 1): below `curate.validation_share` it is held out."""
    return int.from_bytes(hashlib.sha256(f"{salt}\x00{text_sha256}".encode()).digest()[:8]) / 2**64


def text_of(number: int, n_words: int = 90) -> str:
    """A text that is different for every number."""
    words = random.Random(number).choices(TEXT.split(), k=n_words)
    lines = [" ".join(words[start : start + 10]) for start in range(0, n_words, 10)]
    return f"Text {number}\n" + ".\n".join(lines) + ".\n"


def write_texts(folder: Path, numbers: Collection[int] = range(12)) -> Path:
    """One file for each number; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / f"text-{number:02}.txt").write_text(text_of(number), encoding="utf-8")
    return folder


def tiny_settings(*assignments: str) -> Settings:
    """The settings of a tiny run; later assignments win."""
    return load_settings(None, parse_assignments([*SETTINGS, *assignments]))


def home_at(folder: Path) -> Home:
    """A home in this folder, whatever the environment says."""
    return Home(folder, str(folder / "store"), f"sqlite:///{folder / 'mlflow.db'}").create()


@cache
def empty_database() -> bytes:
    """An MLflow database with all tables and nothing in them: making them takes seconds, copying them none."""
    from storage.tracking import client

    with TemporaryDirectory() as folder:
        home = home_at(Path(folder))
        client(home).search_experiments()
        return (home.path / "mlflow.db").read_bytes()


def with_tracking(home: Home) -> Home:
    """Give a home an MLflow database that knows of nothing; returns the home."""
    (home.path / "mlflow.db").write_bytes(empty_database())
    return home


def copy_of_store(ran: Ran, folder: Path, *without: str) -> Home:
    """A new home with what a run made, and with no models and runs in MLflow; it may be spoiled.

    Args:
        without: stages that are left out.
    """
    home = with_tracking(home_at(folder))
    left_out = shutil.ignore_patterns(*without, ".work", ".locks")
    shutil.copytree(ran.run.home.store, home.store, ignore=left_out, dirs_exist_ok=True)
    return home


def train_in(run: Run, source: Path, settings: Settings | None = None) -> ArtifactRef:
    """Files to a trained model; returns the checkpoint."""
    settings = settings or tiny_settings()
    _, prepared, base = ingest_and_prepare(run, str(source), settings)
    return train_model(run, settings, prepared, base)


class TinyMachine(WarmMachine):
    """One thread on the CPU: more only wait for each other in so small a network."""

    @cached_property
    def device(self) -> str:
        import torch

        torch.set_num_threads(1)
        return "cpu"


@contextmanager
def direct_run(home: Home, refresh: Collection[str] = ()) -> Iterator[Run]:
    """A run without Prefect."""
    with TinyMachine(workers=1) as machine:
        yield Run(home, machine, refresh=refresh)


@dataclass
class Ran:
    """Result of one run."""

    reports: dict[str, StageReport]
    ingested: Ingested
    prepared: Prepared
    run: Run
    checkpoint: ArtifactRef | None = None
    evaluation: ArtifactRef | None = None
    completions: ArtifactRef | None = None
    metrics: dict[str, float] | None = None

    def computed(self) -> dict[str, int]:
        """Units computed by stage; those of nothing left out."""
        return {name: report.computed for name, report in self.reports.items() if report.computed}

    def folder(self, ref: ArtifactRef) -> Path:
        """Folder of an artefact."""
        return self.run.store.folder(ref)


def run_prepare(home: Home, source: Path, settings: Settings | None = None, refresh: Collection[str] = ()) -> Ran:
    """Files to dataset."""
    with direct_run(home, refresh) as run:
        ingested, prepared, _ = ingest_and_prepare(run, str(source), settings or tiny_settings())
        publish(run)
        return Ran(run.reports, ingested, prepared, run)


def run_whole(
    home: Home,
    source: Path,
    settings: Settings | None = None,
    refresh: Collection[str] = (),
    before: Callable[[Run], None] = lambda run: None,
) -> Ran:
    """Files to completions.

    Args:
        before: is handed the run before anything is computed.
    """
    with direct_run(home, refresh) as run:
        before(run)
        return run_in(run, source, settings or tiny_settings())


def run_in(run: Run, source: Path, settings: Settings) -> Ran:
    """Files to completions, in a run."""
    ingested, prepared, base = ingest_and_prepare(run, str(source), settings)
    checkpoint = train_model(run, settings, prepared, base)
    evaluation, metrics = evaluate_model(run, checkpoint, prepared.evalset)
    completions = sample(run, settings, checkpoint, prepared.evalset)
    run.remember(train=checkpoint, evaluate=evaluation, generate=completions)
    publish(run)
    return Ran(run.reports, ingested, prepared, run, checkpoint, evaluation, completions, metrics)


def plan_of(
    home: Home, source: Path, settings: Settings | None = None, refresh: Collection[str] = ()
) -> dict[str, StageReport]:
    """Return the reports of `plan`."""
    run = Run(home, refresh=refresh, plan=True)
    plan_retraining(run, str(source), settings or tiny_settings())
    return run.reports
