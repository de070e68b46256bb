"""The language of a text, by the classifier that py3langid carries in its wheel.

The classifier walks an automaton over the bytes of a text, one step of Python a byte, which would cost more than all
other measures together. Here the automaton walks over many texts in step, one array operation a byte; features, model
and probabilities are py3langid's own. Only an excerpt is read: the beginning of the text and a piece of its middle.

The wheel holds the model packed so tightly that unpacking takes a second and 70 MB in every process. Unpacked arrays
are kept in a folder that may be deleted at any time, and mapped from there: processes share them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNDETERMINED = "und"
EXCERPT_CHARS = 1_000  # from the beginning, and again from the middle
MIN_LETTERS = 20
MIN_CONFIDENCE = 0.5
_STRIDE = 256  # bytes that are walked in one go; a feature across a seam is lost, one in a hundred or so


@dataclass(frozen=True)
class Automaton:
    """The classifier's tables as arrays.

    Attributes:
        rows: offset into `moves` of each state.
        moves: state after each byte.
        output: feature that a state stands for, or -1.
        weights: a row per feature, a column per language.
        bias: of each language.
        languages: ISO 639-1 codes; one may occur twice.
        merged: for each column, the one that stands for its language.
    """

    rows: npt.NDArray[np.int64]
    moves: npt.NDArray[np.uint32]
    output: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float16]
    bias: npt.NDArray[np.float32]
    languages: list[str]
    merged: npt.NDArray[np.int64]


_ARRAYS = ("rows", "moves", "output", "weights", "bias")
_LANGUAGES = "languages.json"
_folders: list[Path] = []  # to take the model from
_keeping: list[Path] = []  # to keep it in


def look_in(folder: Path, keep: bool) -> None:
    """Take the model from now on out of this folder, where it is there.

    Args:
        keep: whether one that had to be unpacked is kept there: 70 MB, for who will need it again.
    """
    _folders[:] = [folder / f"py3langid-{version('py3langid')}"]
    _keeping[:] = _folders if keep else []


@lru_cache(maxsize=1)
def automaton() -> Automaton:
    """The model, read at the first use (a second where it is not kept)."""
    for folder in _folders:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged
            return _mapped(folder)
    model = _unpacked()
    for folder in _keeping:
        with contextlib.suppress(OSError):  # where it cannot be kept, a later process unpacks it again
            _keep(model, folder)
    return model


def _unpacked() -> Automaton:
    """The model as the wheel has it."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    moves = np.asarray(model.tk_nextmove)
    return _automaton(
        list(model.nb_classes),
        rows=np.asarray(model.tk_row).astype(np.int64) << 8,
        moves=moves if moves.dtype == np.uint32 else moves.astype(np.uint32),
        output=np.asarray(model.tk_output, dtype=np.int32),
        weights=model.nb_ptc,
        bias=model.nb_pc,
    )


def _automaton(languages: list[str], **arrays: Any) -> Automaton:
    merged = np.array([languages.index(name) for name in languages])
    return Automaton(**arrays, languages=languages, merged=merged)


def _mapped(folder: Path) -> Automaton:
    """The model from the folder that keeps it."""
    arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS}
    return _automaton(json.loads((folder / _LANGUAGES).read_text(encoding="utf-8")), **arrays)


