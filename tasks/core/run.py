"""The context of one command or flow, passed to every stage call: home, store, machine, options and report."""

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

# Seconds per unit for plans without a measurement in the store: from 670 mixed files, many of them scans, on a two-core
# laptop.
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
        reused: Cached units.
        seconds: Wall time, or an estimate in a plan.
        reason: In a plan, why it is not cached; empty in a run.
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
        """Add to the totals."""
        self.cached = self.cached and not computed
        self.computed += computed
        self.reused += reused
        self.rows += rows
        self.seconds = round(self.seconds + seconds, 3)


class Run:
    """Context of one run.

    Args:
        home: Addresses of the store, databases and reports.
        machine: Workers, device and pools; None in a plan.
        corpus: Name of the corpus.
        refresh: Names of stages to compute again.
        retry_failed: Extract files again whose extraction failed.
        plan: Compute nothing; report what would be computed, why, and the expected time.

    Attributes:
        reports: Lines of the report by stage.
        notes: Remarks for the user, shown at the end.
        produced: Artefacts by stage, for the ref of the corpus.
        forgotten: Documents that were forgotten when this run listed its files; None before that.
        tags: Tags of MLflow runs.
        task_runs: Prefect's task run and flow run that returned each artefact, by (stage, key).
        last_subflow: Result of the latest subflow, for the edge to the next one in Prefect's graph.
        is_copy: True in a task of another process, which closes its machine.
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
        self.is_copy = False
        self._machine = machine
        self._refreshed: set[tuple[str, str]] = set()
        self._expected: dict[str, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts that a task on another machine needs."""
        return type(self), (self.home, self._machine, self.corpus), {"is_copy": True}

    @property
    def machine(self) -> Machine:
        """The machine; a plan does not have one."""
        if self._machine is None:
            raise RuntimeError("a plan computes nothing, so it has no machine")
        return self._machine

    @cached_property
    def tracking(self) -> Tracking:
        """Connection to MLflow's tracking of the home."""
        from storage.tracking import Tracking

        return Tracking(self.home)

    def wants_refresh(self, stage: str, key: str) -> bool:
        """Return True at the first request of an artefact of a stage to be refreshed."""
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
            live: For each artefact, the values of `identity` of the rows in use; only these are part of the digest.
            identity: A column of the tables.
            segments: Keys of the extraction segments of the artefacts.
        """
        waiting = [ref for ref in refs if not ref.made]
        if waiting:
            return RefSet((waiting[0],), "")
        for ref in refs if not self.plan else ():
            self.store.touch(ref)  # those found by an index were not requested from a stage
        with explain_damage(self.store, refs):
            digest = union_digest([self.store.folder(ref, table) / table for ref in refs], live, identity)
        return RefSet(tuple(refs), digest, tuple(segments), tuple(live) if identity == "doc_id" else None)

    def add(self, kind: str, files: Mapping[str, Path]) -> tuple[ArtifactRef, list[Path]]:
        """Copy files into the store.

        Returns:
            The artefact, and its files; in a plan a reference without digest, and the original files.
        """
        if self.plan:
            return ArtifactRef(kind, "", ""), [files[name] for name in sorted(files)]
        ref = self.store.add(kind, files)
        return ref, added_files(self.store, ref)

    def read(self, ref: ArtifactRef, function: Callable[[ArtifactRef], T], assume: T) -> T:
        """Return the result of a function of an artefact; `assume` if the artefact is missing in a plan."""
        return function(ref) if ref.made else assume

    def line(self, stage: Stage) -> StageReport:
        """Return a stage's line of the report."""
        return self.reports.setdefault(stage.name, StageReport(stage.name))

    def count(self, stage: Stage, units: int, outcome: StageResult) -> None:
        """Report an artefact and its units; in a plan also if the code of its stage changed."""
        rows = outcome.manifest.counts.get("rows", 0)
        computed = 0 if outcome.cached else units
        self.line(stage).add(computed, units - computed, rows, outcome.seconds)
        if self.plan:
            self.compare_tools(stage, outcome.manifest)

    def reuse(self, stage: Stage, ref: ArtifactRef) -> ArtifactRef:
        """Report a pinned artefact that is used."""
        found = self.store.find(ref.stage, ref.key)
        self.line(stage).add(reused=1, rows=found.counts.get("rows", 0) if found else 0)
        self.line(stage).key = ref.key
        return ref

    def note(self, text: str) -> None:
        """Add a remark for the user, shown at the end."""
        if text not in self.notes:
            self.notes.append(text)

    def remember(self, **refs: ArtifactRef | Sequence[ArtifactRef]) -> None:
        """Record artefacts by stage, for the ref of the corpus that is written when the run is complete."""
        for stage, value in refs.items():
            listed = [value] if isinstance(value, ArtifactRef) else value
            self.produced[stage] = [ref for ref in listed if ref.made]

    # plans

    def expect_seconds(self, stage: Stage, seconds: float) -> None:
        """Set the seconds per unit of a stage in a plan."""
        self._expected[stage.name] = seconds

    def would_make(
        self, stage: Stage, request: Request | None, reason: str, units: int, many: bool = False
    ) -> ArtifactRef:
        """Report a missing artefact in a plan; returns its reference, which has no digest."""
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
        """Return a phrase on the difference between a request and the newest artefact of its stage.

        One with inputs of the same names comes first.
        """
        known = max(
            self.store.manifests(stage.name),
            key=lambda manifest: (manifest.inputs.keys() == inputs.keys(), manifest.created),
            default=None,
        )
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
        """Add notes on changes of a stage's code or tools since an artefact was made."""
        changes = [
            f"{name} is {now}; artefacts of stage {stage.name} were made with {found.tools[name]}"
            for name, now in (tools or {}).items()
            if found.tools.get(name, now) != now
        ]
        if found.code != stage.code:
            changes.append(f"the code of stage {stage.name} changed since its artefacts were made")
        for change in changes:
            self.note(f"{change}; they are used as they are: --refresh {stage.name} computes them again")

    def _seconds_per_unit(self, stage: Stage) -> float:
        if stage.name not in self._expected:
            made = self.store.manifests(stage.name)
            measured = [manifest.seconds / max(1, manifest.counts.get("units", 1)) for manifest in made]
            self._expected[stage.name] = median(measured) if measured else FIRST_GUESS.get(stage.name, 1.0)
        return self._expected[stage.name]
