"""Fitting the tokeniser: on training documents only, those of lowest hash first, so that the choice is nobody's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from storage.digest import sha256_file
from storage.manifest import ArtifactRef, RefSet
from tasks.curate.kept import kept_documents, kept_rows
from tasks.settings import TokenizerSettings
from tasks.stage import Work, stage
from tasks.tokens.tokenizer import (
    MIN_BPE_VOCAB,
    TOKENIZER_FILE,
    AsciiTokenizer,
    BpeTokenizer,
    CharTokenizer,
    Tokenizer,
)

# Below this much text most merges would be seen a handful of times; single characters are learned better.
CHAR_BELOW_BYTES = 200_000


def choose(settings: TokenizerSettings, n_bytes: int) -> tuple[str, int, str]:
    """Kind and vocabulary size for so much training text, and why.

    Returns:
        kind, vocabulary size (0: all characters that the kind knows), one sentence.
    """
    kind = settings.kind
    why = "asked for"
    if kind == "auto":
        kind = "char" if n_bytes < CHAR_BELOW_BYTES else "bpe"
        comparison = "less" if kind == "char" else "not less"
        why = f"{n_bytes:,} bytes of training text are {comparison} than {CHAR_BELOW_BYTES:,}"
    if kind in ("char", "ascii") or settings.vocab_size:
        return kind, settings.vocab_size, why
    size = 512
    while size < 8192 and size * 3_000 < n_bytes:  # about 3,000 bytes of text for each id
        size *= 2
    return kind, max(size, MIN_BPE_VOCAB), why


def training_texts(work: Work, curated: ArtifactRef, documents: RefSet, limit: int) -> list[str]:
    """Texts of the training documents of lowest hash, at least one, up to `limit` bytes."""
    wanted = kept_documents(work.store, curated, "train")
    rows = kept_rows(work.store, wanted, documents, "documents.parquet", ["doc_id", "text"])
    found = [(hashlib.sha256(row["doc_id"].encode()).hexdigest(), row["text"]) for _, row in rows]
    texts: list[str] = []
    size = 0
    for _, text in sorted(found):
        if texts and size >= limit:
            break
        texts.append(text)
        size += len(text.encode())
    return texts


def _lines(texts: list[str]) -> Iterator[str]:
    """The texts in pieces of whole lines: one document of megabytes would be one unit of work to the engine."""
    for text in texts:
        yield from text.splitlines(keepends=True)


def fit_tokenizer(texts: list[str], settings: TokenizerSettings) -> tuple[Tokenizer, str]:
    """Fit on texts; returns the tokeniser and one sentence on the choice."""
    kind, size, why = choose(settings, sum(len(text.encode()) for text in texts))
    if kind == "char":
        return CharTokenizer.fit(texts, size), f"character level: {why}"
    if kind == "ascii":
        return AsciiTokenizer(), f"ASCII codes: {why}"
    return BpeTokenizer.fit(_lines(texts), size), f"byte-level BPE of {size}: {why}"


@stage("tokenizer", version=1)
def tokenizer(work: Work, settings: TokenizerSettings, *, curated: ArtifactRef, documents: RefSet) -> str:
    """Fit the tokeniser on training documents."""
    import tokenizers

    texts = training_texts(work, curated, documents, settings.fit_bytes)
    fitted, why = fit_tokenizer(texts, settings)
    fitted.save(work.out / TOKENIZER_FILE)
    (work.out / "choice.json").write_text(
        json.dumps({"kind": fitted.kind, "why": why, "vocab_size": fitted.vocab_size})
    )
    work.counts["rows"] = fitted.vocab_size
    work.tools["tokenizers"] = tokenizers.__version__
    return sha256_file(work.out / TOKENIZER_FILE)
