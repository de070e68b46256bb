"""Tokenisers behind one interface: fit, encode, decode, save, load, fingerprint.

    interface    the interface, and tokenisers of characters, ASCII codes, bytes and words
    tokenizers   byte-level BPE, whatever Hugging Face's `tokenizers` runs, and loading any kind

Both modules travel inside served models under another package name, and import nothing of Sheepfold. `merges`, which
learns the merges of byte-level BPE, does not. Text that looks like a special token is encoded as text: no document can
forge a control token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from .interface import (
    BOS,
    EOS,
    LARGEST_VOCAB,
    N_SPECIAL,
    PAD,
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    UNK,
    AsciiTokenizer,
    ByteTokenizer,
    CharTokenizer,
    TableTokenizer,
    Tokenizer,
    TokenizerError,
    WordTokenizer,
    check_vocab_size,
    is_id,
    smallest_dtype,
)

__all__ = [
    "BOS",
    "EOS",
    "MIN_BPE_VOCAB",
    "N_SPECIAL",
    "PAD",
    "SPECIAL_TOKENS",
    "TOKENIZER_FILE",
    "UNK",
    "AsciiTokenizer",
    "BpeTokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "EngineTokenizer",
    "HfTokenizer",
    "TableTokenizer",
    "Tokenizer",
    "TokenizerError",
    "WordTokenizer",
    "check_vocab_size",
    "load_tokenizer",
    "smallest_dtype",
]

MIN_BPE_VOCAB = 256 + N_SPECIAL

# Longer texts are encoded in pieces: an engine needs a hundred times the size of what it is given at once.
PIECE_BYTES = 2**20
# Before a space behind something visible every pre-tokeniser in use cuts anyway. Listed are the first bytes of the
# characters of UTF-8 without those that may be white space.
_CUT = re.compile(
    rb"(?:[!-~]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2}|\xe3[\x81-\xbf][\x80-\xbf]|"
    rb"\xe3\x80[\x81-\xbf]|[\xf0-\xf4][\x80-\xbf]{3})(?= [^ ])"
)

# How GPT-4, Llama 3, Qwen 2 and GPT-4o cut text into words. In all of them white space stands at the beginning of a
# word or is a word, and none looks back or further ahead than at one space: before a space behind something visible a
# word always ends, whatever follows.
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{letters}{_SHORT}?" for letters in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
)
WORD_PATTERNS = (
    _WORD + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,
    _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,
    _CASED + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES,
)
# names that hardly any text has, for tokens that no text is to become, and for what has no token
_HIDDEN, _LEFT_OUT = "\0special {}", "\0left out"


def cut_text(data: bytes, size: int) -> Iterator[bytes]:
    """A text as UTF-8 in pieces of this size to twice as much, cut where byte-level engines cut anyway: before a space.

    Within a longer run of visible text it is cut between any two characters.
    """
    start = 0
    while len(data) - start > 2 * size:
        first, last = start + size, start + 2 * size
        found = _CUT.search(data, first, last)
        end = found.end() if found else last
        while data[end] & 0xC0 == 0x80:  # not within a character
            end -= 1
        yield data[start:end]
        start = end
    yield data[start:]


class EngineTokenizer(Tokenizer):
    """A tokeniser that Hugging Face's `tokenizers` runs.

    Args:
        spec: the engine's own JSON.

    Raises:
        ValueError: the engine cannot read the spec.
    """

    def __init__(self, spec: str, reserved: int = 0) -> None:
        super().__init__(reserved)
        self.spec = spec
        self._engine = _engine_of(spec)

    @property
    def encoding_spec(self) -> str:
        """The JSON of the engine that encodes."""
        return self.spec

    @cached_property
    def _encoder(self) -> Any:
        return self._engine if self.encoding_spec == self.spec else _engine_of(self.encoding_spec)

    @cached_property
    def cuts_before_spaces(self) -> bool:
        """True if no token spans the place before a space, as with byte-level pre-tokenisers of known words."""
        return self.has_gpt2_words or _has_known_words(json.loads(self.spec))

    @cached_property
    def has_gpt2_words(self) -> bool:
        """True if text is cut into words by GPT-2's rule and not changed before."""
        spec = json.loads(self.spec)
        cutters = spec.get("pre_tokenizer") or {}
        cutters = cutters.get("pretokenizers", [cutters])
        regexes = [cutter for cutter in cutters if cutter.get("type") == "ByteLevel" and cutter.get("use_regex", True)]
        prefixes = any(cutter.get("add_prefix_space") for cutter in cutters)
        added = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
        return bool(regexes) and len(cutters) == 1 and not (prefixes or added or spec.get("normalizer"))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        return cut_text(data, PIECE_BYTES) if self.cuts_before_spaces else iter([data])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(len(text) > PIECE_BYTES // 2 for text in texts):
            return [self._encode_long(text) for text in texts]
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def _encode_long(self, text: str) -> np.ndarray:
        pieces = (piece.decode() for piece in self.pieces(text.encode()))
        encodings = (self._encoder.encode_batch_fast([piece], add_special_tokens=False)[0] for piece in pieces)
        return np.concatenate([np.array(encoding.ids, dtype=np.int64) for encoding in encodings])

    def decode(self, ids: Sequence[int]) -> str:
        special = self._no_text
        kept = [int(index) for index in ids if int(index) not in special]
        return str(self._engine.decode(kept, skip_special_tokens=False))

    @cached_property
    def _no_text(self) -> frozenset[int]:
        return frozenset(self.special_ids)


def _engine_of(spec: str) -> Any:
    from tokenizers import Tokenizer as Engine

    try:
        engine = Engine.from_str(spec)
    except Exception as error:  # the engine raises nothing narrower
        raise ValueError(f"not a tokeniser that `tokenizers` can read: {error}") from error
    # text that spells a special token is ordinary text; every text is encoded whole and alone
    engine.encode_special_tokens = True
    engine.no_truncation()
    engine.no_padding()
    return engine


def _has_known_words(spec: dict[str, Any]) -> bool:
    """Return True if text is cut by one of the patterns above, and nothing joins the parts around a space."""
    match (spec.get("pre_tokenizer") or {}).get("pretokenizers"):
        case [{"type": "Split", "behavior": "Isolated", "invert": False} as split, {"type": "ByteLevel"} as spelling]:
            plain = not (spelling.get("use_regex", True) or spelling.get("add_prefix_space", True))
            known = plain and split.get("pattern", {}).get("Regex") in WORD_PATTERNS
        case _:
            known = False
    # NFC never composes a space with what is before or behind it
    normalised = (spec.get("normalizer") or {"type": "NFC"}).get("type") == "NFC"
    added = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
    return known and normalised and not any(map(_looks_around, added))


def _steps(cutters: dict[str, Any] | None) -> list[str]:
    """The types of a normaliser or pre-tokeniser, and of all in it."""
    within = [*(cutters or {}).get("pretokenizers", []), *(cutters or {}).get("normalizers", [])]
    return [(cutters or {}).get("type", ""), *(step for part in within for step in _steps(part))]


def _looks_around(token: dict[str, Any]) -> bool:
    """Return True if finding an added token depends on the text around it, or the token spans white space."""
    options = any(token.get(option) for option in ("single_word", "lstrip", "rstrip"))
    return options or any(character.isspace() for character in token["content"])


class BpeTokenizer(EngineTokenizer):
    """Byte-level byte-pair encoding; no text is ever lost."""

    kind = "bpe"

    @property
    def used_ids(self) -> int:
        return int(self._engine.get_vocab_size())

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "spec": json.loads(self.spec)}


