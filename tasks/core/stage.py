"""`@stage` turns a function of artefact references and settings into a stage.

A stage function takes a `Work`, its settings and its inputs, writes files into `work.out` and returns the logical
digest of its output. The decorator adds key, lock, commit, caching and the Prefect task:

    ref = curate(run, settings.curate, snapshot=taken, documents=texts)
    refs = normalise.map(run, [Call(settings.normalise, {"segment": ref}) for ref in segments])

A cached artefact is returned. A missing one is made by `Stage.make`, which calls the function under a lock and commits
its output; inside a flow `executor.carry_out` runs it as a Prefect task. In a plan nothing is computed, and the
reference of a missing artefact has no digest.
"""

from __future__ import annotations

import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from storage.digest import plain, rows_digest
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Input, Manifest, RefSet, StageFacts, artifact_key, describe_inputs
from storage.store import Store
from storage.verify import explain_damage
from tasks.core.progress import Listener, StageProgress

if TYPE_CHECKING:
    from tasks.core.machine import Machine
    from tasks.core.run import Run

logger = logging.getLogger("sheepfold")

FINGERPRINTS_FILE = "fingerprints.json"


@cache
def _fingerprints() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name(FINGERPRINTS_FILE).read_bytes())
    return found


def added_files(store: Store, ref: ArtifactRef) -> list[Path]:
    """Return the files of an artefact, sorted by name."""
    manifest = manifest_of(store, ref)
    folder = store.folder(ref)
    return [folder / entry.name for entry in sorted(manifest.files, key=lambda entry: entry.name)]


@dataclass
class Work:
    """Context of a stage function.

    Attributes:
        out: Folder of the new artefact; empty at the start.
        scratch: Folder that survives a kill, for stages that resume.
        store: Store to read inputs from.
        home: Home folder, for caches and tracking.
        key: Key of the artefact.
        machine: Workers, device and process pools; results must not depend on it.
        progress: Progress bar of the stage.
        counts: Figures for manifest and reports.
        tools: Versions of the tools in use, for the manifest.
        modes: Seeds and kernels in use, for the manifest.
    """

    out: Path
    scratch: Path
    store: Store
    home: Home
    key: str
    machine: Machine
    progress: StageProgress
    counts: dict[str, int] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)

    def seed(self, seed: int) -> None:
        """Seed every random generator, choose kernels, and record both in the manifest."""
        self.modes.update(self.machine.seed(seed))

    def in_subprocess(self, function: Callable[..., Any], size: int, **arguments: Any) -> Any:
        """Call a module-level function in a subprocess, or in this process for little data.

        Args:
            function: Takes the arguments and `progress(done, total)`.
            size: Bytes that it reads.
        """

        def progress(done: int, total: int) -> None:
            self.progress.update(done, total, "documents")

        return self.machine.subprocesses.call(function, progress, size, **arguments)

    def folder(self, ref: ArtifactRef) -> Path:
        """Return the folder of an input's files."""
        return self.store.folder(ref)

    def files(self, ref: ArtifactRef) -> list[Path]:
        """Return the files of an input, sorted by name."""
        return added_files(self.store, ref)


@dataclass(frozen=True)
class NoSettings:
    """Empty settings."""


@dataclass(frozen=True)
class Call:
    """One of several requests to a stage.

    Attributes:
        settings: Settings of the stage, or a function that reads them from artefacts of `inputs` and `after`, called
            when those are in the store.
        inputs: Inputs and unkeyed arguments by name.
        units: Number of its files or documents, for reports and estimates.
        after: Artefacts that settings or unkeyed arguments were read from: edges of the graph in addition to inputs.
    """

    settings: Any
    inputs: Mapping[str, Any]
    units: int = 1
    after: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True)
class StageResult:
    """Artefact of one request, cached or made."""

    manifest: Manifest
    cached: bool

    @property
    def ref(self) -> ArtifactRef:
        """Reference to the artefact."""
        return self.manifest.ref

    @property
    def seconds(self) -> float:
        """Seconds of the computation; 0 if it was cached."""
        return 0.0 if self.cached else self.manifest.seconds


