"""Whether the split holds: no document and no text on both sides.

Containment is computed again from the texts, not read from what the stages noted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

import numpy as np

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SELECTION_FILE
from storage.store import Store
from storage.tables import read_rows, stream_rows
from storage.verify import Check
from tasks.curate.corpus import kept_documents, kept_rows
from tasks.text import Hashes, containment, gram_hashes

State = dict[str, list[ArtifactRef]]

DOCUMENTS_AT_ONCE = 1_000


def check_split(store: Store, state: State) -> Check:
    """Every cluster lies on one side; no evaluation document is trained on, nor does its text stand in what is."""
    check = Check("split")
    curated = state["curate"][0]
    sides: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(store.folder(curated) / SELECTION_FILE, ["cluster", "split"]):
        sides[row["cluster"]].add(row["split"])
        check.checked += 1
    check.problems += [
        f"text {name[:12]} is on both sides of the split" for name, found in sides.items() if len(found) > 1
    ]
    trained = kept_documents(store, curated, "train")
    for ref in state.get("evalset", []):
        for row in read_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id"]):
            check.checked += 1
            if row["doc_id"] in trained:
                check.problems.append(f"evaluation document {row['doc_id']} is trained on")
    check.problems += _containment_problems(store, state)
    return check


def _containment_problems(store: Store, state: State) -> Iterator[str]:
    """Held-out documents that stand in training text, and training documents that stand in held-out text.

    What counts is the share of a document's runs of thirteen words, on the normalised texts: that is what the split
    promises. Held out are the validation documents and the evaluation set, which may hold some that are gone since.
    """
    limit = float(manifest_of(store, state["curate"][0]).settings["curate"]["max_containment"])
    held_out = dict(_texts(store, state, "validation"))
    for ref in state.get("evalset", []):
        documents = stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"])
        missing = [row["doc_id"] for row in documents if row["doc_id"] not in held_out]
        held_out |= _as_normalised(store, state, ref, missing)
    names = list(held_out)
    trained: list[str] = []

    def blocks() -> Iterator[Hashes]:
        block: list[str] = []
        for doc_id, text in _texts(store, state, "train"):
            trained.append(doc_id)
            block.append(text)
            if len(block) == DOCUMENTS_AT_ONCE:
                yield gram_hashes(block)
                block = []
        yield gram_hashes(block)

    found = containment(gram_hashes([held_out[name] for name in names]), blocks())
    shares = np.concatenate([np.zeros(0), *found.training])
    yield from _leaks(names, found.validation.tolist(), "held out", "training", limit)
    yield from _leaks(trained, shares.tolist(), "trained on", "held-out", limit)


def _leaks(names: Sequence[str], shares: Sequence[float], role: str, other: str, limit: float) -> Iterator[str]:
    for name, share in zip(names, shares, strict=True):
        if share >= limit:
            yield (
                f"document {name} is {role}, but {share:.1%} of its runs of thirteen words stand in {other} text "
                f"(curate.max_containment is {limit})"
            )


def _texts(store: Store, state: State, split: str) -> Iterator[tuple[str, str]]:
    """The normalised texts of one side."""
    tables = RefSet(tuple(state["normalise"]), "")
    kept = kept_documents(store, state["curate"][0], split)
    for row in kept_rows(store, kept, tables, DOCUMENTS_FILE, ["doc_id", "text"]):
        yield row["doc_id"], row["text"]


def _as_normalised(store: Store, state: State, evalset: ArtifactRef, wanted: Container[str]) -> dict[str, str]:
    """Texts of evaluation documents that are in no split now: normalised where they still lie, else as they froze."""
    refined = stream_rows(store.folder(evalset) / DOCUMENTS_FILE, ["doc_id", "text"])
    texts = {row["doc_id"]: row["text"] for row in refined if row["doc_id"] in wanted}
    for ref in state["normalise"]:
        for row in stream_rows(store.folder(ref) / DOCUMENTS_FILE, ["doc_id", "text"]):
            if row["doc_id"] in texts:
                texts[row["doc_id"]] = row["text"]
    return texts
