"""The stage `tokenizer`: fits a tokeniser on training documents, or takes one from a file and may extend it.

Documents are chosen by hash up to a number of bytes, which is deterministic and independent of the files of the corpus.
Byte-pair encoding is learned by `tokenizers`, or for large texts by gigatoken, which is about twenty times as fast, if
both learn the same merges from a sample.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from storage.digest import sha256_file
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, SELECTION_FILE
from storage.tables import read_places
from tasks.core.stage import Work, stage
from tasks.curate.corpus import Corpus, tables_of
from tasks.tokens.extend import check_extendable, extend_tokenizer
from tasks.tokens.foreign import digest_of_tokenizer_file, read_tokenizer_file, tokenizer_files
from tasks.tokens.hf_spec import byte_level_spec, byte_spellings, cut_text, library_tokenizer
from tasks.tokens.tokenise import EngineError, engine_errors
from tasks.tokens.tokenizer_kinds import (
    MIN_BPE_VOCAB,
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    AsciiTokenizer,
    BpeTokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
)

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.tokens.settings import TokenizerSettings

logger = logging.getLogger("sheepfold")

CHOICE_FILE = "choice.json"

# with less text most merges would occur only a few times, and single characters are learned better
CHAR_BELOW_BYTES = 200_000
BYTES_PER_ID = 3_000  # bytes of training text per id of the vocabulary
LARGEST_CHOSEN = 8192  # largest automatic vocabulary
FITTED = ("auto", "char", "word", "bpe")

WORTH_A_TRAINER = 2**22  # bytes of text from which gigatoken is tried
SAMPLE_UNITS = 8
SAMPLE_VOCAB = 1024
UNIT_BYTES = 2**16  # longer documents are cut, because `tokenizers` parallelises over texts
_SEPARATOR = b"\xff"  # never occurs in UTF-8


@dataclass(frozen=True)
class FitSettings:
    """The part of `tasks.tokens.settings.TokenizerSettings` that shapes a tokeniser.

    Attributes:
        fit_bytes: bytes of training text to fit on; 0 for kinds that are not fitted.
        file: digest of the tokeniser's file; its path is not part of the key.
    """

    kind: str = "auto"
    vocab_size: int = 0
    fit_bytes: int = 32 * 2**20
    reserved: int = 0
    file: str = ""

    @classmethod
    def of(cls, settings: TokenizerSettings, pinned: Mapping[str, Any] | None = None) -> FitSettings:
        """Build the settings from the section of a run's settings.

        Args:
            pinned: `FitSettings` of the corpus's tokeniser, which replace a file that no longer exists.

        Raises:
            UserError: the tokeniser's file does not exist.
        """
        file, path = "", Path(settings.file).expanduser()
        if settings.file and pinned is not None and pinned["kind"] == "file" and not path.exists():
            file = pinned["file"]
        elif settings.file:
            file = digest_of_tokenizer_file(path)
        fit_bytes = settings.fit_bytes if settings.kind in FITTED or settings.extend else 0
        found = (settings.kind, settings.vocab_size, fit_bytes, settings.reserved, file)
        return ExtendSettings(*found, settings.extend) if settings.extend else cls(*found)


@dataclass(frozen=True)
class ExtendSettings(FitSettings):
    """Settings of a file's tokeniser that is extended; a class of its own, so that other tokenisers keep their keys.

    Attributes:
        extend: number of pieces to add.
    """

    extend: int = 0


def check_tokenizer(settings: TokenizerSettings, pinned: Mapping[str, Any] | None = None) -> None:
    """Check the tokeniser of the settings before anything runs.

    Args:
        pinned: `FitSettings` of the corpus's tokeniser; if they are the same, no file is read.

    Raises:
        UserError: the tokeniser's file does not exist or is not valid, or the tokeniser cannot be extended.
    """
    if settings.extend and settings.kind != "file":
        raise UserError(
            f"tokenizer.extend={settings.extend} adds pieces to an existing vocabulary, and there is none: set "
            "train.base, or tokenizer.kind=file and tokenizer.file, or leave it out"
        )
    asked = FitSettings.of(settings, pinned)
    if settings.file and asdict(asked) != pinned:
        found = read_tokenizer_file(Path(settings.file).expanduser(), settings.reserved)
        if settings.extend:
            check_extendable(found, settings.extend)


def pinned_settings(run: Run) -> dict[str, Any] | None:
    """Return the `FitSettings` of the corpus's tokeniser; None if it has none."""
    known = tokenizer.pinned(run)
    return None if known is None else manifest_of(run.store, known).settings


def choose(settings: FitSettings | TokenizerSettings, n_bytes: int) -> tuple[str, int, str]:
    """Return kind, vocabulary size (0: all characters) and the reason, for `n_bytes` of training text."""
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
    return kind, size + settings.reserved, why