@dataclass(frozen=True)
class Request:
    """A request with its key.

    Attributes:
        inputs: Artefacts and sets of them, which are part of the key.
        unkeyed: Arguments that are not part of the key.
    """

    stage: Stage
    key: str
    settings: Any
    inputs: Mapping[str, Input]
    unkeyed: Mapping[str, Any]
    refresh: bool
    after: tuple[ArtifactRef, ...] = ()

    def refs(self) -> list[ArtifactRef]:
        """Return the artefacts of all inputs."""
        sets = (value.refs if isinstance(value, RefSet) else (value,) for value in self.inputs.values())
        return list(chain.from_iterable(sets))

    def dependencies(self) -> list[ArtifactRef]:
        """Return the artefacts of all inputs, and those of `after`."""
        return [*self.refs(), *self.after]


@dataclass(eq=False)
class Stage:
    """A stage function with its declaration; made by `@stage`."""

    function: Callable[..., str]
    name: str
    version: int
    unit: str
    modules: tuple[str, ...]
    unkeyed: tuple[str, ...]
    facts: StageFacts

    def __post_init__(self) -> None:
        self.__doc__ = self.function.__doc__
        self.modules = (self.function.__module__, *self.modules)
        arguments = [
            parameter
            for parameter in inspect.signature(self.function).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in self.unkeyed
        ]
        self.input_names = tuple(parameter.name for parameter in arguments)
        self.needed_inputs = {item.name for item in arguments if item.default is inspect.Parameter.empty}

    def __call__(self, run: Run, settings: Any, *, after: Any = (), **inputs: Any) -> ArtifactRef:
        """Return the artefact of these settings and inputs, cached or made."""
        return self._find_or_make(run, [Call(settings, inputs, 1, tuple(after))], many=False)[0]

    def map(self, run: Run, calls: Sequence[Call]) -> list[ArtifactRef]:
        """Return the artefacts of many requests, in their order; missing ones are made in parallel."""
        return self._find_or_make(run, calls, many=True)

    def pinned(self, run: Run) -> ArtifactRef | None:
        """Return the artefact of the corpus's ref `STAGE/CORPUS`; None without one, and for a refresh."""
        value = None if self.name in run.refresh else run.store.read_ref(f"{self.name}/{run.corpus}")
        found = None if value is None else run.store.find(self.name, value["key"])
        return None if found is None else found.ref

    def key(self, settings: Any, inputs: Mapping[str, Input]) -> str:
        """Return the key of the artefact of these inputs and settings; inputs with a default may be missing.

        Raises:
            TypeError: if the names of the inputs are wrong.
        """
        if not self.needed_inputs <= set(inputs) <= set(self.input_names):
            raise TypeError(f"stage {self.name} takes inputs {self.input_names}, got {sorted(inputs)}")
        digests = {name: value.digest for name, value in inputs.items()}
        return artifact_key(self.name, self.version, digests, plain(settings))

    def request(self, run: Run, call: Call) -> Request:
        """Return a call with its key; each key is refreshed at most once per run."""
        unkeyed = {name: value for name, value in call.inputs.items() if name in self.unkeyed}
        inputs = {name: value for name, value in call.inputs.items() if name not in self.unkeyed}
        key = self.key(call.settings, inputs)
        return Request(self, key, call.settings, inputs, unkeyed, run.wants_refresh(self.name, key), call.after)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        """Pickle by name, like a function."""
        return resolve_name, (f"{self.function.__module__}:{self.function.__name__}",)

    @property
    def code(self) -> str:
        """Fingerprint of its modules as last acknowledged (`make fingerprints`); empty for stages of other packages.

        It is not part of the key: a plan reports artefacts with another fingerprint, and they stay in use.
        """
        return str(_fingerprints().get(self.name, {}).get("fingerprint", ""))

    def _find_or_make(self, run: Run, calls: Sequence[Call], many: bool) -> list[ArtifactRef]:
        """Return the artefacts of some requests, cached or made; in a plan, missing ones are without a digest.

        Args:
            many: The requests are units of one call, and are reported as one line.
        """
        from tasks.core.executor import carry_out, show_cached

        refs: dict[int, ArtifactRef] = {}
        found: dict[int, Request] = {}
        missing: dict[int, Request] = {}
        for index, call in enumerate(calls):
            needed = [value for name, value in call.inputs.items() if name in self.input_names]
            needed += call.after if callable(call.settings) else ()
            waits = [value for value in needed if not value.made]
            if waits:
                refs[index] = run.would_make(self, None, f"waits for {waits[0].stage}", call.units)
                continue
            if callable(call.settings):
                call = replace(call, settings=call.settings())
            request = self.request(run, call)
            manifest = None if request.refresh else run.store.find(self.name, request.key)
            if manifest is not None and (run.plan or run.store.touch(manifest.ref)):
                refs[index], found[index] = manifest.ref, request
                run.count(self, call.units, StageResult(manifest, cached=True))
            elif run.plan:
                refs[index] = run.would_make(self, request, "", call.units, many)
            else:
                missing[index] = request
        if not run.plan:
            dependencies = [ref for request in found.values() for ref in request.dependencies()]
            show_cached(run, self, [refs[index] for index in found], many, dependencies)
            for index, outcome in zip(missing, carry_out(run, self, list(missing.values()), many), strict=True):
                refs[index] = outcome.ref
                run.count(self, calls[index].units, outcome)
        ordered = [refs[index] for index in range(len(calls))]
        if ordered and all(ref.made for ref in ordered):
            whole = rows_digest((ref.key, ref.digest) for ref in ordered) if many else ordered[0].key
            run.line(self).key = whole
        if self.facts.pinned and not run.plan:
            run.store.write_ref(f"{self.name}/{run.corpus}", asdict(ordered[0]))
        return ordered

    def make(self, run: Run, request: Request, listener: Listener | None = None) -> StageResult:
        """Return the artefact, making it under its lock if it is missing.

        Args:
            listener: Called with the percentage of the work done.
        """
        store = run.store
        with store.workspace(self.name, request.key, on_wait=logger.warning) as workspace:
            found = store.find(self.name, request.key)
            if found is not None and not request.refresh:  # made by another process during the wait
                return StageResult(found, cached=True)
            refs = request.refs()
            store.note_inputs(workspace, refs)
            begun = time.monotonic()
            with closing(StageProgress(self.name, listener)) as progress:
                work = Work(workspace.out, workspace.scratch, store, run.home, request.key, run.machine, progress)
                with explain_damage(store, refs):
                    digest = self.function(work, request.settings, **request.inputs, **request.unkeyed)
            manifest = Manifest(
                stage=self.name,
                version=self.version,
                key=request.key,
                digest=digest,
                inputs=describe_inputs(request.inputs),
                settings=plain(request.settings),
                files=[],
                counts=work.counts,
                tools=work.tools,
                modes=work.modes,
                code=self.code,
                created=datetime.now(UTC).isoformat(timespec="microseconds"),
                seconds=round(time.monotonic() - begun, 3),
            )
            manifest = store.commit(workspace, manifest)
        return StageResult(manifest, cached=False)


