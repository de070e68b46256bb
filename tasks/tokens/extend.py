"""Extension of a byte-pair encoding by pieces of other text: further merges, ranked behind those of the base.

Merges are learned as in the training of byte-pair encoding, but over the ids that the base gives. They are applied when
no merge of the base applies any more, so the ids of a text change only by being joined.
"""

from __future__ import annotations

import heapq
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from storage.errors import UserError
from tasks.text.words import bundles
from tasks.tokens.hf_spec import LARGEST_VOCAB, Spec, cut_text, library_tokenizer
from tasks.tokens.tokenizer_kinds import LibraryTokenizer, Tokenizer

MEASURED_EVERY = 10  # every tenth text is measured and not counted
LEAST_COUNT = 2  # occurrences of a pair that is merged
UNIT_BYTES = 2**16  # longer texts are cut, because `tokenizers` parallelises over texts
BATCH_BYTES = 2**20  # text per call of `tokenizers`
_SPACE = "\u2581"  # of tokenisers without a pattern of words
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_GROUPS = {"M": "L", "S": "P"}  # of the general categories of Unicode: marks are letters, symbols punctuation


class ExtendError(UserError):
    """A tokeniser that cannot be extended."""


@dataclass(frozen=True)
class Extended:
    """An extended tokeniser.

    Attributes:
        n_pieces: number of new ids; short texts give fewer than asked for.
        measured: sentence on bytes per token before and after.
    """

    tokenizer: LibraryTokenizer
    n_pieces: int
    measured: str


def check_extendable(tokenizer: Tokenizer, n_pieces: int) -> LibraryTokenizer:
    """Return the tokeniser if pieces can be added to it.

    Raises:
        ExtendError: it is no byte-pair encoding, does not cut words, or would have too many ids.
    """
    remedy = "leave tokenizer.extend out, or choose another base"
    if not isinstance(tokenizer, LibraryTokenizer) or "merges" not in json.loads(tokenizer.spec)["model"]:
        raise ExtendError(
            f"tokenizer.extend adds merges to byte-pair encoding, but the tokeniser is of kind {tokenizer.described}; "
            + remedy
        )
    if _cuts_words(tokenizer) is None:
        raise ExtendError(
            "tokenizer.extend learns pieces within words, but the tokeniser neither cuts text into words nor marks "
            f"spaces by {_SPACE}; {remedy}"
        )
    if tokenizer.used_ids + n_pieces > LARGEST_VOCAB:
        raise ExtendError(
            f"tokenizer.extend is {n_pieces:,}, which gives {tokenizer.used_ids + n_pieces:,} ids, expected at most "
            f"{LARGEST_VOCAB:,}; give fewer"
        )
    return tokenizer


def extend_tokenizer(base: Tokenizer, texts: Sequence[bytes], n_pieces: int) -> Extended:
    """Add the pieces that shorten texts most, as byte-pair encoding finds them.

    New ids follow all ids in use, and take reserved ones first. Never joined are special ids, those of bytes under byte
    fallback, and pairs whose spelling is in the vocabulary already.

    Args:
        texts: UTF-8; every tenth is not counted, and measured.

    Raises:
        ExtendError: see `check_extendable`.
    """
    known = check_extendable(base, n_pieces)
    aside = texts[MEASURED_EVERY - 1 :: MEASURED_EVERY]
    counted = [text for number, text in enumerate(texts, 1) if number % MEASURED_EVERY] if aside else texts
    spec = json.loads(known.spec)
    joining = _Joining(known, spec, count_words(known, counted))
    extended = _with_merges(known, spec, joining.learn(n_pieces))
    where = f"{len(aside):,} documents that were not counted" if aside else "the same documents, as they are few"
    before, after = (_bytes_per_token(one, aside or texts) for one in (known, extended))
    measured = f"{before:.3f} bytes per token become {after:.3f} on {where}"
    return Extended(extended, extended.used_ids - known.used_ids, measured)


