"""Generation compared with `transformers.generate`: batches of equal and of different lengths, samplers, determinism.

    python -m benchmarks.generate [--only equal,ragged,sampling,deterministic,evaluation] [--rounds 5]
    python -m benchmarks.generate --device cuda [--bandwidth 3.35e12]

On a CPU both sides have the same weights (a LLaMA shape of 13.8M parameters, float32), take turns in separate processes
and use all cores; their tokens are checked to be equal. A ratio is the median over adjacent turns. All rows take about
six minutes on two idle cores. With `--device cuda` the GPT-2 shape of 124M parameters decodes in bfloat16, and its
speed is compared with the time that the device needs to read weights and cache once per step; this needs only torch,
numpy and safetensors. Prints a Markdown table; the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import Side, ratio, serve, take_turns
from benchmarks.table import Row, report

VOCAB_SIZE = 8192
PROMPT_TOKENS, NEW_TOKENS = 32, 128
EQUAL_GOALS = {1: 1.5, 8: 2.0, 32: 2.0}
RAGGED_PROMPTS, RAGGED_BATCH, RAGGED_GOAL = 200, 32, 4.0
SAMPLING = {
    **{"temperature": 0.9, "top_k": 50, "top_p": 0.95},
    **{"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
}
SAMPLING_GOAL = 0.15
EVALUATION_GOAL = 2.5
EVALUATED_WINDOWS = 64
# a row's prompt and new tokens, so that the context is 512 tokens on average; goals as shares of the bandwidth limit
CUDA_BATCH, CUDA_PROMPT, CUDA_NEW = 256, 256, 512
CUDA_STEP_GOAL, CUDA_WHOLE_GOAL, CUDA_SINGLE_GOAL = 0.6, 0.4, 2500.0
ROWS = {"cpu": ["equal", "ragged", "sampling", "deterministic", "evaluation"], "cuda": ["batch", "single"]}


@dataclass(frozen=True)
class Task:
    """Prompts, and the number of new tokens of each."""

    prompts: list[list[int]]
    limits: list[int]
    batch_size: int

    @property
    def n_new(self) -> int:
        """Total number of new tokens."""
        return sum(self.limits)


def equal_task(batch_size: int) -> Task:
    """Return a batch of prompts and completions of equal lengths."""
    ids = np.random.default_rng(1).integers(VOCAB_SIZE, size=(batch_size, PROMPT_TOKENS))
    return Task(ids.tolist(), [NEW_TOKENS] * batch_size, batch_size)


def ragged_task(n_prompts: int = RAGGED_PROMPTS) -> Task:
    """Return prompts of 4 to 400 tokens, with completions of 1 to 256."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(4, 401, n_prompts).tolist()
    prompts = [generator.integers(VOCAB_SIZE, size=length).tolist() for length in lengths]
    return Task(prompts, generator.integers(1, 257, n_prompts).tolist(), RAGGED_BATCH)


def task_of(name: str) -> Task:
    """Return a task by its name."""
    return ragged_task() if name == "ragged" else equal_task(int(name))


def peer_config() -> Any:
    """Return the shape as a configuration of `transformers`."""
    import transformers

    return transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=1024, rms_norm_eps=1e-6, tie_word_embeddings=True,
    )  # fmt: skip


def write_weights(folder: Path) -> None:
    """Write random weights for both sides, large enough that ties of the two best tokens are rare."""
    import torch
    import transformers

    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(peer_config())
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 2:
                parameter.mul_(2)
    theirs.save_pretrained(folder)


def fingerprint(rows: list[list[int]]) -> float:
    """Return a checksum of tokens."""
    return float(zlib.crc32(repr(rows).encode()))


def our_turn(folder: Path, task: Task, settings: dict[str, Any]) -> Callable[[], float]:
    """Run our side of a task."""
    from model import GenerationConfig, from_hf, generate

    network = from_hf(folder).eval()
    config = GenerationConfig(**{"max_new_tokens": max(task.limits), "temperature": 0.0, **settings})

    def turn() -> float:
        found = generate(network, task.prompts, config, limits=task.limits, batch_size=task.batch_size)
        return fingerprint([one.ids for one in found])

    return turn


