"""The machine that a run computes on: workers, device, process pools. Nothing of it is part of a key.

Everything is created at first use, so that a run with all artefacts cached starts no process and does not import torch.
"""

from __future__ import annotations

import math
import os
import threading
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.core.subprocesses import Subprocesses
    from tasks.ingest.pool import ExtractionPool
    from tasks.readers.records import Limits


# Threads that wait sleep. By default they spin and hold a core that another program could use, for which the working
# thread then waits: steps took twice as long beside one busy process, and far longer beside two. Read with torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of processors in a period of as many, or `max`


def usable_cores() -> int:
    """Return the number of cores that this process may run on; a container may have a part of the machine's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not CPU_QUOTA.exists():
        return cores
    quota, period = CPU_QUOTA.read_text().split()
    return cores if quota == "max" else min(cores, math.ceil(int(quota) / int(period)))


def memory_bytes(device: str) -> int:
    """Return the memory of the device, in bytes."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def detect_device() -> str:
    """Return `cuda` or `cpu`; torch is imported only if a GPU driver is present, because that takes seconds."""
    if not Path("/dev/nvidiactl").exists():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> str:
    """Return the name of the device, threads and torch version as one string."""
    kind = device
    if device == "cuda":
        import torch

        kind = torch.cuda.get_device_name()
    return f"{kind}, {usable_cores()} threads, torch {version('torch')}"


def threads_each(processes: int) -> int:
    """Return the number of threads per process of a training."""
    return max(1, usable_cores() // processes)


class Machine:
    """Workers, device and process pools of one run.

    Args:
        workers: Extraction processes, and units computed at once; 0 means one per core.
        deterministic: Use deterministic kernels only, for the same bits in each run on a GPU.
        limits: Deadlines and memory of extraction, and memory of queries; None for the defaults.

    Attributes:
        computing: Lock for work that uses all cores of this process.
    """

    def __init__(self, workers: int = 0, deterministic: bool = False, limits: Limits | None = None) -> None:
        self.workers = workers or usable_cores()
        self.deterministic = deterministic
        self.limits = limits
        self.computing = threading.Lock()
        self._lock = threading.Lock()
        self._pool: ExtractionPool | None = None
        self._subprocesses: Subprocesses | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a task on another machine, with the processors of a Ray task as workers."""
        from tasks.core.executor import ray_cpus

        return type(self), (ray_cpus(), self.deterministic, self.limits)

    @property
    def query_bytes(self) -> int:
        """Memory limit of queries over a whole corpus, in bytes."""
        from tasks.readers.records import Limits

        return (self.limits or Limits()).query_memory_bytes

    def pool(self) -> ExtractionPool:
        """Return the pool of extraction processes, shared by all segments."""
        from tasks.ingest.pool import ExtractionPool

        with self._lock:
            if self._pool is None:
                self._pool = ExtractionPool(self.workers, self.limits)
            return self._pool

    @property
    def subprocesses(self) -> Subprocesses:
        """Subprocesses for pure table functions, shared by all segments."""
        from tasks.core.subprocesses import Subprocesses

        with self._lock:
            if self._subprocesses is None:
                self._subprocesses = Subprocesses(self.workers)
            return self._subprocesses

    @cached_property
    def device(self) -> str:
        """Device of training: the first GPU, otherwise the CPU with all usable cores."""
        device = detect_device()
        import torch

        torch.set_num_threads(usable_cores())
        return device

    def seed(self, seed: int) -> dict[str, str]:
        """Seed every random generator; returns the modes for the manifest."""
        from model.randomness import seed_everything

        device = self.device  # first, because this sets the number of threads
        return {"device": device, **seed_everything(seed, deterministic=self.deterministic)}

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for pool in (self._pool, self._subprocesses):
                if pool is not None:
                    pool.close()
            self._pool = self._subprocesses = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
