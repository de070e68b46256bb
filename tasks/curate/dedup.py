"""Deduplication over a whole corpus: which documents equal or nearly equal each other.

Finds, and decides nothing: which member of a cluster is kept, and what follows for the split, is the business of
`tasks.curate.selection`. Signatures were made segment by segment; similarities that were verified once are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from storage.digest import rows_digest, sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import (
    CLUSTERS,
    CLUSTERS_FILE,
    DOCUMENTS_FILE,
    NEAR_PAIRS,
    PAIRS_FILE,
    VERIFIED_FILE,
    VERIFIED_PAIRS,
)
from storage.tables import read_places, stream_rows, unpacked_size, write_columns, write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, SegmentTable, matching_folders, tables_of
from tasks.curate.settings import DedupSettings
from tasks.text import NearPairs, Pairs, Signatures, clusters, giant_clusters, load_signatures, near_pairs
from tasks.text.minhash import N_PERMUTATIONS, without_text

if TYPE_CHECKING:
    from tasks.core.run import Run

GIANT_CLUSTER = 1_000  # texts; what is larger is mostly boilerplate, and counted in the manifest


class SignedText(NamedTuple):
    """Where a distinct text lies: shelf, place on it, and the document that is read for it."""

    text_sha256: str
    shelf: int
    place: int


@stage(
    "dedup",
    version=1,
    tables={PAIRS_FILE: NEAR_PAIRS, VERIFIED_FILE: VERIFIED_PAIRS, CLUSTERS_FILE: CLUSTERS},
    unkeyed=("before",),
)
def dedup(
    work: Work,
    settings: DedupSettings,
    *,
    snapshot: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
    before: ArtifactRef | None = None,
) -> str:
    """Find exact and near-duplicates."""
    shelves = tables_of(work.store, documents)
    known = [] if before is None else [str(work.folder(before) / VERIFIED_FILE)]
    made = work.in_subprocess(
        find_duplicates,
        sum(unpacked_size(Path(shelf.folder) / DOCUMENTS_FILE) for shelf in shelves),
        snapshot=str(work.folder(snapshot)),
        shelves=[list(shelf) for shelf in shelves],
        signed=matching_folders(work.store, documents, measures),
        known=known,
        out=str(work.out),
        settings=asdict(settings),
    )
    work.counts.update(made["counts"])
    return str(made["digest"])


def find_duplicates(
    snapshot: str,
    shelves: list[tuple[str, str]],
    signed: list[str],
    known: list[str],
    out: str,
    settings: dict[str, Any],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write pairs and clusters of the live documents.

    Args:
        snapshot: folder of the files.
        shelves: segments and folders of the documents' tables.
        signed: folders of measures and signatures, one for each shelf.
        known: tables of pairs verified before.
        out: where the tables go.
    """
    chosen = DedupSettings(**settings)
    places = [SegmentTable(*shelf) for shelf in shelves]
    texts, members = _distinct_texts(Path(snapshot), places)
    found = near_pairs(
        _minima(texts, signed),  # not kept: of 200,000 texts they take 100 MB
        lambda wanted: _read_texts([texts[place] for place in wanted], places),
        chosen.threshold,
        max_bucket=chosen.max_bucket,
        known=_known_pairs(known, texts),
    )
    folder = Path(out)
    _write_verified(folder / VERIFIED_FILE, found.verified, texts)
    labels = clusters(len(texts), found.pairs)
    digest = _write_tables(folder, found, labels, texts, members)
    progress(len(texts), len(texts))
    giants = giant_clusters(labels, GIANT_CLUSTER)
    counts = _counts(found, texts, members)
    counts |= {"giant_clusters": len(giants), "largest_cluster": max((size for _, size in giants), default=0)}
    return {"digest": digest, "counts": counts}


def _distinct_texts(snapshot: Path, shelves: Sequence[SegmentTable]) -> tuple[list[SignedText], dict[str, list[str]]]:
    """The distinct texts of the live documents in the order of their digests, and the documents that have each."""
    with Corpus() as corpus:
        corpus.want_live(snapshot)
        corpus.locate(shelves, DOCUMENTS_FILE, ["text_sha256"])
        rows = corpus.sql("select text_sha256, part, place, doc_id from located order by all").fetchall()
    members: dict[str, list[str]] = {}
    texts = []
    for text, part, place, doc_id in rows:
        if text not in members:
            texts.append(SignedText(text, part, place))
        members.setdefault(text, []).append(doc_id)
    return texts, members


