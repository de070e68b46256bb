"""Checks of a corpus's meaning: no text on both sides of the split, tokens that give their text back."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from storage.manifest import ArtifactRef
from storage.store import Store
from storage.tables import read_rows
from storage.verify import Check
from tasks.curate.kept import kept_documents
from tasks.tokens.shards import SHARD_FILE
from tasks.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer

State = dict[str, list[ArtifactRef]]


def check_split(store: Store, state: State) -> Check:
    """Every cluster lies on one side; no evaluation document is trained on."""
    check = Check("split")
    curated = state["curate"][0]
    sides: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(store.folder(curated) / "selection.parquet", ["cluster", "split"]):
        sides[row["cluster"]].add(row["split"])
        check.checked += 1
    check.problems += [
        f"text {name[:12]} is on both sides of the split" for name, found in sides.items() if len(found) > 1
    ]
    trained = kept_documents(store, curated, "train")
    for ref in state.get("evalset", []):
        for row in read_rows(store.folder(ref) / "documents.parquet", ["doc_id"]):
            check.checked += 1
            if row["doc_id"] in trained:
                check.problems.append(f"evaluation document {row['doc_id']} is trained on")
    return check


def check_tokens(store: Store, state: State) -> Check:
    """The flat shards hold the ids of the tables, and ids give the text back where nothing became unk."""
    check = Check("token round trip")
    tokenizer = load_tokenizer(store.folder(state["tokenizer"][0]) / TOKENIZER_FILE)
    texts = {}
    for ref in state["normalise"]:
        for row in read_rows(store.folder(ref) / "documents.parquet", ["doc_id", "text"]):
            texts[row["doc_id"]] = row["text"]
    for ref in state["tokenise"]:
        shard = np.load(store.folder(ref) / SHARD_FILE, mmap_mode="r", allow_pickle=False)
        for row in read_rows(store.folder(ref) / "tokens.parquet"):
            check.checked += 1
            ids = np.array(row["ids"], dtype=np.int64)
            if not np.array_equal(shard[row["offset"] : row["offset"] + row["length"]], ids):
                check.problems.append(f"document {row['doc_id']}: the shard differs from the table")
            if ids[0] != tokenizer.start_id or ids[-1] != tokenizer.eos_id or ids.max() >= tokenizer.vocab_size:
                check.problems.append(f"document {row['doc_id']}: not bos, ids of the vocabulary, eos")
            elif not row["lost_bytes"] and tokenizer.decode(ids.tolist()) != texts[row["doc_id"]]:
                check.problems.append(f"document {row['doc_id']}: the ids do not give its text back")
    return check
