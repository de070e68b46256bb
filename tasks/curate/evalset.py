"""The stage `evalset`: freeze the validation documents on which models of a corpus are compared.

The set has its own copy of the texts, so that it does not change with the corpus and fits any tokeniser; the columns of
slices; and the 13-grams of each document, so that leaks are found even if the document is no longer in the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from storage import schemas
from storage.digest import list_digest
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET, FILES_FILE, GRAMS_FILE, MEASURES_FILE, OFFSETS_FILE
from storage.store import Store, StoreError
from storage.tables import read_places, stream_rows, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.corpus import Corpus, parquet, tables_of
from tasks.text.minhash import load_signatures
from tasks.text.words import Hashes, joined

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.curate.settings import CurateSettings

FOLDERS = 2  # leading folders of a path that name a slice; the first is the source's name if there are several


def trains_on_evalset(store: Store, curated: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Return True if the training side has a document of a frozen evaluation set."""
    frozen = parquet(store.folder(evalset) / DOCUMENTS_FILE)
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated), "train")
        ((found,),) = corpus.sql(f"select exists(from wanted semi join {frozen} using (doc_id))").fetchall()
    return bool(found)


def validation_bytes(store: Store, curated: ArtifactRef) -> int:
    """Return the bytes of the validation documents of a selection."""
    with Corpus() as corpus:
        corpus.want_kept(store.folder(curated), "validation")
        ((found,),) = corpus.sql("select coalesce(sum(n_bytes), 0)::bigint from wanted").fetchall()
    return int(found)


@stage("evalset", version=3, tables={DOCUMENTS_FILE: EVALSET}, pinned=True)
def freeze_evalset(
    work: Work,
    settings: NoSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the validation documents into an evaluation set."""
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want_kept(work.folder(curated), "validation")
        digest = copy_documents(work, corpus, snapshot, documents, measures)
        grams = _grams(work, corpus, measures)
    np.save(work.out / GRAMS_FILE, grams.values, allow_pickle=False)
    np.save(work.out / OFFSETS_FILE, grams.offsets, allow_pickle=False)
    return digest


def copy_documents(work: Work, corpus: Corpus, snapshot: ArtifactRef, documents: RefSet, measures: RefSet) -> str:
    """Copy the wanted documents of a corpus, with the columns of slices; return the digest of the rows."""
    corpus.locate(tables_of(work.store, documents), DOCUMENTS_FILE, ["kind", "n_bytes"], live=documents.live)
    read = [str(work.folder(*manifest_of(work.store, ref).input_refs("documents"))) for ref in measures.refs]
    corpus.sql(
        _COPIED.format(
            measures=corpus.rows_of([str(work.folder(ref)) for ref in measures.refs], MEASURES_FILE, schemas.MEASURES),
            read=corpus.rows_of(read, DOCUMENTS_FILE, schemas.NORMALISED),
            files=corpus.rows_of([str(work.folder(snapshot))], FILES_FILE, schemas.FILES),
            at_once=work.machine.query_bytes // 4,
        )
    )
    path = work.out / DOCUMENTS_FILE
    work.counts["rows"] = write_table(path, EVALSET, _copied_rows(corpus, [work.folder(ref) for ref in documents.refs]))
    ((work.counts["bytes"],),) = corpus.sql("select coalesce(sum(n_bytes), 0)::bigint from copied").fetchall()
    return list_digest(stream_rows(path))


# The language of code is its programming language. The texts of a turn are in memory together.
_COPIED = """
create table copied as
with
    facts as (
        select doc_id, arg_max(coalesce(nullif(programming_language, ''), language), part) as language,
            arg_max(case ocr_share when 0 then 'text' when 1 then 'ocr' else 'both' end, part) as method
        from {measures} as measures join {read} as read using (part, doc_id) semi join wanted using (doc_id)
        group by doc_id
    ),
    paths as (
        select doc_id, arg_max(path, place) as path from {files} as files semi join wanted using (doc_id)
        where status = 'ok' group by doc_id
    )
select doc_id, located.kind, language, method, path, located.part, located.place, n_bytes,
    (sum(n_bytes) over (order by doc_id) // {at_once})::bigint as turn
from located left join facts using (doc_id) left join paths using (doc_id)
"""


def _copied_rows(corpus: Corpus, folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    columns = "doc_id, kind, language, method, path, part, place"
    for (turn,) in corpus.rows("select distinct turn from copied order by turn"):
        own = f"from copied where turn = {turn}"
        listed = corpus.rows(f"select part, list(place order by place) {own} group by part order by part")
        texts = {part: read_places(folders[part] / DOCUMENTS_FILE, "text", places) for part, places in listed}
        for doc_id, kind, language, method, path, part, place in corpus.rows(f"select {columns} {own} order by doc_id"):
            source = "/".join(PurePosixPath(path).parts[:-1][:FOLDERS]) or "."
            row = (doc_id, kind, language, source, method, texts[part].pop(place))
            yield dict(zip(EVALSET.names, row, strict=True))


def _grams(work: Work, corpus: Corpus, measures: RefSet) -> Hashes:
    """Return the 13-grams of the wanted documents before cuts and redactions."""
    corpus.locate(tables_of(work.store, measures), MEASURES_FILE, live=measures.live)
    part, place, number = corpus.columns(
        "select part, place, row_number() over (order by doc_id) as number from located order by part, place"
    )
    found = [
        load_signatures(work.folder(ref)).gram_hashes.take(place[part == segment])
        for segment, ref in enumerate(measures.refs)
    ]
    return joined(found).take(np.argsort(number))


def load_grams(folder: Path) -> Hashes:
    """Return the 13-grams of an evaluation set's documents, in the order of its rows."""
    return Hashes(
        np.load(folder / GRAMS_FILE, mmap_mode="r", allow_pickle=False),
        np.load(folder / OFFSETS_FILE, allow_pickle=False),
    )


def has_split(store: Store, evalset: ArtifactRef, settings: CurateSettings) -> bool:
    """Return True if an evaluation set was frozen by this version of the stage, from a split with these settings."""
    found = manifest_of(store, evalset)
    if found.version != freeze_evalset.version:
        return False
    (curated,) = found.input_refs("curated")
    split = manifest_of(store, curated).settings["curate"]
    return (split["validation_share"], split["salt"]) == (settings.validation_share, settings.salt)


def frozen_evalset(run: Run) -> ArtifactRef:
    """Return the evaluation set of the corpus.

    Raises:
        StoreError: The corpus was never prepared, or by an earlier version of this program.
    """
    found = freeze_evalset.pinned(run)
    if found is None:
        raise StoreError(
            f"corpus {run.corpus!r} has no evaluation set yet: run `sheepfold prepare SOURCE` or `run` first"
        )
    if manifest_of(run.store, found).version != freeze_evalset.version:
        raise StoreError(
            f"the evaluation set of corpus {run.corpus!r} is of an earlier version of this program: run `sheepfold "
            "prepare SOURCE` or `run` to freeze it again"
        )
    return found
