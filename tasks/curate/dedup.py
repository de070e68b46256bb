"""The stage `dedup`: find exact and near-duplicates of a corpus.

`tasks.curate.curate` chooses which members of a cluster are kept, and splits by cluster. Signatures come from the stage
`measure`; similarities verified by an earlier run are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage import schemas
from storage.digest import list_digest, sha256_json, sorted_rows_digest
from storage.manifest import ArtifactRef, RefSet
from storage.tables import read_places, unpacked_size
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, SegmentTable, matching_folders, parquet, tables_of
from tasks.curate.settings import DedupSettings
from tasks.text.minhash import U32, read_minima
from tasks.text.near import Pairs, clusters, near_pairs
from tasks.text.words import I64, U64, distinct

if TYPE_CHECKING:
    from tasks.core.run import Run

VERIFIED_FILE = "verified.parquet"
GIANT_CLUSTER = 1_000  # texts; larger clusters are mostly boilerplate, and counted in the manifest


@stage(
    "dedup",
    version=1,
    tables={
        schemas.PAIRS_FILE: schemas.NEAR_PAIRS,
        VERIFIED_FILE: schemas.VERIFIED_PAIRS,
        schemas.CLUSTERS_FILE: schemas.CLUSTERS,
    },
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
    tables = tables_of(work.store, documents)
    made = work.in_subprocess(
        find_duplicates,
        sum(unpacked_size(Path(table.folder) / schemas.DOCUMENTS_FILE) for table in tables),
        snapshot=work.folder(snapshot),
        tables=tables,
        signed=matching_folders(work.store, documents, measures),
        known="" if before is None else str(work.folder(before) / VERIFIED_FILE),
        out=work.out,
        spill=work.scratch,
        memory_bytes=work.machine.query_bytes,
        settings=settings,
    )
    work.counts.update(made["counts"])
    return str(made["digest"])


def find_duplicates(
    snapshot: Path,
    tables: list[SegmentTable],
    signed: list[str],
    known: str,
    out: Path,
    spill: Path,
    memory_bytes: int,
    settings: DedupSettings,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write pairs and clusters of the live documents; return counts and a digest.

    Args:
        tables: Segments and folders of the documents.
        signed: Folder of measures and signatures for each of them.
        known: Table of pairs that an earlier run verified; empty for none.
        spill: Folder for temporary files.
        memory_bytes: Memory limit of queries.
    """
    with Corpus(memory_bytes, spill) as corpus:
        corpus.want_live(snapshot)
        corpus.locate(tables, schemas.DOCUMENTS_FILE, ["text_sha256"])
        _number_texts(corpus)
        ((n_documents, n_texts),) = corpus.sql(
            "select (select count(*) from located), (select count(*) from texts)"
        ).fetchall()
        found = near_pairs(
            n_texts,
            lambda wanted: _read_minhashes(corpus, wanted, signed),
            lambda wanted: _read_texts(corpus, wanted, tables),
            settings.threshold,
            max_bucket=settings.max_bucket,
            known=_known_pairs(corpus, known) if known else None,
            connection=corpus.connection,
        )
        counts = {
            "near_pairs": len(found.pairs),
            "candidates": found.n_candidates,
            "giant_buckets": found.n_giant_buckets,
            "largest_bucket": found.largest_bucket,
        }
        corpus.insert("verified", pa.table(vars(found.verified)))
        counts |= _join_clusters(corpus, found.pairs)
        digest = _write(corpus, out, settings.threshold)
        progress(n_texts, n_texts)
    counts |= {"rows": n_documents, "texts": n_texts, "exact_duplicates": n_documents - n_texts}
    return {"digest": digest, "counts": counts}


def _number_texts(corpus: Corpus) -> None:
    """Create the table `texts` of distinct texts, numbered in the order of segments, so that each is read once."""
    corpus.sql(
        "create table texts as select row_number() over (order by spot.part, spot.place) - 1 as number, text_sha256, "
        "spot.part as part, spot.place as place, doc_id, n_documents from (select text_sha256, min(doc_id) as doc_id, "
        "count(*) as n_documents, min({'part': part, 'place': place}) as spot from located group by text_sha256)"
    )


def _places(corpus: Corpus, numbers: npt.ArrayLike) -> list[npt.NDArray[Any]]:
    """Return parts, places and tie-breakers of texts by their ascending numbers."""
    corpus.insert("asked", pa.table({"number": pa.array(numbers, pa.int64())}))
    found = corpus.columns(
        "select part, place, ('0x' || left(text_sha256, 16))::ubigint from texts semi join asked using (number) "
        "order by number"
    )
    corpus.sql("drop table asked")
    return found


