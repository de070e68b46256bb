"""Computing in a thread that ends: nothing of it stays."""

import subprocess
import sys

import pytest

_COUNTED = """
import os, time
import torch
from tasks.training.throughput import in_thread_that_ends

def count():
    return len(os.listdir("/proc/self/task"))

def compute():
    return torch.mm(torch.ones(512, 512), torch.ones(512, 512)).sum().item()

torch.set_num_threads(2)
before = count()
found = in_thread_that_ends(compute)
limit = time.monotonic() + 60
while count() > before and time.monotonic() < limit:  # a thread of a team ends a moment after it is told to
    time.sleep(0.001)
print(found, count() - before, compute(), count() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads that Linux shows")
def test_a_team_of_threads_stays_with_a_thread_that_stays_only() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(512.0**3), "0", str(512.0**3), "1"]