def stage(
    name: str,
    version: int,
    *,
    unit: str = "artefact",
    modules: tuple[str, ...] = (),
    unkeyed: tuple[str, ...] = (),
    tables: Mapping[str, Any] | None = None,
    keep_with: tuple[str, ...] = (),
    pinned: bool = False,
) -> Callable[[Callable[..., str]], Stage]:
    """Turn a function into a stage.

    Args:
        name: Name of the stage, also the folder of its artefacts in the store.
        version: Raised by hand when the same inputs and settings give another result than before.
        unit: Unit of `computed` in reports (files, documents, artefact).
        modules: Modules that affect the result but are not imported, such as the code of child processes.
        unkeyed: Arguments that do not affect the result, such as paths of files whose digests are settings.
        tables: Schema of each Parquet table, by file name.
        keep_with: Inputs; garbage collection keeps an artefact while these inputs are kept.
        pinned: The ref `STAGE/CORPUS` records the artefact that a corpus uses.
    """

    facts = StageFacts(tables or {}, keep_with, pinned)
    return lambda function: Stage(function, name, version, unit, modules, unkeyed, facts)


def imported_stages() -> dict[str, Stage]:
    """Return the stages whose modules are imported, by name."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tasks.")]
    return {item.name: item for module in modules for item in vars(module).values() if isinstance(item, Stage)}
