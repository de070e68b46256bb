"""Forget documents: find them and the models trained on them, write tombstones, and remove them from the store.

    extracted segments  rewritten, because extraction takes the most time
    evaluation sets     rewritten, and pinned in place of the old ones
    selections          trimmed, as they record the training data of models
    snapshots           trimmed, as documents to forget are found by their paths
    models, metrics     kept; samples and completions whose prompts quote a document are removed
    external texts      removed if they contain a document, with the results measured on them
    all others          removed (texts, measures, token shards, indexes, datasets); the next run computes them again

The manifests of removed artefacts are kept for the lineage of models. The tombstones list the artefacts to remove
before any is removed, so that an interrupted `forget` can be continued. Old segments and texts are removed last,
because quotes of a document are found with them; pages in the home and of MLflow runs are removed first, because they
are found with the artefacts.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.catalog import CORPUS_REF, LISTED, Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.lineage import ancestors, descendants
from storage.manifest import ArtifactRef, Manifest
from storage.schemas import DOCUMENTS_FILE
from storage.store import Store
from storage.tables import read_columns
from storage.tombstones import FORGETTING_LOCK, Tombstone, Tombstones, read_tombstones, write_tombstones
from tasks.generation.prompts import SAMPLED_ID
from tasks.ingest.segments import present_segments
from tasks.lineage.documents import SEGMENT_STAGES, find_forgotten, find_targets, paths_of, place_digests
from tasks.lineage.training_data import exposed_documents
from tasks.text.minhash import gram_hashes
from tasks.text.words import U64
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tasks.training.telemetry import SAMPLES_FILE, log_samples, read_notes
from tasks.upkeep.garbage import TRAIN
from tasks.upkeep.rewriting import (
    TRIMMED,
    among,
    holders,
    rewrite_evalset,
    rewrite_segment,
    rows_to_forget,
    trim_samples,
    trim_tables,
)

if TYPE_CHECKING:
    from storage.tracking import Tracking

PAGES = (".html", ".md")  # of an MLflow run; they quote documents
# a prompt of this length that a document contains counts as a quote; a letter of the scripts from `_DENSE` on, which
# have no spaces between words, counts as three
QUOTING_WORDS, QUOTING_LETTERS = 5, 24
_DENSE = "\u0e00"
TEXT_STAGES = ("import", "normalise", "refine", "evalset")  # their `documents.parquet` has texts
# lineage is followed no further than these: models, completions and metrics are kept, except samples and completions
# that quote a forgotten document (`find_quotes`)
KEPT = (
    *("train", "bundle", "suggest", "tokenizer", "evaluate", "evaluate_answers", "gates"),
    *("complete", "generate", "prompts"),
)

_Instead = Mapping[tuple[str, str], ArtifactRef | None]  # replacements of removed artefacts, by stage and key


def forget(home: Home, store: Store, thing: str, reason: str, corpus: str, dry_run: bool) -> dict[str, Any]:
    """Forget documents, and return the result as `sheepfold forget --json` prints it.

    Args:
        thing: An id, a path or a folder (see `find_targets`).
        reason: Stored in the tombstones.
        dry_run: Only report.

    Raises:
        UserError: No document has that name, or another process works in the store.
    """
    known = read_tombstones(store)
    targets = find_targets(store, corpus, thing)
    before = {item.doc_id for item in find_forgotten(known, thing)} | known.documents.keys() & {
        item.doc_id for item in targets
    }
    # an interrupted `forget` is finished under any name, as its own may not be found any more
    if not targets and not before and known.pending is None:
        raise UserError(
            f"corpus {corpus!r} has no document {thing!r}: give an id or eight digits of one, a path or folder as "
            "`sheepfold sql \"select path, doc_id from files\"` shows it, or a prefix of paths followed by '*'"
        )
    since = datetime.now(UTC).isoformat(timespec="seconds")
    named = {target.doc_id: Tombstone(target.doc_id, target.sha256, reason, since) for target in targets}
    wanted = with_copies(store, Tombstones({**named, **known.documents}, known.pending))
    new = {doc_id: item for doc_id, item in wanted.documents.items() if doc_id not in known.documents}
    exposed = exposed_documents(store, new) if new else []
    paths = paths_of(store, {doc_id: item.sha256 for doc_id, item in new.items()})
    result: dict[str, Any] = {
        "documents": [{"doc_id": name, "path": min(found)[0] if found else ""} for name, found in paths.items()],
        "known": len(before),
        "seen_by": [exposure for exposure, _ in exposed],
        "near_duplicates": _near_duplicates(store, corpus, wanted.documents) if new else [],
        "dry_run": dry_run,
    }
    if dry_run:
        sweep = plan_sweep(store, wanted)
    else:
        tombstones = {}
        for name, item in new.items():
            seen_by = tuple(exposure["training"] for exposure, read in exposed if name in read)
            tombstones[name] = replace(item, seen_by=seen_by, places=place_digests(paths[name]))
        _add_tombstones(store, tombstones)
        sweep = finish_forgetting(home, store) or Sweep()
    return {**result, **sweep.report()}


def _add_tombstones(store: Store, new: Mapping[str, Tombstone]) -> None:
    """Write tombstones and mark the removal as pending.

    Raises:
        UserError: Another process works in the store, which may have read the documents.
    """
    owners = store.owners()
    if owners:
        raise UserError(f"{'; '.join(owners)}: wait for it to end, or stop it, and run `sheepfold forget` again")
    with store.lock(FORGETTING_LOCK):
        known = read_tombstones(store)
        write_tombstones(store, Tombstones({**known.documents, **new}, known.pending or []))


def _near_duplicates(store: Store, corpus: str, doc_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the remaining documents that are near-duplicates of forgotten ones."""
    if "dedup" not in read_state(store, corpus):
        return []
    ids = ", ".join(f"'{doc_id}'" for doc_id in sorted(doc_ids))
    return Catalog(store, corpus).query(
        "select distinct f.doc_id, f.path from clusters c join files f using (doc_id) where f.status = 'ok' and "
        f"c.cluster in (select cluster from clusters where doc_id in ({ids})) and f.doc_id not in ({ids}) order by path"
    )