def byte_spellings() -> list[str]:
    """Return the engine's spelling of each byte: its character in Latin-1, or one beyond where that is not visible."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    beyond = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(beyond)) for byte in range(256)]


_BYTES = {character: byte for byte, character in enumerate(byte_spellings())}


def spelled_bytes(token: str) -> bytes:
    """The bytes of a token as a byte-level engine spells it."""
    return bytes(_BYTES[character] for character in token)


class HfTokenizer(EngineTokenizer):
    """A tokeniser from elsewhere; its special ids are its own, and may be absent.

    What encodes is not its spec to the letter: the model does not know its special tokens but unk by name, so that no
    text becomes one, and a dropout of merges, which is for training, is off, so that a text always has the same ids.

    Args:
        spec: the engine's own JSON.
        pad_id, unk_id, bos_id, eos_id: the ids with these meanings; None where there is none.

    Raises:
        ValueError: the engine cannot read the spec, or a special id is outside the vocabulary.
    """

    kind = "hf"

    def __init__(
        self,
        spec: str,
        *,
        pad_id: int | None = None,
        unk_id: int | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        reserved: int = 0,
    ) -> None:
        super().__init__(spec, reserved)
        self._used_ids = max(self.vocabulary().values(), default=-1) + 1
        if not self._used_ids:
            raise ValueError("its vocabulary is empty, so it can encode nothing; choose another tokeniser")
        if self._used_ids > LARGEST_VOCAB:
            raise ValueError(f"its largest id is {self._used_ids - 1:,}, expected less than {LARGEST_VOCAB:,}")
        self._named = {"pad_id": pad_id, "unk_id": unk_id, "bos_id": bos_id, "eos_id": eos_id}
        for name, value in self._named.items():
            if value is not None and not (is_id(value) and value < self._used_ids):
                raise ValueError(f"{name} is {value!r}; expected an id of the vocabulary, 0 to {self._used_ids - 1}")
        added = self._engine.get_added_tokens_decoder()
        special = {index for index, token in added.items() if token.special}
        self._special = special | {index for index in self._named.values() if index is not None}

    def vocabulary(self) -> dict[str, int]:
        """The id of every token as the engine spells it."""
        return dict(self._engine.get_vocab(with_added_tokens=True))

    @cached_property
    def encoding_spec(self) -> str:
        spec = json.loads(self.spec)
        hidden = self._special - {unk_of_model(spec["model"])}
        _hide(spec, hidden)
        for token in spec.get("added_tokens") or []:
            # a file beside may name an ordinary one
            token["special"] = bool(token.get("special")) or token["id"] in hidden
        if spec["model"].get("dropout"):
            spec["model"]["dropout"] = None
        return self.spec if spec == json.loads(self.spec) else json.dumps(spec, ensure_ascii=False)

    @property
    def described(self) -> str:
        return f"{json.loads(self.spec)['model'].get('type', 'one')} from elsewhere"

    @property
    def used_ids(self) -> int:
        return self._used_ids

    @property
    def pad_id(self) -> int | None:
        return self._named["pad_id"]

    @property
    def unk_id(self) -> int | None:
        return self._named["unk_id"]

    @property
    def bos_id(self) -> int | None:
        return self._named["bos_id"]

    @property
    def eos_id(self) -> int | None:
        return self._named["eos_id"]

    @property
    def special_ids(self) -> tuple[int, ...]:
        return (*sorted(self._special), *self._reserved_ids)

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        # many decoders drop the space before the first word of a text, which is not the first word here
        start, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(start) :] if whole.startswith(start) else self.decode(ids)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """Bytes of what became unk or was left out; what a normaliser changes (case, accents) counts as kept."""
        if self.drops_text:
            encoding = self._teller.encode(text, add_special_tokens=False)
            unknown = [token == _LEFT_OUT for token in encoding.tokens]
        elif self.unk_id is None or not np.any(ids == self.unk_id):
            return 0
        else:
            encoding = self._encoder.encode(text, add_special_tokens=False)
            unknown = [index == self.unk_id for index in encoding.ids]
        lost = bytearray(len(text))  # by character: several bytes of one may be unknown
        for first, last in compress(encoding.offsets, unknown):
            lost[first:last] = b"\1" * (last - first)
        return len("".join(compress(text, lost)).encode())

    @cached_property
    def drops_text(self) -> bool:
        spec = json.loads(self.encoding_spec)
        model = spec["model"]
        if "merges" not in model or model.get("unk_token") is not None:
            return False  # other models need an unk, or fail
        steps = [step for name in ("normalizer", "pre_tokenizer") for step in _steps(spec.get(name))]
        affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        known = model["vocab"].keys()
        if "ByteLevel" in steps and not affixes and known >= set(byte_spellings()):
            return False
        return not (model.get("byte_fallback") and known >= {f"<0x{byte:02X}>" for byte in range(256)})

    @cached_property
    def _teller(self) -> Any:
        """An engine that has an unk where the tokeniser leaves something out."""
        spec = json.loads(self.encoding_spec)
        vocabulary = spec["model"]["vocab"]
        vocabulary[_LEFT_OUT] = max(vocabulary.values(), default=-1) + 1
        spec["model"] |= {"unk_token": _LEFT_OUT, "fuse_unk": False}
        return _engine_of(json.dumps(spec, ensure_ascii=False))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "spec": json.loads(self.spec), **self._named}


def unk_of_model(model: dict[str, Any]) -> int | None:
    """The id that a model gives to what it does not know; None if it has none."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return vocabulary.get(model.get("unk_token"))
    return model.get("unk_id")