def parts_of_new_ids(base: Tokenizer, extended: Tokenizer) -> list[tuple[int, list[int]]]:
    """Return each new id of an extended tokeniser with the ids of the base that it replaces; empty for the base."""
    first, parts = base.used_ids, dict[int, list[int]]()
    if extended.used_ids <= first or not isinstance(extended, LibraryTokenizer):
        return []
    model = json.loads(extended.spec)["model"]
    for pair in _merges(model):
        index = model["vocab"][_joined(model, *pair)]
        if index >= first:
            ids = [model["vocab"][token] for token in pair]
            parts[index] = [part for one in ids for part in parts.get(one, [one])]
    return sorted(parts.items())


def count_words(tokenizer: LibraryTokenizer, texts: Iterable[bytes]) -> Counter[bytes]:
    """Return the words of texts as their ids (uint32 as bytes), with occurrences."""
    engine = library_tokenizer(tokenizer.encoding_spec)
    cut = None if _cuts_words(tokenizer) else _Cuts(json.loads(tokenizer.spec)["model"]["vocab"], tokenizer.used_ids)
    counts: Counter[bytes] = Counter()
    units = (unit for text in texts for unit in cut_text(text, UNIT_BYTES))
    for batch in bundles(units, len, BATCH_BYTES):
        for found in engine.encode_batch([unit.decode() for unit in batch], add_special_tokens=False):
            ids, words = np.array(found.ids, np.uint32), np.array(found.word_ids)
            ends = words[1:] != words[:-1]
            if cut is not None:
                ends |= cut.between(ids[:-1], ids[1:])
            data, places = ids.tobytes(), [0, *(4 * (np.flatnonzero(ends) + 1)).tolist(), 4 * len(ids)]
            counts.update(data[start:end] for start, end in pairwise(places))
    del counts[b""]
    return counts


def _cuts_words(tokenizer: LibraryTokenizer) -> bool | None:
    """Return True if a tokeniser cuts words before it encodes, False if it only marks spaces, None for neither."""
    found = library_tokenizer(tokenizer.spec)
    probe = "one two"
    text = probe if found.normalizer is None else found.normalizer.normalize_str(probe)
    words = [(text, (0, len(text)))] if found.pre_tokenizer is None else found.pre_tokenizer.pre_tokenize_str(text)
    if len(words) > 1:
        return True
    return False if words and _SPACE in words[0][0] else None