# removal


@dataclass
class Sweep:
    """Artefacts to rewrite, trim and remove.

    Attributes:
        segments: Extraction segments to rewrite.
        evalsets: Evaluation sets to rewrite.
        trimmed: Selections and snapshots to trim.
        samples: Prompts whose samples are removed from trainings, by the training's key.
        removed: Stage and key of the artefacts to remove.
        shown_by: Keys of trainings whose MLflow runs may have pages or samples that quote a document, because the
            corpus had it, or they were evaluated on texts with it.
    """

    segments: list[Manifest] = field(default_factory=list)
    evalsets: list[Manifest] = field(default_factory=list)
    trimmed: list[Manifest] = field(default_factory=list)
    samples: dict[str, set[str]] = field(default_factory=dict)
    removed: list[tuple[str, str]] = field(default_factory=list)
    shown_by: set[str] = field(default_factory=set)

    def report(self) -> dict[str, dict[str, int]]:
        """Return the number of artefacts that are rewritten and removed, by stage."""
        selections = [found for found in self.trimmed if found.stage != "snapshot"]
        return {
            "rewritten": {"extract": len(self.segments), "evalset": len(self.evalsets), "curate": len(selections)},
            "removed": dict(sorted(Counter(stage for stage, _ in self.removed).items())),
        }


def plan_sweep(store: Store, forgotten: Tombstones) -> Sweep:
    """Return the artefacts to rewrite, trim and remove for some documents."""
    segments = holders(store, SEGMENT_STAGES, forgotten)
    evalsets = holders(store, ("evalset",), forgotten)
    replaced = [found.ref for segment in segments for depth, found in ancestors(store, segment.ref) if depth]
    sources = [*(manifest.ref for manifest in (*segments, *evalsets)), *replaced]  # including segments that were merged
    made = descendants(store, sources, beyond=(*KEPT, "evalset"))
    made = [manifest for manifest in made if manifest.stage != "evalset" or manifest in evalsets]
    # those trimmed before are not found by lineage: their segments were removed
    named = {found.ref: found for found in (*made, *holders(store, TRIMMED, forgotten)) if found.stage in TRIMMED}
    texts = [manifest.ref for manifest in (*segments, *evalsets, *made) if manifest.stage in TEXT_STAGES]
    quoting, samples = find_quotes(store, texts, forgotten)
    spoken = descendants(store, [manifest.ref for manifest in quoting])
    # rewritten artefacts leave their old copies
    going = [*segments, *evalsets, *(found for found in made if found.stage not in (*KEPT, *TRIMMED))]
    going += [*quoting, *spoken]
    shown_by = set(samples)
    for manifest in (*made, *quoting, *spoken):  # trainings, and artefacts made with one
        refs = [manifest.ref] if manifest.stage == TRAIN else manifest.input_refs()
        shown_by |= {ref.key for ref in refs if ref.stage == TRAIN}
    for item in forgotten.documents.values():
        shown_by |= {name.rpartition("/")[2] for name in item.seen_by}
    return Sweep(
        segments=present_segments(manifest for manifest in segments if manifest.stage == "extract"),
        evalsets=evalsets,
        trimmed=list(named.values()),
        samples=samples,
        removed=sorted({(manifest.stage, manifest.key) for manifest in going} | set(forgotten.pending or ())),
        shown_by=shown_by,
    )