def their_turn(folder: Path, task: Task) -> Callable[[], float]:
    """Run the side of `transformers`: prompts sorted by length, left padding, each row up to its limit."""
    import torch
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    order = sorted(range(len(task.prompts)), key=lambda at: len(task.prompts[at]))
    batches = [order[at : at + task.batch_size] for at in range(0, len(order), task.batch_size)]

    class Limits(transformers.StoppingCriteria):  # type: ignore[misc]
        def __init__(self, ends: torch.Tensor) -> None:
            self.ends = ends

        def __call__(self, input_ids: torch.Tensor, scores: Any, **rest: Any) -> torch.Tensor:
            return input_ids.shape[1] >= self.ends

    def turn() -> float:
        found: list[list[int]] = [[] for _ in order]
        for batch in batches:
            width = max(len(task.prompts[at]) for at in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, at in enumerate(batch):
                ids[row, width - len(task.prompts[at]) :] = torch.tensor(task.prompts[at])
                mask[row, width - len(task.prompts[at]) :] = 1
            limits = torch.tensor([task.limits[at] for at in batch])
            with torch.inference_mode():
                made = network.generate(
                    ids, attention_mask=mask, max_new_tokens=int(limits.max()), do_sample=False, pad_token_id=0,
                    eos_token_id=None, stopping_criteria=transformers.StoppingCriteriaList([Limits(width + limits)]),
                )  # fmt: skip
            for row, at in enumerate(batch):
                found[at] = made[row, width : width + task.limits[at]].tolist()
        return fingerprint(found)

    return turn


def serve_side(side: str, task: str, folder: Path) -> None:
    """Serve one side."""
    if side in ("training", "evaluation"):
        serve(training_turn(side, folder))
    elif side == "transformers":
        serve(their_turn(folder, task_of(task)))
    else:
        settings = {"greedy": {}, "sampled": SAMPLING, "deterministic": {"deterministic": True}}[side]
        serve(our_turn(folder, task_of(task), settings))


def speeds(task: str, sides: list[str], rounds: int, warmup: int = 1) -> dict[str, Side]:
    """Measure the sides of one task, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder))
        base = ["benchmarks.generate", "--task", task, "--folder", folder, "--side"]
        return take_turns({side: [*base, side] for side in sides}, rounds, warmup)


def speed_text(side: Side, n_tokens: int) -> str:
    """Return a speed as text."""
    return f"{n_tokens / side.median:,.0f} tokens/s"


def peer_row(what: str, task: str, rounds: int, goal: float, warmup: int = 1) -> Iterator[Row]:
    """Yield the row of our engine compared with `transformers`, with a check of equal tokens."""
    found = speeds(task, ["greedy", "transformers"], rounds, warmup)
    ours, theirs = found["greedy"], found["transformers"]
    n_new = task_of(task).n_new
    yield Row(what, speed_text(ours, n_new), speed_text(theirs, n_new), ratio(ours, theirs), goal)
    yield Row(f"{what}: same tokens", "", "", float(ours.value == theirs.value), 1.0)


def own_row(what: str, side: str, task: str, rounds: int, goal: float | None) -> Iterator[Row]:
    """Yield the cost of a setting, as a share of the greedy run's time."""
    found = speeds(task, [side, "greedy"], rounds)
    cost = ratio(found["greedy"], found[side]) - 1
    n_new = task_of(task).n_new
    yield Row(what, speed_text(found[side], n_new), speed_text(found["greedy"], n_new), cost, goal, at_most=True)


def training_turn(side: str, folder: Path) -> Callable[[], float]:
    """Return a training step, or an evaluation of the tokens of several steps, of the same network."""
    from benchmarks.train import SHAPES, build, random_tokens

    shape = SHAPES["large"]
    loop = build("our-llama", "large", random_tokens(folder, "large"), "cpu", 0)
    if side == "training":
        return lambda: float(loop.step())
    ids = np.random.default_rng(3).integers(shape.vocab_size, size=(EVALUATED_WINDOWS, shape.context + 1))
    return lambda: float(loop.evaluate(ids.astype(np.uint16)))


def evaluation_row(rounds: int) -> Iterator[Row]:
    """Yield the row of evaluation compared with training, in tokens per second."""
    from benchmarks.train import SHAPES

    found = speeds("1", ["evaluation", "training"], rounds)
    shape = SHAPES["large"]
    n_evaluated, n_trained = EVALUATED_WINDOWS * shape.context, shape.tokens
    each = ratio(found["evaluation"], found["training"]) * n_evaluated / n_trained
    yield Row(
        "evaluation over training",
        speed_text(found["evaluation"], n_evaluated),
        speed_text(found["training"], n_trained),
        each,
        EVALUATION_GOAL,
    )


def cuda_network() -> Any:
    """Return the GPT-2 shape with random weights."""
    import torch

    from model import Transformer, preset

    torch.manual_seed(0)
    return Transformer(preset("gpt2")).to("cuda", torch.bfloat16).eval()


def bytes_per_step(network: Any, n_rows: int, context: float) -> float:
    """Return the bytes that a step reads: every weight once, and the keys and values of every row."""
    config = network.config
    n_weights = sum(parameter.numel() for parameter in network.parameters())
    per_token = 2 * config.n_layer * config.n_kv_head * config.head_dim
    return float(2 * (n_weights + n_rows * context * per_token))


def cuda_step_seconds(network: Any, n_rows: int, context: int, repeats: int = 50) -> float:
    """Return the seconds of a decoding step in which every row has this context."""
    import torch

    from model.kv_cache import GraphedStep, KVCache

    with torch.inference_mode():
        cache = KVCache(network.config, n_rows, device="cuda", dtype=torch.bfloat16)
        cache.lengths += context - 1
        step, ids = GraphedStep(network, cache), torch.ones(n_rows, dtype=torch.int64, device="cuda")
        for _ in range(5):
            step(ids)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            step(ids)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / repeats


def cuda_whole_seconds(network: Any, n_rows: int, n_prompt: int, n_new: int, repeats: int = 3) -> float:
    """Return the seconds of a whole call, prompts included; the best of several."""
    import torch

    from model import GenerationConfig, generate

    ids = np.random.default_rng(1).integers(network.config.vocab_size, size=(n_rows, n_prompt)).tolist()
    config = GenerationConfig(max_new_tokens=n_new, temperature=0.0)
    generate(network, ids, GenerationConfig(max_new_tokens=8, temperature=0.0), batch_size=n_rows)
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        generate(network, ids, config, batch_size=n_rows)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def cuda_rows(only: set[str], bandwidth: float) -> Iterator[Row]:
    """Yield rows of the speed on a GPU compared with its bandwidth limit."""
    network = cuda_network()
    if "batch" in only:
        context = CUDA_PROMPT + CUDA_NEW // 2
        limit = bytes_per_step(network, CUDA_BATCH, context) / bandwidth
        seconds = cuda_step_seconds(network, CUDA_BATCH, context)
        rates = [f"{CUDA_BATCH / each:,.0f} tokens/s" for each in (seconds, limit)]
        what = f"batch {CUDA_BATCH}, context {context}"
        yield Row(f"{what}: step, share of the bandwidth limit", *rates, limit / seconds, CUDA_STEP_GOAL)
        whole = cuda_whole_seconds(network, CUDA_BATCH, CUDA_PROMPT, CUDA_NEW) / CUDA_NEW
        rates[0] = f"{CUDA_BATCH / whole:,.0f} tokens/s"
        yield Row(f"{what}: end to end, share of it", *rates, limit / whole, CUDA_WHOLE_GOAL)
    if "single" in only:
        rate = CUDA_NEW / cuda_whole_seconds(network, 1, PROMPT_TOKENS, CUDA_NEW)
        yield Row("batch 1, tokens/s", f"{rate:,.0f} tokens/s", "", rate, CUDA_SINGLE_GOAL)


def cpu_rows(only: set[str], rounds: int) -> Iterator[Row]:
    """Yield the requested rows."""
    if "equal" in only:
        for batch_size, goal in EQUAL_GOALS.items():
            what = f"batch {batch_size}, {PROMPT_TOKENS} + {NEW_TOKENS} tokens"
            yield from peer_row(what, str(batch_size), rounds, goal)
    if "ragged" in only:
        what = f"{RAGGED_PROMPTS} prompts of 4 to 400 + 1 to 256 tokens"
        # a turn takes a minute, in which one-time work is negligible
        yield from peer_row(what, "ragged", max(2, rounds // 2), RAGGED_GOAL, warmup=0)
    if "sampling" in only:
        what = "top-k, top-p and penalties over greedy, share of time"
        yield from own_row(what, "sampled", "32", rounds, SAMPLING_GOAL)
    if "deterministic" in only:
        for batch_size in EQUAL_GOALS:
            what = f"deterministic over not, batch {batch_size}, share of time"
            yield from own_row(what, "deterministic", str(batch_size), rounds, None)
    if "evaluation" in only:
        yield from evaluation_row(rounds)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--device", choices=tuple(ROWS), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bandwidth", type=float, default=3.35e12, help="of the GPU's memory, in bytes per second")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        serve_side(given.side, given.task, given.folder)
        return
    names = ROWS[given.device]
    only = set(given.only.split(",")) if given.only else set(names)
    if only - set(names):
        parser.error(f"--only takes {', '.join(names)} with --device {given.device}")
    rows = cuda_rows(only, given.bandwidth) if given.device == "cuda" else cpu_rows(only, given.rounds)
    sys.exit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