def fit_tokenizer(
    texts: Sequence[bytes], settings: FitSettings | TokenizerSettings, n_bytes: int | None = None
) -> tuple[Tokenizer, str, dict[str, str]]:
    """Fit a tokeniser.

    Args:
        texts: UTF-8 texts.
        n_bytes: size of all training text, if `texts` is a part of it.

    Returns:
        The tokeniser, the reason for its kind, and the tools that fitted it.
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
    return fitted, f"{what}: {why}", tools


def fit_bpe(texts: Sequence[bytes], vocab_size: int, reserved: int = 0) -> tuple[BpeTokenizer, dict[str, str]]:
    """Learn byte-level BPE, by gigatoken if it learns the same merges as `tokenizers` on a sample.

    Returns:
        The tokeniser of `vocab_size` ids, including reserved ones, and the trainer with the reason for it.
    """
    n_bytes = sum(map(len, texts))
    units = [unit for text in texts for unit in cut_text(text, UNIT_BYTES)]
    if n_bytes < WORTH_A_TRAINER:
        why = f"{n_bytes:,} bytes are too few for another trainer to pay"
    else:
        sample, size = units[:SAMPLE_UNITS], min(vocab_size - reserved, SAMPLE_VOCAB)
        try:
            if _learn_fast(sample, size) != learn_merges(map(bytes.decode, sample), size).spec:
                raise EngineError("other merges than the reference's on a sample of the text")
            spec = _learn_fast(units, vocab_size - reserved)
            tools = {"trainer": f"gigatoken {version('gigatoken')}", "trainer_reason": "same merges on a sample"}
            return BpeTokenizer(spec, reserved), tools
        except EngineError as error:
            why = f"gigatoken: {error}"
    found = learn_merges(map(bytes.decode, units), vocab_size, reserved)
    return found, {"trainer": f"tokenizers {version('tokenizers')}", "trainer_reason": why}


def learn_merges(texts: Iterable[str], vocab_size: int, reserved: int = 0) -> BpeTokenizer:
    """Learn byte-level BPE by `tokenizers`.

    Args:
        vocab_size: number of ids: reserved ones and at least `MIN_BPE_VOCAB` others; short texts give fewer.
    """
    from tokenizers import pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - reserved,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine = library_tokenizer(byte_level_spec({}, []))
    engine.train_from_iterator(texts, trainer=trainer)
    return BpeTokenizer(str(engine.to_str()), reserved)


def _learn_fast(units: Sequence[bytes], vocab_size: int) -> str:
    """Return the JSON of `tokenizers` with gigatoken's merges; raises EngineError."""
    with engine_errors("it failed"), _silence():
        from gigatoken import train_bpe

        # special tokens count as ids
        _, found = train_bpe(_SEPARATOR.join(units), vocab_size, list(SPECIAL_TOKENS), separator=_SEPARATOR)
    spelling = byte_spellings()
    merges = [tuple("".join(spelling[byte] for byte in token) for token in pair) for pair in found]
    learned = [one + two for one, two in merges]
    if len(learned) != len(set(learned)) or len(learned) > vocab_size - MIN_BPE_VOCAB:
        raise EngineError("it learned one token twice, or too many")
    words = dict.fromkeys([*SPECIAL_TOKENS, *sorted(spelling), *learned])
    engine = library_tokenizer(byte_level_spec({word: index for index, word in enumerate(words)}, merges))
    engine.add_special_tokens(list(SPECIAL_TOKENS))
    return str(engine.to_str())


