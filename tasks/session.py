"""A session: how the stages of one command are carried out, and what became of each.

The wiring in `flows.pipeline` is written once against `Session`. An ordinary session computes what is missing, directly
or through Prefect tasks; a planning one (`Planner`) computes nothing and says what would be computed and why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from storage.damage import told_of_damage
from storage.digest import plain, rows_digest
from storage.home import Home
from storage.manifest import ArtifactRef, Input, Manifest, RefSet
from storage.store import Store, open_store
from storage.tables import union_digest
from tasks.cluster import task_options
from tasks.fingerprint import remember_in
from tasks.stage import Invocation, Outcome, Stage

logger = logging.getLogger("sheepfold")


@dataclass
class StageReport:
    """One line of a run's or a plan's report.

    Attributes:
        computed: units (files, documents, artefacts) computed, or to be computed in a plan.
        reused: units that were there already.
        seconds: wall time spent, or an estimate in a plan.
        reason: in a plan, why it is not cached; in a run, empty.
    """

    stage: str
    key: str
    cached: bool
    computed: int
    reused: int
    seconds: float
    rows: int
    reason: str = ""


@dataclass(frozen=True)
class Pending:
    """Stands for an artefact that a plan knows to be missing."""

    stage: str
    reason: str
    units: int = 1


MaybeInput = Input | Pending


@dataclass(frozen=True)
class Call:
    """One of several requests to the same stage.

    Attributes:
        units: how many files or documents it stands for, for reports and estimates.
    """

    settings: Any
    inputs: Mapping[str, Any]
    units: int


class Session:
    """Carries out stages and keeps the report.

    Args:
        home: where everything rests.
        resources: handed to the stages (see `tasks.resources`).
        refresh: names of stages to compute again.
        retry_failed: extract files again whose extraction failed.
        corpus: whose registered model is meant.

    Attributes:
        produced: artefacts by stage, for the ref of the corpus.
        forgotten: the documents that were forgotten when this run listed its files; None before that.
    """

    dry = False

    def __init__(
        self,
        home: Home,
        resources: Any = None,
        refresh: Collection[str] = (),
        retry_failed: bool = False,
        corpus: str = "default",
    ) -> None:
        self.home = home
        self.corpus = corpus
        remember_in(home.cache / "code.json")
        self.retry_failed = retry_failed
        self.produced: dict[str, list[ArtifactRef]] = {}
        self.store: Store = open_store(home.store, home.cache)
        self.resources = resources
        self.refresh = frozenset(refresh)
        self.reports: dict[str, StageReport] = {}
        self.notes: list[str] = []
        self.bases: dict[str, Any] = {}  # models that this run continues from, by the names that they were found under
        self.forgotten: frozenset[str] | None = None
        self._refreshed: set[tuple[str, str]] = set()

    # how requests are carried out; the Prefect session replaces these two
    def _one(self, invocation: Invocation) -> Outcome:
        return invocation.stage.run(
            invocation.store,
            invocation.settings,
            invocation.inputs,
            resources=invocation.resources,
            refresh=invocation.refresh,
        )

    def _many(self, invocations: Sequence[Invocation]) -> list[Outcome]:
        return [self._one(invocation) for invocation in invocations]

    def run(self, stage: Stage, settings: Any, **inputs: MaybeInput) -> ArtifactRef | Pending:
        """The artefact of one stage."""
        outcome = self._one(self._invocation(stage, settings, inputs))
        units = 0 if outcome.cached else 1
        self._report(stage, outcome.ref.key, [outcome], computed=units, reused=1 - units)
        return outcome.ref

    def run_each(self, stage: Stage, calls: Sequence[Call]) -> list[ArtifactRef | Pending]:
        """The artefacts of many requests to one stage; only the missing ones become tasks."""
        refs: dict[int, ArtifactRef] = {}
        missing: list[tuple[int, Invocation]] = []
        reused = rows = 0
        for index, call in enumerate(calls):
            invocation = self._invocation(stage, call.settings, call.inputs)
            found = None if invocation.refresh else stage.find(self.store, call.settings, call.inputs)
            if found is None or not self.store.use(found.ref):
                missing.append((index, invocation))
            else:
                refs[index] = found.ref
                reused += call.units
                rows += found.counts.get("rows", 0)
        outcomes = self._many([invocation for _, invocation in missing])
        computed = 0
        for (index, _), outcome in zip(missing, outcomes, strict=True):
            refs[index] = outcome.ref
            if outcome.cached:
                reused += calls[index].units
            else:
                computed += calls[index].units
        ordered = [refs[index] for index in range(len(calls))]
        key = rows_digest((ref.key, ref.digest) for ref in ordered)
        self._report(stage, key, outcomes, computed=computed, reused=reused, rows=rows)
        return list(ordered)

    def union(
        self,
        refs: Sequence[ArtifactRef | Pending],
        table: str,
        live: Sequence[Collection[str]],
        identity: str = "doc_id",
        segments: Sequence[str] = (),
    ) -> RefSet | Pending:
        """Read several artefacts as one table.

        Args:
            live: for each artefact, the rows in it that count; only they enter the digest.
            identity: the column that `live` names values of.
            segments: keys of the extraction segments behind the artefacts.
        """
        known = []
        for ref in refs:
            if isinstance(ref, Pending):
                return ref
            known.append(ref)
            if not self.dry:
                self.store.use(ref)  # also what an index said lies there, and no stage was asked for
        with told_of_damage(self.store, known):
            digest = union_digest([self.store.folder(ref, table) / table for ref in known], live, identity)
        return RefSet(tuple(known), digest, tuple(segments), tuple(live) if identity == "doc_id" else None)

    def reuse(self, stage: Stage, ref: ArtifactRef) -> ArtifactRef:
        """Report an artefact that is used because a ref pins it."""
        found = self.store.find(ref.stage, ref.key)
        rows = found.counts.get("rows", 0) if found else 0
        self._add(StageReport(stage.name, ref.key, True, 0, 1, 0.0, rows))
        return ref

    def count_reused(self, stage: Stage, units: int) -> None:
        """Report units that were not even asked for, because an index says where they lie."""
        self._add(StageReport(stage.name, "", True, 0, units, 0.0, units))

    def expect_seconds(self, stage: Stage, seconds: float | None) -> None:
        """Tell a plan how long a stage will take; other sessions measure."""

    def compare(self, stage: Stage, found: Manifest, tools: Callable[[], Mapping[str, str]]) -> None:
        """Let a plan say that code or tools have changed since an artefact was made; other sessions go on."""

    def note(self, text: str) -> None:
        """Something the person should know at the end."""
        if text not in self.notes:
            self.notes.append(text)

    def report_list(self) -> list[StageReport]:
        """The report, in the order in which the stages were first asked for."""
        return list(self.reports.values())

    def _invocation(self, stage: Stage, settings: Any, inputs: Mapping[str, Any]) -> Invocation:
        identity = (stage.name, stage.key(settings, inputs))
        # a stage asked for twice in one run (champion and challenger, say) is computed again only once
        refresh = stage.name in self.refresh and identity not in self._refreshed
        self._refreshed.add(identity)
        return Invocation(stage, self.store, settings, inputs, self.resources, refresh)

    def _report(
        self, stage: Stage, key: str, outcomes: Sequence[Outcome], computed: int, reused: int, rows: int = 0
    ) -> None:
        rows += sum(outcome.manifest.counts.get("rows", 0) for outcome in outcomes)
        seconds = sum(outcome.seconds for outcome in outcomes)
        self._add(StageReport(stage.name, key, computed == 0, computed, reused, round(seconds, 3), rows))

    def _add(self, report: StageReport) -> None:
        known = self.reports.get(report.stage)
        if known is None:
            self.reports[report.stage] = report
            return
        known.cached = known.cached and report.cached
        known.computed += report.computed
        known.reused += report.reused
        known.seconds = round(known.seconds + report.seconds, 3)
        known.rows += report.rows
        known.reason = known.reason or report.reason
        known.key = report.key or known.key


class ThreadSession(Session):
    """A session without Prefect that carries out several requests to one stage at once, one for each worker."""

    def _many(self, invocations: Sequence[Invocation]) -> list[Outcome]:
        with ThreadPoolExecutor(self.resources.workers) as threads:
            return list(threads.map(self._one, invocations))


class PrefectSession(Session):
    """A session inside a Prefect flow: every stage is a task run that the UI shows."""

    def _one(self, invocation: Invocation) -> Outcome:
        state = invocation.stage.task(invocation, return_state=True)
        state.result()  # raises what the task raised
        return _outcome(invocation)

    def _many(self, invocations: Sequence[Invocation]) -> list[Outcome]:
        with task_options():
            futures = [invocation.stage.task.submit(invocation) for invocation in invocations]
        for future in futures:
            future.result()
        return [_outcome(invocation) for invocation in invocations]

    def act(self, name: str, function: Callable[[], Any]) -> Any:
        """Do something that makes no artefact, as a task run of its own."""
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        return task(name=name, cache_policy=NO_CACHE, persist_result=False)(function)()


def _outcome(invocation: Invocation) -> Outcome:
    if invocation.outcome is not None:
        return invocation.outcome
    # the task ran in another process; it left what it made in the store, later than what our own listing of it tells
    store, key = invocation.store, invocation.stage.key(invocation.settings, invocation.inputs)
    made = store.find_anew(invocation.stage.name, key)
    if made is None:
        raise RuntimeError(
            f"the task of stage {invocation.stage.name} ended, but the store does not have what it made: do the "
            "machines share the store?"
        )
    return Outcome(made, cached=False, seconds=made.seconds)


# Seconds per unit where nothing of the kind has been measured in this store yet: rough figures for a two-core laptop.
FIRST_GUESS = {
    "extract": 1.0,
    "normalise": 0.005,
    "tokenise": 0.005,
    "tokenizer": 10.0,
    "evalset_overlap": 1e-4,
    "evaluate": 20.0,
}


class Planner(Session):
    """Computes nothing; says what a run would compute, why, and about how long that takes."""

    dry = True

    def __init__(
        self, home: Home, refresh: Collection[str] = (), retry_failed: bool = False, corpus: str = "default"
    ) -> None:
        super().__init__(home, None, refresh, retry_failed, corpus)
        self._expected: dict[str, float] = {}
        self._tools: dict[str, str] | None = None

    def expect_seconds(self, stage: Stage, seconds: float | None) -> None:
        if seconds is not None:
            self._expected[stage.name] = seconds

    def run(self, stage: Stage, settings: Any, **inputs: MaybeInput) -> ArtifactRef | Pending:
        waits = [value for value in inputs.values() if isinstance(value, Pending)]
        if waits:
            return self._missing(stage, "", f"waits for {waits[0].stage}", 1)
        invocation = self._invocation(stage, settings, inputs)
        found = stage.find(self.store, settings, invocation.inputs)
        if found is None or invocation.refresh:
            reason = "refresh asked for" if invocation.refresh else self._why(stage, settings, invocation.inputs)
            return self._missing(stage, stage.key(settings, invocation.inputs), reason, 1)
        self._compare_code(stage, found.code)
        self._add(StageReport(stage.name, found.key, True, 0, 1, 0.0, found.counts.get("rows", 0)))
        return found.ref

    def run_each(self, stage: Stage, calls: Sequence[Call]) -> list[ArtifactRef | Pending]:
        results: list[ArtifactRef | Pending] = []
        for call in calls:
            waits = [value for value in call.inputs.values() if isinstance(value, Pending)]
            if waits:
                results.append(self._missing(stage, "", f"waits for {waits[0].stage}", call.units))
                continue
            invocation = self._invocation(stage, call.settings, call.inputs)
            found = stage.find(self.store, call.settings, call.inputs)
            if found is None or invocation.refresh:
                key = stage.key(call.settings, call.inputs)
                reason = "refresh asked for" if invocation.refresh else f"new {stage.unit}"
                results.append(self._missing(stage, key, reason, call.units))
            else:
                self._compare_code(stage, found.code)
                self._add(StageReport(stage.name, found.key, True, 0, call.units, 0.0, 0))
                results.append(found.ref)
        found_refs = [ref for ref in results if isinstance(ref, ArtifactRef)]
        if len(found_refs) == len(calls):  # then the run will name the same set by the same key
            key = rows_digest((ref.key, ref.digest) for ref in found_refs)
            self._add(StageReport(stage.name, key, True, 0, 0, 0.0, 0))
        return results

    def _missing(self, stage: Stage, key: str, reason: str, units: int) -> Pending:
        seconds = round(self._seconds_per_unit(stage) * units, 1)
        self._add(StageReport(stage.name, key, False, units, 0, seconds, 0, reason))
        return Pending(stage.name, reason, units)

    def _why(self, stage: Stage, settings: Any, inputs: Mapping[str, Input]) -> str:
        """In what the request differs from the newest artefact of the stage."""
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

    def compare(self, stage: Stage, found: Manifest, tools: Callable[[], Mapping[str, str]]) -> None:
        self._compare_code(stage, found.code)
        if self._tools is None:
            self._tools = dict(tools())
        for name, now in self._tools.items():
            then = found.tools.get(name)
            if then is not None and then != now:
                self.note(
                    f"{name} is {now}; artefacts of stage {stage.name} were made with {then}; they stay in use; "
                    f"--refresh {stage.name} computes them again"
                )

    def _compare_code(self, stage: Stage, recorded: str) -> None:
        if recorded != stage.code:
            self.note(
                f"the code of stage {stage.name} changed since its artefacts were made; they stay in use; "
                f"--refresh {stage.name} computes them again"
            )

    def _seconds_per_unit(self, stage: Stage) -> float:
        if stage.name in self._expected:
            return self._expected[stage.name]
        measured = [
            manifest.seconds / max(1, manifest.counts.get("units", 1)) for manifest in self.store.manifests(stage.name)
        ]
        return median(measured) if measured else FIRST_GUESS.get(stage.name, 1.0)


def artifact(value: ArtifactRef | Pending) -> ArtifactRef:
    """The artefact of a session that computes.

    Raises:
        RuntimeError: if it is pending, which only a plan gives.
    """
    if isinstance(value, Pending):
        raise RuntimeError(f"stage {value.stage} was not computed: {value.reason}")
    return value
