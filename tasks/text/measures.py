"""Everything that is measured on documents, in one pass: what a policy decides by, without deciding anything.

A batch of documents is laid end to end as one array of code points, and words, hashes and counts come from array
operations over all of them; what asks for certain words looks into each text by substring searches. A document's row
does not depend on the batch it came in. Thresholds are the policy's, so that changing one measures nothing again.

Sources: Gopher (Rae et al. 2021, appendix A1.1) for marks and stop words, C4 (Raffel et al. 2020, section 2.2) for the
phrases, Codex (Chen et al. 2021, section 3.1), The Stack and StarCoder (Kocetkov et al. 2022; Li et al. 2023, section
3) for generated files, long lines and low alphanumeric shares.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.text.batch import (
    DIGIT,
    LETTER,
    SPACE,
    SYMBOL,
    UNSPACED,
    UPPER,
    Batch,
    Hashes,
    highest_between,
    make_batch,
    share,
)
from tasks.text.language import UNDETERMINED, identify_language
from tasks.text.licences import detect_licence
from tasks.text.private_data import find_pii
from tasks.text.repetition import line_measures, phrase_measures

MEASURED_CHARS = 2**22  # of one document; all but `n_chars`, `pii` and the licence describe these

Row = dict[str, Any]


def measure_documents(rows: Sequence[Row]) -> list[Row]:
    """Measure documents, all at once: memory follows the sum of their texts.

    Args:
        rows: with `doc_id`, `kind` (`pdf`, `image`, `text` or `code`), `programming_language` and `text`; other columns
            are ignored.

    Returns:
        One row for each, in order, with every column of `storage.schemas.MEASURES` but the digest.
    """
    texts = [row["text"][:MEASURED_CHARS] for row in rows]
    batch = make_batch(texts)
    columns = {**_characters(batch), **_words(batch), **line_measures(batch), **phrase_measures(batch)}
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        _finish(row, text, dict(zip(columns, numbers, strict=True)))
        for row, text, numbers in zip(rows, texts, values, strict=True)
    ]


def _finish(row: Row, text: str, measures: Row) -> Row:
    whole = row["text"]
    is_code = row["kind"] == "code"
    solid = len(text) - measures.pop("n_spaces")
    head, mean_line = text[:MARKER_CHARS].lower(), measures["mean_line_length"]
    language, confidence = (UNDETERMINED, 0.0) if is_code else identify_language(text)
    return {
        "doc_id": row["doc_id"],
        "kind": row["kind"],
        "n_chars": len(whole),
        "measured_chars": len(text),
        **measures,
        **_wording(text, measures["n_words"]),
        "comment_share": comment_share(text, row["programming_language"]) if is_code else 0.0,
        "blob_share": _blob_share(text, solid, measures["longest_word"], measures["digit_share"]),
        "generated": is_code and any(marker in head for marker in MARKERS),
        "minified": is_code and mean_line > MINIFIED_LINE and measures["space_share"] < MINIFIED_SPACE,
        "language": language,
        "language_confidence": confidence,
        "licence": detect_licence(whole),
        "pii": [span._asdict() for span in find_pii(whole)],
    }


def _characters(batch: Batch) -> dict[str, np.ndarray]:
    """Shares of classes of characters; of those that are not white space, if nothing else is said."""
    counts = batch.class_counts
    letters = counts[:, LETTER] + counts[:, UPPER] + counts[:, UNSPACED]
    everything = counts.sum(axis=1)
    return {
        "n_spaces": counts[:, SPACE],
        "letter_share": share(letters, batch.solid),
        "digit_share": share(counts[:, DIGIT], batch.solid),
        "symbol_share": share(counts[:, SYMBOL], batch.solid),
        "upper_share": share(counts[:, UPPER], letters),  # of the letters
        "unspaced_share": share(counts[:, UNSPACED], batch.solid),
        "space_share": share(counts[:, SPACE], everything),  # of all characters, as the next one
        "alnum_share": share(letters + counts[:, DIGIT], everything),
    }


def _words(batch: Batch) -> dict[str, np.ndarray]:
    lettered = (
        np.maximum.reduceat(batch.classes, batch.word_starts) >= LETTER if len(batch.word_starts) else np.array([])
    )
    n_words = batch.n_words
    with_letter = np.bincount(batch.word_documents[lettered.astype(bool)], minlength=batch.n_documents)
    mean = np.divide(batch.solid, n_words, out=np.zeros(batch.n_documents), where=n_words > 0)
    return {
        "n_words": n_words,
        "mean_word_length": np.round(mean, 3),
        "longest_word": highest_between(batch.word_lengths, batch.word_bounds),
        "alpha_word_share": share(with_letter, n_words),
        "stop_words": _stop_words(batch),
    }


def _stop_words(batch: Batch) -> np.ndarray:
    """Number of different stop words of each document."""
    present = [
        np.bincount(batch.word_documents[batch.word_hashes == value], minlength=batch.n_documents) > 0
        for value in _stop_word_hashes()
    ]
    return np.sum(present, axis=0)


@lru_cache(maxsize=1)
def _stop_word_hashes() -> Hashes:
    return make_batch([" ".join(STOP_WORDS)]).word_hashes


# words and marks

POLICY_PHRASES = (
    "terms of use",
    "terms of service",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
COMPRESSED_CHARS = 8_192


def _wording(text: str, n_words: int) -> Row:
    lowered = text.lower()
    cookies = "cookie" in lowered
    ellipses = text.count("...") + text.count("…")
    plain = text[:COMPRESSED_CHARS].encode("utf-8", "surrogatepass")
    return {
        "hash_word_ratio": round(text.count("#") / n_words, 4) if n_words else 0.0,
        "ellipsis_word_ratio": round(ellipses / n_words, 4) if n_words else 0.0,
        "lorem_ipsum": lowered.count("lorem ipsum"),
        "curly_brackets": text.count("{"),
        "javascript": lowered.count("javascript"),
        "policy_phrases": sum(lowered.count(phrase) for phrase in POLICY_PHRASES if cookies or "cookie" not in phrase),
        # near 0 for one phrase over and over, also in scripts without spaces, where no count of phrases sees it; to two
        # places, since libraries differ a little in how they compress
        "compression_ratio": round(len(zlib.compress(plain, 1)) / len(plain), 2) if plain else 1.0,
    }


# source code, and texts that are no text: encoded blobs, generated and minified files

MARKER_CHARS = 2_000  # in which a file says that a program wrote it
MARKERS = (
    "do not edit",
    "don't edit",
    "@generated",
    "auto-generated",
    "autogenerated",
    "automatically generated",
    "generated by",
    "generated automatically",
    "machine generated",
    "machine-generated",
)

BLOB_CHARS = 64  # characters in a row at least
BLOB_VARIETY = 8  # rules of equal signs and the like have fewer different characters
BLOB_DIGITS = 0.04  # least share of digits; words that a PDF has lost the spaces between have fewer
DIGITS_FOR_HEX = 0.2  # share of digits from which a search for hexadecimal words is worth it

MINIFIED_LINE = 200  # characters of lines for machines to load rather than for people to read
MINIFIED_SPACE = 0.08

_BLOB = re.compile(r"[A-Za-z0-9+/]{64,}")
_HEX_WORD = re.compile(r"(?<![0-9A-Za-z])(?:0[xX])?[0-9A-Fa-f]{2,64}(?![0-9A-Za-z])")

_HASH = (
    "Python Shell Ruby Perl R Julia Nim Nix Awk Tcl CMake PowerShell CoffeeScript Elixir Crystal Cython HCL Makefile"
)
_DASH = "SQL Haskell Lua Ada Elm VHDL Agda Lean Idris"
_SEMICOLON = "Assembly|Common Lisp|Emacs Lisp|Scheme|Racket|Clojure|WebAssembly"
_COMMENTS = {
    **dict.fromkeys(_HASH.split(), r"#"),
    **dict.fromkeys(_DASH.split(), r"--"),
    **dict.fromkeys(_SEMICOLON.split("|"), r";"),
    "Fortran": r"!",
    "Erlang": r"%",
    "TeX": r"%",
    "LaTeX": r"%",
    "MATLAB": r"%",
    "Batch": r"(?:rem\b|REM\b|::)",
    "Visual Basic": r"'",
    "Vim script": r'"',
    "OCaml": r"\(\*",
    "COBOL": r"(?:\d{6})?\*",
    "PHP": r"(?://|/\*|\*|#)",
}
_C_LIKE = r"(?://|/\*|\*(?=[\s/]|$))"
_PATTERNS = {name: re.compile(rf"^[ \t]*{mark}", re.MULTILINE) for name, mark in _COMMENTS.items()}
_C_PATTERN = re.compile(rf"^[ \t]*{_C_LIKE}", re.MULTILINE)
_WRITTEN_LINE = re.compile(r"^[ \t]*[^\s]", re.MULTILINE)


def comment_share(text: str, language: str | None) -> float:
    """Return the share of the lines with something on them that begin as a comment; 0 without a language."""
    if not language:
        return 0.0
    lines = len(_WRITTEN_LINE.findall(text))
    comments = len(_PATTERNS.get(language, _C_PATTERN).findall(text))
    return round(comments / lines, 4) if lines else 0.0


def _blob_share(text: str, solid: int, longest_word: int, digit_share: float) -> float:
    """Share of the characters (white space apart) that are base64 or hexadecimal data.

    These are runs of 64 base64 characters or more with digits and some variety in them, and hexadecimal words that mix
    digits and letters or begin with `0x`.
    """
    characters = 0
    if longest_word >= BLOB_CHARS:
        for found in _BLOB.finditer(text):
            # its first part shows its variety; a run may be millions of characters long
            sample = found[0][:1024]
            if len(set(sample)) >= BLOB_VARIETY and sum(map(str.isdigit, sample)) >= BLOB_DIGITS * len(sample):
                characters += len(found[0])
    if digit_share >= DIGITS_FOR_HEX:
        characters += sum(len(word) for word in _HEX_WORD.findall(text) if len(word) < BLOB_CHARS and _is_hex(word))
    return min(1.0, round(characters / solid, 4)) if solid else 0.0


def _is_hex(word: str) -> bool:
    return word[:2] in ("0x", "0X") or not (word.isdigit() or word.isalpha())
