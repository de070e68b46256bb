"""Fitting the tokeniser: on training documents only, those of lowest hash first, so that the choice is nobody's.

Which documents are read follows from the table of the selection alone; then only these are read, a row group at a
time, so that neither the corpus's size nor how its rows lie in files matters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import sha256_file
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SELECTION_FILE
from tasks.core.stage import Work, stage
from tasks.curate.corpus import by_table
from tasks.tokens.engines import Texts, whole_characters
from tasks.tokens.foreign import BESIDE, digest_of_tokenizer_file, read_tokenizer_file
from tasks.tokens.merges import fit_bpe
from tasks.tokens.tokenizers import (
    MIN_BPE_VOCAB,
    TOKENIZER_FILE,
    AsciiTokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    check_vocab_size,
)

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.tokens.settings import TokenizerSettings

CHOICE_FILE = "choice.json"

# Below this much text most merges would be seen a handful of times; single characters are learned better.
CHAR_BELOW_BYTES = 200_000
BYTES_PER_ID = 3_000
LARGEST_CHOSEN = 8192
FITTED = ("auto", "char", "word", "bpe")


@dataclass(frozen=True)
class FitSettings:
    """Settings of the stage: the part of `tasks.core.settings.TokenizerSettings` that shapes a tokeniser.

    Attributes:
        fit_bytes: 0 where nothing is fitted.
        file: digest of the tokeniser from elsewhere; where it lies is no content.
    """

    kind: str = "auto"
    vocab_size: int = 0
    fit_bytes: int = 32 * 2**20
    reserved: int = 0
    file: str = ""

    @classmethod
    def of(cls, settings: TokenizerSettings, pinned: Mapping[str, Any] | None = None) -> FitSettings:
        """From the section of a run's settings.

        Args:
            pinned: these settings of the tokeniser that the corpus has; it stands for a file that is there no more.

        Raises:
            UserError: if the file with a tokeniser is not there.
        """
        file, path = "", Path(settings.file).expanduser()
        if settings.file:
            gone = pinned is not None and pinned["kind"] == "file" and not path.exists()
            file = pinned["file"] if pinned is not None and gone else digest_of_tokenizer_file(path)
        fit_bytes = settings.fit_bytes if settings.kind in FITTED else 0
        return cls(settings.kind, settings.vocab_size, fit_bytes, settings.reserved, file)


def check_tokenizer(settings: TokenizerSettings, pinned: Mapping[str, Any] | None = None) -> None:
    """See that the tokeniser asked for can be had, before anything runs.

    Args:
        pinned: the `FitSettings` of the tokeniser that the corpus has; where it is the one asked for, no file is read.

    Raises:
        UserError: if its file is not there, or holds none.
    """
    asked = FitSettings.of(settings, pinned)
    if settings.file and asdict(asked) != pinned:
        read_tokenizer_file(Path(settings.file).expanduser(), settings.reserved)


def pinned_settings(run: Run) -> dict[str, Any] | None:
    """Return the `FitSettings` of the tokeniser that the corpus has."""
    known = tokenizer.pinned(run)
    return None if known is None else manifest_of(run.store, known).settings


def choose(settings: FitSettings | TokenizerSettings, n_bytes: int) -> tuple[str, int, str]:
    """Kind and vocabulary size for so much training text, and why.

    Returns:
        kind, vocabulary size (0: all characters that the kind knows), one sentence.

    Raises:
        UserError: so many ids are asked for that they must be a mistake.
    """
    try:
        check_vocab_size(settings.vocab_size, settings.reserved)
    except ValueError as error:
        raise UserError(f"tokenizer.{error}") from error
    kind = settings.kind
    why = "asked for"
    if kind == "auto":
        kind = "char" if n_bytes < CHAR_BELOW_BYTES else "bpe"
        comparison = "less" if kind == "char" else "not less"
        why = f"{n_bytes:,} bytes of training text are {comparison} than {CHAR_BELOW_BYTES:,}"
    if kind not in ("bpe", "word") or settings.vocab_size:
        return kind, settings.vocab_size, why
    size = 512
    while size < LARGEST_CHOSEN and size * BYTES_PER_ID < n_bytes:
        size *= 2
    why += f"; the size, for about {BYTES_PER_ID:,} bytes of text an id and {LARGEST_CHOSEN} ids at most"
    return kind, max(size, MIN_BPE_VOCAB) + settings.reserved, why


@dataclass(frozen=True)
class Fitted:
    """A tokeniser and how it came about.

    Attributes:
        why: one sentence on the choice of the kind.
        tools: what did the work.
    """

    tokenizer: Tokenizer
    why: str
    tools: dict[str, str]


def fit_tokenizer(
    texts: Sequence[bytes], settings: FitSettings | TokenizerSettings, n_bytes: int | None = None
) -> Fitted:
    """Fit on texts.

    Args:
        texts: UTF-8.
        n_bytes: of all training text, of which these texts are a part; None if they are all.
    """
    kind, size, why = choose(settings, sum(map(len, texts)) if n_bytes is None else n_bytes)
    reserved = settings.reserved
    tools: dict[str, str] = {}
    decoded = (text.decode() for text in texts)
    fitted: Tokenizer
    if kind == "char":
        fitted, what = CharTokenizer.fit(decoded, size, reserved), "character level"
    elif kind == "ascii":
        fitted, what = AsciiTokenizer(reserved), "ASCII codes"
    elif kind == "bytes":
        fitted, what = ByteTokenizer(reserved), "bytes"
    elif kind == "word":
        fitted, what = WordTokenizer.fit(decoded, size, reserved), f"words, {size} at most"
    else:
        fitted, tools = fit_bpe(texts, size, reserved)
        what = f"byte-level BPE of {size}"
    return Fitted(fitted, f"{what}: {why}", tools)


@stage("tokenizer", version=3, pinned=True, unkeyed=("file",))
def tokenizer(
    work: Work, settings: FitSettings, *, curated: ArtifactRef, documents: RefSet, file: ArtifactRef | None = None
) -> str:
    """Fit the tokeniser on training documents, or take an existing one."""
    if settings.kind == "file":
        choice = _take(work, settings, file)
    else:
        chosen = choose_documents(work, curated, documents, settings.fit_bytes)
        made = work.in_subprocess(
            fit_documents,
            sum(most for shelf in chosen.shelves for _, most in shelf.values()),
            folders=chosen.folders,
            wanted=chosen.shelves,
            settings=asdict(FitSettings(settings.kind, settings.vocab_size, settings.fit_bytes, settings.reserved)),
            n_bytes=chosen.n_bytes,
            out=str(work.out),
        )
        choice = made["choice"]
        work.tools.update(made["tools"])
        work.counts.update(documents=made["documents"], bytes=made["bytes"])
    (work.out / CHOICE_FILE).write_text(json.dumps(choice))
    work.counts["rows"] = choice["vocab_size"]
    work.tools["tokenizers"] = version("tokenizers")
    return sha256_file(work.out / TOKENIZER_FILE)


def _take(work: Work, settings: FitSettings, file: ArtifactRef | None) -> dict[str, Any]:
    """Take an existing tokeniser."""
    path = None if file is None else work.folder(file) / TOKENIZER_FILE
    if path is None or digest_of_tokenizer_file(path) != settings.file:
        raise UserError("the file of the tokeniser changed while this run began: run again")
    found = read_tokenizer_file(path, settings.reserved)
    found.save(work.out / TOKENIZER_FILE)
    return _record(found, f"the file {path.name}: asked for")


def _record(tokenizer: Tokenizer, why: str) -> dict[str, Any]:
    return {
        "kind": tokenizer.kind,
        "why": why,
        "vocab_size": tokenizer.vocab_size,
        "reserved": tokenizer.reserved,
        "fingerprint": tokenizer.fingerprint,
    }


@dataclass(frozen=True)
class Chosen:
    """Documents to fit on.

    Attributes:
        folders: of the artefacts that they lie in.
        shelves: for each of them, the documents to read there: their place in the order, and how many bytes of each.
        n_bytes: of all training documents.
    """

    folders: list[str]
    shelves: list[dict[str, tuple[int, int]]]
    n_bytes: int


def choose_documents(work: Work, curated: ArtifactRef, documents: RefSet, limit: int) -> Chosen:
    """The training documents of lowest hash, at least one, up to `limit` bytes; of the last one only its beginning.

    Raises:
        UserError: if there is none.
    """
    columns = ["doc_id", "segment", "split", "kept", "n_bytes"]
    selection = pq.read_table(work.folder(curated) / SELECTION_FILE, columns=columns)
    trained = selection.filter(pc.and_(selection["kept"], pc.equal(selection["split"], "train"))).sort_by("doc_id")
    sizes = trained["n_bytes"].to_numpy()
    if not len(sizes):
        raise UserError(
            f"there is no document to fit a tokeniser on: of {len(selection)} document(s) none is kept and trained on; "
            "add documents"
        )
    order = np.argsort(np.fromiter(_hashes(trained["doc_id"]), np.uint64, len(sizes)), kind="stable")
    ends = np.cumsum(sizes[order])
    limit = min(limit, int(ends[-1]))  # which may be beyond 64 bits
    order = order[: int(np.searchsorted(ends, limit)) + 1]
    rows = trained.take(pa.array(order)).to_pylist()
    most = sizes[order].tolist()
    most[-1] = max(1, min(most[-1], limit - sum(most[:-1])))
    chosen = {row["doc_id"]: (place, size) for place, (row, size) in enumerate(zip(rows, most, strict=True))}
    noted = {row["doc_id"]: row["segment"] for row in rows}
    read = by_table(work.store, noted, documents, DOCUMENTS_FILE)
    used = [(ref, doc_ids) for ref, doc_ids in zip(documents.refs, read, strict=True) if doc_ids]
    wanted = [{doc_id: chosen[doc_id] for doc_id in doc_ids} for _, doc_ids in used]
    return Chosen([str(work.folder(ref)) for ref, _ in used], wanted, int(sizes.sum()))


def _hashes(names: pa.ChunkedArray) -> Iterator[int]:
    """The first 64 bits of the sha256 of each name."""
    for chunk in names.chunks:
        for name in chunk.to_pylist():
            yield int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def fit_documents(
    folders: list[str],
    wanted: list[dict[str, tuple[int, int]]],
    settings: dict[str, Any],
    n_bytes: int,
    out: str,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Fit a tokeniser on documents and write it; see `Chosen`.

    Returns:
        What is to be told of the choice, the tools that did it, and how many documents and bytes were read.
    """
    texts: dict[int, bytes] = {}
    for folder, shelf in zip(folders, wanted, strict=True):
        texts.update(_read(Path(folder) / DOCUMENTS_FILE, shelf))
        progress(len(texts), sum(map(len, wanted)))
    ordered = [texts.pop(place) for place in sorted(texts)]
    fitted = fit_tokenizer(ordered, FitSettings(**settings), n_bytes)
    fitted.tokenizer.save(Path(out) / TOKENIZER_FILE)
    choice = _record(fitted.tokenizer, fitted.why)
    return {"choice": choice, "tools": fitted.tools, "documents": len(ordered), "bytes": sum(map(len, ordered))}


