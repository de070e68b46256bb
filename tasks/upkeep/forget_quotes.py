"""Quotations of forgotten documents: prompts, samples of trainings, texts from outside, pages beside MLflow runs."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.home import Home
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE
from storage.store import Store
from storage.tables import read_columns
from storage.tombstones import Tombstones
from tasks.generation.prompts import SAMPLED_ID
from tasks.text.minhash import gram_hashes
from tasks.text.words import U64
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.training.telemetry import SAMPLES_FILE, log_samples, read_notes
from tasks.upkeep.rewriting import among

if TYPE_CHECKING:
    from storage.tracking import Tracking

TRAIN = "train"
PAGES = (".html", ".md")  # beside a run; they quote documents
# a prompt this long that stands in a document is taken to be from it; a letter of the scripts from `_DENSE` on, which
# put no space between words, says as much as three others
QUOTING_WORDS, QUOTING_LETTERS = 5, 24
_DENSE = "\u0e00"


@dataclass
class Quotes:
    """Artefacts that quote forgotten documents.

    Attributes:
        prompts: Lists of prompts that quote one, or were drawn from it.
        outside: Sets of texts from outside that hold one: its bytes, or a 13-gram of it.
        samples: Prompts of the samples that quote one, by the training's key.
    """

    prompts: list[Manifest] = field(default_factory=list)
    outside: list[Manifest] = field(default_factory=list)
    samples: dict[str, set[str]] = field(default_factory=dict)


def find_quotes(store: Store, refs: Collection[ArtifactRef], forgotten: Tombstones) -> Quotes:
    """Return what quotes forgotten documents.

    Args:
        refs: Artefacts with texts of the documents, of which one at a time is held.
    """
    lists = [(found, *_ids_and_lines(store, found)) for found in store.manifests("prompts")]
    lines = set[str]().union(*(own for _, _, own in lists))
    outside = list(store.manifests("texts"))
    drawn, spoken, tokenizers = _drawn(store)
    quoted: set[str] = set()
    samples: dict[str, set[str]] = {key: set() for key in drawn}
    grams = [np.empty(0, np.uint64)]
    for text in _texts(store, refs, forgotten) if lines or outside or drawn else ():
        line, letters = _line(text), _letters(text)
        quoted |= {one for one in lines - quoted if one in line}
        # a sample's prompt is what its tokeniser gave back of a document: what that does not know is missing from it
        read = {digest: _letters(one.decode(one.encode([text])[0].tolist())) for digest, one in tokenizers.items()}
        for key, prompts in drawn.items():
            forms = (letters, read.get(spoken[key], ""))
            samples[key] |= {prompt for prompt in prompts - samples[key] if _stands(prompt, line, forms)}
        if outside:
            grams.append(gram_hashes([text]).values)
    known = np.unique(np.concatenate(grams))
    names = {doc_id[:SAMPLED_ID] for doc_id in forgotten.documents}
    return Quotes(
        prompts=[found for found, ids, own in lists if ids & names or own & quoted],
        outside=[found for found in outside if _holds(store, found, forgotten, known)],
        samples={key: prompts for key, prompts in samples.items() if prompts},
    )


def _texts(store: Store, refs: Iterable[ArtifactRef], forgotten: Tombstones) -> Iterator[str]:
    """Yield texts of the forgotten documents; documents with forgotten bytes have a tombstone too."""
    for ref in sorted(refs):
        with pq.ParquetFile(store.folder(ref) / DOCUMENTS_FILE) as file:
            for group in range(file.num_row_groups):
                chosen = among(file.read_row_group(group, columns=["doc_id"])["doc_id"], forgotten.documents)
                if pc.any(chosen).as_py():
                    table = file.read_row_group(group, columns=["text"])
                    yield from (value.as_py() for value in table.filter(chosen)["text"])


def _ids_and_lines(store: Store, prompts: Manifest) -> tuple[set[str], set[str]]:
    """Return the ids of a list of prompts, and its lines that are long enough to be quotations."""
    rows = read_columns(store.folder(prompts.ref) / "prompts.parquet", ["id", "prompt"])
    return set(map(str, rows["id"])), {line for line in map(_line, rows["prompt"]) if _is_long(line)}


def _is_long(line: str) -> bool:
    letters = sum(3 if letter >= _DENSE and letter.isalpha() else 1 for letter in line)
    return letters >= QUOTING_LETTERS or len(line.split()) >= QUOTING_WORDS


def _drawn(store: Store) -> tuple[dict[str, set[str]], dict[str, str], dict[str, Tokenizer]]:
    """Return prompts of samples and the digest of the tokeniser's file by training, and the tokenisers by digest."""
    drawn: dict[str, set[str]] = {}
    spoken: dict[str, str] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for training in store.manifests(TRAIN):
        folder = store.folder(training.ref)
        if prompts := {sample.prompt for sample in read_notes(folder).samples}:
            digest = next((entry.sha256 for entry in training.files if entry.name == TOKENIZER_FILE), "")
            drawn[training.key], spoken[training.key] = prompts, digest
            if digest and digest not in tokenizers:
                tokenizers[digest] = load_tokenizer(folder / TOKENIZER_FILE)
    return drawn, spoken, tokenizers


def _stands(prompt: str, line: str, forms: Iterable[str]) -> bool:
    """Return True if a prompt occurs in a text, given as a line and as the letters that a tokeniser reads of it."""
    words, letters = _line(prompt), _letters(prompt)
    return (bool(words) and words in line) or (bool(letters) and any(letters in form for form in forms))


def _line(text: str) -> str:
    return " ".join(text.split())


def _letters(text: str) -> str:
    """Return letters and digits alone, in one case: tokenisers set spaces, and cut characters in two."""
    return "".join(filter(str.isalnum, text.casefold()))


def _holds(store: Store, texts: Manifest, forgotten: Tombstones, grams: U64) -> bool:
    rows = read_columns(store.folder(texts.ref) / DOCUMENTS_FILE, ["doc_id", "text"])
    if forgotten.contents.intersection(rows["doc_id"]):
        return True
    return bool(np.isin(gram_hashes(rows["text"]).values, grams).any())


def clear_pages(home: Home, trainings: Collection[str]) -> None:
    """Remove the pages of a home, which the next run draws again, and what quotes documents beside some runs.

    Args:
        trainings: Keys of the trainings of those runs.
    """
    if home.reports.is_dir():
        shutil.rmtree(home.reports)
    if tracking := _tracking(home, trainings):
        for key in sorted(trainings):
            for run_id in tracking.runs(key):
                tracking.remove_files(run_id, (*PAGES, SAMPLES_FILE))


def show_samples(home: Home, store: Store, trainings: Collection[str]) -> None:
    """Put the samples that trainings still have beside their runs again."""
    if tracking := _tracking(home, trainings):
        for key in sorted(trainings):
            runs, training = tracking.runs(key), store.find(TRAIN, key)
            if runs and training is not None:
                log_samples(tracking, runs[-1], read_notes(store.folder(training.ref)).samples)


def _tracking(home: Home, trainings: Collection[str]) -> Tracking | None:
    if not trainings or not home.has_tracking:
        return None
    from storage.tracking import Tracking

    return Tracking(home)
