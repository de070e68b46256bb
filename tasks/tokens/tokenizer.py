"""Tokenisers behind one small interface: fit, encode, decode, save, load.

This module travels inside served models, so it imports nothing of Sheepfold. Ids 0 to 3 are pad, unk, bos and eos in
every kind that is fitted here; a tokeniser from elsewhere says which are its own. Text that looks like a special token
is encoded as text: no document can forge a control token.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PAD, UNK, BOS, EOS = 0, 1, 2, 3
N_SPECIAL = 4
SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|bos|>", "<|eos|>")
TOKENIZER_FILE = "tokenizer.json"

# GPT-2's rule for cutting text into words; `tokenizers` runs it natively as part of its byte-level pre-tokeniser.
MIN_BPE_VOCAB = 256 + N_SPECIAL


class Tokenizer(ABC):
    """Text to ids and back."""

    kind: str

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text (1-D int64), without bos and eos."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ids give nothing."""

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Text that ids add to the text of the ids before them."""
        return self.decode(ids)

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What has to be saved, as JSON."""

    @property
    def pad_id(self) -> int | None:
        """Id that fills up short sequences; None if there is none (as for the next three)."""
        return PAD

    @property
    def unk_id(self) -> int | None:
        """Id of what has no id."""
        return UNK

    @property
    def bos_id(self) -> int | None:
        """Id that begins a document."""
        return BOS

    @property
    def eos_id(self) -> int | None:
        """Id that ends a document."""
        return EOS

    @property
    def start_id(self) -> int | None:
        """What a text begins with: bos, or else eos, which stands between texts; None where there is neither."""
        return self.eos_id if self.bos_id is None else self.bos_id

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that stand for no text, in ascending order."""
        return tuple(range(N_SPECIAL))

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """UTF-8 bytes of `text` that `ids` cannot give back, because they became unk."""
        return 0

    def save(self, path: Path) -> None:
        """Write the tokeniser as JSON."""
        path.write_text(json.dumps(self.record(), ensure_ascii=False, sort_keys=True), encoding="utf-8")


class _TableTokenizer(Tokenizer):
    """One id per character by a look-up table over all code points: encoding is a single NumPy index.

    Args:
        codes: code points of the characters with an id of their own; all others become unk.
        ids: their ids.
    """

    def __init__(self, codes: np.ndarray, ids: np.ndarray) -> None:
        self._table = np.full(0x110000, UNK, dtype=np.int64)
        self._table[codes] = ids

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._table[_code_points(text)] for text in texts]

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(text[place].encode()) for place in np.flatnonzero(ids == UNK))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


class CharTokenizer(_TableTokenizer):
    """One id per character of the training text; other characters become unk.

    Args:
        alphabet: the characters in the order of their ids, which start at 4.
    """

    kind = "char"

    def __init__(self, alphabet: str) -> None:
        if len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet names a character twice")
        self.alphabet = alphabet
        super().__init__(_code_points(alphabet), np.arange(N_SPECIAL, N_SPECIAL + len(alphabet)))

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int = 0) -> CharTokenizer:
        """Alphabet of the texts: all characters, or the most frequent ones when `vocab_size` limits them.

        Raises:
            ValueError: if the limit leaves no room for a character.
        """
        if vocab_size and vocab_size <= N_SPECIAL:
            raise ValueError(f"vocab_size is {vocab_size}; {N_SPECIAL} ids are special, so at least 5 are needed")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        ranked = sorted(counts, key=lambda char: (-counts[char], char))
        chosen = ranked[: vocab_size - N_SPECIAL] if vocab_size else ranked
        return cls("".join(sorted(chosen)))

    @property
    def vocab_size(self) -> int:
        return N_SPECIAL + len(self.alphabet)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[index - N_SPECIAL] for index in ids if index >= N_SPECIAL)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}


class AsciiTokenizer(_TableTokenizer):
    """The ASCII code of a character is its id; nothing is fitted, so ids are the same in every project.

    Characters beyond ASCII become unk, and so do the control characters 0 to 3, whose ids are the special tokens'.
    """

    kind = "ascii"
    vocab_size = 128

    def __init__(self) -> None:
        codes = np.arange(N_SPECIAL, self.vocab_size)
        super().__init__(codes, codes)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(index) for index in ids if index >= N_SPECIAL)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind}


class BpeTokenizer(Tokenizer):
    """Byte-level byte-pair encoding by Hugging Face's `tokenizers`; no text is ever lost.

    Args:
        spec: the engine's own JSON.
    """

    kind = "bpe"

    def __init__(self, spec: str) -> None:
        from tokenizers import Tokenizer as Engine

        self._spec = spec
        self._engine = Engine.from_str(spec)
        # text that spells a special token is ordinary text
        self._engine.encode_special_tokens = True

    @classmethod
    def fit(cls, texts: Iterable[str], vocab_size: int) -> BpeTokenizer:
        """Learn merges until there are `vocab_size` ids (fewer when the text is too short for so many)."""
        from tokenizers import Tokenizer as Engine
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if vocab_size < MIN_BPE_VOCAB:
            raise ValueError(f"vocab_size is {vocab_size}; byte-level BPE needs at least {MIN_BPE_VOCAB}")
        engine = Engine(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        engine.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        engine.train_from_iterator(texts, trainer=trainer)
        return cls(engine.to_str())

    @property
    def vocab_size(self) -> int:
        return int(self._engine.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._engine.decode([int(index) for index in ids if index >= N_SPECIAL], skip_special_tokens=False))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "spec": json.loads(self._spec)}


class HfTokenizer(Tokenizer):
    """A tokeniser from elsewhere, run by Hugging Face's `tokenizers`; its special ids are its own, and may be absent.

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
    ) -> None:
        from tokenizers import Tokenizer as Engine

        self._spec = spec
        try:
            self._engine = Engine.from_str(spec)
        except Exception as error:  # the engine raises nothing narrower
            raise ValueError(f"not a tokeniser that `tokenizers` can read: {error}") from error
        # text that spells a special token is ordinary text; every text is encoded whole and alone
        self._engine.encode_special_tokens = True
        self._engine.no_truncation()
        self._engine.no_padding()
        self._vocab_size = max(self.vocabulary().values(), default=-1) + 1
        self._named = {"pad_id": pad_id, "unk_id": unk_id, "bos_id": bos_id, "eos_id": eos_id}
        for name, value in self._named.items():
            if value is not None and not 0 <= value < self._vocab_size:
                raise ValueError(f"{name} is {value}; expected an id of the vocabulary, 0 to {self._vocab_size - 1}")
        added = self._engine.get_added_tokens_decoder()
        special = {index for index, token in added.items() if token.special}
        self._special = frozenset(special | {index for index in self._named.values() if index is not None})

    def vocabulary(self) -> dict[str, int]:
        """The id of every token as the engine spells it."""
        return dict(self._engine.get_vocab(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

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
        return tuple(sorted(self._special))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        kept = [int(index) for index in ids if index not in self._special]
        return str(self._engine.decode(kept, skip_special_tokens=False))

    def decode_continuation(self, before: Sequence[int], ids: Sequence[int]) -> str:
        # many decoders drop the space before the first word of a text, which is not the first word here
        start, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(start) :] if whole.startswith(start) else self.decode(ids)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """Bytes of the stretches that became unk; what a normaliser changes (case, accents) counts as kept."""
        if self.unk_id is None or not np.any(ids == self.unk_id):
            return 0
        encoding = self._engine.encode(text, add_special_tokens=False)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        return sum(len(text[first:last].encode()) for index, (first, last) in places if index == self.unk_id)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "spec": json.loads(self._spec), **self._named}


def load_tokenizer(path: Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises:
        ValueError: for a file of another kind.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    kind = record.get("kind")
    if kind == CharTokenizer.kind:
        return CharTokenizer(record["alphabet"])
    if kind == AsciiTokenizer.kind:
        return AsciiTokenizer()
    if kind == BpeTokenizer.kind:
        return BpeTokenizer(json.dumps(record["spec"], ensure_ascii=False))
    if kind == HfTokenizer.kind:
        named = {name: record[name] for name in ("pad_id", "unk_id", "bos_id", "eos_id")}
        return HfTokenizer(json.dumps(record["spec"], ensure_ascii=False), **named)
    raise ValueError(f"{path}: tokenizer kind is {kind!r}, expected char, ascii, bpe or hf")
