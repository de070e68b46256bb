"""Small stages for tests; as a script, one request for an artefact from a process of its own.

    python stage_samples.py STORE TEXT

The script says on standard output what happens, and its stage waits for a line on standard input before it ends.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from storage.digest import sha256_json
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.store import Store
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.stage import Stage, Work, stage


@dataclass(frozen=True)
class TextSettings:
    """Settings of the sample stages."""

    text: str = "a"


@dataclass
class Calls:
    """Machine of the sample stages: it notes each call, and does what a test asks for first."""

    seen: list[str] = field(default_factory=list)
    before: Callable[[Work], None] = lambda work: None
    workers: int = 1


def _make(work: Work, text: str) -> str:
    work.machine.seen.append(text)
    work.machine.before(work)
    (work.out / "text").write_text(text)
    work.counts.update(rows=len(text), units=1)
    return sha256_json(text)


@stage("letters", version=1)
def letters(work: Work, settings: TextSettings) -> str:
    """Write a text."""
    return _make(work, settings.text)


@stage("capitals", version=1, unit="document")
def capitals(work: Work, settings: TextSettings, *, source: ArtifactRef) -> str:
    """Write a text in capitals; the settings are read, but change nothing."""
    return _make(work, (work.folder(source) / "text").read_text().upper())


@stage("joined", version=1)
def joined(work: Work, settings: None, *, parts: RefSet, first: ArtifactRef) -> str:
    """Write several texts one after the other."""
    return _make(work, "".join((work.folder(ref) / "text").read_text() for ref in [first, *parts.refs]))


def copy_of(original: Stage) -> Stage:
    """A stage of the same function, so that a test may change it."""
    return stage(original.name, original.version, unit=original.unit)(original.function)


def run_at(store: Path, machine: Calls | None = None, **options: Any) -> Run:
    """A run without Prefect on a store of its own."""
    home = Home(store.parent, str(store), f"sqlite:///{store.parent / 'mlflow.db'}")
    return Run(home, cast(Machine, machine or Calls()), **options)


@dataclass(frozen=True)
class Answer:
    """Result of one request: the artefact, and whether it was cached."""

    ref: ArtifactRef
    cached: bool
    manifest: Manifest


def found(store: Store, stage: Stage, settings: Any, **inputs: Any) -> Manifest | None:
    """The finished artefact of a request, or None."""
    return store.find(stage.name, stage.key(settings, inputs))


def ask_for(
    store: Store, stage: Stage, settings: Any, machine: Calls | None = None, refresh: bool = False, **inputs: Any
) -> Answer:
    """Ask for one artefact, in a run of its own."""
    run = run_at(store.root, machine, refresh=[stage.name] if refresh else ())
    ref = stage(run, settings, **inputs)
    manifest = run.store.find(ref.stage, ref.key)
    assert manifest is not None
    return Answer(ref, run.reports[stage.name].cached, manifest)


def main(address: str, text: str) -> None:
    """Ask for the letters of a text, and tell what happens."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")

    def hold(work: Work) -> None:
        print("working", flush=True)
        sys.stdin.readline()

    run = run_at(Path(address), Calls(before=hold))
    letters(run, TextSettings(text))
    print("cached" if run.reports["letters"].cached else "made", flush=True)


if __name__ == "__main__":
    # under its importable name, because manifests record a fingerprint of the stage's module
    from stage_samples import main as importable_main

    importable_main(*sys.argv[1:])
