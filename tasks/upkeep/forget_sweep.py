"""Taking forgotten documents out of a store: what holds them is rewritten without them, or goes and is made again.

    segments            rewritten, because reading files takes the most time of all
    evaluation sets     rewritten, and pinned where the old ones were
    selections          trimmed: they say what a model was trained on
    lists of files      trimmed: by them people name what is to be forgotten next
    models, figures     stay; samples and completions whose prompts quote a document go
    texts from outside  go where they hold a document, with what was measured on them
    all else            goes (texts, measures, token shards, indexes, datasets); the next run makes it again

The manifests of what goes are kept, so that the lineage of models still leads back. Before anything is touched, the
tombstones note what will go; whoever finds that note goes on from it, so a kill costs nothing. The old segments and the
texts made from them go last, because by them it is known what quotes a document; pages in the home and beside MLflow
runs go first, because by what goes it is known which they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.catalog import CORPUS_REF, LISTED
from storage.errors import UserError
from storage.home import Home
from storage.lineage import ancestors, descendants
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE, EXTRACTS_FILE, FILES_FILE
from storage.store import Store
from storage.tables import read_columns, read_rows
from storage.tombstones import FORGETTING_LOCK, Tombstones, read_tombstones, write_tombstones
from tasks.generation.prompts import SAMPLED_ID
from tasks.ingest.extract import present_segments
from tasks.text.minhash import gram_hashes
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.upkeep.forget_pages import TRAIN, clear_pages, show_samples
from tasks.upkeep.forget_rewriting import (
    SELECTION_FILES,
    holds,
    lists,
    rewrite_evalset,
    rewrite_segment,
    samples_of,
    trim_samples,
    trim_selection,
    trim_snapshot,
)
from tasks.upkeep.forget_targets import SEGMENT_STAGES

TEXT_STAGES = ("import", "normalise", "refine", "evalset")  # whose `documents.parquet` holds texts
# a prompt this long that stands in a document is taken to be from it; a letter of the scripts from `_DENSE` on, which
# put no space between words, says as much as three others
QUOTING_WORDS, QUOTING_LETTERS = 5, 24
_DENSE = "\u0e00"
# what stays although it came from a document: models, what they wrote and their figures, and what none is made from
KEPT = (
    *("train", "bundle", "suggest", "tokenizer", "evaluate", "gates"),
    *("complete", "generate", "prompts"),
)
TRIMMED = ("curate", "ablate")
LISTS = ("snapshot",)


@dataclass
class Sweep:
    """Artefacts that are taken out of a store, or would be.

    Attributes:
        segments: extraction segments that are rewritten.
        evalsets: evaluation sets that are rewritten.
        selections: selections that are trimmed.
        listings: lists of files that are trimmed.
        trainings: trainings in which samples are taken out.
        removed: artefacts that go.
        shown_by: keys of the trainings beside whose runs pages or samples may quote a document: they come from a corpus
            that held it, though it may have dropped it, or were measured on what held it.
    """

    segments: list[Manifest] = field(default_factory=list)
    evalsets: list[Manifest] = field(default_factory=list)
    selections: list[Manifest] = field(default_factory=list)
    listings: list[Manifest] = field(default_factory=list)
    trainings: list[Manifest] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)
    shown_by: set[str] = field(default_factory=set)

    def counts(self) -> dict[str, int]:
        """Return the number of artefacts that go, by stage."""
        found: dict[str, int] = {}
        for stage, _ in self.removed:
            found[stage] = found.get(stage, 0) + 1
        return dict(sorted(found.items()))


def plan_sweep(store: Store, forgotten: Tombstones) -> Sweep:
    """Plan the removal of everything that the store holds of some documents."""
    segments = [found for found in _manifests(store, SEGMENT_STAGES) if _held(store, found, forgotten)]
    evalsets = [found for found in _manifests(store, ("evalset",)) if _evalset_holds(store, found, forgotten)]
    held = {manifest.ref for manifest in evalsets}
    replaced = [found.ref for segment in segments for depth, found in ancestors(store, segment.ref) if depth]
    sources = [*(manifest.ref for manifest in (*segments, *evalsets)), *replaced]  # what they were joined from, too
    made = descendants(store, sources, beyond=(*KEPT, "evalset"))
    made = [manifest for manifest in made if manifest.stage != "evalset" or manifest.ref in held]
    # those that were trimmed before were made from segments that are no more
    named = list({found.ref: found for found in (*made, *_named(store, forgotten))}.values())
    texts = [manifest.ref for manifest in (*segments, *evalsets, *made) if manifest.stage in TEXT_STAGES]
    prompts = _quoting(store, texts, forgotten)
    sampled = _sampled(store, texts, forgotten)
    trainings = [found for found in _manifests(store, (TRAIN,)) if found.key in sampled]
    outside = _holding(store, texts, forgotten)
    spoken = descendants(store, [manifest.ref for manifest in (*prompts, *outside)])
    going = [
        *segments,
        *evalsets,
        *(found for found in made if found.stage not in (*KEPT, *TRIMMED, *LISTS)),
        *prompts,
        *outside,
        *spoken,
    ]
    touched = [*made, *outside, *spoken, *trainings]
    return Sweep(
        segments=present_segments(manifest for manifest in segments if manifest.stage == "extract"),
        evalsets=evalsets,
        selections=[manifest for manifest in named if manifest.stage in TRIMMED],
        listings=[manifest for manifest in named if manifest.stage in LISTS],
        trainings=trainings,
        removed=sorted({(manifest.stage, manifest.key) for manifest in going} | set(forgotten.pending or ())),
        shown_by=_trainings_of(touched) | _seen_by(forgotten),
    )


def _trainings_of(touched: Iterable[Manifest]) -> set[str]:
    """Keys of the trainings among some artefacts, and of those that the others were measured or written with."""
    found = set()
    for manifest in touched:
        refs = [manifest.ref] if manifest.stage == TRAIN else manifest.input_refs()
        found |= {ref.key for ref in refs if ref.stage == TRAIN}
    return found


def _seen_by(forgotten: Tombstones) -> set[str]:
    return {name.rpartition("/")[2] for item in forgotten.documents.values() for name in item.seen_by}


def finish_forgetting(home: Home, store: Store) -> Sweep | None:
    """Do what the tombstones say is still to be done; None if it is nothing.

    It may be killed at any moment and called again.
    """
    if read_tombstones(store).pending is None:
        return None
    with store.lock(FORGETTING_LOCK):
        forgotten = read_tombstones(store)
        if forgotten.pending is None:
            return None  # done by the process that we waited for
        forgotten = with_copies(store, forgotten)
        found = plan_sweep(store, forgotten)
        forgotten = replace(forgotten, pending=found.removed)
        write_tombstones(store, forgotten)
        clear_pages(home, found.shown_by)
        _carry_out(store, found, forgotten)
        show_samples(home, store, found.shown_by)
        write_tombstones(store, replace(forgotten, pending=None))
        return found


def with_copies(store: Store, forgotten: Tombstones) -> Tombstones:
    """The forgotten documents, and those of the same bytes elsewhere: in an archive, say."""
    reasons = {item.sha256: item for item in forgotten.documents.values()}
    copies = {
        row["doc_id"]: replace(reasons[row["sha256"]], doc_id=row["doc_id"], places=())
        for segment in _manifests(store, SEGMENT_STAGES)
        for row in _held(store, segment, forgotten)
        if row["doc_id"] not in forgotten.documents
    }
    return replace(forgotten, documents={**forgotten.documents, **copies})


def refuse_forgotten(store: Store, known: Collection[str]) -> None:
    """Refuse what a run made if a document was forgotten since it listed its files, and see that it is swept again.

    Raises:
        UserError: then.
    """
    forgotten = read_tombstones(store)
    if forgotten.documents.keys() <= set(known):
        return
    with store.lock(FORGETTING_LOCK):
        write_tombstones(store, replace(read_tombstones(store), pending=[]))
    raise UserError(
        "documents were forgotten while this ran, and it may have read them: run the same command again, which takes "
        "out of the store what this one put there"
    )


def _manifests(store: Store, stages: Iterable[str]) -> Iterator[Manifest]:
    return (manifest for stage in stages for manifest in store.manifests(stage))


def _held(store: Store, segment: Manifest, forgotten: Tombstones) -> list[dict[str, Any]]:
    """The rows of forgotten documents that a segment holds."""
    columns = ["doc_id", "sha256", "reason_code"]
    table = pq.read_table(store.folder(segment.ref) / EXTRACTS_FILE, columns=columns, use_threads=False)
    wanted = pc.or_(_among(table["doc_id"], forgotten.documents), _among(table["sha256"], forgotten.contents))
    return [row for row in table.filter(wanted).to_pylist() if holds(row, forgotten)]


def _evalset_holds(store: Store, evalset: Manifest, forgotten: Tombstones) -> bool:
    ids = pq.read_table(store.folder(evalset.ref) / DOCUMENTS_FILE, columns=["doc_id"])["doc_id"]
    return bool(pc.any(_among(ids, forgotten.documents)).as_py())


def _named(store: Store, forgotten: Tombstones) -> Iterator[Manifest]:
    """Selections and lists of files that have a row of a forgotten document."""
    for selection in _manifests(store, TRIMMED):
        folder = store.folder(selection.ref)
        columns = [pq.read_table(folder / name, columns=["doc_id"])["doc_id"] for name in SELECTION_FILES]
        if any(pc.any(_among(column, forgotten.documents)).as_py() for column in columns):
            yield selection
    for listing in _manifests(store, LISTS):
        table = pq.read_table(store.folder(listing.ref) / FILES_FILE, columns=["doc_id", "sha256", "reason_code"])
        wanted = pc.or_(_among(table["doc_id"], forgotten.documents), _among(table["sha256"], forgotten.contents))
        if any(lists(row, forgotten) for row in table.filter(wanted).to_pylist()):
            yield listing


def _among(column: Any, wanted: Iterable[str]) -> Any:
    return pc.is_in(column, value_set=pa.array(list(wanted), pa.string()))


def _quoting(store: Store, texts: Collection[ArtifactRef], forgotten: Tombstones) -> list[Manifest]:
    """Lists of prompts that quote forgotten documents, or were taken from them.

    Args:
        texts: artefacts with the documents' texts.
    """
    names = {doc_id[:SAMPLED_ID] for doc_id in forgotten.documents}
    asked = [(found, *_prompts(store, found)) for found in _manifests(store, ("prompts",))]
    quoted = _quoted(store, texts, forgotten, {line for _, _, lines in asked for line in lines})
    return [found for found, ids, lines in asked if ids & names or lines & quoted]


def _sampled(store: Store, texts: Collection[ArtifactRef], forgotten: Tombstones) -> dict[str, set[str]]:
    """Prompts of samples that quote forgotten documents, by the training's key.

    A prompt is what the training's tokeniser gave back of a document: what it does not know is missing from it.
    """
    drawn: dict[str, tuple[set[str], str]] = {}  # with the digest of its tokeniser's file, which many have in common
    tokenizers: dict[str, Tokenizer] = {}
    for training in _manifests(store, (TRAIN,)):
        if prompts := {str(sample["prompt"]) for sample in samples_of(store, training)}:
            spoken = next((entry.sha256 for entry in training.files if entry.name == TOKENIZER_FILE), "")
            drawn[training.key] = (prompts, spoken)
            if spoken and spoken not in tokenizers:
                tokenizers[spoken] = load_tokenizer(store.folder(training.ref) / TOKENIZER_FILE)
    found: dict[str, set[str]] = {key: set() for key in drawn}
    for ref in sorted(texts) if drawn else ():
        for text in _texts(store, ref, forgotten):
            line, letters = _line(text), _letters(text)
            read = {digest: _letters(one.decode(one.encode([text])[0].tolist())) for digest, one in tokenizers.items()}
            for key, (prompts, spoken) in drawn.items():
                forms = (letters, read.get(spoken, ""))
                found[key] |= {prompt for prompt in prompts - found[key] if _stands(prompt, line, forms)}
    return {key: prompts for key, prompts in found.items() if prompts}


def _stands(prompt: str, line: str, forms: Iterable[str]) -> bool:
    """Return True if a prompt occurs in a text, given as a line and as the letters that a tokeniser reads of it."""
    words, letters = _line(prompt), _letters(prompt)
    return (bool(words) and words in line) or (bool(letters) and any(letters in form for form in forms))


def _letters(text: str) -> str:
    """Letters and digits alone, in one case: tokenisers set spaces, and cut characters in two."""
    return "".join(filter(str.isalnum, text.casefold()))


def _holding(store: Store, texts: Collection[ArtifactRef], forgotten: Tombstones) -> list[Manifest]:
    """Sets of texts from outside that hold a forgotten document: its bytes, or thirteen words of it in a row."""
    asked = list(_manifests(store, ("texts",)))
    known = [gram_hashes([text]).values for ref in sorted(texts) for text in _texts(store, ref, forgotten) if asked]
    words = np.unique(np.concatenate([np.empty(0, np.uint64), *known]))
    found = []
    for manifest in asked:
        rows = read_columns(store.folder(manifest.ref) / DOCUMENTS_FILE, ["doc_id", "text"])
        if forgotten.contents.intersection(rows["doc_id"]) or np.isin(gram_hashes(rows["text"]).values, words).any():
            found.append(manifest)
    return found


def _prompts(store: Store, kept: Manifest) -> tuple[set[str], set[str]]:
    """Ids of a list of prompts, and its lines that are long enough to be quotations."""
    rows = read_rows(store.folder(kept.ref) / "prompts.parquet", ["id", "prompt"])
    lines = {_line(row["prompt"]) for row in rows}
    return {str(row["id"]) for row in rows}, {line for line in lines if _is_long(line)}


def _is_long(line: str) -> bool:
    letters = sum(3 if letter >= _DENSE and letter.isalpha() else 1 for letter in line)
    return letters >= QUOTING_LETTERS or len(line.split()) >= QUOTING_WORDS


def _line(text: str) -> str:
    return " ".join(text.split())


def _quoted(
    store: Store, texts: Collection[ArtifactRef], forgotten: Tombstones, candidates: Collection[str]
) -> set[str]:
    """Those of some lines that stand in forgotten documents, of which one at a time is held."""
    left = {line for line in candidates if line}
    found: set[str] = set()
    for ref in sorted(texts) if left else ():
        for text in _texts(store, ref, forgotten):
            line = _line(text)
            found |= {candidate for candidate in left - found if candidate in line}
    return found


def _texts(store: Store, ref: ArtifactRef, forgotten: Tombstones) -> Iterator[str]:
    """Texts of the forgotten documents that an artefact holds; documents with forgotten bytes have a tombstone too."""
    with pq.ParquetFile(store.folder(ref) / DOCUMENTS_FILE) as file:
        for group in range(file.num_row_groups):
            ids = file.read_row_group(group, columns=["doc_id"])["doc_id"]
            chosen = _among(ids, forgotten.documents)
            if pc.any(chosen).as_py():
                table = file.read_row_group(group, columns=["text"])
                yield from (value.as_py() for value in table.filter(chosen)["text"])


def _carry_out(store: Store, found: Sweep, forgotten: Tombstones) -> None:
    texts = [ArtifactRef(stage, key, "") for stage, key in found.removed if stage in TEXT_STAGES]
    texts = [ref for ref in texts if store.find(ref.stage, ref.key) is not None]
    sampled = _sampled(store, texts, forgotten)
    for training in found.trainings:
        trim_samples(store, training, sampled.get(training.key, set()))
    for selection in found.selections:
        trim_selection(store, selection, forgotten.documents.keys())
    for listing in found.listings:
        trim_snapshot(store, listing, forgotten)
    instead: dict[tuple[str, str], ArtifactRef | None] = dict.fromkeys(found.removed)
    for segment in found.segments:
        instead[segment.stage, segment.key] = rewrite_segment(store, segment, forgotten)
    for evalset in found.evalsets:
        instead[evalset.stage, evalset.key] = rewrite_evalset(store, evalset, forgotten.documents.keys())
    _move_refs(store, instead, {listing.key for listing in found.listings})
    _clear_work(store, found.removed)
    for stage, key in sorted(found.removed, key=lambda name: (name[0] in (*SEGMENT_STAGES, *TEXT_STAGES), name)):
        store.remove(stage, key, keep_manifest=True)


def _move_refs(store: Store, instead: dict[tuple[str, str], ArtifactRef | None], trimmed: Collection[str]) -> None:
    """Let no name stand at what goes: a corpus keeps what is left of its last run, until the next one.

    Args:
        trimmed: keys of lists of files that are no longer whole.
    """
    for name in store.refs(f"{CORPUS_REF}/"):
        with store.lock(name):
            state = store.read_ref(name) or {}
            left = {stage: list(_moved(refs, instead)) for stage, refs in state.items()}
            if any(ref["key"] in trimmed for ref in left.get("snapshot", ())):
                left[LISTED] = left.pop("snapshot")
            if left != state:
                store.write_ref(name, {stage: refs for stage, refs in left.items() if refs})
    for name in store.refs("evalset/"):
        pinned = store.read_ref(name)
        moved = next(_moved([pinned], instead), None) if pinned else None
        if moved is None:
            store.remove_ref(name)
        elif moved != pinned:
            store.write_ref(name, moved)


def _moved(
    refs: Iterable[dict[str, Any]], instead: dict[tuple[str, str], ArtifactRef | None]
) -> Iterator[dict[str, Any]]:
    for ref in refs:
        name = (ref["stage"], ref["key"])
        new = instead.get(name)
        if name not in instead:
            yield ref
        elif new is not None:
            yield asdict(new)


def _clear_work(store: Store, removed: Collection[tuple[str, str]]) -> None:
    """Take away unfinished work, but for trainings on what stays: journals hold text of files that were read."""
    for work in store.unfinished():
        if work.stage != "train" or work.inputs is None or not work.inputs.isdisjoint(removed):
            store.remove_work(work.stage, work.key)
