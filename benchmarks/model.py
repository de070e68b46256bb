"""Forward and backward pass of the network compared with `transformers` with scaled dot-product attention.

    python -m benchmarks.model [--rounds 12]

Both sides have the same weights and read the same tokens, in float32, on all cores; their losses are checked to be
equal. Prints a Markdown table; the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pairs import Side, ratio, serve, take_turns

GOAL_RATIO = 1.1
GOAL_IMPORT_SECONDS = 0.3
LOSS_TOLERANCE = 1e-4
SHAPES = ("light_llm", "llama")
BATCHES = {"light_llm": (2, 1024), "llama": (16, 256)}  # rows, tokens


def peer_config(shape: str) -> Any:
    """Return the shape as a configuration of `transformers`."""
    import transformers

    if shape == "light_llm":
        return transformers.GPT2Config(
            vocab_size=50257, n_embd=384, n_layer=6, n_head=6, n_positions=1024, activation_function="gelu",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    return transformers.LlamaConfig(
        vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
    )  # fmt: skip


def write_weights(shape: str, folder: Path) -> None:
    """Write initial weights for both sides."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(peer_config(shape)).save_pretrained(folder)


def serve_side(side: str, shape: str, folder: Path) -> None:
    """Serve one side: a step is forward, loss and backward."""
    import torch

    rows, tokens = BATCHES[shape]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(peer_config(shape).vocab_size, (rows, tokens), generator=generator)
    if side == "sheepfold":
        from model import from_hf

        network = from_hf(folder).train()
        labels = torch.cat((ids[:, 1:], torch.full((rows, 1), -100)), dim=1)
        compute_loss = lambda: network.loss(ids, labels)  # noqa: E731
    else:
        import transformers

        network = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").train()
        compute_loss = lambda: network(ids, labels=ids, use_cache=False).loss  # noqa: E731

    def step() -> float:
        network.zero_grad(set_to_none=True)
        loss = compute_loss()
        loss.backward()
        return float(loss.detach())

    serve(step)


def compare(shape: str, rounds: int) -> tuple[Side, Side]:
    """Measure both sides on one shape."""
    with tempfile.TemporaryDirectory() as folder:
        write_weights(shape, Path(folder))
        base = ["benchmarks.model", "--shape", shape, "--folder", folder, "--side"]
        sides = take_turns({name: [*base, name] for name in ("sheepfold", "transformers")}, rounds)
    return sides["sheepfold"], sides["transformers"]


def import_seconds(repeats: int = 5) -> float:
    """Return the median seconds of importing `model`, without those of torch."""
    script = (
        "import time, torch; start = time.perf_counter()\n"
        "import model\n"
        "for name in model.__all__: getattr(model, name)\n"
        "print(time.perf_counter() - start)"
    )
    found = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return sorted(found)[repeats // 2]


def report(rounds: int) -> bool:
    """Measure and print; returns True if every goal is reached."""
    print("| shape | side | tokens/s (median) | ms per step | peak MB beyond idle | loss |")
    print("|---|---|---|---|---|---|")
    verdicts = []
    for shape in SHAPES:
        ours, theirs = compare(shape, rounds)
        n_tokens = BATCHES[shape][0] * BATCHES[shape][1]
        for side in (ours, theirs):
            print(
                f"| {shape} {BATCHES[shape][0]} x {BATCHES[shape][1]} | {side.name} | {n_tokens / side.median:,.0f} | "
                f"{1000 * side.median:,.0f} | {side.peak_bytes / 1e6:,.0f} | {side.value:.5f} |",
                flush=True,
            )
        speed, memory = ratio(ours, theirs), ours.peak_bytes / theirs.peak_bytes
        verdicts += [
            (f"{shape}: speed, median ratio of {rounds} rounds", speed, f">= {GOAL_RATIO}", speed >= GOAL_RATIO),
            (f"{shape}: peak memory, ratio", memory, "<= 1", memory <= 1),
            (f"{shape}: difference of loss", abs(ours.value - theirs.value), f"<= {LOSS_TOLERANCE}",
             abs(ours.value - theirs.value) <= LOSS_TOLERANCE),
        ]  # fmt: skip
    seconds = import_seconds()
    verdicts.append(
        ("import model beyond torch, s", seconds, f"<= {GOAL_IMPORT_SECONDS}", seconds <= GOAL_IMPORT_SECONDS)
    )
    print("\n| row | found | goal | reached |")
    print("|---|---|---|---|")
    for what, found, goal, reached in verdicts:
        print(f"| {what} | {found:.3g} | {goal} | {'yes' if reached else 'NO'} |")
    return all(reached for *_, reached in verdicts)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--side", choices=("sheepfold", "transformers"), help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve_side(arguments.side, arguments.shape, arguments.folder)
    else:
        sys.exit(0 if report(arguments.rounds) else 1)


if __name__ == "__main__":
    main()
