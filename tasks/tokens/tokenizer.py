"""Tokenisers behind one small interface: fit, encode, decode, save, load.

This module travels inside served models, so it imports nothing of Sheepfold. Ids 0 to 3 are pad, unk, bos and eos in
every kind. Text that looks like a special token is encoded as text: no document can forge a control token.
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

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What has to be saved, as JSON."""

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        """UTF-8 bytes of `text` that `ids` cannot give back, because they became unk."""
        return 0

    def save(self, path: Path) -> None:
        """Write the tokeniser as JSON."""
        path.write_text(json.dumps(self.record(), ensure_ascii=False, sort_keys=True), encoding="utf-8")


class CharTokenizer(Tokenizer):
    """One id per character of the training text; other characters become unk.

    Args:
        alphabet: the characters in the order of their ids, which start at 4.
    """

    kind = "char"

    def __init__(self, alphabet: str) -> None:
        if len(set(alphabet)) != len(alphabet):
            raise ValueError("the alphabet names a character twice")
        self.alphabet = alphabet
        # one look-up table over all code points: encoding is a single NumPy index
        self._table = np.full(0x110000, UNK, dtype=np.int64)
        codes = np.frombuffer(alphabet.encode("utf-32-le"), dtype=np.uint32)
        self._table[codes] = np.arange(N_SPECIAL, N_SPECIAL + len(codes))

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

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._table[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[index - N_SPECIAL] for index in ids if index >= N_SPECIAL)

    def lost_bytes(self, text: str, ids: np.ndarray) -> int:
        return sum(len(text[place].encode()) for place in np.flatnonzero(ids == UNK))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}


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


def load_tokenizer(path: Path) -> Tokenizer:
    """Read what `Tokenizer.save` wrote.

    Raises:
        ValueError: for a file of another kind.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    kind = record.get("kind")
    if kind == CharTokenizer.kind:
        return CharTokenizer(record["alphabet"])
    if kind == BpeTokenizer.kind:
        return BpeTokenizer(json.dumps(record["spec"], ensure_ascii=False))
    raise ValueError(f"{path}: tokenizer kind is {kind!r}, expected char or bpe")
