"""Training compared with nanoGPT's loop and a plain LLaMA loop: speed, time to the same loss, cost of checkpoints.

    python -m benchmarks.train [--only small,large,llama,curve,checkpoint,loss,orchestration] [--full]
    python -m benchmarks.train --device cuda [--only 124m,30m,loss] [--tokens FILE]

Both sides of a row are separate processes that take turns; a ratio is the median over adjacent turns. On a CPU both
sides use float32 and all cores. nanoGPT's AdamW is fused on a GPU only; a second row uses the fused one on a CPU too.
`--full` measures at the lengths of the goals (2,000 steps of the small shape, ten minutes of the large one, five
minutes with orchestration), otherwise at a tenth. `--device cuda` needs only torch, numpy and safetensors. `--tokens`
names a file of uint16 ids below 50,257 for the comparison of losses; the default is the bytes of the installed
packages' text. Prints a Markdown table; the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import texts
from benchmarks.pairs import Side, ratio, serve, take_turns
from benchmarks.peer_training import PlainGPT, PlainLoop, Recipe, Shape
from benchmarks.table import Row, report

SHAPES = {
    "small": Shape(4, 4, 128, 65, 64, 12),
    "large": Shape(6, 6, 384, 8192, 256, 16),
    "124m": Shape(12, 12, 768, 50304, 1024, 32),
    "30m": Shape(8, 8, 512, 8192, 1024, 64),
}
LLAMA_WIDTH = 1024  # of the feed-forward layer at the large shape
STEPS_PER_TURN = {"small": 10, "large": 1, "124m": 10, "30m": 10}
RECIPES = {
    "small": Recipe(),
    "large": Recipe(steps=300, lr=1e-3, warmup=30),
    "124m": Recipe(steps=2500, lr=6e-4, min_lr=6e-5, warmup=200, beta2=0.95),
    "30m": Recipe(steps=2500, lr=6e-4, min_lr=6e-5, warmup=200, beta2=0.95),
}
CURVE_STEPS = 200
CURVE_TOLERANCE = 0.005
SAVES_PER_SECOND = 1 / 300
LOSS_SHARE = {"small": 0.6, "large": 0.6, "124m": 0.4}
BUDGETED = 0.7  # of that share: the number of steps is fixed in advance, and a side may be slower than its probe
VALIDATION_TOKENS = 65_536


def write_tokens(folder: Path, name: str, n_bytes: int) -> tuple[Path, np.ndarray]:
    """Write token ids of text for training; returns windows (n, context + 1) for evaluation.

    Ids are characters for the small shape (the 64 most frequent, and one for all others), a vocabulary fitted on the
    text for the large one, bytes for the others.
    """
    documents = list(texts.documents(n_bytes))
    if name == "small":
        text = "\n".join(documents)
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        kinds, counts = np.unique(codes, return_counts=True)
        common = np.sort(kinds[np.argsort(-counts, kind="stable")[:64]])
        place = np.searchsorted(common, codes).clip(max=63)
        ids = np.where(common[place] == codes, place, 64).astype(np.uint16)
    elif name == "large":
        ids = _fitted(documents, SHAPES[name].vocab_size)
    else:
        ids = np.frombuffer("\n".join(documents).encode(), dtype=np.uint8).astype(np.uint16)
    return split_tokens(folder, ids, SHAPES[name].context)


def _fitted(documents: list[str], vocab_size: int) -> np.ndarray:
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(documents, vocab_size, show_progress=False)
    return np.concatenate([np.array(one.ids, dtype=np.uint16) for one in tokenizer.encode_batch(documents)])


def split_tokens(folder: Path, ids: np.ndarray, context: int) -> tuple[Path, np.ndarray]:
    """Return the end of the ids as windows for evaluation, and write the rest to a file."""
    held = VALIDATION_TOKENS // context * context + 1
    ids[:-held].tofile(folder / "train.bin")
    windows = np.lib.stride_tricks.sliding_window_view(ids[-held:], context + 1)[::context]
    np.save(folder / "validation.npy", windows)
    return folder / "train.bin", windows


def random_tokens(folder: Path, name: str) -> Path:
    """Write random ids, for measurements of speed."""
    generator = np.random.default_rng(0)
    ids = generator.integers(SHAPES[name].vocab_size, size=2_000_000).astype(np.uint16)
    path = folder / f"{name}.bin"
    ids.tofile(path)
    return path


class OurLoop:
    """Our step and our source of sequences, combined as in the trainer.

    Args:
        network: fields of ModelConfig.
        training: fields of TrainConfig.
        tokens: file of uint16 token ids.
        device: "cpu" or "cuda".
    """

    def __init__(self, network: dict[str, Any], training: dict[str, Any], tokens: Path, device: str = "cpu") -> None:
        import torch

        from model.config import Execution, TrainConfig
        from model.data import Group, Order, SpanSource
        from model.presets import ModelConfig
        from model.step import Stepper
        from model.transformer import Transformer

        self.shape, self.config = ModelConfig.from_dict(network), TrainConfig.from_dict(training)
        torch.manual_seed(1)
        model = Transformer(self.shape).to(device)
        self.stepper = Stepper(model, self.config, torch.device(device), Execution(compile=device == "cuda"))
        for note in self.stepper.notes:
            print(note, file=sys.stderr)
        ids, context = np.memmap(tokens, dtype=np.uint16, mode="r"), self.shape.max_seq_len
        n = (len(ids) - 1) // context
        length = np.full(n, context + 1)
        self.source = SpanSource([ids], np.zeros(n), np.arange(n) * context, length, context, 0)
        self.order = Order([Group(0, n, n)], 1337)
        self.done, self.loading = 0, 0.0

    def step(self) -> float:
        """Take one step; returns its loss."""
        from model.schedule import learning_rate

        started = time.perf_counter()
        size, accum = self.config.batch_size, self.config.grad_accum
        first = self.done * size * accum
        indices = self.order.at(np.arange(first, first + size * accum))
        batches = [self.source.batch(part) for part in indices.reshape(accum, size)]
        self.loading += time.perf_counter() - started
        self.done += 1
        lr = learning_rate(min(self.done, self.config.max_steps) - 1, self.config)
        return self.stepper.run(batches, lr, self.done, indices.tolist()).loss

    def evaluate(self, windows: np.ndarray) -> float:
        """Return the mean loss over windows (n, context + 1)."""
        from model.data import SpanSource
        from model.scoring import evaluate_source

        n, width = windows.shape
        flat = np.ascontiguousarray(windows).reshape(-1)
        source = SpanSource([flat], np.zeros(n), np.arange(n) * width, np.full(n, width), width - 1, 0)
        return evaluate_source(self.stepper.model, source, 32, self.stepper.device).loss


def same_network(shape: Shape) -> dict[str, Any]:
    """Return our settings of the peer's network."""
    return {
        **{"vocab_size": shape.vocab_size, "max_seq_len": shape.context, "n_layer": shape.n_layer},
        **{"n_head": shape.n_head, "d_model": shape.d_model},
        **{"attn_bias": False, "ffn_bias": False, "norm_bias": False},
    }


