"""What the machine offers to stages: the extraction pool, a device, tracking. Nothing here ever shapes a key.

Everything is made at first use, so that a run that finds all its artefacts starts no process and imports no torch.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.home import Home
from tasks.ingest.records import Limits

if TYPE_CHECKING:
    from storage.tracking import Tracking
    from tasks.apart import Apart
    from tasks.evaluation.inputs import Text
    from tasks.exams.questions import Question
    from tasks.generation.prompts import Prompt
    from tasks.ingest.pool.pool import ExtractionPool
    from tasks.ingest.snapshot import Listing


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def detect_device() -> str:
    """`cuda` or `cpu`; torch is only asked where a GPU's driver is there, because importing it takes seconds."""
    if not Path("/dev/nvidiactl").exists():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> str:
    """Kind of device, threads and torch version, in one string."""
    kind = device
    if device == "cuda":
        import torch

        kind = torch.cuda.get_device_name()
    return f"{kind}, {usable_cores()} threads, torch {version('torch')}"


class Resources:
    """The means of one command.

    Args:
        home: where tracking lies.
        workers: extraction processes; 0 means one per core.
        deterministic: ask torch for deterministic kernels.
        limits: deadlines and memory of extraction.
    """

    def __init__(self, home: Home, workers: int = 0, deterministic: bool = False, limits: Limits | None = None) -> None:
        self.home = home
        self.workers = workers or usable_cores()
        self.deterministic = deterministic
        self.limits = limits or Limits()
        self.paths: dict[str, str] = {}  # sha256 of a file's bytes -> a place where they lie
        self.sizes: dict[str, int] = {}  # sha256 of a file's bytes -> how many they are
        self.passwords: tuple[str, ...] = ()  # to be tried on what is encrypted
        self.passwords_noted = ""  # what segments note of them; by the key of this home, which stays in it
        self.verified_pairs: list[Path] = []  # tables of similarities that earlier runs computed
        self.evaluation_sets: list[Path] = []  # where the external evaluation sets lie
        self.classifier_examples: tuple[list[Path], list[Path]] = ([], [])  # of good and of bad documents
        self.cuts: dict[str, dict[str, list[tuple[int, int]]]] = {}  # digest of cuts -> what is cut out of documents
        self.left_out: dict[str, frozenset[str]] = {}  # digest of ids -> documents that a training goes without
        self.trained: dict[str, set[str]] = {}  # digest of ids -> the training documents of a segment
        self.listing: Listing | None = None  # the walk a snapshot is made of
        self.prompts: dict[str, Sequence[Prompt]] = {}  # digest of prompts -> those that a shard is asked for
        self.shards_at_once = 1  # of a generation; several have a process of one thread each
        self.batch_size = 0  # continuations that grow at once; 0 picks by the device
        self.on_text: Callable[[str], None] | None = None  # told a single completion as it grows
        self.generated_between: list[Sequence[float]] = []  # when each shard of a generation began and ended
        self.computing = threading.Lock()  # held by what takes all cores of this process
        self.texts: list[Text] = []  # the texts that a model is measured on
        self.questions: list[Question] = []  # the questions that an exam puts to a model
        self.tokenizer_file: Path | None = None  # a tokeniser from elsewhere that is to be taken
        self.token_engine = "auto"  # what encodes: the fastest engine that agrees with the reference, or `reference`
        self.bundle_folder: Path | None = None  # a model folder to be taken into the store
        self.run_tags: dict[str, str] = {}  # what MLflow runs are tagged with
        self.processes = 1  # that share a training, on each machine
        self.execution: dict[str, Any] = {}  # fields of `model.execution.Execution`
        self._lock = threading.Lock()
        self._pool: ExtractionPool | None = None
        self._apart: Apart | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process can use: no processes, locks, connections, and not what is found at first use."""
        left = {"_lock", "_pool", "_apart", "computing", "on_text", "tracking", "device"}
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.on_text, self._pool, self._apart = None, None, None
        self.computing, self._lock = threading.Lock(), threading.Lock()

    def elsewhere(self, workers: int, files: Collection[str]) -> Resources:
        """These resources for a request that is carried out on another machine.

        Args:
            workers: extraction processes there.
            files: sha256 of the files that it is about; only their places go along.
        """
        found = copy.copy(self)
        found.workers = workers
        found.listing = None  # of all files, for what is done here
        found.paths = {sha256: self.paths[sha256] for sha256 in files if sha256 in self.paths}
        found.sizes = {sha256: self.sizes[sha256] for sha256 in files if sha256 in self.sizes}
        return found

    def pool(self) -> ExtractionPool:
        """The killable extraction processes, shared by all segments."""
        from tasks.ingest.pool.pool import ExtractionPool

        with self._lock:
            if self._pool is None:
                self._pool = ExtractionPool(self.workers, self.limits)
            return self._pool

    @property
    def apart(self) -> Apart:
        """Processes for pure work on tables, shared by all segments."""
        from tasks.apart import Apart

        with self._lock:
            if self._apart is None:
                self._apart = Apart(self.workers)
            return self._apart

    @cached_property
    def tracking(self) -> Tracking:
        """MLflow's tracking side of the home."""
        from storage.tracking import Tracking

        return Tracking(self.home)

    @cached_property
    def device(self) -> str:
        """The device training runs on: the first GPU, else the CPU with all cores this process may use."""
        device = detect_device()
        import torch

        torch.set_num_threads(usable_cores())
        return device

    @property
    def threads_each(self) -> int:
        """Threads of each process that shares a training."""
        return max(1, usable_cores() // self.processes)

    def seed(self, seed: int) -> dict[str, str]:
        """Seed every random generator; returns the modes as text."""
        from model.randomness import seed_everything

        device = self.device  # first, because choosing it sets the number of threads
        return {"device": device, **seed_everything(seed, deterministic=self.deterministic)}

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            if self._apart is not None:
                self._apart.close()
                self._apart = None

    def __enter__(self) -> Resources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
