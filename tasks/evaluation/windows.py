"""Evaluation documents in a model's ids, and the windows from which each id is predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from storage.errors import UserError
from tasks.tokens.packing import chunk_pieces
from tasks.tokens.tokenise import TokeniseSettings, encode_document
from tasks.training.bundle import Bundle


@dataclass(frozen=True)
class EncodedDocuments:
    """Evaluation documents in a model's ids.

    Attributes:
        ids: one flat array, documents one after the other (bos, ids, eos, as far as training had them).
        lengths: (n,) ids of each document.
        n_bytes, n_chars: (n,) UTF-8 bytes and characters of each text.
        lost_bytes: (n,) bytes that the tokeniser cannot give back.
        given: (n,) bool, documents whose first id is text: nothing predicts it.
    """

    ids: np.ndarray
    lengths: np.ndarray
    n_bytes: np.ndarray
    n_chars: np.ndarray
    lost_bytes: np.ndarray
    given: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """(n,) first id of each document; one without an id begins where the next one does, or behind the end."""
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def owner(self) -> np.ndarray:
        """(N,) document of each id."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class Windows:
    """Windows of a flat array of ids, none of which reaches into another document.

    Attributes:
        start: (w,) first id.
        length: (w,) ids, the one to look ahead among them.
        first: (w,) place in the window of the first id that is predicted in it; all behind it are, too.
    """

    start: np.ndarray
    length: np.ndarray
    first: np.ndarray


def encode_documents(bundle: Bundle, texts: Sequence[str]) -> EncodedDocuments:
    """Encode whole documents as they were encoded for the model's training."""
    framing = TokeniseSettings(bundle.bos, bundle.eos)
    pieces, lost, given = [np.zeros(0, dtype=np.int64)], [], []
    for text, ids in zip(texts, bundle.tokenizer.encode(list(texts)), strict=True):
        sequence, lost_here = encode_document(bundle.tokenizer, text, ids, framing)
        pieces.append(sequence)
        lost.append(lost_here)
        given.append(bundle.start_id is None and len(ids) > 0)
    return EncodedDocuments(
        ids=np.concatenate(pieces),
        lengths=np.array([len(piece) for piece in pieces[1:]], dtype=np.int64),
        n_bytes=np.array([len(text.encode()) for text in texts], dtype=np.int64),
        n_chars=np.array([len(text) for text in texts], dtype=np.int64),
        lost_bytes=np.array(lost, dtype=np.int64),
        given=np.array(given, dtype=bool),
    )


def windows_of(documents: EncodedDocuments, seq_len: int, stride: int = 0) -> Windows:
    """Windows of `seq_len` ids every `stride` ids of each document.

    Every id but a document's first is predicted exactly once: in the first window that reaches it. So all but the ids
    of a document's first window have more than seq_len - stride ids of context.

    Args:
        seq_len: inputs of a window at most.
        stride: 0 means `seq_len`: windows that do not overlap, of which each begins without context.

    Raises:
        UserError: the stride is longer than a window.
    """
    stride = stride or seq_len
    if stride > seq_len:
        raise UserError(
            f"evaluate.stride is {stride}, but the model reads {seq_len} ids at once, so some would be left out: give "
            f"1 to {seq_len}, or 0 for windows that do not overlap"
        )
    pieces = chunk_pieces(documents.lengths, seq_len, stride)
    first = np.where(pieces.start > 0, seq_len - stride + 1, 1)
    return Windows(documents.starts[pieces.document] + pieces.start, pieces.length.astype(np.int64), first)


def predicted_places(documents: EncodedDocuments) -> np.ndarray:
    """(N,) bool, which ids are predicted: all but each document's first."""
    keep = np.ones(len(documents.ids), dtype=bool)
    keep[documents.starts[documents.lengths > 0]] = False
    return keep


def charged_nats(bundle: Bundle, documents: EncodedDocuments) -> np.ndarray:
    """(n,) nats for ids which nothing predicts: without them, models that begin bare would win."""
    return np.asarray(documents.given * math.log(bundle.tokenizer.vocab_size))