def _hide(spec: dict[str, Any], ids: Iterable[int | None]) -> None:
    """Rename tokens of a model, so that it finds them in no text; no id changes."""
    model, hidden = spec["model"], set(ids)
    if isinstance(model["vocab"], list):
        lowest = min((score for _, score in model["vocab"]), default=0.0)  # what an unk costs follows from it
        names = {token: _HIDDEN.format(index) for index, (token, _) in enumerate(model["vocab"]) if index in hidden}
        model["vocab"] = [
            [names.get(token, token), lowest if token in names else score] for token, score in model["vocab"]
        ]
    else:
        names = {token: _HIDDEN.format(index) for token, index in model["vocab"].items() if index in hidden}
        model["vocab"] = {names.get(token, token): index for token, index in model["vocab"].items()}
    if names and "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        skip = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [[one, two] for one, two in pairs if not {one, two, one + two[skip:]} & names.keys()]
    for token in spec.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])


def load_tokenizer(path: Path, fingerprint: str = "") -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Args:
        fingerprint: of the tokeniser that is expected there; empty takes any.

    Raises:
        TokenizerError: for a broken file, one of another kind, and another tokeniser than expected.
    """
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if fingerprint and found != fingerprint:
        raise TokenizerError(
            f"{path}: the tokeniser's fingerprint is {found[:12]}, expected {fingerprint[:12]}: the file was changed "
            "after it was written; put the right one back, or fit a new one"
        )
    try:
        record = json.loads(data)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, expected the JSON of a tokeniser")
        return _tokenizer_of(record)
    except KeyError as error:
        raise TokenizerError(f"{path}: the tokeniser lacks {error}; the file is broken") from error
    except RecursionError as error:
        raise TokenizerError(f"{path}: its JSON is nested too deep for a tokeniser; the file is broken") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise TokenizerError(f"{path}: {error}") from error


def _tokenizer_of(record: dict[str, Any]) -> Tokenizer:
    kind, reserved = record.get("kind"), record.get("reserved", 0)
    if kind == CharTokenizer.kind:
        return CharTokenizer(record["alphabet"], reserved)
    if kind == AsciiTokenizer.kind:
        return AsciiTokenizer(reserved)
    if kind == ByteTokenizer.kind:
        return ByteTokenizer(reserved)
    if kind == WordTokenizer.kind:
        return WordTokenizer(record["vocabulary"], reserved)
    if kind == BpeTokenizer.kind:
        return BpeTokenizer(json.dumps(record["spec"], ensure_ascii=False), reserved)
    if kind == HfTokenizer.kind:
        named = {name: record[name] for name in ("pad_id", "unk_id", "bos_id", "eos_id")}
        return HfTokenizer(json.dumps(record["spec"], ensure_ascii=False), **named, reserved=reserved)
    raise ValueError(f"tokenizer kind is {kind!r}, expected char, ascii, bytes, word, bpe or hf")