def finish_forgetting(home: Home, store: Store) -> Sweep | None:
    """Remove the artefacts that the tombstones list as pending; return None if there are none.

    It may be killed at any moment and called again.
    """
    if read_tombstones(store).pending is None:
        return None
    with store.lock(FORGETTING_LOCK):
        forgotten = read_tombstones(store)
        if forgotten.pending is None:
            return None  # done by the process that held the lock
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
    """Add the documents with the same bytes elsewhere, such as in an archive."""
    reasons = {item.sha256: item for item in forgotten.documents.values()}
    copies = {
        row["doc_id"]: replace(reasons[row["sha256"]], doc_id=row["doc_id"], places=())
        for segment in holders(store, SEGMENT_STAGES, forgotten)
        for row in rows_to_forget(store, segment, forgotten)
        if row["doc_id"] not in forgotten.documents
    }
    return replace(forgotten, documents={**forgotten.documents, **copies})


def refuse_forgotten(store: Store, known: Collection[str]) -> None:
    """Mark the removal as pending if a document was forgotten since the run listed its files.

    Raises:
        UserError: A document was forgotten since then.
    """
    if read_tombstones(store).documents.keys() <= set(known):
        return
    with store.lock(FORGETTING_LOCK):
        known_now = read_tombstones(store)  # keeps the pending artefacts of an interrupted `forget`
        write_tombstones(store, replace(known_now, pending=known_now.pending or []))
    raise UserError(
        "documents were forgotten during this run, which may have read them: run the same command again, which removes "
        "the artefacts of this run"
    )


def _carry_out(store: Store, found: Sweep, forgotten: Tombstones) -> None:
    for training in [manifest for manifest in store.manifests(TRAIN) if manifest.key in found.samples]:
        trim_samples(store, training, found.samples[training.key])
    for manifest in found.trimmed:
        trim_tables(store, manifest, forgotten)
    instead: dict[tuple[str, str], ArtifactRef | None] = dict.fromkeys(found.removed)
    for segment in found.segments:
        instead[segment.stage, segment.key] = rewrite_segment(store, segment, forgotten)
    for evalset in found.evalsets:
        instead[evalset.stage, evalset.key] = rewrite_evalset(store, evalset, forgotten.documents.keys())
    _move_refs(store, instead, {listing.key for listing in found.trimmed if listing.stage == "snapshot"})
    for work in store.unfinished():  # journals have text of files; trainings on remaining artefacts can be resumed
        if work.stage != TRAIN or work.inputs is None or not work.inputs.isdisjoint(found.removed):
            store.remove_work(work.stage, work.key)
    for stage, key in sorted(found.removed, key=lambda name: (name[0] in (*SEGMENT_STAGES, *TEXT_STAGES), name)):
        store.remove(stage, key, keep_manifest=True)