def _read_minhashes(corpus: Corpus, numbers: I64, signed: Sequence[str]) -> tuple[U32, I64, U64]:
    """Return MinHash values, numbers of shingles and tie-breakers of texts by their ascending numbers."""
    part, place, tie = _places(corpus, numbers)
    return *read_minima(signed, part, place), tie


def _read_texts(corpus: Corpus, wanted: Sequence[int], tables: Sequence[SegmentTable]) -> list[str]:
    """Return texts by their ascending numbers, reading each table once."""
    part, place, _ = _places(corpus, wanted)
    texts: list[str] = []
    for number in distinct(part).tolist():
        own = place[part == number].tolist()
        read = read_places(Path(tables[number].folder) / schemas.DOCUMENTS_FILE, "text", own)
        texts += (read[row] for row in own)
    return texts


def _known_pairs(corpus: Corpus, table: str) -> Pairs | None:
    """Return pairs verified by an earlier run, with the numbers of this one."""
    first, second, similarity = corpus.columns(
        f"select one.number, other.number, similarity from {parquet(Path(table))} as known join texts one on "
        "one.text_sha256 = known.text_sha256 join texts other on other.text_sha256 = known.other_sha256"
    )
    return Pairs.sorted(first, second, similarity) if len(first) else None


def _join_clusters(corpus: Corpus, pairs: Pairs) -> dict[str, int]:
    """Create the table `clusters` of the texts that have near-duplicates; return counts of giant ones."""
    ends: I64 = distinct(np.concatenate([pairs.first, pairs.second]))
    one, other = np.searchsorted(ends, pairs.first), np.searchsorted(ends, pairs.second)
    labels = clusters(len(ends), Pairs(one, other, pairs.similarity))
    corpus.insert("labels", pa.table({"number": ends, "label": labels}))
    corpus.sql(
        "create table clusters as select number, min(text_sha256) over label as cluster, "
        "sum(n_documents) over label as cluster_size from labels join texts using (number) "
        "window label as (partition by label)"
    )
    sizes = np.unique(labels, return_counts=True)[1]
    giants = sizes[sizes > GIANT_CLUSTER]
    return {"giant_clusters": len(giants), "largest_cluster": int(giants.max(initial=0))}


def _write(corpus: Corpus, folder: Path, threshold: float) -> str:
    """Write the tables; return the digest of near pairs and clusters."""
    # of two texts, the one with the lower digest comes first
    corpus.sql(
        "create table named as select one.text_sha256 as text_sha256, other.text_sha256 as other_sha256, similarity, "
        "one.doc_id as doc_id, other.doc_id as other_id from (select first, second, similarity from verified union all "
        "select second, first, similarity from verified) join texts one on one.number = first "
        "join texts other on other.number = second where one.text_sha256 < other.text_sha256"
    )
    corpus.write(
        folder / VERIFIED_FILE,
        schemas.VERIFIED_PAIRS,
        "select text_sha256, other_sha256, similarity from named order by text_sha256, other_sha256",
    )
    near = (
        f"select doc_id, other_id, similarity from named where similarity >= {threshold!r} "
        "order by text_sha256, other_sha256"
    )
    corpus.write(folder / schemas.PAIRS_FILE, schemas.NEAR_PAIRS, near)
    found = (
        "select located.doc_id, text_sha256, coalesce(cluster, text_sha256) as cluster, "
        "coalesce(cluster_size, n_documents)::bigint as cluster_size from located join texts using (text_sha256) "
        "left join clusters using (number) order by located.doc_id"
    )
    corpus.write(folder / schemas.CLUSTERS_FILE, schemas.CLUSTERS, found)
    near_digest = list_digest(map(list, corpus.rows(near)))
    return sha256_json([near_digest, sorted_rows_digest((row[0], row[2]) for row in corpus.rows(found))])


def last_dedup(run: Run) -> ArtifactRef | None:
    """Return the last deduplication in the store, of any corpus, as similarities depend only on texts; or None."""
    if dedup.name in run.refresh:
        return None
    made = (dedup.version, dedup.code)
    known = [found for found in run.store.manifests(dedup.name) if (found.version, found.code) == made]
    return max(known, key=lambda found: found.created).ref if known else None