def _read(path: Path, wanted: dict[str, tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Place and text of some documents of a table, as far as is asked for; row groups without one are not read."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            ids = file.read_row_group(number, columns=["doc_id"])["doc_id"].to_pylist()
            found = [row for row, name in enumerate(ids) if name in wanted]
            if not found:
                continue
            texts = Texts.of(file.read_row_group(number, columns=["text"])["text"])
            for row in found:
                place, most = wanted[ids[row]]
                begin, end = (int(offset) for offset in texts.offsets[row : row + 2])
                yield place, whole_characters(texts.data, begin, min(end, begin + most))


def corpus_tokenizer(run: Run, settings: TokenizerSettings, curated: ArtifactRef, documents: RefSet) -> ArtifactRef:
    """Return the corpus's tokeniser: the pinned one while its settings are asked for, else a new one."""
    known, before = tokenizer.pinned(run), pinned_settings(run)
    asked = FitSettings.of(settings, before)
    if known is not None and before == asdict(asked):
        return run.reuse(tokenizer, known)
    file = None
    if settings.file:
        path = Path(settings.file).expanduser()
        beside = {name: path.with_name(name) for name in BESIDE if path.with_name(name).is_file()}
        file, _ = run.add("tokenizer_file", {**beside, TOKENIZER_FILE: path})
    return tokenizer(run, asked, curated=curated, documents=documents, file=file)