def _move_refs(store: Store, instead: _Instead, trimmed: Collection[str]) -> None:
    """Remove refs to removed artefacts or replace them; a corpus keeps the rest of its last run until the next one.

    Args:
        trimmed: Keys of snapshots that are incomplete now.
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


def _moved(refs: Iterable[dict[str, Any]], instead: _Instead) -> Iterator[dict[str, Any]]:
    for ref in refs:
        name = (ref["stage"], ref["key"])
        new = instead.get(name)
        if name not in instead:
            yield ref
        elif new is not None:
            yield asdict(new)


# quotes: prompts, samples of trainings, external texts, pages of MLflow runs


def find_quotes(
    store: Store, refs: Collection[ArtifactRef], forgotten: Tombstones
) -> tuple[list[Manifest], dict[str, set[str]]]:
    """Find quotes of forgotten documents.

    Args:
        refs: Artefacts with texts of the documents, of which one at a time is in memory.

    Returns:
        Artefacts of prompts that quote a document or were drawn from it, and of external texts with its bytes or a
        13-gram of it; and the prompts of the samples that quote one, by the training's key.
    """
    lists = [(found, *_ids_and_lines(store, found)) for found in store.manifests("prompts")]
    lines = set[str]().union(*(own for _, _, own in lists))
    outside = list(store.manifests("texts"))
    drawn, tokenizers = _drawn(store)
    quoted: set[str] = set()
    samples: dict[str, set[str]] = {}
    grams = [np.empty(0, np.uint64)]
    for text in _texts(store, refs, forgotten) if lines or outside or drawn else ():
        line, letters = _line(text), _letters(text)
        quoted |= {one for one in lines - quoted if one in line}
        # a sample's prompt was decoded from token ids, without the characters that its tokeniser does not have
        read = {digest: _letters(one.decode(one.encode([text])[0].tolist())) for digest, one in tokenizers.items()}
        for key, tokenizer, prompt in list(drawn):
            if _is_quote(prompt, line, (letters, read.get(tokenizer, ""))):
                drawn.remove((key, tokenizer, prompt))
                samples.setdefault(key, set()).add(prompt)
        if outside:
            grams.append(gram_hashes([text]).values)
    known = np.unique(np.concatenate(grams))
    names = {doc_id[:SAMPLED_ID] for doc_id in forgotten.documents}
    quoting = [found for found, ids, own in lists if ids & names or own & quoted]
    quoting += [found for found in outside if _holds(store, found, forgotten, known)]
    return quoting, samples


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
    """Return the ids of an artefact of prompts, and its lines that are long enough for quotes."""
    rows = read_columns(store.folder(prompts.ref) / "prompts.parquet", ["id", "prompt"])
    return set(map(str, rows["id"])), {line for line in map(_line, rows["prompt"]) if _is_long(line)}


def _is_long(line: str) -> bool:
    letters = sum(3 if letter >= _DENSE and letter.isalpha() else 1 for letter in line)
    return letters >= QUOTING_LETTERS or len(line.split()) >= QUOTING_WORDS


def _drawn(store: Store) -> tuple[set[tuple[str, str, str]], dict[str, Tokenizer]]:
    """Return key of the training, digest of the tokeniser and prompt of each sample, and the tokenisers by digest."""
    drawn: set[tuple[str, str, str]] = set()
    tokenizers: dict[str, Tokenizer] = {}
    for training in store.manifests(TRAIN):
        folder = store.folder(training.ref)
        if prompts := {sample.prompt for sample in read_notes(folder).samples}:
            digest = next((entry.sha256 for entry in training.files if entry.name == TOKENIZER_FILE), "")
            drawn |= {(training.key, digest, prompt) for prompt in prompts}
            if digest and digest not in tokenizers:
                tokenizers[digest] = load_tokenizer(folder / TOKENIZER_FILE)
    return drawn, tokenizers


def _is_quote(prompt: str, line: str, forms: Iterable[str]) -> bool:
    """Return True if a prompt occurs in a text, given as a line and as its letters, original and decoded."""
    words, letters = _line(prompt), _letters(prompt)
    return (bool(words) and words in line) or (bool(letters) and any(letters in form for form in forms))


def _line(text: str) -> str:
    return " ".join(text.split())


def _letters(text: str) -> str:
    """Return the case-folded letters and digits, because tokenisers change spaces and split characters."""
    return "".join(filter(str.isalnum, text.casefold()))


def _holds(store: Store, texts: Manifest, forgotten: Tombstones, grams: U64) -> bool:
    rows = read_columns(store.folder(texts.ref) / DOCUMENTS_FILE, ["doc_id", "text"])
    if forgotten.contents.intersection(rows["doc_id"]):
        return True
    return bool(np.isin(gram_hashes(rows["text"]).values, grams).any())


def clear_pages(home: Home, trainings: Collection[str]) -> None:
    """Remove the pages of a home, which the next run writes again, and pages and samples of some MLflow runs.

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
    """Log the remaining samples of trainings to their MLflow runs again."""
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
