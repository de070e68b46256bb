"""The stage `ablate`: the training data of a model without one of its sources, at the cost of a selection.

The documents of the source lose their place in training, and nothing else changes: texts, token shards, tokeniser,
groups and the held-out side are those of the model that is compared with. What had been dropped or cut because a
document of the source has it too stays away: bringing it back would change two things at once. How much that is, is
counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.catalog import Catalog, QueryError, quoted
from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import CUTS, CUTS_FILE, DROPPED, DROPPED_FILE, SELECTION, SELECTION_FILE
from storage.tables import read_rows, stream_rows, write_table
from tasks.core.stage import Work, stage
from tasks.lineage.documents import file_condition

REASON_CODE = "ablated"


@dataclass(frozen=True)
class AblateSettings:
    """Documents that are left out.

    Attributes:
        documents: digest of the documents' ids.
    """

    documents: str

    @classmethod
    def of(cls, doc_ids: Collection[str]) -> AblateSettings:
        """Return the settings for some documents."""
        return cls(sha256_json(sorted(doc_ids)))


@stage(
    "ablate",
    version=1,
    tables={SELECTION_FILE: SELECTION, DROPPED_FILE: DROPPED, CUTS_FILE: CUTS},
    unkeyed=("without",),
)
def ablate(work: Work, settings: AblateSettings, *, curated: ArtifactRef, without: Collection[str]) -> str:
    """Leave documents out of the training side of a selection."""
    folder = work.folder(curated)
    removed: list[str] = []
    clusters: dict[str, bool] = {}  # of what was left out -> whether something of it is kept still
    sides = {"train": 0, "validation": 0}

    def selected() -> Iterator[dict[str, Any]]:
        for row in stream_rows(folder / SELECTION_FILE):
            if row["kept"] and row["split"] == "train" and row["doc_id"] in without:
                removed.append(row["doc_id"])
                clusters.setdefault(row["cluster"], False)
                row["kept"] = False
            elif row["kept"]:
                sides[row["split"]] += 1
                clusters[row["cluster"]] = True
            yield row

    work.counts["rows"] = write_table(work.out / SELECTION_FILE, SELECTION, selected())
    reason = {"reason_code": REASON_CODE, "reason": "left out of this training to see what it is worth"}
    dropped = [*read_rows(folder / DROPPED_FILE), *({"doc_id": doc_id, **reason} for doc_id in removed)]
    dropped.sort(key=lambda row: str(row["doc_id"]))
    work.counts["dropped"] = write_table(work.out / DROPPED_FILE, DROPPED, dropped)
    work.counts["cuts"] = write_table(work.out / CUTS_FILE, CUTS, stream_rows(folder / CUTS_FILE))
    empty = {cluster for cluster, kept in clusters.items() if not kept}
    work.counts.update(sides, removed=len(removed), copies=_copies(folder, empty, set(removed)))
    return sha256_json([curated.digest, removed])


def _copies(folder: Path, clusters: set[str], removed: set[str]) -> int:
    """Count the documents that were dropped in favour of those that are left out."""
    refused = {
        row["doc_id"]
        for row in stream_rows(folder / DROPPED_FILE)
        if row["reason_code"] in ("duplicate_text", "near_duplicate")
    }
    return sum(
        row["cluster"] in clusters and row["doc_id"] in refused and row["doc_id"] not in removed
        for row in stream_rows(folder / SELECTION_FILE)
    )


@dataclass(frozen=True)
class LeftOut:
    """The documents of a source.

    Attributes:
        words: description of them, for people.
    """

    words: str
    doc_ids: frozenset[str]


def documents_of(catalog: Catalog, source: str) -> LeftOut:
    """Return the documents that a person names.

    A kind of document (`pdf`), else a file, a folder or a pattern of paths, else an SQL condition over the view
    `documents`. A document that also lies elsewhere is in no folder: without the folder it would still be there.

    Raises:
        UserError: if the name is none of these, or no document matches.
    """
    asked = source.strip()
    if not asked:
        raise UserError("--without names nothing: give a kind, a folder, a pattern of paths or a condition")
    kinds = {row["kind"] for row in catalog.query("select distinct kind from documents")}
    if asked in kinds:
        return _of_condition(catalog, f"kind = {quoted(asked)}", f"of kind {asked}")
    found = _of_paths(catalog, asked)
    if found:
        return LeftOut(f"in {asked}", found)
    try:
        return _of_condition(catalog, asked, f"where {asked}")
    except QueryError as error:
        raise UserError(
            f"{source!r} is no kind of document (there are: {', '.join(sorted(kinds)) or 'none'}), no path of the "
            'corpus (see `sheepfold sql "select path, source from files"`), and no condition over its documents: '
            f"{str(error).splitlines()[0]}"
        ) from error


def _of_condition(catalog: Catalog, condition: str, words: str) -> LeftOut:
    rows = catalog.query(f"select doc_id from documents where ({condition})")
    if not rows:
        raise UserError(f"no document of the corpus is {words}")
    return LeftOut(words, frozenset(row["doc_id"] for row in rows))


def _of_paths(catalog: Catalog, asked: str) -> frozenset[str]:
    """Return the documents whose every path matches."""
    rows = catalog.query(
        "select doc_id from files where doc_id is not null and status in ('ok', 'duplicate') "
        f"group by doc_id having bool_and({file_condition(asked, below=True, patterns=True)})"
    )
    return frozenset(row["doc_id"] for row in rows)