def same_training(name: str, device: str) -> dict[str, Any]:
    """Return our settings of the peer's training."""
    recipe = RECIPES[name]
    return {
        **{"max_steps": recipe.steps, "batch_size": SHAPES[name].rows, "lr": recipe.lr, "eval_every": recipe.steps},
        **{"min_lr_ratio": recipe.min_lr / recipe.lr, "warmup_ratio": recipe.warmup / recipe.steps},
        **{"betas": (0.9, recipe.beta2), "precision": "bf16" if device == "cuda" else "fp32"},
    }


def llama_network(shape: Shape) -> dict[str, Any]:
    """Return our settings of a LLaMA with the shape's width."""
    from model.presets import preset

    found = preset("llama", shape.vocab_size, d_ff=LLAMA_WIDTH, max_seq_len=shape.context).to_dict()
    return {**found, "n_layer": shape.n_layer, "n_head": shape.n_head, "d_model": shape.d_model}


def default_network(name: str) -> dict[str, Any]:
    """Return the network of the default preset of about this size."""
    from model.presets import preset

    presets = {"small": "modern-1m", "large": "modern-15m", "124m": "modern-125m"}
    return preset(presets[name], SHAPES[name].vocab_size, max_seq_len=SHAPES[name].context).to_dict()


def default_training(name: str, steps: int, device: str) -> dict[str, Any]:
    """Return the default training settings."""
    if device == "cuda":  # the rest of the project may be missing
        rows = SHAPES[name].rows
        return {"max_steps": steps, "batch_size": rows, "lr": 1e-3, "optimizer": "muon", "precision": "bf16"}
    from tasks.core.settings import TrainSettings
    from tasks.training.suggest import OPTIMIZER, batch_for
    from tasks.training.train import train_config

    rows = batch_for(SHAPES[name].context, device)
    return train_config(TrainSettings(), default_network(name), steps, batch_size=rows, optimizer=OPTIMIZER)


