"""Analysis and changes of the JSON of Hugging Face's `tokenizers`: cuts of long texts, lost text, special tokens.

This module is copied into served models, so it imports nothing of Sheepfold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LARGEST_VOCAB = 2**24  # larger ids are an error in a file: each one needs an embedding row
# Longer texts are encoded in pieces: the library needs about a hundred times their size in memory.
PIECE_BYTES = 2**20
# Every pre-tokeniser in use cuts before a space that follows a visible character. The pattern lists the first bytes of
# UTF-8 characters, without those that may be white space.
_CUT = re.compile(
    rb"(?:[!-~]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2}|\xe3[\x81-\xbf][\x80-\xbf]|"
    rb"\xe3\x80[\x81-\xbf]|[\xf0-\xf4][\x80-\xbf]{3})(?= [^ ])"
)

# Word patterns of GPT-4, Llama 3, Qwen 2 and GPT-4o. In all of them white space begins a word or is one, and there is
# no look-behind and a look-ahead of one space: a word always ends before a space that follows a visible character.
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
# improbable spellings, for special tokens that text must not become, and for text without a token
_HIDDEN, LEFT_OUT = "\0special {}", "\0left out"

Spec = dict[str, Any]


def cut_text(data: bytes, size: int) -> Iterator[bytes]:
    """Cut UTF-8 before spaces, where byte-level tokenisers cut anyway, into pieces of `size` to 2 `size` bytes.

    Longer text without a space is cut between any two characters.
    """
    start = 0
    while len(data) - start > 2 * size:
        first, last = start + size, start + 2 * size
        found = _CUT.search(data, first, last)
        end = found.end() if found else last
        while data[end] & 0xC0 == 0x80:  # a continuation byte
            end -= 1
        yield data[start:end]
        start = end
    yield data[start:]


def library_tokenizer(spec: str) -> Any:
    """Return a Hugging Face tokeniser without truncation and padding, which encodes special tokens as ordinary text.

    Raises:
        ValueError: the library cannot read the spec.
    """
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_str(spec)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"not a tokeniser that `tokenizers` can read: {error}") from error
    found.encode_special_tokens = True
    found.no_truncation()
    found.no_padding()
    return found


def byte_level_spec(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> str:
    """Return the JSON of byte-level BPE with GPT-2's word pattern.

    Args:
        vocabulary: tokens and their ids, with bytes spelled as in `byte_spellings`.
        merges: pairs of tokens.
    """
    spelling = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": dict(vocabulary), "merges": list(merges)}
    decoder = {**spelling, "add_prefix_space": True}  # the library's default; no effect
    return json.dumps({"version": "1.0", "pre_tokenizer": spelling, "decoder": decoder, "model": model})


def cuts_before_spaces(spec: Spec) -> bool:
    """Return True if words always end before a space: by GPT-2's pattern or one of `WORD_PATTERNS`."""
    cutters = spec.get("pre_tokenizer") or {}
    added = [token for token in spec.get("added_tokens") or [] if not token.get("special")]
    match cutters.get("pretokenizers", [cutters]):
        case [{"type": "ByteLevel"} as spelling]:
            changed = spelling.get("add_prefix_space") or added or spec.get("normalizer")
            return bool(spelling.get("use_regex", True)) and not changed
        case [{"type": "Split", "behavior": "Isolated", "invert": False} as split, {"type": "ByteLevel"} as spelling]:
            plain = not (spelling.get("use_regex", True) or spelling.get("add_prefix_space", True))
            known = plain and split.get("pattern", {}).get("Regex") in WORD_PATTERNS
            # NFC never composes a space with its neighbours
            normalised = (spec.get("normalizer") or {"type": "NFC"}).get("type") == "NFC"
            return known and normalised and not any(map(_looks_around, added))
    return False


def _looks_around(token: Spec) -> bool:
    """Return True if matching an added token depends on the surrounding text, or the token contains white space."""
    options = any(token.get(option) for option in ("single_word", "lstrip", "rstrip"))
    return options or any(character.isspace() for character in token["content"])


def byte_spellings() -> list[str]:
    """Return the library's spelling of each byte: its Latin-1 character if visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    beyond = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(beyond)) for byte in range(256)]


_BYTES = {character: byte for byte, character in enumerate(byte_spellings())}


def spelled_bytes(token: str) -> bytes:
    """Return the bytes of a token in the spelling of byte-level tokenisers."""
    return bytes(_BYTES[character] for character in token)


def unk_of_model(model: Spec) -> int | None:
    """Return the unk id of a model; None if it has none."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return vocabulary.get(model.get("unk_token"))
    return model.get("unk_id")


def without_control_tokens(spec: str, special: set[int]) -> str:
    """Return a spec with the same ids whose special tokens but unk are renamed, so that text cannot become one.

    BPE dropout is disabled, so that encoding is deterministic.
    """
    changed = json.loads(spec)
    model = changed["model"]
    hidden = special - {unk_of_model(model)}
    if isinstance(model["vocab"], list):
        lowest = min((score for _, score in model["vocab"]), default=0.0)  # the score of unk is derived from it
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
    for token in changed.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
        # config files may declare an ordinary token special
        token["special"] = bool(token.get("special")) or token["id"] in hidden
    if model.get("dropout"):
        model["dropout"] = None
    return spec if changed == json.loads(spec) else json.dumps(changed, ensure_ascii=False)


def drops_text(spec: Spec) -> bool:
    """Return True if encoding may drop parts of a text without an unk token."""
    model = spec["model"]
    if "merges" not in model or model.get("unk_token") is not None:
        return False  # other models use unk or fail
    steps = [step for name in ("normalizer", "pre_tokenizer") for step in _steps(spec.get(name))]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    known = model["vocab"].keys()
    if "ByteLevel" in steps and not affixes and known >= set(byte_spellings()):
        return False
    return not (model.get("byte_fallback") and known >= {f"<0x{byte:02X}>" for byte in range(256)})


def _steps(cutters: Spec | None) -> list[str]:
    """Return the types of a normaliser or pre-tokeniser and of its parts."""
    within = [*(cutters or {}).get("pretokenizers", []), *(cutters or {}).get("normalizers", [])]
    return [(cutters or {}).get("type", ""), *(step for part in within for step in _steps(part))]


def with_left_out(spec: Spec) -> str:
    """Return a spec that emits the token `LEFT_OUT` for text that the tokeniser drops."""
    vocabulary = {**spec["model"]["vocab"]}
    vocabulary[LEFT_OUT] = max(vocabulary.values(), default=-1) + 1
    model = {**spec["model"], "vocab": vocabulary, "unk_token": LEFT_OUT, "fuse_unk": False}
    return json.dumps({**spec, "model": model}, ensure_ascii=False)
