"""Sides of the encoding benchmark: tables of documents to token shards, each side in its own process.

    python -m benchmarks.encoding SIDE TOKENIZER OUT TABLE...     prints seconds and peak memory

All sides read the same tables and write arrays of ids. Our side is the function of the stage `tokenise`, on two cores.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

WORKERS = 2


def ours(tokenizer: Path, out: Path, tables: Sequence[Path]) -> None:
    """Encode by the stage's function, in two new processes."""
    from storage.digest import sha256_file
    from storage.tables import unpacked_size
    from tasks.core.subprocesses import Subprocesses
    from tasks.tokens.tokenise import TokeniseSettings, tokenise_segment

    fingerprint = sha256_file(tokenizer)  # the stage has it from the manifest
    processes = Subprocesses(WORKERS)

    def encode(table: Path) -> None:
        folder = out / table.stem
        folder.mkdir()
        processes.call(
            tokenise_segment,
            lambda done, total: None,
            unpacked_size(table),
            source=table,
            tokenizer=tokenizer,
            fingerprint=fingerprint,
            out=folder,
            settings=TokeniseSettings(),
            engine="auto",
        )

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(encode, tables))
    processes.close()


def alone(tokenizer: Path, out: Path, tables: Sequence[Path]) -> None:
    """Encode by the stage's function in this process, for the memory of one process."""
    from tasks.tokens.tokenise import TokeniseSettings, tokenise_segment
    from tasks.tokens.tokenizer_kinds import load_tokenizer

    fingerprint = load_tokenizer(tokenizer).fingerprint
    for table in tables:
        folder = out / table.stem
        folder.mkdir()
        tokenise_segment(table, tokenizer, fingerprint, folder, TokeniseSettings(), "auto", lambda done, total: None)


def hugging_face(tokenizer: Path, out: Path, tables: Sequence[Path]) -> None:
    """Encode by `encode_batch`, which uses both cores."""
    from tokenizers import Tokenizer

    engine = Tokenizer.from_str(json.dumps(json.loads(tokenizer.read_text())["spec"]))
    engine.encode_special_tokens = True

    def encode(texts: list[str]) -> np.ndarray:
        found = engine.encode_batch(texts, add_special_tokens=False)
        return np.concatenate([np.array(item.ids, dtype=np.uint16) for item in found])

    _plainly(encode, out, tables)


# GPT-2's pre-tokenisation pattern, in a form without backtracking
GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def tiktoken(tokenizer: Path, out: Path, tables: Sequence[Path]) -> None:
    """Encode with the same merges by tiktoken's batch call, in two threads."""
    import tiktoken as library

    from tasks.tokens.hf_spec import spelled_bytes
    from tasks.tokens.tokenizer_kinds import BpeTokenizer, load_tokenizer

    loaded = load_tokenizer(tokenizer)
    assert isinstance(loaded, BpeTokenizer)
    special = set(loaded.special_ids)
    vocabulary = json.loads(loaded.spec)["model"]["vocab"]
    ranks = {spelled_bytes(token): index for token, index in vocabulary.items() if index not in special}
    encoding = library.Encoding("peer", pat_str=GPT2_WORDS, mergeable_ranks=ranks, special_tokens={})

    def encode(texts: list[str]) -> np.ndarray:
        found = encoding.encode_ordinary_batch(texts, num_threads=WORKERS)
        return np.concatenate([np.array(ids, dtype=np.uint16) for ids in found])

    _plainly(encode, out, tables)


def numpy_table(tokenizer: Path, out: Path, tables: Sequence[Path]) -> None:
    """Encode characters by one look-up table over all code points."""
    alphabet = json.loads(tokenizer.read_text())["alphabet"]
    table = np.ones(0x110000, dtype=np.uint16)
    table[np.frombuffer(alphabet.encode("utf-32-le"), np.uint32)] = np.arange(4, 4 + len(alphabet))

    def encode(texts: list[str]) -> np.ndarray:
        return table[np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)]

    _plainly(encode, out, tables)


def _plainly(encode: Callable[[list[str]], np.ndarray], out: Path, tables: Sequence[Path]) -> None:
    for table in tables:
        np.save(out / f"{table.stem}.npy", encode(pq.read_table(table, columns=["text"])["text"].to_pylist()))


SIDES: dict[str, Callable[[Path, Path, Sequence[Path]], None]] = {
    "ours": ours,
    "alone": alone,
    "hugging_face": hugging_face,
    "tiktoken": tiktoken,
    "numpy_table": numpy_table,
}


def run(side: str, tokenizer: Path, out: Path, tables: Sequence[Path]) -> dict[str, Any]:
    """Run a side in a new process; returns its seconds, and the peak memory of one of its processes in bytes.

    Raises:
        RuntimeError: if it fails.
    """
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.encoding", side, str(tokenizer), str(out), *map(str, tables)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{side} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Run one side."""
    side, tokenizer, out, *tables = sys.argv[1:]
    started = time.perf_counter()
    SIDES[side](Path(tokenizer), Path(out), [Path(table) for table in tables])
    seconds = time.perf_counter() - started
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "peak_bytes": peak * 1024}))


if __name__ == "__main__":
    main()
