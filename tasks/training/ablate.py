"""The stage `ablate`: a selection without the training documents of one source.

Nothing else changes: texts, token shards, tokeniser, groups and held-out documents are those of the compared model.
Duplicates that were dropped in favour of an ablated document stay dropped, to change one thing at a time; they are
counted as `copies`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from storage.catalog import Catalog, QueryError, quoted
from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import CUTS, CUTS_FILE, DROPPED, DROPPED_FILE, SELECTION, SELECTION_FILE
from storage.tables import stream_rows, write_table
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, parquet
from tasks.lineage.documents import file_condition

REASON_CODE, REASON = "ablated", "left out of this training to see what it is worth"


@dataclass(frozen=True)
class AblateSettings:
    """The documents to leave out, by the digest of their ids."""

    documents: str


@stage(
    "ablate",
    version=1,
    tables={SELECTION_FILE: SELECTION, DROPPED_FILE: DROPPED, CUTS_FILE: CUTS},
    unkeyed=("without",),
)
def ablate(work: Work, settings: AblateSettings, *, curated: ArtifactRef, without: Collection[str]) -> str:
    """Remove documents from the training split of a selection."""
    folder = work.folder(curated)
    selection, dropped = parquet(folder / SELECTION_FILE), parquet(folder / DROPPED_FILE)
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.insert("without", pa.table({"doc_id": pa.array(sorted(without), pa.string())}))
        corpus.sql(
            "create table chosen as select *, kept and split = 'train' and doc_id in (from without) as removed "
            f"from {selection}"
        )
        now = "select * exclude removed replace (kept and not removed as kept) from chosen order by doc_id"
        work.counts["rows"] = corpus.write(work.out / SELECTION_FILE, SELECTION, now)
        more = f"select doc_id, {quoted(REASON_CODE)}, {quoted(REASON)} from chosen where removed"
        reasons = f"select doc_id, reason_code, reason from {dropped} union all {more} order by doc_id"
        work.counts["dropped"] = corpus.write(work.out / DROPPED_FILE, DROPPED, reasons)
        ((train, validation, removed),) = corpus.rows(
            "select count(*) filter (split = 'train' and not removed), count(*) filter (split = 'validation'), "
            "coalesce(list(doc_id order by doc_id) filter (removed), []) from chosen where kept"
        )
        # duplicates of ablated documents: no document of their cluster is kept any more
        ((copies,),) = corpus.rows(
            f"select count(*) from chosen semi join {dropped} as gone on gone.doc_id = chosen.doc_id "
            "and gone.reason_code in ('duplicate_text', 'near_duplicate') where not removed and cluster in "
            "(select cluster from chosen where kept group by cluster having bool_and(removed))"
        )
    work.counts["cuts"] = write_table(work.out / CUTS_FILE, CUTS, stream_rows(folder / CUTS_FILE))
    work.counts.update(train=train, validation=validation, removed=len(removed), copies=copies)
    return sha256_json([curated.digest, removed])


@dataclass(frozen=True)
class LeftOut:
    """Documents of a source, with a description for people."""

    words: str
    doc_ids: frozenset[str]


def documents_of(catalog: Catalog, source: str) -> LeftOut:
    """Return the documents of a source.

    Args:
        source: a kind of document (`pdf`), else a file, folder or pattern of paths, else an SQL condition on the view
            `documents`. A document with another path outside a folder does not belong to the folder.

    Raises:
        UserError: the source is none of these, or no document matches.
    """
    asked = source.strip()
    if not asked:
        raise UserError("--without is empty: give a kind, a folder, a pattern of paths or a condition")
    kinds = {row["kind"] for row in catalog.query("select distinct kind from documents")}
    if asked in kinds:
        return _of_condition(catalog, f"kind = {quoted(asked)}", f"of kind {asked}")
    in_paths = catalog.query(
        "select doc_id from files where doc_id is not null and status in ('ok', 'duplicate') "
        f"group by doc_id having bool_and({file_condition(asked, below=True, patterns=True)})"
    )
    if in_paths:
        return LeftOut(f"in {asked}", frozenset(row["doc_id"] for row in in_paths))
    try:
        return _of_condition(catalog, asked, f"where {asked}")
    except QueryError as error:
        raise UserError(
            f"{source!r} is not a kind of document ({', '.join(sorted(kinds)) or 'there are none'}), not a path of the "
            'corpus (see `sheepfold sql "select path, source from files"`), and not a condition on its documents: '
            f"{str(error).splitlines()[0]}"
        ) from error


def _of_condition(catalog: Catalog, condition: str, words: str) -> LeftOut:
    rows = catalog.query(f"select doc_id from documents where ({condition})")
    if not rows:
        raise UserError(f"no document of the corpus is {words}")
    return LeftOut(words, frozenset(row["doc_id"] for row in rows))