def _keep(model: Automaton, folder: Path) -> None:
    """Write a model whole: other processes may do the same, or read already."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        unfinished = Path(place) / folder.name
        unfinished.mkdir()
        for name in _ARRAYS:
            np.save(unfinished / f"{name}.npy", getattr(model, name), allow_pickle=False)
        (unfinished / _LANGUAGES).write_text(json.dumps(model.languages), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # what could not be read
        unfinished.rename(folder)


def excerpt(text: str) -> str:
    """What the language is judged by: the whole of a short text, else its beginning and a piece of its middle."""
    if len(text) <= 2 * EXCERPT_CHARS:
        chosen = text
    else:
        middle = max(EXCERPT_CHARS, (len(text) - EXCERPT_CHARS) // 2)
        chosen = text[:EXCERPT_CHARS] + "\n" + text[middle : middle + EXCERPT_CHARS]
    return unicodedata.normalize("NFC", chosen.lower() if chosen.isupper() else chosen)


def identify(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Language of each text and the classifier's confidence in it, 0 to 1.

    A text with fewer than 20 letters is `und` with confidence 0; one that the classifier is less than half sure of is
    `und` with that confidence.
    """
    excerpts = [excerpt(text) for text in texts]
    judged = [number for number, part in enumerate(excerpts) if _has_letters(part)]
    answers = [(UNDETERMINED, 0.0)] * len(texts)
    if not judged:
        return answers
    data = [excerpts[number].encode("utf-8", "surrogatepass") for number in judged]
    met = _features(data)
    # texts share most of their features: each one's weights are widened once
    n_features = len(automaton().weights)
    present = np.zeros(n_features, dtype=np.bool_)
    for features, _ in met:
        present[features] = True
    place = np.cumsum(present) - 1
    weights = automaton().weights[present].astype(np.float32)
    for number, part, (features, counts) in zip(judged, data, met, strict=True):
        if len(features):
            answers[number] = _classify(weights[place[features]], counts, len(part))
    return answers


def _has_letters(text: str) -> bool:
    if len(text) < MIN_LETTERS:
        return False
    head = text[: 4 * MIN_LETTERS]
    return sum(map(str.isalpha, head)) >= MIN_LETTERS or sum(map(str.isalpha, text)) >= MIN_LETTERS


def _features(data: Sequence[bytes]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features of each text in ascending order, and how often each occurs."""
    model = automaton()
    pieces = [(number, at) for number, part in enumerate(data) for at in range(0, len(part), _STRIDE)]
    # long pieces first: those still walked are then always the first ones
    pieces.sort(key=lambda piece: -min(_STRIDE, len(data[piece[0]]) - piece[1]))
    lengths = np.array([min(_STRIDE, len(data[number]) - at) for number, at in pieces])
    letters = np.zeros((len(pieces), _STRIDE), dtype=np.uint8)
    for row, (number, at) in enumerate(pieces):
        part = data[number][at : at + _STRIDE]
        letters[row, : len(part)] = np.frombuffer(part, dtype=np.uint8)
    letters = np.ascontiguousarray(letters.T)
    active = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left").tolist()
    states = np.zeros(len(pieces), dtype=np.int64)
    met = np.full((len(active), len(pieces)), -1, dtype=np.int32)
    for step, n in enumerate(active):
        walking = states[:n]
        moved = model.moves[model.rows[walking] + letters[step, :n]]
        states[:n] = moved
        met[step, :n] = model.output[moved]
    owners = np.broadcast_to(np.array([number for number, _ in pieces], dtype=np.int64), met.shape)
    found = met >= 0
    keys, counts = np.unique(owners[found] * len(model.weights) + met[found], return_counts=True)
    bounds = np.searchsorted(keys, np.arange(len(data) + 1) * len(model.weights))
    features = keys % len(model.weights)
    owns = [slice(first, last) for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    return [(features[own], counts[own]) for own in owns]


def _classify(weights: np.ndarray, counts: np.ndarray, n_bytes: int) -> tuple[str, float]:
    """Naive Bayes over logarithmic counts; scores are divided by the square root of the length, as py3langid does.

    Args:
        weights: a row for each feature that occurs.
        counts: how often it does.
        n_bytes: length of what was read.
    """
    model = automaton()
    scores = np.log1p(counts.astype(np.float32)) @ weights + model.bias
    scores /= np.sqrt(np.float32(n_bytes))
    chances = np.exp(scores - scores.max())
    chances = np.bincount(model.merged, weights=chances / chances.sum(), minlength=len(chances))
    best = int(chances.argmax())
    confidence = round(float(chances[best]), 3)
    return (model.languages[best] if confidence >= MIN_CONFIDENCE else UNDETERMINED), confidence