class _Cuts:
    """Ends of words where a tokeniser marks spaces only: as SentencePiece cuts them, by space, letters and digits.

    Args:
        vocabulary: ids of tokens.
        n_ids: number of ids.
    """

    def __init__(self, vocabulary: Mapping[str, int], n_ids: int) -> None:
        groups = {_SPACE: 0}
        self._head, self._tail = np.zeros((2, n_ids), np.int16)
        self._is_space, self._is_digit = np.zeros((2, n_ids), bool)
        for token, index in vocabulary.items():
            head, tail = (
                _SPACE if end == _SPACE else _GROUPS.get(kind := unicodedata.category(end)[0], kind)
                for end in (token[:1] or "?", token[-1:] or "?")
            )
            self._head[index], self._tail[index] = (groups.setdefault(group, len(groups)) for group in (head, tail))
            self._is_space[index], self._is_digit[index] = not token.strip(_SPACE), tail == "N"
        self._joins_digits = any(re.search(r"\d\d", token) for token in vocabulary if not _BYTE.fullmatch(token))

    def between(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return True where a word ends between two neighbouring ids; arrays (n,)."""
        spaces = self._is_space[left] & self._is_space[right]
        ends = (self._head[right] == 0) & ~spaces
        ends |= (self._tail[left] != 0) & (self._tail[left] != self._head[right])
        if not self._joins_digits:
            ends |= self._is_digit[left] & self._is_digit[right]
        return ends


class _Joining:
    """Words as ids, and the counts of their neighbours, kept up to date from merge to merge."""

    def __init__(self, base: LibraryTokenizer, spec: Spec, words: Mapping[bytes, int]) -> None:
        self._model, self._first = spec["model"], base.used_ids
        self._spelled = base.vocabulary()
        # ids that may be joined; added tokens are words of their own
        kept_out, bytes_alone = set(base.special_ids), self._model.get("byte_fallback")
        self._tokens = {
            index: token
            for token, index in self._model["vocab"].items()
            if index not in kept_out and not (bytes_alone and _BYTE.fullmatch(token))
        }
        self._words = [np.frombuffer(word, np.uint32).tolist() for word in words]
        self._times = list(words.values())
        self._counts: Counter[tuple[int, int]] = Counter()
        self._where: dict[tuple[int, int], set[int]] = defaultdict(set)
        for number, word in enumerate(self._words):
            self._add(number, word)
        self._queue = [(-count, *pair) for pair, count in self._counts.items()]
        heapq.heapify(self._queue)

    def learn(self, n_pieces: int) -> list[tuple[str, str]]:
        """Return at most so many merges; of equally frequent pairs the one of lowest ids comes first."""
        merges: list[tuple[str, str]] = []
        while self._queue and len(merges) < n_pieces:
            negative, *pair_ = heapq.heappop(self._queue)
            pair = (pair_[0], pair_[1])
            count = self._counts[pair]
            if count < LEAST_COUNT or not self._tokens.keys() >= set(pair):
                continue
            if count != -negative:
                heapq.heappush(self._queue, (-count, *pair))
                continue
            one, two = self._tokens[pair[0]], self._tokens[pair[1]]
            piece = _joined(self._model, one, two)
            if piece in self._spelled:
                continue
            new = self._first + len(merges)
            merges.append((one, two))
            self._tokens[new] = piece
            self._spelled[piece] = new
            self._join(pair, new)
        return merges

    def _join(self, pair: tuple[int, int], new: int) -> None:
        made = set()
        for number in self._where.pop(pair):
            word = self._words[number]
            joined = _join_in(word, pair, new)
            if len(joined) < len(word):
                self._replace(number, joined)
                made |= {near for near in pairwise(joined) if new in near}
        for near in made:
            heapq.heappush(self._queue, (-self._counts[near], *near))

    def _replace(self, number: int, word: list[int]) -> None:
        for pair in pairwise(self._words[number]):
            self._counts[pair] -= self._times[number]
        self._words[number] = word
        self._add(number, word)

    def _add(self, number: int, word: Sequence[int]) -> None:
        for pair in pairwise(word):
            self._counts[pair] += self._times[number]
            self._where[pair].add(number)


def _join_in(word: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """Return a word with a pair joined from left to right."""
    joined: list[int] = []
    place = 0
    while place < len(word):
        is_pair = tuple(word[place : place + 2]) == pair
        joined.append(new if is_pair else word[place])
        place += 2 if is_pair else 1
    return joined


def _joined(model: Spec, one: str, two: str) -> str:
    """Return the token of a merge."""
    return one + two[len(model.get("continuing_subword_prefix") or "") :]


def _merges(model: Spec) -> list[list[str]]:
    """Return the merges of a model as pairs; older files have them as strings."""
    return [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in model["merges"]]


def _with_merges(base: LibraryTokenizer, spec: Spec, merges: Sequence[tuple[str, str]]) -> LibraryTokenizer:
    """Return a tokeniser with further merges, whose tokens have the next ids."""
    model = spec["model"]
    # with the added tokens, to which the library would otherwise give the ids behind the vocabulary anew
    new = {_joined(model, *pair): base.used_ids + number for number, pair in enumerate(merges)}
    model = {**model, "vocab": base.vocabulary() | new, "merges": [*_merges(model), *map(list, merges)]}
    more: dict[str, Any] = {name: getattr(base, name) for name in base.parts if name != "spec"}
    written = json.dumps({**spec, "model": model}, ensure_ascii=False)
    return type(base)(written, **more, reserved=max(0, base.reserved - len(merges)))


def _bytes_per_token(tokenizer: Tokenizer, texts: Sequence[bytes]) -> float:
    units = (unit for text in texts for unit in cut_text(text, UNIT_BYTES))
    tokens = sum(
        sum(map(len, tokenizer.encode([unit.decode() for unit in batch]))) for batch in bundles(units, len, BATCH_BYTES)
    )
    return sum(map(len, texts)) / max(tokens, 1)