def build(side: str, name: str, tokens: Path, device: str, steps: int) -> Any:
    """Return one side's loop."""
    import torch

    torch.manual_seed(0)
    shape = SHAPES[name]
    if side == "ours":
        return OurLoop(same_network(shape), same_training(name, device), tokens, device)
    if side == "our-llama":
        return OurLoop(llama_network(shape), same_training(name, device), tokens, device)
    if side == "our-default":
        settings = default_training(name, steps or RECIPES[name].steps, device)
        return OurLoop(default_network(name), settings, tokens, device)
    recipe = RECIPES[name]
    if side == "llama":
        from benchmarks.peer_training import LlamaLoss

        return PlainLoop(LlamaLoss(shape, LLAMA_WIDTH), tokens, shape, recipe, device)
    fused = side == "nanogpt-fused"
    own = Recipe(**{**vars(recipe), "fused": fused, "steps": steps or recipe.steps})
    return PlainLoop(PlainGPT(shape), tokens, shape, own, device)


def serve_side(side: str, name: str, tokens: Path, device: str, steps: int, per_turn: int) -> None:
    """Serve one side: a turn is several steps; after the last of `steps`, it returns the evaluation loss."""
    loop = build(side, name, tokens, device, steps)
    windows = tokens.with_name("validation.npy")

    def turn() -> float:
        if steps and loop.done >= steps:
            return float(loop.evaluate(np.load(windows)))
        left = steps - loop.done if steps else per_turn
        loss = 0.0
        for _ in range(min(per_turn, left)):
            loss = loop.step()
        return loss

    serve(turn)


def _command(side: str, name: str, tokens: Path, device: str, steps: int = 0, per_turn: int = 0) -> list[str]:
    turn = per_turn or STEPS_PER_TURN[name]
    arguments = {"side": side, "shape": name, "tokens": tokens, "device": device, "steps": steps, "per-turn": turn}
    return ["benchmarks.train", *(str(part) for key, value in arguments.items() for part in (f"--{key}", value))]


def speeds(name: str, sides: list[str], rounds: int, device: str) -> dict[str, Side]:
    """Measure the sides at equal work, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = random_tokens(Path(folder), name)
        return take_turns({side: _command(side, name, tokens, device) for side in sides}, rounds)


def tokens_per_second(side: Side, name: str) -> str:
    """Return tokens per second as text."""
    return f"{SHAPES[name].tokens * STEPS_PER_TURN[name] / side.median:,.0f} tokens/s"


def speed_rows(name: str, rounds: int, goal: float, device: str = "cpu") -> Iterator[Row]:
    """Yield rows of our step compared with nanoGPT's loop; on a CPU also with its optimiser fused."""
    peers = ["nanogpt"] if device == "cuda" else ["nanogpt", "nanogpt-fused"]
    found = speeds(name, ["ours", *peers], rounds, device)
    for peer in peers:
        yield Row(
            f"{name}: tokens/s beside {peer}",
            tokens_per_second(found["ours"], name),
            tokens_per_second(found[peer], name),
            ratio(found["ours"], found[peer]),
            goal if peer == "nanogpt" and device == "cpu" else None,
        )
    if device == "cuda":
        rate = SHAPES[name].tokens * STEPS_PER_TURN[name] / found["ours"].median
        yield Row(f"{name}: tokens/s", tokens_per_second(found["ours"], name), "", rate, goal)


