"""`@stage`: gives a plain function its key, lock, commit and Prefect task.

A stage function takes a `Work`, its settings and its input artefacts, writes files into `work.out` and returns the
logical digest of what it made. Everything else happens here, once: the key is computed from contents and settings, a
finished artefact is returned as it is, unfinished work is owned by one process at a time, and the folder appears in
the store in one step.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.damage import explain_damage
from storage.digest import plain, sha256_json
from storage.errors import lasting_fault
from storage.manifest import ArtifactRef, Input, Manifest, RefSet, StageFacts, describe_inputs
from storage.store import Store
from tasks.cluster import travels
from tasks.fingerprint import fingerprint
from tasks.progress import Listener, StageProgress

if TYPE_CHECKING:
    from prefect import Task

logger = logging.getLogger("sheepfold")

RETRIES = 3


@dataclass
class Work:
    """What a running stage may use.

    Attributes:
        out: folder of the artefact in the making; empty at the start.
        scratch: folder that survives a kill, for stages that go on where they stopped.
        store: to read inputs from.
        key: the artefact's key.
        resources: what the machine offers (pools, devices, tracking); never part of a result.
        progress: told how far the work is.
        counts: what the stage counted, for manifests and reports.
        tools: versions of the tools that did the work.
        modes: how random numbers and kernels were chosen.
    """

    out: Path
    scratch: Path
    store: Store
    key: str
    resources: Any
    progress: StageProgress
    counts: dict[str, int] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)

    def seed(self, seed: int) -> None:
        """Seed every random generator and choose kernels, and write both into the manifest."""
        self.modes.update(self.resources.seed(seed))

    def apart(self, function: Callable[..., Any], size: int, **arguments: Any) -> Any:
        """Call a module-level function, in a process of its own if it has much to read.

        Args:
            function: takes the arguments and `progress`, which it tells how many units of how many are done.
            size: bytes that it will read.
        """

        def progress(done: int, total: int) -> None:
            self.progress.update(done, total, "documents")

        return self.resources.apart.call(function, progress, size, **arguments)

    def folder(self, ref: ArtifactRef) -> Path:
        """Folder of an input's files."""
        return self.store.folder(ref)


@dataclass(frozen=True)
class Outcome:
    """What became of one request for an artefact."""

    manifest: Manifest
    cached: bool
    seconds: float

    @property
    def ref(self) -> ArtifactRef:
        """The artefact."""
        return self.manifest.ref


class Stage:
    """A stage function with its name and version; made by `@stage`."""

    def __init__(
        self,
        function: Callable[..., str],
        name: str,
        version: int,
        unit: str,
        modules: tuple[str, ...],
        facts: StageFacts,
    ) -> None:
        self.function = function
        self.name = name
        self.version = version
        self.unit = unit
        self.modules = (function.__module__, *modules)
        self.facts = facts
        self.__doc__ = function.__doc__
        inputs = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        self.input_names = tuple(parameter.name for parameter in inputs)
        self.needed_inputs = {parameter.name for parameter in inputs if parameter.default is inspect.Parameter.empty}

    def key(self, settings: Any, inputs: Mapping[str, Input]) -> str:
        """Key of the artefact that these inputs and settings give; inputs with a default may be left out.

        Raises:
            TypeError: if the inputs are not those that the stage takes.
        """
        if not self.needed_inputs <= set(inputs) <= set(self.input_names):
            raise TypeError(f"stage {self.name} takes inputs {self.input_names}, got {sorted(inputs)}")
        digests = {name: value.digest for name, value in inputs.items()}
        return sha256_json(
            {"stage": self.name, "version": self.version, "inputs": digests, "settings": plain(settings)}
        )

    def __reduce__(self) -> tuple[Callable[..., Stage], tuple[str, str]]:
        """A stage goes to other processes by its name, as functions do."""
        return _stage_of, (self.function.__module__, self.function.__name__)

    @property
    def code(self) -> str:
        """Fingerprint of the stage's modules."""
        return sha256_json([fingerprint(module) for module in self.modules])

    def find(self, store: Store, settings: Any, inputs: Mapping[str, Input]) -> Manifest | None:
        """The finished artefact, or None."""
        return store.find(self.name, self.key(settings, inputs))

    def run(
        self,
        store: Store,
        settings: Any,
        inputs: Mapping[str, Input],
        *,
        resources: Any = None,
        refresh: bool = False,
        listener: Listener | None = None,
    ) -> Outcome:
        """Return the artefact, making it when it is not there.

        Args:
            refresh: make it again even if it is there.
            listener: told the percentage of the work done.
        """
        key = self.key(settings, inputs)
        started = time.monotonic()
        found = store.find(self.name, key)
        if found is not None and not refresh and store.touch(found.ref):
            return Outcome(found, cached=True, seconds=time.monotonic() - started)
        with store.workspace(self.name, key, on_wait=logger.warning) as workspace:
            found = store.find(self.name, key)
            if found is not None and not refresh:  # made by the owner we waited for
                return Outcome(found, cached=True, seconds=time.monotonic() - started)
            sets = (value.refs if isinstance(value, RefSet) else (value,) for value in inputs.values())
            refs = list(chain.from_iterable(sets))
            store.note_inputs(workspace, refs)
            begun = time.monotonic()
            with ThreadPoolExecutor(1) as aside, closing(StageProgress(self.name, listener)) as progress:
                code = aside.submit(lambda: self.code)  # beside the work, which mostly waits for other processes
                work = Work(workspace.out, workspace.scratch, store, key, resources, progress)
                with explain_damage(store, refs):
                    digest = self.function(work, settings, **inputs)
            seconds = time.monotonic() - begun
            manifest = Manifest(
                stage=self.name,
                version=self.version,
                key=key,
                digest=digest,
                inputs=describe_inputs(inputs),
                settings=plain(settings),
                files=[],
                counts=work.counts,
                tools=work.tools,
                modes=work.modes,
                code=code.result(),
                created=datetime.now(UTC).isoformat(timespec="microseconds"),
                seconds=round(seconds, 3),
            )
            manifest = store.commit(workspace, manifest)
        return Outcome(manifest, cached=False, seconds=time.monotonic() - started)

    @cached_property
    def task(self) -> Task[..., Any]:
        """The Prefect task of this stage, built at first use so that importing a stage does not import Prefect."""
        from prefect import task
        from prefect.cache_policies import NO_CACHE
        from prefect.states import Completed
        from prefect.tasks import exponential_backoff

        def call(invocation: Invocation) -> Any:
            with invocation.resources if invocation.travelled and invocation.resources else nullcontext():
                outcome = self.run(
                    invocation.store,
                    invocation.settings,
                    invocation.inputs,
                    resources=invocation.resources,
                    refresh=invocation.refresh,
                    listener=_ui_progress(self.name),
                )
            invocation.outcome = outcome
            if outcome.cached:
                return Completed(name="Cached", message=f"found {self.name}/{outcome.ref.key[:12]} in the store")
            return Completed(message=f"made {self.name}/{outcome.ref.key[:12]} in {outcome.seconds:.1f} s")

        return task(
            name=self.name,
            description=inspect.getdoc(self.function),
            retries=RETRIES,
            retry_delay_seconds=exponential_backoff(backoff_factor=2),
            retry_jitter_factor=0.5,
            retry_condition_fn=_worth_retrying,
            cache_policy=NO_CACHE,
            persist_result=False,
        )(call)


