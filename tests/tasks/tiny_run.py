"""A tiny corpus and direct runs over it: twelve short texts, a network of one layer, twenty steps."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.pipeline import Ingested, Prepared
from tasks.resources import Resources
from tasks.session import Planner, Session, StageReport, artifact

from flows import pipeline
from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.ingest.sources.resolve import resolve_sources
from tasks.settings import Settings, load_settings, parse_assignments

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


def copy_of_store(ran: Ran, folder: Path, *without: str) -> Home:
    """A new home with what a run made, and with no models and runs in MLflow; it may be spoiled.

    Args:
        without: stages that are left out.
    """
    home = home_at(folder)
    left_out = shutil.ignore_patterns(*without, ".work", ".locks")
    shutil.copytree(ran.session.home.store, home.store, ignore=left_out, dirs_exist_ok=True)
    return home


def train_in(session: Session, source: Path, settings: Settings | None = None) -> ArtifactRef:
    """Files to a trained model; returns the checkpoint."""
    settings = settings or tiny_settings()
    ingested = pipeline.ingest(session, resolve_sources([str(source)]), settings)
    prepared = pipeline.prepare(session, "default", settings, ingested)
    return artifact(pipeline.train_model(session, settings, prepared))


class TinyResources(Resources):
    """One thread on the CPU: more only wait for each other in so small a network."""

    @cached_property
    def device(self) -> str:
        import torch

        torch.set_num_threads(1)
        return "cpu"


@contextmanager
def direct_session(home: Home, refresh: Collection[str] = ()) -> Iterator[Session]:
    """A session without Prefect."""
    with TinyResources(home, workers=1) as resources:
        yield Session(home, resources, refresh)


@dataclass
class Ran:
    """What one run gave."""

    reports: dict[str, StageReport]
    ingested: Ingested
    prepared: Prepared
    session: Session
    checkpoint: ArtifactRef | None = None
    evaluation: ArtifactRef | None = None
    completions: ArtifactRef | None = None
    metrics: dict[str, float] | None = None

    def computed(self) -> dict[str, int]:
        """Units computed by stage; those of nothing left out."""
        return {name: report.computed for name, report in self.reports.items() if report.computed}

    def folder(self, ref: Any) -> Path:
        """Folder of an artefact."""
        return self.session.store.folder(artifact(ref))


def run_prepare(home: Home, source: Path, settings: Settings | None = None, refresh: Collection[str] = ()) -> Ran:
    """Files to dataset."""
    settings = settings or tiny_settings()
    with direct_session(home, refresh) as session:
        ingested = pipeline.ingest(session, resolve_sources([str(source)]), settings)
        prepared = pipeline.prepare(session, "default", settings, ingested)
        pipeline.remember_ingested(session, ingested)
        pipeline.remember_prepared(session, prepared)
        pipeline.publish(session, "default")
        return Ran(session.reports, ingested, prepared, session)


def run_whole(
    home: Home,
    source: Path,
    settings: Settings | None = None,
    refresh: Collection[str] = (),
    before: Callable[[Session], None] = lambda session: None,
) -> Ran:
    """Files to completions.

    Args:
        before: is handed the session before anything runs.
    """
    with direct_session(home, refresh) as session:
        before(session)
        return run_in(session, source, settings or tiny_settings())


def run_in(session: Session, source: Path, settings: Settings) -> Ran:
    """Files to completions, in a session."""
    ingested = pipeline.ingest(session, resolve_sources([str(source)]), settings)
    prepared = pipeline.prepare(session, "default", settings, ingested)
    checkpoint = artifact(pipeline.train_model(session, settings, prepared))
    evaluation, metrics = pipeline.evaluate_model(session, checkpoint, prepared.evalset)
    sample = pipeline.sample(session, settings, checkpoint, prepared.evalset)
    pipeline.remember_ingested(session, ingested)
    pipeline.remember_prepared(session, prepared)
    pipeline.remember(session, train=checkpoint, evaluate=evaluation, generate=sample)
    pipeline.publish(session, "default")
    return Ran(
        session.reports, ingested, prepared, session, checkpoint, artifact(evaluation), artifact(sample), metrics
    )


def plan_of(
    home: Home, source: Path, settings: Settings | None = None, refresh: Collection[str] = ()
) -> dict[str, StageReport]:
    """What `plan` says."""
    planner = Planner(home, refresh)
    pipeline.plan(planner, resolve_sources([str(source)]), "default", settings or tiny_settings())
    return planner.reports
