"""`sheepfold serve` beside llama.cpp's server: time to the first token, and tokens a second of many clients.

    python -m benchmarks.serving [--presets modern-1m,modern-15m] [--clients 1,8,32] [--tokens 128] [--rounds 3]

Both serve the same random weights, ours from its folder and llama.cpp (`xllamacpp`) from the GGUF file that we export,
in float32 and with the same sampling settings; llama.cpp has all cores, ours takes what it finds fastest. Clients
stream completions of other prompts each, in turns of both servers; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import httpx
import torch

from model import ModelConfig, Transformer
from model.checkpoint import save_weights
from model.presets import PRESETS
from storage.schemas import COUNTS_FILE, TOKEN_COUNTS
from storage.tables import write_table
from tasks.core.child import module_command, python_path
from tasks.core.machine import usable_cores
from tasks.tokens.tokenizer import learn_merges
from tasks.training.gguf_file import export_gguf

VOCABULARY, PROMPT_CHARS = 4096, 200
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}  # what llama.cpp's server takes by itself
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, slots, context, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
params.n_parallel, params.n_ctx, params.n_gpu_layers, params.verbosity = slots, slots * context, 0, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print(server.listening_address, file=sys.stderr, flush=True)
time.sleep(1e6)
"""


def model_at(folder: Path, preset: str, text: str) -> Path:
    """Write a model of random weights."""
    tokenizer = learn_merges([text], VOCABULARY)
    model = Transformer(ModelConfig(**{**PRESETS[preset], "vocab_size": tokenizer.vocab_size}))
    folder.mkdir()
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": model.config.to_dict()}))
    tokenizer.save(folder / "tokenizer.json")
    write_table(folder / COUNTS_FILE, TOKEN_COUNTS, ({"token": n, "count": 1} for n in range(tokenizer.vocab_size)))
    return folder


@contextmanager
def serving(command: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """Start a server; yields the address that it tells on standard error."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield found[0]
                break
        else:
            raise RuntimeError(f"no server: {' '.join(command[:4])} ended with {process.wait()}")
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Load:
    """The figures of clients.

    Attributes:
        first: median time to the first token of a request, in seconds.
        rate: tokens a second of all clients.
    """

    first: float
    rate: float


async def ask(address: str, model: str, prompts: Sequence[str], n_tokens: int) -> Load:
    """Let one client for each prompt stream a completion, all at the same time."""
    firsts: list[float] = []
    n_made = 0
    limits = httpx.Limits(max_connections=None)

    async def stream(client: httpx.AsyncClient, prompt: str) -> None:
        nonlocal n_made
        body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "seed": 1, **SAMPLING, "stream": True}
        body["stream_options"] = {"include_usage": True}
        begun, is_first = time.perf_counter(), True
        async with client.stream("POST", f"{address}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                if is_first:
                    firsts.append(time.perf_counter() - begun)
                    is_first = False
                if usage := json.loads(line[6:]).get("usage"):
                    n_made += usage["completion_tokens"]

    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        begun = time.perf_counter()
        await asyncio.gather(*(stream(client, prompt) for prompt in prompts))
        return Load(statistics.median(firsts), n_made / (time.perf_counter() - begun))


def rows(preset: str, clients: Sequence[int], n_tokens: int, rounds: int, folder: Path) -> Iterator[str]:
    """Measure a network; yields rows of the table."""
    text = "\n".join(topics.values())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        source = model_at(folder / preset, preset, text)
    export_gguf(source, folder / f"{preset}.gguf", "f32")
    context = int(json.loads((source / "config.json").read_text())["model"]["max_seq_len"])
    ours = [*module_command("flows.cli"), "serve", str(source), "--port", "0", "--home", str(folder / "home")]
    theirs = [sys.executable, "-c", LLAMA, str(folder / f"{preset}.gguf"), str(max(clients)), str(context)]
    with (
        serving(ours, python_path()) as own,
        serving([*theirs, str(usable_cores())], {}) as other,
    ):
        for n_clients in clients:
            found: dict[str, list[Load]] = {own: [], other: []}
            for turn in range(rounds + 1):  # the first warms up
                prompts = [text[97 * n + turn :][:PROMPT_CHARS] for n in range(n_clients)]
                for address in (own, other):
                    load = asyncio.run(ask(address, source.name, prompts, n_tokens))
                    if turn:
                        found[address].append(load)
            first, their_first = (statistics.median(one.first for one in found[address]) for address in (own, other))
            rate, their_rate = (statistics.median(one.rate for one in found[address]) for address in (own, other))
            ratio = statistics.median(a.rate / b.rate for a, b in zip(found[own], found[other], strict=True))
            yield (
                f"| {preset} | {n_clients} | {1000 * first:.0f} ms | {1000 * their_first:.0f} ms | {rate:,.0f} | "
                f"{their_rate:,.0f} | {ratio:.2f} |"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="modern-1m,modern-15m")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print("| network | clients | first token | llama.cpp | tokens/s | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for preset in asked.presets.split(","):
            for row in rows(preset, [*map(int, asked.clients.split(","))], asked.tokens, asked.rounds, Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