@contextmanager
def _silence() -> Iterator[None]:
    """Discard standard output and error, to which gigatoken writes its progress."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    void = os.open(os.devnull, os.O_WRONLY)
    try:
        for number, _ in kept:
            os.dup2(void, number)
        yield
    finally:
        os.close(void)
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


@stage("tokenizer", version=4, pinned=True, unkeyed=("file",))
def tokenizer(
    work: Work, settings: FitSettings, *, curated: ArtifactRef, documents: RefSet, file: ArtifactRef | None = None
) -> str:
    """Fit the tokeniser on training documents, or take it from a file and extend it under `ExtendSettings`."""
    path = None if file is None else work.folder(file)
    if settings.kind == "file" and (path is None or digest_of_tokenizer_file(path) != settings.file):
        raise UserError("the tokeniser's file changed since this run began: run again")
    if path is not None and not isinstance(settings, ExtendSettings):
        found = read_tokenizer_file(path, settings.reserved)
        choice = _save(found, f"the file {next(iter(tokenizer_files(path)))}: asked for", work.out)
    else:
        chosen, n_bytes = _choose_documents(work, curated, documents, settings.fit_bytes)
        made = work.in_subprocess(
            fit_documents,
            sum(most for rows in chosen.values() for *_, most in rows),
            chosen=chosen,
            settings=settings,
            n_bytes=n_bytes,
            out=work.out,
            file=path,
        )
        choice = made["choice"]
        logger.info("tokenizer: %s", choice["why"])
        work.tools.update(made["tools"])
        work.counts.update(documents=made["documents"], bytes=made["bytes"])
    (work.out / CHOICE_FILE).write_text(json.dumps(choice))
    work.counts["rows"] = choice["vocab_size"]
    work.tools["tokenizers"] = version("tokenizers")
    return sha256_file(work.out / TOKENIZER_FILE)


def _save(tokenizer: Tokenizer, why: str, out: Path) -> dict[str, Any]:
    """Write a tokeniser and return the record of its choice."""
    tokenizer.save(out / TOKENIZER_FILE)
    return {
        "kind": tokenizer.kind,
        "why": why,
        "vocab_size": tokenizer.vocab_size,
        "reserved": tokenizer.reserved,
        "fingerprint": tokenizer.fingerprint,
    }


def _choose_documents(
    work: Work, curated: ArtifactRef, documents: RefSet, limit: int
) -> tuple[dict[str, list[tuple[int, int, int]]], int]:
    """Choose training documents in order of their hashes up to `limit` bytes, at least one; the last one is cut.

    Returns:
        For each folder to read, (row, rank, bytes) of each document; and the bytes of all training documents.
    """
    with Corpus() as corpus:
        corpus.want_kept(work.folder(curated), "train")
        corpus.sql(
            "create or replace table wanted as select *, sum(n_bytes) over lot as until, row_number() over lot as turn "
            "from wanted window lot as (order by sha256(doc_id))"
        )
        ((n_bytes,),) = corpus.sql("select sum(n_bytes)::bigint from wanted").fetchall()
        if n_bytes is None:
            n_documents = pq.read_metadata(work.folder(curated) / SELECTION_FILE).num_rows
            raise UserError(
                f"there is no training document to fit a tokeniser on: none of {n_documents} document(s) is kept for "
                "training; add documents"
            )
        limit = min(limit, n_bytes)  # which may be beyond 64 bits
        corpus.sql(f"delete from wanted where until - n_bytes >= {limit} and turn > 1")
        tables = tables_of(work.store, documents)
        corpus.locate(tables, DOCUMENTS_FILE, live=documents.live)
        rows = corpus.sql(
            "select part, located.place, turn, "
            f"greatest(1, least(n_bytes, {limit} - (until - n_bytes)))::bigint "
            "from located join wanted using (doc_id) order by all"
        ).fetchall()
    chosen: dict[str, list[tuple[int, int, int]]] = {}
    for part, row, turn, most in rows:
        chosen.setdefault(tables[part].folder, []).append((row, turn, most))
    return chosen, n_bytes


def fit_documents(
    chosen: dict[str, list[tuple[int, int, int]]],
    settings: FitSettings,
    n_bytes: int,
    out: Path,
    progress: Callable[[int, int], None],
    file: Path | None = None,
) -> dict[str, Any]:
    """Fit a tokeniser on the documents of `_choose_documents`, write it, and return its record.

    Args:
        file: the tokeniser to extend, under `ExtendSettings`.
    """
    texts: dict[int, bytes] = {}
    for folder, rows in chosen.items():
        found = read_places(Path(folder) / DOCUMENTS_FILE, "text", [row for row, *_ in rows])
        texts.update((turn, found.pop(row).encode()[:most]) for row, turn, most in rows)
        progress(len(texts), sum(map(len, chosen.values())))
    # drop a character that the limit cuts
    ordered = [texts.pop(turn).decode(errors="ignore").encode() for turn in sorted(texts)]
    if file is not None and isinstance(settings, ExtendSettings):
        fitted, why, tools = extend_file(file, ordered, settings)
    else:
        fitted, why, tools = fit_tokenizer(ordered, settings, n_bytes)
    choice = _save(fitted, why, out)
    return {"choice": choice, "tools": tools, "documents": len(ordered), "bytes": sum(map(len, ordered))}


def extend_file(file: Path, texts: Sequence[bytes], settings: ExtendSettings) -> tuple[Tokenizer, str, dict[str, str]]:
    """Extend a file's tokeniser; returns as `fit_tokenizer`."""
    made = extend_tokenizer(read_tokenizer_file(file, settings.reserved), texts, settings.extend)
    asked = "" if made.n_pieces == settings.extend else f" of the {settings.extend:,} asked for"
    main = next(iter(tokenizer_files(file)))
    return made.tokenizer, f"the file {main}, extended by {made.n_pieces:,} pieces{asked}: {made.measured}", {}


def corpus_tokenizer(run: Run, settings: TokenizerSettings, curated: ArtifactRef, documents: RefSet) -> ArtifactRef:
    """Return the pinned tokeniser of the corpus if its settings are unchanged, else make a new one."""
    known, before = tokenizer.pinned(run), pinned_settings(run)
    asked = FitSettings.of(settings, before)
    if known is not None and (before == asdict(asked) or _has_pieces(known, before, settings)):
        return run.reuse(tokenizer, known)
    file = None
    if settings.file:
        file, _ = run.add("tokenizer_file", tokenizer_files(Path(settings.file).expanduser()))
    return tokenizer(run, asked, curated=curated, documents=documents, file=file)


def _has_pieces(known: ArtifactRef, before: Mapping[str, Any] | None, settings: TokenizerSettings) -> bool:
    """Return True if the file has the pieces of this corpus already, as a base that was trained with them."""
    if not settings.extend or before is None or before.get("extend") != settings.extend:
        return False
    main = next(iter(tokenizer_files(Path(settings.file).expanduser()).values()))
    return sha256_file(main) == known.digest
