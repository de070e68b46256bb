"""Sets of documents to measure a model on, beside the frozen evaluation set: the stages `split`, `texts` and `fresh`.

Each has the layout of an evaluation set, so that everything that reads one reads all. `split` copies one side of the
corpus, `texts` keeps files of the user as they are (nothing is cleaned or cut), and `fresh` copies the documents that
came to the corpus after a model was trained and that resemble nothing it read, which show its drift.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.catalog import read_state, waits_for_run
from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, EVALSET, SELECTION_FILE
from storage.store import Store
from storage.tables import read_columns, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.corpus import Corpus, kept_documents
from tasks.curate.evalset import copy_documents, frozen_evalset
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import (
    LINES,
    PARQUET,
    SUFFIXES,
    Columns,
    Refused,
    Row,
    Table,
    encoding_fault,
    list_columns,
    read_rows,
)

if TYPE_CHECKING:
    from tasks.core.run import Run

SPLITS = ("train", "validation")
COLUMN = "text"
UNDETERMINED = "und"

_NAMES = ("doc_id", "id")
_LABELS = ("kind", "language", "source", "method")


# ---- documents of the corpus


@dataclass(frozen=True)
class SplitSettings:
    """Side of a corpus."""

    split: str


@stage("split", version=1)
def copy_split(
    work: Work,
    settings: SplitSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents of one side of a corpus into a set to measure models on."""
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want_kept(work.folder(curated), settings.split)
        digest = copy_documents(work, corpus, snapshot, documents, measures)
    if not work.counts["rows"]:
        raise UserError(f"the corpus has no {settings.split} documents")
    return digest


@stage("fresh", version=1)
def fresh(
    work: Work,
    settings: NoSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    known: RefSet,
    documents: RefSet,
    measures: RefSet,
) -> str:
    """Copy the documents that came since some earlier selections into a set to measure a model on."""
    wanted = came_since(work.store, curated, known)
    with Corpus(work.machine.query_bytes, work.scratch) as corpus:
        corpus.want(wanted)
        return copy_documents(work, corpus, snapshot, documents, measures)


def known_selections(store: Store, checkpoint: ArtifactRef) -> RefSet:
    """Return the selections of documents that a model, and those that it continues, were trained with."""
    found: list[ArtifactRef] = []
    waiting = [checkpoint]
    while waiting:
        inputs = manifest_of(store, waiting.pop())
        if "dataset" not in inputs.inputs:
            continue  # trained elsewhere
        (cut,) = inputs.input_refs("dataset")
        found += manifest_of(store, cut).input_refs("curated")
        waiting += inputs.input_refs("base") if "base" in inputs.inputs else []
    return RefSet.of(sorted(set(found)))


def came_since(store: Store, curated: ArtifactRef, known: RefSet) -> dict[str, str]:
    """Return the documents in use, by id, that were in no earlier selection and resemble none that was."""
    before: set[str] = set()
    for ref in known.refs:
        before.update(read_columns(store.folder(ref) / SELECTION_FILE, ["doc_id"])["doc_id"])
    rows = read_columns(store.folder(curated) / SELECTION_FILE, ["doc_id", "cluster"])
    cluster_of = dict(zip(rows["doc_id"], rows["cluster"], strict=True))
    read = {cluster for doc_id, cluster in cluster_of.items() if doc_id in before}
    kept = kept_documents(store, curated)
    return {doc_id: place for doc_id, place in kept.items() if doc_id not in before and cluster_of[doc_id] not in read}


