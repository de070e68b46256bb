"""Forgetting in a training that continues from a model, with a share of the former text beside none.

    python -m benchmarks.replay [--megabytes 4] [--preset modern-1m] [--base-steps 1500] [--steps 300] [--share 0.2]
        [--seed 0] [--set NAME=VALUE]

The corpus has two folders: `general`, modules of Python's standard library, and `notes`, English text: Python's manual
by topics, then documents that Debian and packages install. A base is trained on `general` alone. From it two trainings
of equally many steps continue on both folders, whose weights in the mix are 0 and 1, or the share and the rest. All
three predict the held-out documents of both folders, as in `benchmarks.recipe`. Intervals of differences are those of
comparisons of evaluations (`paired_bootstrap`); that of the ratio is of 10,000 resamples of the documents of `general`,
for both differences at once. They do not cover the spread over seeds, and `notes` changes with the installed packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pyarrow.parquet as pq

from benchmarks.corpora import INSTALLED
from benchmarks.recipe import document_nats
from benchmarks.table import Row, report
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE
from storage.store import Store
from tasks.core.child import module_command, python_path
from tasks.evaluation.compare import LEVEL, paired_bootstrap
from tasks.evaluation.evaluate import encode_documents
from tasks.registry.promote import trained_on
from tasks.tokens.tokenise import TokeniseSettings
from tasks.training.bundle import Bundle

GOAL = 0.5
LEAST_BYTES, MOST_BYTES = 1_000, 32_768  # of a document; longer and shorter ones are left out
RESAMPLES = 10_000
HELD_OUT = "curate.validation_share=0.1"


def write_corpus(folder: Path, megabytes: float) -> None:
    """Write `general` of this size, and `notes` of a quarter of it; files are taken in the order of their digests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = (path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    _copy(modules, folder / "general", ".py", megabytes * 1e6)
    notes = folder / "notes"
    notes.mkdir()
    for name, text in topics.items():
        (notes / f"{name}.txt").write_text(text, encoding="utf-8")
    written = sum(path.stat().st_size for path in notes.iterdir())
    _copy((path for path in INSTALLED["prose"]() if path.suffix != ".gz"), notes, ".txt", megabytes * 1e6 / 4 - written)


def _copy(paths: Iterator[Path], folder: Path, suffix: str, n_bytes: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fitting = (path for path in paths if path.is_file() and LEAST_BYTES <= path.stat().st_size <= MOST_BYTES)
    for digest, path in sorted({hashlib.sha256(path.read_bytes()).hexdigest(): path for path in fitting}.items()):
        if n_bytes <= 0:
            return
        shutil.copyfile(path, folder / f"{digest[:16]}{suffix}")
        n_bytes -= path.stat().st_size


def train(store: Store, source: Path, corpus: str, *settings: str) -> ArtifactRef:
    """Train by the command that users run."""
    changes = [part for setting in (HELD_OUT, *settings) for part in ("--set", setting)]
    command = [*module_command("flows.cli"), "train", str(source), "--corpus", corpus, "--json", *changes]
    environment = {**os.environ, **python_path(), "SHEEPFOLD_HOME": str(Path(store.root).parent)}
    printed = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout
    key = next(stage["key"] for stage in json.loads(printed)["stages"] if stage["stage"] == "train")
    return next(made.ref for made in store.manifests("train") if made.key == key)


def nats_of(model: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return nats and bytes of each text."""
    bundle = Bundle(model)
    documents = encode_documents(bundle.tokenizer, TokeniseSettings(bos=bundle.bos, eos=bundle.eos), texts)
    return document_nats(bundle.model, documents, bundle.model_config.max_seq_len), documents.n_bytes


def ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Return the quotient of two sums over documents, and its interval by the bootstrap."""
    drawn = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    low, high = np.quantile(ours[drawn].sum(axis=1) / theirs[drawn].sum(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(ours.sum() / theirs.sum()), float(low), float(high)


def rows(asked: argparse.Namespace, place: Path) -> Iterator[Row]:
    """Train and measure; yields the rows of the table."""
    source, store = place / "corpus", Store(place / "home" / "store")
    write_corpus(source, asked.megabytes)
    seed = f"train.seed={asked.seed}"
    shape = (f"model.preset={asked.preset}", f"train.max_steps={asked.base_steps}")
    base = train(store, source / "general", "general", seed, *shape)
    continued = (seed, f"train.max_steps={asked.steps}", f"train.base={store.folder(base)}", "mix.by=folder")
    mixes = {"none": "general=0,notes=1", "replay": f"general={asked.share:g},notes={1 - asked.share:g}"}
    models = {"base": base}
    for name, weights in mixes.items():
        models[name] = train(store, source, "both", *continued, f"mix.weights={weights}", *asked.set)
    evalset = ArtifactRef(**(store.read_ref("evalset/both") or {}))
    if any(trained_on(store, model, evalset) for model in models.values()):
        raise RuntimeError("a model was trained on a held-out document; leave out curate.* in --set")
    held = pq.read_table(store.folder(evalset) / DOCUMENTS_FILE, columns=["source", "text"]).to_pylist()
    shown = f"{asked.share:.0%} replay"
    for folder in ("general", "notes"):
        texts = [row["text"] for row in held if row["source"].partition("/")[0] == folder]
        nats, n_bytes = {}, np.empty(0)
        for name, model in models.items():
            nats[name], n_bytes = nats_of(store.folder(model), texts)
        bits = {name: values.sum() / math.log(2) / n_bytes.sum() for name, values in nats.items()}
        found = {name: paired_bootstrap(nats[name], nats["base"], n_bytes) for name in mixes}
        on = f"{len(texts)} held-out documents of {folder}, {n_bytes.sum() / 1e3:,.0f} kB"
        for name, words in (("none", "without replay"), ("replay", f"with {shown}")):
            change = found[name]
            yield Row(
                f"bits per byte {words}, beside the base: {on}",
                f"{bits[name]:.4f} ({change.low:+.4f} to {change.high:+.4f})",
                f"{bits['base']:.4f}",
                change.value,
            )
        value, low, high = ratio(nats["replay"] - nats["base"], nats["none"] - nats["base"])
        yield Row(
            f"{'forgotten of general' if folder == 'general' else 'learnt of notes'} with {shown}, beside none",
            f"{found['replay'].value:+.4f} (ratio {low:.3f} to {high:.3f})",
            f"{found['none'].value:+.4f}",
            value,
            GOAL if folder == "general" else None,
            at_most=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=4.0, help="size of `general`")
    parser.add_argument("--preset", default="modern-1m")
    parser.add_argument("--base-steps", type=int, default=1_500)
    parser.add_argument("--steps", type=int, default=300, help="of each training that continues")
    parser.add_argument("--share", type=float, default=0.2, help="of `general` in the mix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="further setting of both that continue")
    with tempfile.TemporaryDirectory(prefix="sheepfold-replay-") as place:
        sys.exit(0 if report(rows(parser.parse_args(), Path(place))) else 1)


if __name__ == "__main__":
    main()
