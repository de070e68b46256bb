"""Memory and speed of training adapters beside training all weights.

    python -m benchmarks.adapters [--presets modern-15m,gpt2] [--batch 1] [--steps 3] [--rank 8]

Each training is a process of its own. Its memory is the peak of the resident memory less that after the training of a
tiny network; random weights and tokens, the preset's whole context, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from tasks.core.child import python_path

PROGRAM = """
import json, resource, sys, time
import numpy as np, torch
from model import ModelConfig, TrainConfig
from model.accounting import estimate_cost
from model.config import Execution
from model.data import Batch
from model.distributed import SINGLE
from model.presets import PRESETS
from model.step import new_stepper
given = json.loads(sys.argv[1])
network = ModelConfig(**PRESETS[given["preset"]])
adapters = {"adapter": given["kind"], "adapter_rank": given["rank"]} if given["kind"] != "none" else {}
plan = TrainConfig(given["steps"], batch_size=given["batch"], **adapters)
def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def train(network, steps):
    stepper = new_stepper(network, plan, torch.device("cpu"), Execution(recompute=given["recompute"]), SINGLE)
    ids = np.random.default_rng(0).integers(network.vocab_size, size=(given["batch"], network.max_seq_len + 1))
    for step in range(1, steps + 1):
        started = time.perf_counter()
        stepper.run([Batch(ids[:, :-1], ids[:, 1:])], 1e-3, step, [])
        yield time.perf_counter() - started
tiny = {**PRESETS[given["preset"]], "n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_model": 64, "d_ff": 64}
list(train(ModelConfig(**{**tiny, "vocab_size": 300, "max_seq_len": 64}), 2))  # loads the libraries
before = resident()
seconds = list(train(network, given["steps"]))
told = estimate_cost(network, batch_size=given["batch"], n_tokens=network.max_seq_len,
                     adapter_rank=given["rank"] if adapters else 0, recompute=given["recompute"]).training_bytes
print(json.dumps({"bytes": resident() - before, "told": told, "seconds": sorted(seconds)[len(seconds) // 2]}))
"""


def measured(**given: object) -> dict[str, float]:
    """Return bytes and seconds of a step of one training."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env={**python_path(), "PATH": ""})
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="modern-15m,gpt2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rank", type=int, default=8)
    asked = parser.parse_args()
    print("| network | recompute | trained | memory | told by `count` | beside all weights | seconds a step |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for preset in asked.presets.split(","):
        for recompute in (False, True):
            whole = 0.0
            for kind in ("none", "lora", "dora"):
                found = measured(
                    preset=preset, kind=kind, rank=asked.rank, batch=asked.batch, steps=asked.steps, recompute=recompute
                )
                whole = whole or found["bytes"]
                print(
                    f"| {preset} | {'yes' if recompute else 'no'} | {kind.replace('none', 'all weights')} | "
                    f"{found['bytes'] / 2**20:,.0f} MiB | {found['told'] / 2**20:,.0f} MiB | "
                    f"{found['bytes'] / whole:.2f} | {found['seconds']:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