def fresh_documents(run: Run, checkpoint: ArtifactRef) -> ArtifactRef | None:
    """Return the documents that came after a model was trained; None, with a note, where none did or none are known.

    Raises:
        UserError: the corpus was never ingested.
    """
    if waits := waits_for_run(run.store, run.corpus):
        run.note(f"{waits}; nothing is known of this model's drift before it")
        return None
    inputs = split_inputs(read_state(run.store, run.corpus))
    known = known_selections(run.store, checkpoint)
    if not known.refs:
        run.note("it is not known which documents this model read, so nothing is known of its drift")
        return None
    curated = inputs["curated"]
    assert isinstance(curated, ArtifactRef)
    if not came_since(run.store, curated, known):
        run.note("no document came to the corpus since this model was trained, so nothing is known of its drift")
        return None
    return fresh(run, NoSettings(), known=known, **inputs)


def split_inputs(state: Mapping[str, list[ArtifactRef]]) -> dict[str, ArtifactRef | RefSet]:
    """Return the inputs of `copy_split` from the artefacts of a corpus's last run.

    Args:
        state: see `storage.catalog.read_state`.

    Raises:
        UserError: the corpus was never ingested, or not since documents were forgotten.
    """
    if not all(state.get(name) for name in ("snapshot", "curate", "refine", "measure")):
        raise UserError(
            "the corpus has no documents yet, or some were forgotten since its last run: run `sheepfold ingest SOURCE` "
            "or `run` first"
        )
    return {
        "snapshot": state["snapshot"][0],
        "curated": state["curate"][0],
        "documents": RefSet.of(state["refine"]),
        "measures": RefSet.of(state["measure"]),
    }


# ---- files of the user


class TextsError(UserError):
    """Texts that a model cannot be measured on."""


@dataclass(frozen=True)
class Text:
    """A text to measure a model on, and the labels of its slices."""

    doc_id: str
    text: str
    kind: str = "text"
    language: str = UNDETERMINED
    source: str = ""
    method: str = "text"


def read_texts(path: Path, refused: Refused, column: str = COLUMN) -> list[Text]:
    """Read a text file, a folder of text files, JSON Lines or Parquet.

    JSON Lines and Parquet hold a document in each row, in the field `column`; of their other fields `kind`, `language`,
    `source` and `method` tell slices apart, and `id` or `doc_id` names the document.

    Args:
        path: a file or a folder; in a folder every file is a document, also below it, but for hidden ones.
        refused: counts the rows that are left out because they hold no text.

    Raises:
        TextsError: there is no text in it, or something that is none; two documents have one name.
    """
    if path.is_dir():
        files = [item for item in sorted(path.rglob("*")) if item.is_file() and not _hidden(item.relative_to(path))]
        texts = [_file_text(item, path) for item in files]
        texts = list({item.doc_id: item for item in texts}.values())  # the same bytes twice are one document
    elif not path.is_file():
        raise TextsError(
            f"there is no {path}: give a split ({' or '.join(SPLITS)}), a text file, a folder of text files, JSON "
            "Lines (.jsonl) or Parquet"
        )
    elif SUFFIXES.get(path.suffix) in (LINES, PARQUET):
        texts = list(_row_texts(path, refused, column))
    else:
        texts = [_file_text(path, path.parent)]
    if not any(item.text for item in texts):
        told = f": {refused.sentence()}" if refused.count else ""
        raise TextsError(f"{path} holds no text to measure a model on{told}")
    twice = sorted(name for name, count in Counter(item.doc_id for item in texts).items() if count > 1)
    if twice:
        raise TextsError(
            f"{path}: the ids {', '.join(map(repr, twice[:5]))} occur more than once; each document needs its own"
        )
    return texts


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _file_text(path: Path, root: Path) -> Text:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TextsError(f"{path} cannot be read: {error.strerror}") from error
    folder = path.relative_to(root).parent.as_posix()
    source = root.name if folder == "." else f"{root.name}/{folder.partition('/')[0]}"
    return Text(hashlib.sha256(data).hexdigest(), _decoded(data, path), source=source)


