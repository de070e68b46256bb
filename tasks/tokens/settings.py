"""Settings of the tokeniser, and of cutting and packing documents into sequences."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from tasks.core.option import STRICT, option


@dataclass(frozen=True, config=STRICT)
class TokenizerSettings:
    """The tokeniser."""

    kind: Literal["auto", "char", "ascii", "bytes", "word", "bpe", "file"] = option(
        "auto",
        "Vocabulary: characters, ASCII codes (all else is lost), bytes, words (for toys), byte-level BPE, an "
        "existing tokeniser's `file`, or `auto`: characters or BPE by the size of the training text.",
    )
    vocab_size: int = option(
        0,
        "Token ids in all, for `bpe`, `char` and `word`; 0 picks by the size of the training text, or takes all "
        "characters.",
    )
    fit_bytes: int = option(32 * 2**20, "Largest sample of training text to fit the vocabulary on.", ge=1)
    file: str = option("", "With `kind=file`, a tokenizer.json of Hugging Face's tokenizers or of this project.")
    reserved: int = option(0, "Unused ids at the end of the vocabulary, for later use.", ge=0)
    bos: bool = option(True, "Begin every document with the id that begins a text.")
    eos: bool = option(True, "End every document with the id that ends a text.")
    engine: Literal["auto", "reference"] = option(
        "auto", "`auto` encodes with the fastest engine that gives the ids of the reference engine."
    )

    def __post_init__(self) -> None:
        if bool(self.file) != (self.kind == "file"):
            raise ValueError(
                f"tokenizer.kind is {self.kind!r} and tokenizer.file is {self.file!r}; a file goes with kind file"
            )
        if self.vocab_size:
            self._check_size()
        if self.vocab_size or self.reserved:
            from tasks.tokens.interface import check_vocab_size  # imports NumPy, which few settings are worth

            try:
                check_vocab_size(self.vocab_size, self.reserved)
            except ValueError as error:
                raise ValueError(f"tokenizer.{error}") from error

    def _check_size(self) -> None:
        given = f"tokenizer.vocab_size is {self.vocab_size}"
        fixed = {"ascii": "ASCII has 128 ids", "bytes": "bytes have 260 ids", "file": "a file has ids of its own"}
        if self.kind in fixed:
            raise ValueError(f"{given}, but {fixed[self.kind]}; leave it out")
        free = self.vocab_size - self.reserved
        beside = f" beside the {self.reserved} reserved ones" if self.reserved else ""
        if self.kind in ("char", "word") and free < 5:
            otherwise = "all characters" if self.kind == "char" else "as many as the text is worth"
            raise ValueError(f"{given}, expected 5 or more{beside} (4 ids are special), or 0 for {otherwise}")
        if self.kind in ("auto", "bpe") and free < 260:
            raise ValueError(f"{given}; byte-level BPE needs at least 260 (256 bytes, 4 special){beside}")


@dataclass(frozen=True, config=STRICT)
class DatasetSettings:
    """Cutting and packing of documents into training sequences."""

    packing: Literal["chunk", "concat", "pack"] = option(
        "chunk",
        "`chunk` cuts each document by itself and pads its last sequence; `concat` cuts one stream of all "
        "documents; `pack` combines whole documents and the ends of long ones, with attention within documents "
        "only.",
    )
    stride: int = option(
        0, "With `chunk`, tokens from one chunk's start to the next; 0 is the sequence length (no overlap).", ge=0
    )
    drop_last: bool = option(
        False, "With `concat`, leave out the last sequence of the training stream, which is short."
    )

    def __post_init__(self) -> None:
        if self.stride and self.packing != "chunk":
            raise ValueError(
                f"dataset.stride is {self.stride}, but only chunks overlap, and dataset.packing is {self.packing}; "
                "leave one of them out"
            )
        if self.drop_last and self.packing != "concat":
            raise ValueError(
                f"dataset.drop_last goes with dataset.packing=concat, found {self.packing}, which leaves nothing out"
            )
