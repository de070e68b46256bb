"""A run: the home, the machine, the options and the report of one command or flow, handed to every stage call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from storage.digest import plain
from storage.home import Home
from storage.manifest import ArtifactRef, Input, Manifest, RefSet
from storage.store import Store, open_store
from storage.tables import union_digest
from storage.verify import explain_damage
from tasks.core.stage import Request, Stage, StageResult, added_files

if TYPE_CHECKING:
    from storage.tracking import Tracking
    from tasks.core.machine import Machine

T = TypeVar("T")

# Seconds per unit where this store has no measurement yet: rough figures of 670 mixed files, of which many are scans,
# on a two-core laptop.
FIRST_GUESS = {
    "extract": 0.2,
    "normalise": 0.002,
    "measure": 0.01,
    "refine": 0.001,
    "evalset_overlap": 0.0005,
    "tokenise": 0.001,
    "evaluate": 5.0,
}


@dataclass
class StageReport:
    """One line of the report of a run or a plan.

    Attributes:
        computed: Units (files, documents, artefacts) computed, or to be computed in a plan.
        reused: Units that were there already.
        seconds: Wall time, or an estimate in a plan.
        reason: In a plan, why it is not cached; in a run, empty.
    """

    stage: str
    key: str = ""
    cached: bool = True
    computed: int = 0
    reused: int = 0
    seconds: float = 0.0
    rows: int = 0
    reason: str = ""

    def add(self, computed: int = 0, reused: int = 0, rows: int = 0, seconds: float = 0.0) -> None:
        """Add to the figures."""
        self.cached = self.cached and not computed
        self.computed += computed
        self.reused += reused
        self.rows += rows
        self.seconds = round(self.seconds + seconds, 3)


class Run:
    """Context of one run.

    Args:
        home: Where everything lies.
        machine: Workers, device and pools; a plan needs none.
        corpus: Name of the corpus.
        refresh: Names of stages to compute again.
        retry_failed: Extract files again whose extraction failed.
        plan: Compute nothing, and report what would be computed, why, and how long it takes.

    Attributes:
        reports: Lines of the report by stage.
        notes: Sentences that the person should read at the end.
        produced: Artefacts by stage, for the ref of the corpus.
        forgotten: Documents that were forgotten when this run listed its files; None before that.
        tags: Tags of MLflow runs.
        task_runs: Prefect's task run and flow run behind each artefact, by (stage, key).
        last_subflow: Result of the latest subflow, by which Prefect draws an edge from it.
        travelled: This is a copy in another process, whose machine ends with the task.
    """

    def __init__(
        self,
        home: Home,
        machine: Machine | None = None,
        corpus: str = "default",
        refresh: Collection[str] = (),
        retry_failed: bool = False,
        plan: bool = False,
    ) -> None:
        self.home = home
        self.corpus = corpus
        self.refresh = frozenset(refresh)
        self.retry_failed = retry_failed
        self.plan = plan
        self.store: Store = open_store(home.store, home.cache)
        self.reports: dict[str, StageReport] = {}
        self.notes: list[str] = []
        self.produced: dict[str, list[ArtifactRef]] = {}
        self.forgotten: frozenset[str] | None = None
        self.tags: dict[str, str] = {}
        self.task_runs: dict[tuple[str, str], tuple[UUID, UUID]] = {}
        self.last_subflow: object = None
        self.travelled = False
        self._machine = machine
        self._refreshed: set[tuple[str, str]] = set()
        self._expected: dict[str, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a task on another machine needs."""
        return type(self), (self.home, self._machine, self.corpus), {"travelled": True}

    @property
    def machine(self) -> Machine:
        """The machine; a plan has none."""
        if self._machine is None:
            raise RuntimeError("a plan computes nothing, so it has no machine")
        return self._machine

    @cached_property
    def tracking(self) -> Tracking:
        """MLflow's tracking side of the home."""
        from storage.tracking import Tracking

        return Tracking(self.home)

    def wants_refresh(self, stage: str, key: str) -> bool:
        """Return True the first time that an artefact of a stage to be refreshed is asked for."""
        identity = (stage, key)
        wanted = stage in self.refresh and identity not in self._refreshed
        self._refreshed.add(identity)
        return wanted

    def union(
        self,
        refs: Sequence[ArtifactRef],
        table: str,
        live: Sequence[Collection[str]],
        identity: str = "doc_id",
        segments: Sequence[str] = (),
    ) -> RefSet:
        """Return several artefacts that are read as one table.

        Args:
            live: For each artefact, the rows in it that count; only they enter the digest.
            identity: Column that `live` names values of.
            segments: Keys of the extraction segments behind the artefacts.
        """
        waiting = [ref for ref in refs if not ref.made]
        if waiting:
            return RefSet((waiting[0],), "")
        for ref in refs if not self.plan else ():
            self.store.touch(ref)  # some were found by an index, and no stage was asked for them
        with explain_damage(self.store, refs):
            digest = union_digest([self.store.folder(ref, table) / table for ref in refs], live, identity)
        return RefSet(tuple(refs), digest, tuple(segments), tuple(live) if identity == "doc_id" else None)

    def add(self, kind: str, files: Mapping[str, Path]) -> tuple[ArtifactRef, list[Path]]:
        """Copy files from outside into the store.

        Returns:
            The artefact, and the files as stages read them; in a plan a reference without digest, and the originals.
        """
        if self.plan:
            return ArtifactRef(kind, "", ""), [files[name] for name in sorted(files)]
        ref = self.store.add(kind, files)
        return ref, added_files(self.store, ref)

    def read(self, ref: ArtifactRef, function: Callable[[ArtifactRef], T], assume: T) -> T:
        """Return what a function reads from an artefact; `assume` where a plan would have to make it first."""
        return function(ref) if ref.made else assume

    def line(self, stage: Stage) -> StageReport:
        """Return a stage's line of the report."""
        return self.reports.setdefault(stage.name, StageReport(stage.name))

    def count(self, stage: Stage, units: int, outcome: StageResult) -> None:
        """Report an artefact of so many units; a plan compares the code that made it with today's."""
        rows = outcome.manifest.counts.get("rows", 0)
        computed = 0 if outcome.cached else units
        self.line(stage).add(computed, units - computed, rows, outcome.seconds)
        if self.plan:
            self.compare_tools(stage, outcome.manifest)

    def reuse(self, stage: Stage, ref: ArtifactRef) -> ArtifactRef:
        """Report an artefact that is used because a ref pins it."""
        found = self.store.find(ref.stage, ref.key)
        self.line(stage).add(reused=1, rows=found.counts.get("rows", 0) if found else 0)
        self.line(stage).key = ref.key
        return ref

    def note(self, text: str) -> None:
        """Add a sentence that the person should read at the end."""
        if text not in self.notes:
            self.notes.append(text)

    def remember(self, **refs: ArtifactRef | Sequence[ArtifactRef]) -> None:
        """Record artefacts by stage for the ref that is moved when the run is complete."""
        for stage, value in refs.items():
            listed = [value] if isinstance(value, ArtifactRef) else value
            self.produced[stage] = [ref for ref in listed if ref.made]

    # plans

    def expect_seconds(self, stage: Stage, seconds: float) -> None:
        """Set how long a plan says that a stage takes."""
        self._expected[stage.name] = seconds

    def would_make(
        self, stage: Stage, request: Request | None, reason: str, units: int, many: bool = False
    ) -> ArtifactRef:
        """Report in a plan that an artefact is missing; returns its reference, which has no digest."""
        if request is not None:
            if request.refresh:
                reason = "refresh asked for"
            else:
                reason = f"new {stage.unit}" if many else self._difference(stage, request.settings, request.inputs)
        key = request.key if request is not None else ""
        line = self.line(stage)
        line.add(computed=units, seconds=round(self._seconds_per_unit(stage) * units, 1))
        line.key, line.reason = key or line.key, line.reason or reason
        return ArtifactRef(stage.name, key, "")

    def _difference(self, stage: Stage, settings: Any, inputs: Mapping[str, Input]) -> str:
        """Name what differs between a request and the newest artefact of its stage."""
        known = max(self.store.manifests(stage.name), key=lambda manifest: manifest.created, default=None)
        if known is None:
            return "never computed"
        if known.version != stage.version:
            return f"stage version {known.version} -> {stage.version}"
        changed = [name for name, value in inputs.items() if known.inputs.get(name, {}).get("digest") != value.digest]
        if changed:
            return f"changed input: {', '.join(changed)}"
        wanted = plain(settings) or {}
        different = sorted(name for name in wanted if wanted[name] != known.settings.get(name))
        return f"changed setting: {', '.join(different)}" if different else "not in the store"

    def compare_tools(self, stage: Stage, found: Manifest, tools: Mapping[str, str] | None = None) -> None:
        """Note that the code of a stage or its tools changed since an artefact was made."""
        changes = [
            f"{name} is {now}; artefacts of stage {stage.name} were made with {found.tools[name]}"
            for name, now in (tools or {}).items()
            if found.tools.get(name, now) != now
        ]
        if found.code != stage.code:
            changes.append(f"the code of stage {stage.name} changed since its artefacts were made")
        for change in changes:
            self.note(f"{change}; they stay in use; --refresh {stage.name} computes them again")

    def _seconds_per_unit(self, stage: Stage) -> float:
        if stage.name in self._expected:
            return self._expected[stage.name]
        measured = [
            manifest.seconds / max(1, manifest.counts.get("units", 1)) for manifest in self.store.manifests(stage.name)
        ]
        return median(measured) if measured else FIRST_GUESS.get(stage.name, 1.0)