def llama_rows(rounds: int) -> Iterator[Row]:
    """Yield the row of the same LLaMA on both sides."""
    found = speeds("large", ["our-llama", "llama"], rounds, "cpu")
    ours, theirs = found["our-llama"], found["llama"]
    both = [tokens_per_second(side, "large") for side in (ours, theirs)]
    yield Row("llama: tokens/s beside transformers", *both, ratio(ours, theirs), 1.3)


def curve_rows() -> Iterator[Row]:
    """Yield the largest difference between the loss curves for equal weights, batches and learning rates."""
    import torch

    from model.data import Batch

    name, shape = "small", SHAPES["small"]
    with tempfile.TemporaryDirectory() as folder:
        tokens, _ = write_tokens(Path(folder), name, 4 * 2**20)
        ours, theirs = (build(side, name, tokens, "cpu", 0) for side in ("ours", "nanogpt"))
        theirs.network.load_state_dict(_as_peer(ours.stepper.model.state_dict(), shape))
        largest, left, right = 0.0, 0.0, 0.0
        for step in range(1, CURVE_STEPS + 1):
            ids, targets = theirs.batch()
            lr = theirs.learning_rate(theirs.done)
            left = ours.stepper.run([Batch(ids.numpy(), targets.numpy())], lr, step, []).loss
            right = theirs.step((ids, targets), lr)
            largest = max(largest, abs(left / right - 1))
        del torch
    what = f"curve: largest relative difference of loss in {CURVE_STEPS} equal steps"
    yield Row(what, f"{left:.4f} at the end", f"{right:.4f} at the end", largest, CURVE_TOLERANCE, at_most=True)


def _as_peer(state: dict[str, Any], shape: Shape) -> dict[str, Any]:
    import torch

    names = {"norm_attention": "norm_1", "norm_mlp": "norm_2"}
    names |= {"attention.proj": "proj", "mlp.up": "up", "mlp.down": "down"}
    found = {
        "tokens.weight": state["token_embedding.weight"],
        "head.weight": state["token_embedding.weight"],
        "places.weight": state["position_table"],
        "norm.weight": state["norm.weight"],
    }
    for layer in range(shape.n_layer):
        for ours, theirs in names.items():
            found[f"blocks.{layer}.{theirs}.weight"] = state[f"blocks.{layer}.{ours}.weight"]
        parts = [state[f"blocks.{layer}.attention.{part}.weight"] for part in "qkv"]
        found[f"blocks.{layer}.qkv.weight"] = torch.cat(parts)
    return found


def checkpoint_rows(full: bool) -> Iterator[Row]:
    """Yield the shares of time of a checkpoint per minute and of the source of sequences, for the large shape."""
    rounds, steps = (10, 10) if full else (3, 4)
    with tempfile.TemporaryDirectory() as folder:
        tokens = random_tokens(Path(folder), "large")
        loop = build("ours", "large", tokens, "cpu", 0)
        save = _saving(loop, Path(folder) / "checkpoints")
        for _ in range(2):
            loop.step()
        extra, all_seconds, loop.loading = [], 0.0, 0.0
        for _ in range(rounds):
            seconds = []
            for saving in (False, True):
                started = time.perf_counter()
                if saving:
                    save(loop.done)
                for _ in range(steps):
                    loop.step()
                seconds.append(time.perf_counter() - started)
            extra.append(seconds[1] - seconds[0])
            all_seconds += sum(seconds)
        share = statistics.median(extra) * SAVES_PER_SECOND
        yield Row(
            "checkpoint: share of time, one in five minutes", f"{statistics.median(extra):.2f} s", "", share, 0.02, True
        )
        loading = loop.loading / all_seconds
        each = loop.loading / (2 * rounds * steps)
        yield Row("loader: share of time", f"{1e3 * each:.2f} ms a step", "", loading, 0.01, True)


def _saving(loop: OurLoop, folder: Path) -> Callable[[int], None]:
    """Return a function that saves a step."""
    from model.checkpoint import Checkpoint, save_checkpoint

    def save(step: int) -> None:
        save_checkpoint(folder, Checkpoint(step, step, **loop.stepper.tensors()))

    return save