def _stage_of(module: str, name: str) -> Stage:
    found: Stage = getattr(import_module(module), name)
    return found


class Invocation:
    """One request for an artefact, as handed to a Prefect task.

    A plain object on purpose: Prefect neither looks into it nor copies nor stores it, and the outcome comes back in it,
    unless the task runs in another process.

    Attributes:
        travelled: whether this is a copy in another process, whose resources end with it.
    """

    def __init__(
        self, stage: Stage, store: Store, settings: Any, inputs: Mapping[str, Input], resources: Any, refresh: bool
    ) -> None:
        self.stage = stage
        self.store = store
        self.settings = settings
        self.inputs = inputs
        self.resources = resources
        self.refresh = refresh
        self.outcome: Outcome | None = None
        self.travelled = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "resources": travels(self.resources, self.settings), "travelled": True}

    def __repr__(self) -> str:
        return f"{self.stage.name}({plain(self.settings)})"


def is_transient(error: BaseException | None) -> bool:
    """Whether trying again may help: faults of disks and connections pass, full disks, settings and inputs stay."""
    if lasting_fault(error) is not None or isinstance(
        error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError | FileExistsError
    ):
        return False
    return isinstance(error, OSError | ConnectionError | TimeoutError)


def _worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    error = state.result(raise_on_failure=False)
    return is_transient(error if isinstance(error, BaseException) else None)


def _ui_progress(name: str) -> Listener:
    """A listener that keeps a Prefect progress artefact up to date; made at the first report."""
    import httpx
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact: list[Any] = []

    def listen(percent: float) -> None:
        percent = min(100.0, percent)
        try:
            if not artifact:
                description = f"{name}: share of the work done"
                artifact.append(create_progress_artifact(progress=percent, description=description))
            else:
                update_progress_artifact(artifact[0], progress=percent)
        except httpx.HTTPError as error:  # hours of work do not fail because a bar could not be drawn
            logger.warning("%s: Prefect does not take the progress (%s)", name, error)

    return listen


def stage(
    name: str,
    version: int,
    *,
    unit: str = "artefact",
    modules: tuple[str, ...] = (),
    tables: Mapping[str, Any] | None = None,
    keep_with: tuple[str, ...] = (),
    pinned: bool = False,
) -> Callable[[Callable[..., str]], Stage]:
    """Make a function a stage.

    Args:
        name: folder of its artefacts in the store, and its name everywhere.
        version: raised by hand when the same inputs and settings give another result than before.
        unit: what `computed` counts (files, documents, artefact).
        modules: modules that shape the result but are not imported, such as the code of child processes.
        tables: schema of each Parquet table, by file name.
        keep_with: inputs with which an artefact stays in the store although no name leads to it.
        pinned: a corpus keeps the artefact under the name `<stage>/<corpus>`.
    """

    def decorate(function: Callable[..., str]) -> Stage:
        return Stage(function, name, version, unit, modules, StageFacts(tables or {}, keep_with, pinned))

    return decorate