def _decoded(data: bytes, path: Path) -> str:
    """Return the text of a file; one with NUL bytes is refused, though it may be UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place, why = error.start, error.reason
    else:
        place, why = text.find("\0"), "a NUL"
        if place < 0:
            return text
    raise TextsError(
        f"{path} is no UTF-8 text ({why} at {place:,}): save it as UTF-8, or let `sheepfold ingest` read documents of "
        "other kinds and measure on a split of the corpus"
    )


def _row_texts(path: Path, refused: Refused, column: str) -> Iterator[Text]:
    def choose(columns: Columns) -> list[str]:
        if column not in columns:
            reason = f"there is no column {column!r}; there are: {list_columns(columns)}"
            raise ExtractionProblem("rejected", "no_column", reason)
        return [column, *(name for name in columns if name in {*_NAMES, *_LABELS} - {column})]

    form = SUFFIXES[path.suffix]
    try:
        digest = sha256_file(path)
        for row in read_rows(Table(path.resolve(), form), choose if form == PARQUET else None):
            try:
                yield _row_text(row, column, f"{digest}\0{row.number}", path.name)
            except ExtractionProblem as problem:
                refused.add(path, problem)
    except ExtractionProblem as problem:
        raise TextsError(f"{path} cannot be read: {problem.reason}") from problem
    except OSError as error:
        raise TextsError(f"{path} cannot be read: {error.strerror or error}") from error


def _row_text(row: Row, column: str, identity: str, file: str) -> Text:
    """Return the text of a row; `identity` names it if it has no name of its own."""
    text = row.text(column, empty=True)
    name = next((row.values[key] for key in _NAMES if row.values.get(key) is not None), None)
    labels = {key: str(row.values[key]) for key in _LABELS if row.values.get(key)}
    for what, value in (("name", str(name)), *labels.items()):
        if fault := encoding_fault(value):
            raise ExtractionProblem("failed", "corrupt", f"{row.place}: the {what} {fault}")
    doc_id = hashlib.sha256(identity.encode()).hexdigest() if name is None else str(name)
    return Text(doc_id, text, **{"source": file, **labels})


@dataclass(frozen=True)
class TextsSettings:
    """Identity of texts."""

    digest: str

    @classmethod
    def of(cls, texts: list[Text]) -> TextsSettings:
        """Return settings that name these texts."""
        return cls(sha256_json([asdict(item) for item in texts]))


@stage("texts", version=1, unkeyed=("texts",))
def keep_texts(work: Work, settings: TextsSettings, *, texts: list[Text]) -> str:
    """Keep texts from outside in the store, as a set to measure models on."""
    rows = [asdict(item) for item in sorted(texts, key=lambda item: item.doc_id)]
    work.counts["rows"] = write_table(work.out / DOCUMENTS_FILE, EVALSET, rows)
    work.counts["bytes"] = sum(len(row["text"].encode()) for row in rows)
    return settings.digest


def evaluation_texts(run: Run, on: str | None, column: str | None = None) -> ArtifactRef:
    """Return texts to measure a model on, as an artefact with the layout of an evaluation set.

    Args:
        on: `train` or `validation` for that side of the corpus as it is now; else a text file, a folder of text files,
            JSON Lines or Parquet; None for the corpus's frozen evaluation set.
        column: Field of JSON Lines and Parquet that holds the text; None means `text`.

    Raises:
        StoreError: the corpus was never prepared.
        UserError: it cannot be read, or there is no text in it.
    """
    if not on:
        return frozen_evalset(run)
    if on in SPLITS:
        return copy_split(run, SplitSettings(on), **split_inputs(read_state(run.store, run.corpus)))
    refused = Refused()
    texts = read_texts(Path(on).expanduser(), refused, column or COLUMN)
    if refused.count:
        run.note(f"of {on} {refused.sentence()}")
    return keep_texts(run, TextsSettings.of(texts), texts=texts)


def texts_name(on: str | None, stride: int | None) -> str:
    """Return the name of the documents that `evaluation_texts` returns, and how they were read."""
    name = f"the {on} split" if on in SPLITS else Path(on).resolve().name if on else "the evaluation set"
    return f"{name}, read in strides of {stride}" if stride else name