def _minima(texts: Sequence[SignedText], signed: Sequence[str]) -> Signatures:
    """MinHash values of the texts; runs and paragraphs stay on disk, they are not needed and much larger."""
    by_shelf: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        by_shelf.setdefault(text.shelf, []).append(number)
    # filled in place: of 200,000 texts they take 100 MB, and every copy as much again
    minima = np.empty((len(texts), N_PERMUTATIONS), np.uint32)
    n_shingles = np.empty(len(texts), np.int64)
    for shelf, own in by_shelf.items():
        places = np.array([texts[number].place for number in own], np.int64)
        found = load_signatures(Path(signed[shelf]))
        minima[own], n_shingles[own] = found.minima[places], found.n_shingles[places]
    return without_text(minima, n_shingles)


def _read_texts(wanted: Sequence[SignedText], shelves: Sequence[SegmentTable]) -> list[str]:
    """Texts by their places, each table read once."""
    by_shelf: dict[int, set[int]] = {}
    for text in wanted:
        by_shelf.setdefault(text.shelf, set()).add(text.place)
    found: dict[tuple[int, int], str] = {}
    for number, places in by_shelf.items():
        texts = read_places(Path(shelves[number].folder) / DOCUMENTS_FILE, "text", sorted(places))
        found |= {(number, place): text for place, text in texts.items()}
    return [found[text.shelf, text.place] for text in wanted]


def _known_pairs(tables: Sequence[str], texts: Sequence[SignedText]) -> Pairs | None:
    """Pairs verified by earlier runs, in the indices of this one."""
    place = {text.text_sha256: number for number, text in enumerate(texts)}
    found: dict[tuple[int, int], float] = {}
    for table in tables:
        for row in stream_rows(Path(table)):
            one, other = place.get(row["text_sha256"]), place.get(row["other_sha256"])
            if one is not None and other is not None:
                found[min(one, other), max(one, other)] = row["similarity"]
    if not found:
        return None
    pairs = np.array(sorted(found), np.int64)
    similarity = np.array([found[one, other] for one, other in pairs.tolist()])
    return Pairs(pairs[:, 0], pairs[:, 1], similarity)


def _pairs(pairs: Pairs) -> Iterator[tuple[int, int, float]]:
    return zip(pairs.first.tolist(), pairs.second.tolist(), pairs.similarity.tolist(), strict=True)


def _write_verified(path: Path, pairs: Pairs, texts: Sequence[SignedText]) -> None:
    rows = (
        {"text_sha256": texts[one].text_sha256, "other_sha256": texts[other].text_sha256, "similarity": similarity}
        for one, other, similarity in _pairs(pairs)
    )
    write_table(path, VERIFIED_PAIRS, rows)


def _write_tables(
    folder: Path, found: NearPairs, labels: np.ndarray, texts: Sequence[SignedText], members: dict[str, list[str]]
) -> str:
    """Write pairs and clusters; returns the digest of both."""
    sizes = np.bincount(labels, weights=[len(members[text.text_sha256]) for text in texts], minlength=len(texts))
    near = []
    for one, other, similarity in _pairs(found.pairs):
        first, second = (min(members[texts[place].text_sha256]) for place in (one, other))
        near.append({"doc_id": first, "other_id": second, "similarity": similarity})
    write_table(folder / PAIRS_FILE, NEAR_PAIRS, near)
    found_in = sorted(
        (doc_id, text.text_sha256, label)
        for text, label in zip(texts, labels.tolist(), strict=True)
        for doc_id in members[text.text_sha256]
    )
    columns = {
        "doc_id": [doc_id for doc_id, _, _ in found_in],
        "text_sha256": [text for _, text, _ in found_in],
        "cluster": [texts[label].text_sha256 for _, _, label in found_in],  # the lowest digest of all members
        "cluster_size": [int(sizes[label]) for _, _, label in found_in],
    }
    write_columns(folder / CLUSTERS_FILE, CLUSTERS, columns)
    near_digest = sha256_json([[row["doc_id"], row["other_id"], row["similarity"]] for row in near])
    return sha256_json([near_digest, rows_digest(zip(columns["doc_id"], columns["cluster"], strict=True))])


def _counts(found: NearPairs, texts: Sequence[SignedText], members: dict[str, list[str]]) -> dict[str, int]:
    n_documents = sum(map(len, members.values()))
    return {
        "rows": n_documents,
        "texts": len(texts),
        "exact_duplicates": n_documents - len(texts),
        "near_pairs": len(found.pairs),
        "candidates": found.n_candidates,
        "giant_buckets": found.n_giant_buckets,
        "largest_bucket": found.largest_bucket,
    }


def last_dedup(run: Run) -> ArtifactRef | None:
    """Return the last deduplication of this store; its similarities hold for texts, in whatever corpus."""
    if dedup.name in run.refresh:
        return None
    made = (dedup.version, dedup.code)
    known = [found for found in run.store.manifests(dedup.name) if (found.version, found.code) == made]
    return max(known, key=lambda found: found.created).ref if known else None
