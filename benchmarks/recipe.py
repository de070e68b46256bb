"""The training of `sheepfold train` and plain loops at equal wall clock, on corpora of a few megabytes.

    python -m benchmarks.recipe [--megabytes 2,10] [--minutes 3,10] [--threads 2] [--arms ours,nanogpt,llama]
        [--seeds 1] [--recipe JSON] [--out FILE] [--corpora FOLDER] [--source FOLDER]

`ours` is that command on the folder of the corpus, with the settings of `--recipe`, as in
'{"tokenizer.vocab_size": 1024, "train.lr": 0.002}'. `nanogpt` is its loop on characters with its CPU configuration, and
on our tokens; `llama` is the LLaMA of `transformers` on our tokens. The minutes are those of the stage `train`, and of
the plain loops, whose schedule follows the clock. `--threads` is for the latter; `taskset` limits both. Every arm
predicts the same documents: windows of its context that overlap by half, bos before and eos behind, 8 bits for a byte
that is not in its vocabulary. Intervals are of the paired bootstrap over documents. `--out` appends a JSON line per
arm; called again with the same file, it measures only the arms that are missing, so hours of it need no single sitting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.corpora import corpus, read
from benchmarks.peer_training import LlamaLoss, PlainGPT, PlainLoop, Recipe, Shape
from model import TrainConfig, count_parameters
from model.data import IGNORE, SpanSource, trim
from model.metrics import bits_per_byte
from model.scoring import batches_by_length
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.store import Store
from tasks.core.child import module_command, python_path
from tasks.evaluation.compare import paired_bootstrap
from tasks.evaluation.evaluate import TOKENS_AT_ONCE, EncodedDocuments, encode_documents
from tasks.text.kneser_ney import KneserNey
from tasks.tokens.packing import chunk_pieces
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenise import TokeniseSettings
from tasks.tokens.tokenizer import fit_tokenizer
from tasks.tokens.tokenizer_kinds import CharTokenizer, Tokenizer
from tasks.training.bundle import Bundle
from tasks.training.law import ORDERS

CHARACTERS = 256  # ids of the loop on characters; the rest of Unicode is charged
SCHEDULE, WARMUP = 2_000, 100  # steps of nanoGPT's schedule, which is stretched over the minutes


@dataclass(frozen=True)
class Peer:
    """A plain loop: a shape without its vocabulary, and the learning rate.

    Attributes:
        d_ff: width of the feed-forward layer of a LLaMA; 0 is a GPT.
    """

    n_layer: int
    n_head: int
    d_model: int
    context: int
    rows: int
    lr: float
    d_ff: int = 0
    fused: bool = True


# The shapes on tokens have about the size of modern-1m. Their learning rates are the best of 0.8e-3, 1.5e-3, 3e-3 and
# 6e-3: `python -m benchmarks.recipe --megabytes 2 --minutes 5 --threads 1 --arms nanogpt-bpe,llama --peer-lr RATE`.
PEERS = {
    "nanogpt-char": Peer(4, 4, 128, 64, 12, lr=1e-3, fused=False),
    "nanogpt-bpe": Peer(4, 4, 128, 256, 8, lr=0.8e-3),
    "llama": Peer(4, 4, 128, 256, 8, lr=0.8e-3, d_ff=384),
}
ARMS = {"ours": ["ours"], "nanogpt": ["nanogpt-char", "nanogpt-bpe"], "llama": ["llama"], "5-gram": ["5-gram"]}


@dataclass(frozen=True)
class Found:
    """Result of an arm.

    Attributes:
        nats: nats of each validation document.
        seconds: wall clock of the training loop.
        about: network, steps and tokeniser, in words.
        counts: of ours, those of `law.expected_ratio` and bits per byte in windows that do not overlap, as `evaluate`
            has them; of the 5-gram model, bits per byte of its first orders.
    """

    corpus: str
    minutes: float
    arm: str
    seed: int
    seconds: float
    about: str
    bits_per_byte: float
    nats: list[float]
    n_bytes: list[int]
    recipe: dict[str, Any]
    threads: int
    counts: dict[str, float]

    @property
    def asked(self) -> tuple[Any, ...]:
        """Settings that determine the result."""
        return self.corpus, self.minutes, self.arm, self.seed, self.recipe, self.threads


@dataclass(frozen=True)
class Trained:
    """A fitted model: nats of each validation document, and see `Found`."""

    nats: np.ndarray
    seconds: float
    about: str
    counts: dict[str, float] = field(default_factory=dict)


class Texts:
    """The documents of a corpus, and their ids by tokeniser.

    Args:
        name: name of the corpus in the table.
        train, held: texts for training and validation.
        folder: folder of both.
        home: home of our trainings.
    """

    def __init__(
        self, name: str, train: Sequence[str], held: Sequence[str], folder: Path = Path(), home: Path = Path()
    ) -> None:
        self.name = f"{name} ({sha256_json([list(train), list(held)])[:8]})"
        self.train, self.held, self.folder, self.home = train, held, folder, home
        self.tokenizer = cache(self._tokenizer)
        self.ids = cache(self._ids)

    def _tokenizer(self, kind: str, vocab_size: int) -> Tokenizer:
        if kind == "char":
            return CharTokenizer.fit(self.train, vocab_size)
        settings = TokenizerSettings(kind=cast(Any, kind), vocab_size=vocab_size)
        fitted, _, _ = fit_tokenizer([text.encode() for text in self.train], settings)
        return fitted

    def _ids(self, tokenizer: Tokenizer) -> tuple[EncodedDocuments, EncodedDocuments]:
        framing = TokeniseSettings()
        return encode_documents(tokenizer, framing, self.train), encode_documents(tokenizer, framing, self.held)


@torch.inference_mode()
def document_nats(
    logits: Callable[[Tensor], Tensor], documents: EncodedDocuments, context: int, *, apart: bool = False
) -> np.ndarray:
    """Return (n,) nats of each document, lost bytes included, in windows that overlap by half or are `apart`."""
    stride = context if apart else max(1, context // 2)
    windows = chunk_pieces(documents.lengths, context, stride)
    start, length = documents.starts[windows.document] + windows.start, windows.length.astype(np.int64)
    first = np.where(windows.start > 0, context - stride + 1, 1)
    used = np.flatnonzero(length > first)
    source = SpanSource([documents.ids], np.zeros_like(start), start, length, context, 0)
    nats = documents.lost_bytes * (8 * math.log(2))
    for part in batches_by_length(length[used] - 1, TOKENS_AT_ONCE):
        rows = used[part]
        inputs, labels, _ = trim(source.batch(rows))
        labels[np.arange(1, labels.shape[1] + 1) < first[rows, None]] = IGNORE
        found = logits(torch.from_numpy(inputs)).flatten(0, 1).float()
        nll = F.cross_entropy(found, torch.from_numpy(labels).flatten(), reduction="none")
        np.add.at(nats, windows.document[rows], nll.view(labels.shape).sum(dim=1).double().numpy())
    return np.asarray(nats)


def ours(texts: Texts, minutes: float, seed: int, recipe: dict[str, Any]) -> Trained:
    """Train by the command that users run.

    Args:
        recipe: settings by their dotted names.
    """
    budget = {} if "train.max_steps" in recipe else {"train.minutes": minutes}
    given = {"train.seed": seed, **budget, **recipe}
    changes = [part for name, value in given.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command = [*module_command("flows.cli"), "train", str(texts.folder / "train"), "--home", str(texts.home), "--json"]
    environment = {**os.environ, **python_path()}
    printed = subprocess.run([*command, *changes], stdout=subprocess.PIPE, env=environment, check=True).stdout
    key = next(stage["key"] for stage in json.loads(printed)["stages"] if stage["stage"] == "train")
    store = Store(texts.home / "store")
    made = next(manifest for manifest in store.manifests("train") if manifest.key == key)
    (dataset,) = made.input_refs("dataset")
    counts = manifest_of(store, dataset).counts
    bundle = Bundle(store.folder(made.ref))
    shape, plan = bundle.model_config, TrainConfig.from_dict(bundle.config["train"])
    steps, parameters = made.counts["rows"], count_parameters(shape)
    passes = steps * plan.batch_size * plan.grad_accum / counts["train_sequences"]
    about = (
        f"{parameters['total']:,} parameters, {shape.vocab_size} ids, {plan.optimizer}, {steps:,} steps, "
        f"{passes:.1f} passes"
    )
    body, tokens = sum(parameters[part] for part in ("attention", "mlp", "norm")), counts["train_tokens"]
    held = encode_documents(bundle.tokenizer, TokeniseSettings(), texts.held)
    nats, apart = (document_nats(bundle.model, held, shape.max_seq_len, apart=choice) for choice in (False, True))
    law: dict[str, float] = {"body": body, "ids": shape.vocab_size, "tokens": tokens, "read": round(tokens * passes)}
    law["bits_per_byte"] = bits_per_byte(float(apart.sum()), int(held.n_bytes.sum()))
    return Trained(nats, made.seconds, about, law)


def plain(arm: str, texts: Texts, minutes: float, seed: int, lr: float = 0.0) -> Trained:
    """Train a plain loop.

    Args:
        lr: learning rate; 0 means the one of `PEERS`.
    """
    peer = PEERS[arm]
    tokenizer = texts.tokenizer("char", CHARACTERS) if arm == "nanogpt-char" else texts.tokenizer("auto", 0)
    documents, held = texts.ids(tokenizer)
    shape = Shape(peer.n_layer, peer.n_head, peer.d_model, tokenizer.vocab_size, peer.context, peer.rows)
    rate = lr or peer.lr
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.bin"
        documents.ids.astype(np.uint16).tofile(file)

        torch.manual_seed(seed)
        network = LlamaLoss(shape, peer.d_ff) if peer.d_ff else PlainGPT(shape)
        loop = PlainLoop(network, file, shape, Recipe(SCHEDULE, rate, rate / 10, WARMUP, fused=peer.fused))
        loop.random.manual_seed(seed)
        started, seconds = time.perf_counter(), 0.0
        while seconds < 60 * minutes:
            loop.step(lr=loop.learning_rate(SCHEDULE * seconds / 60 / minutes))
            seconds = time.perf_counter() - started
    network.eval()
    n_parameters = sum(weight.numel() for weight in network.parameters())
    about = f"{n_parameters:,} parameters, {tokenizer.vocab_size} ids, lr {rate:g}, {loop.done:,} steps, "
    about += f"{loop.done * shape.tokens / len(documents.ids):.1f} passes"
    return Trained(document_nats(network.logits, held, shape.context), seconds, about)


def ngrams(texts: Texts, recipe: dict[str, Any]) -> Trained:
    """Fit the 5-gram model of our tokens."""
    size = recipe.get("tokenizer.vocab_size", 0)
    tokenizer = texts.tokenizer("bpe" if size else "auto", size)
    documents, held = texts.ids(tokenizer)
    started = time.perf_counter()
    model = KneserNey.fit(documents.ids, documents.lengths, tokenizer.vocab_size, 5)
    seconds = time.perf_counter() - started
    nats = np.bincount(held.owner, weights=model.nll(held.ids, held.lengths), minlength=len(held.lengths))
    reference = bits_per_byte(float(model.nll(held.ids, held.lengths, ORDERS).sum()), int(held.n_bytes.sum()))
    return Trained(nats, seconds, f"{tokenizer.vocab_size} ids, Kneser-Ney", {"reference": reference})


def measure(texts: Texts, minutes: float, arm: str, seed: int, recipe: dict[str, Any], threads: int) -> Found:
    """Return the result of an arm."""
    n_bytes = [len(text.encode()) for text in texts.held]
    if arm == "ours":
        made = ours(texts, minutes, seed, recipe)
    elif arm == "5-gram":
        made = ngrams(texts, recipe)
    else:
        made = plain(arm, texts, minutes, seed, recipe.get("lr", 0.0))
    bits = float(made.nats.sum() / math.log(2) / sum(n_bytes))
    row = (texts.name, minutes, arm, seed, round(made.seconds, 1), made.about, round(bits, 4))
    return Found(*row, made.nats.round(3).tolist(), n_bytes, recipe, threads, made.counts)


def lines(found: Sequence[Found]) -> Iterator[str]:
    """Yield the rows of the table for one corpus and time: the mean over seeds, and ours compared with each arm."""
    names = list(dict.fromkeys(item.arm for item in found))
    of = {name: [item for item in found if item.arm == name] for name in names}
    nats = {name: np.mean([item.nats for item in items], axis=0) for name, items in of.items()}
    best = min((name for name in names if name in PEERS), key=lambda name: nats[name].sum(), default="")
    for name, items in of.items():
        bits = nats[name].sum() / math.log(2) / sum(items[0].n_bytes)
        compared = ["", ""]
        if "ours" in of and name != "ours":
            change = paired_bootstrap(nats["ours"], nats[name], np.array(items[0].n_bytes))
            low, high = (1 + end / bits for end in (change.low, change.high))
            compared = [f"{1 + change.value / bits:.4f}", f"{low:.4f} to {high:.4f}"]
        shown = f"{name} (best plain loop)" if name == best else name
        cells = [items[0].corpus, f"{items[0].minutes:g}", shown, f"{bits:.4f}"]
        cells += [f"{statistics.mean(item.seconds for item in items):.0f}", *compared, items[0].about]
        yield f"| {' | '.join(cells)} |"


def rows(asked: argparse.Namespace, arms: Sequence[str], homes: Path) -> Iterator[str]:
    """Measure, and yield the rows of the table."""
    known = [Found(**json.loads(line)) for line in asked.out.open()] if asked.out and asked.out.is_file() else []
    for size in [""] if asked.source else asked.megabytes.split(","):
        folder = asked.source or asked.corpora / size
        parts = read(folder) if asked.source else corpus(float(size), folder)
        texts = Texts(f"{size} MB" if size else folder.name, *parts, folder, homes / (size or "source"))
        for minutes in map(float, asked.minutes.split(",")):
            found = []
            for seed, arm in itertools.product(range(1, asked.seeds + 1), arms):
                recipe = asked.recipe if arm in ("ours", "5-gram") else {"lr": asked.peer_lr} if asked.peer_lr else {}
                wanted = (texts.name, minutes, arm, seed, recipe, asked.threads)
                item = next((item for item in known if item.asked == wanted), None)
                if item is None:
                    item = measure(texts, minutes, arm, seed, recipe, asked.threads)
                    if asked.out:
                        with asked.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(asdict(item)) + "\n")
                found.append(item)
            yield from lines(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="2,10", help="sizes of the training text")
    parser.add_argument("--minutes", default="3,10")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--arms", default="ours,nanogpt,llama,5-gram", help=f"of {', '.join([*ARMS, *PEERS])}")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--recipe", type=json.loads, default={}, help="settings of ours, as JSON")
    parser.add_argument("--peer-lr", type=float, default=0.0, help="learning rate of the plain loops")
    parser.add_argument("--out", type=Path, help="file of JSON lines; arms that it has are not measured again")
    parser.add_argument("--corpora", type=Path, default=Path(tempfile.gettempdir()) / "sheepfold-corpora")
    parser.add_argument("--source", type=Path, help="folder with `train` and `validation`, instead of --megabytes")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    arms = [name for part in asked.arms.split(",") for name in ARMS.get(part, [part])]
    if unknown := sorted(set(arms) - {"ours", "5-gram", *PEERS}):
        parser.error(f"--arms has {', '.join(unknown)}; expected {', '.join([*ARMS, *PEERS])}")
    print("| corpus | minutes | arm | bits per byte | seconds | ours / it | 95 % interval | about |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as homes:
        for row in rows(asked, arms, Path(homes)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