def loss_rows(name: str, full: bool, device: str, own_tokens: Path | None) -> Iterator[Row]:
    """Yield the loss of the default preset in a share of the time of nanoGPT's loop with its own settings."""
    share = LOSS_SHARE[name]
    with tempfile.TemporaryDirectory() as folder:
        if own_tokens is None:
            tokens, _ = write_tokens(Path(folder), name, (16 if device == "cpu" else 100) * 2**20)
        else:
            ids = np.fromfile(own_tokens, dtype=np.uint16)
            tokens, _ = split_tokens(Path(folder), ids, SHAPES[name].context)
        probe_turns = {"small": 10, "large": 3}.get(name, 4)
        probe = take_turns({s: _command(s, name, tokens, device) for s in ("nanogpt", "our-default")}, probe_turns)
        each = {side: probe[side].median / STEPS_PER_TURN[name] for side in probe}
        if name == "small":
            peer_steps = 2000 if full else 200
        else:
            peer_steps = max(20, round((600 if full else 60) / each["nanogpt"]))
        our_steps = max(1, int(BUDGETED * share * peer_steps * each["nanogpt"] / each["our-default"]))
        # about fifty turns each, so that drift affects both sides equally
        commands = {
            side: _command(side, name, tokens, device, steps, max(1, -(-steps // 50)))
            for side, steps in (("nanogpt", peer_steps), ("our-default", our_steps))
        }
        turns = max(-(-steps // max(1, -(-steps // 50))) for steps in (peer_steps, our_steps))
        found = take_turns(commands, turns + 1, warmup=0)
    # turns after a side's last step are evaluations, which are not training time
    seconds = {}
    for side, steps in (("nanogpt", peer_steps), ("our-default", our_steps)):
        seconds[side] = sum(found[side].seconds[: -(-steps // max(1, -(-steps // 50)))])
    ours, theirs = found["our-default"], found["nanogpt"]
    told = [
        f"{side.value:.4f} after {steps} steps, {seconds[side.name]:.0f} s"
        for side, steps in ((ours, our_steps), (theirs, peer_steps))
    ]
    yield Row(f"{name}: validation loss, ours less nanoGPT's", *told, ours.value - theirs.value, 0.0, at_most=True)
    yield Row(f"{name}: share of time", *told, seconds["our-default"] / seconds["nanogpt"], share, at_most=True)


def rows(only: set[str], full: bool, device: str, rounds: int, tokens: Path | None) -> Iterator[Row]:
    """Yield the requested rows."""
    if device == "cuda":
        goals = {"124m": 532_000.0, "30m": 1_300_000.0}
        for name, goal in goals.items():
            if name in only:
                yield from speed_rows(name, rounds, goal, device)
        if "loss" in only:
            yield from loss_rows("124m", full, device, tokens)
        return
    for name in ("small", "large"):
        if name in only:
            yield from speed_rows(name, rounds, 1.15)
    if "llama" in only:
        yield from llama_rows(rounds)
    if "curve" in only:
        yield from curve_rows()
    if "checkpoint" in only:
        yield from checkpoint_rows(full)
    if "loss" in only:
        for name in ("small", "large") if full else ("small",):
            yield from loss_rows(name, full, device, tokens)
    if "orchestration" in only:
        from benchmarks.orchestration import orchestration_rows

        yield from orchestration_rows(300 if full else 30)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {
        "cpu": ["small", "large", "llama", "curve", "checkpoint", "loss", "orchestration"],
        "cuda": ["124m", "30m", "loss"],
    }
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=tuple(SHAPES), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--per-turn", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        serve_side(given.side, given.shape, given.tokens, given.device, given.steps, given.per_turn)
        return
    only = set(given.only.split(",")) if given.only else set(names[given.device])
    if only - set(names[given.device]):
        parser.error(f"--only takes {', '.join(names[given.device])} with --device {given.device}")
    sys.exit(0 if report(rows(only, given.full, given.device, given.rounds, given.tokens)) else 1)


if __name__ == "__main__":
    main()
