"""The page of an evaluation: how good a model is beside its baselines, on what kinds of text, and what it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE, DOCUMENTS_FILE, SPANS_FILE
from storage.store import Store
from storage.tables import read_rows, stream_rows
from tasks.evaluation.compare import all_nats, compare_evaluations
from tasks.evaluation.tables import (
    Evaluated,
    baselines_of,
    read_documents,
    read_evaluation,
    read_metrics,
)
from tasks.lineage.contamination import by_share_seen, read_contamination
from tasks.lineage.training_data import datasets_of, first_paths, rows_of
from tasks.report.page import Notice, Outcome, Page, draw_page, notices_of, render
from tasks.report.queries import Row
from tasks.report.wording import cut_middle

LINKED = {"corpus.html", "dataset.html", "training.html", "generation.html"}
MOST_DOCUMENTS = 8  # of the best, and of the worst
MOST_COMPLETIONS = 8
PROMPT_CHARS = 2_000  # that are shown of a prompt: its end, which is what is continued
PATH = 80
FEWEST_BYTES = 64  # of a document that is listed: figures of a few words say nothing
_KEY = 8  # characters of an evaluation's key in the name of a page
_SOURCES = 3  # that are named of one span


@dataclass(frozen=True)
class Measured:
    """A model that was measured, with all that was measured beside it.

    Attributes:
        model: what it is called.
        rival: what another champion is called, and its evaluation on the same documents.
        completions: an artefact of the stage `generate`.
        memorised, contamination: artefacts of these stages, where training text was looked at.
        texts: what the documents are called; empty for the frozen evaluation set.
        read: whether the model was trained on some of them.
    """

    model: str
    checkpoint: ArtifactRef
    evalset: ArtifactRef
    evaluation: ArtifactRef
    rival: tuple[str, ArtifactRef] | None = None
    completions: ArtifactRef | None = None
    memorised: ArtifactRef | None = None
    contamination: ArtifactRef | None = None
    texts: str = ""
    read: bool = False


class Mark(NamedTuple):
    """A span of a completion that stands in training text; places are in characters.

    Attributes:
        sources: paths, or ids, of training documents that it stands in.
    """

    start: int
    length: int
    words: int
    sources: Sequence[str] = ()

    def __str__(self) -> str:
        named = ", ".join(cut_middle(source, PATH) for source in self.sources[:_SOURCES])
        return f"{self.words} words{', in ' if named else ''}{named}"


class Completion(NamedTuple):
    """A completion with its memorised spans.

    Attributes:
        marks: spans that stand in training text, the longest first; None where that was not measured.
        error: why it could not continue the prompt; empty if it did.
    """

    prompt: str
    text: str
    marks: Sequence[Mark] | None = None
    error: str = ""

    @property
    def pieces(self) -> list[tuple[str, str]]:
        """The text in order, and what is said of each marked part; marks that overlap are one."""
        spans: list[tuple[int, int, list[str]]] = []
        for mark in sorted(self.marks or (), key=lambda one: one.start):
            end = mark.start + mark.length
            if spans and mark.start < spans[-1][1]:
                begin, before, known = spans.pop()
                spans.append((begin, max(before, end), [*known, str(mark)]))
            else:
                spans.append((mark.start, end, [str(mark)]))
        found, reached = [], 0
        for begin, end, said in spans:
            found += [(self.text[reached:begin], ""), (self.text[begin:end], "; ".join(dict.fromkeys(said)))]
            reached = end
        return [*found, (self.text[reached:], "")]


# ---- reading


def collect_evaluation(store: Store, measured: Measured, pages: Collection[str] = ()) -> Row:
    """Read all that the page shows.

    Args:
        pages: files of other reports that lie beside this one.

    Returns:
        `measured`; `evaluation`; `best` and `worst`, the documents with the fewest and the most bits per byte
        (`doc_id`, `path`, `kind`, `sums`, `begins`, and `seen`, the share of its 13-grams that stand in training text);
        `rival`, the champion that it met (`name`, `metrics`, `bits` per byte by dimension and value, and the
        `difference` to it), or None; `exposures`, slices by how much of a document stands in training text;
        `completions`; `memorised`, figures of that stage; `pages`. What was not measured is empty.

    Raises:
        StoreError: if something of it is gone.
    """
    documents = read_documents(store, measured.evaluation)
    seen = read_contamination(store.folder(measured.contamination)) if measured.contamination else None
    best, worst = _extremes(store, measured, documents, seen or {})
    return Row(
        measured=measured,
        evaluation=read_evaluation(store, measured.evaluation),
        best=best,
        worst=worst,
        rival=_rival(store, measured),
        exposures=[] if seen is None else by_share_seen(seen, documents),
        completions=first_completions(store, measured.completions, _marks(store, measured)),
        memorised=read_metrics(store, measured.memorised) if measured.memorised else {},
        pages=sorted(pages),
    )


def _extremes(store: Store, measured: Measured, documents: Evaluated, seen: Mapping[str, float]) -> list[list[Row]]:
    """The documents with the fewest and with the most bits per byte, none of them in both."""
    sizes = documents.sums["bytes"]
    rows = np.flatnonzero((sizes >= FEWEST_BYTES) & (documents.sums["tokens"] > 0))
    order = rows[np.argsort(all_nats(documents)[rows] / sizes[rows], kind="stable")].tolist()
    n = min(MOST_DOCUMENTS, len(order) // 2)
    chosen = [order[:n], order[::-1][: min(MOST_DOCUMENTS, len(order) - n)]]
    doc_ids = [documents.doc_id[row] for rows in chosen for row in rows]
    begins, paths = beginnings(store, measured.evalset, doc_ids), first_paths(store, measured.evalset, doc_ids)

    def described(row: int) -> Row:
        doc_id, kind = documents.doc_id[row], documents.labels["kind"][row]
        found = {"path": paths.get(doc_id, ""), "begins": begins[doc_id], "seen": seen.get(doc_id)}
        return Row(doc_id=doc_id, kind=kind, sums=documents.total(np.array([row])), **found)

    return [list(map(described, rows)) for rows in chosen]


def beginnings(store: Store, evalset: ArtifactRef, doc_ids: Collection[str]) -> dict[str, str]:
    """Return the first characters of evaluation documents, by id."""
    texts = rows_of(store.folder(evalset) / DOCUMENTS_FILE, doc_ids, ["doc_id", "text"])
    return {row["doc_id"]: row["text"][:1_000] for row in texts}


def _rival(store: Store, measured: Measured) -> Row | None:
    if measured.rival is None:
        return None
    name, evaluation = measured.rival
    found = compare_evaluations(store, measured.evaluation, evaluation, most=0)
    bits = {(item.dimension, item.value): item.b.bits_per_byte for item in found.slices}
    metrics = {name: value for name, (_, value) in found.metrics.items() if value is not None}
    return Row(name=name, metrics=metrics, bits=bits, difference=found.difference)


def first_completions(
    store: Store, made: ArtifactRef | None, marks: Mapping[tuple[str, int], list[Mark]] | None = None
) -> list[Completion]:
    """Return the completions that a page shows.

    Args:
        made: an artefact of the stage `generate`; None gives no completions.
        marks: spans that stand in training text, by id and sample; None where that was not measured.
    """
    if made is None:
        return []
    columns = ["id", "sample", "prompt", "text", "error"]
    found = []
    for row in islice(stream_rows(store.folder(made) / COMPLETIONS_FILE, columns), MOST_COMPLETIONS):
        prompt = row["prompt"]
        shown = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
        of_row = None if marks is None else marks.get((row["id"], row["sample"]), [])
        found.append(Completion(shown, row["text"], of_row, row["error"] or ""))
    return found


def _marks(store: Store, measured: Measured) -> dict[tuple[str, int], list[Mark]] | None:
    """Spans of completions that stand in training text, the longest first; None where that was not measured."""
    if measured.memorised is None:
        return None
    spans = read_rows(store.folder(measured.memorised) / SPANS_FILE)
    paths: dict[str, str] = {}
    doc_ids = {span["doc_id"] for span in spans}
    for dataset in datasets_of(store, measured.checkpoint):  # those that a base was trained on among them
        paths |= first_paths(store, dataset, doc_ids - paths.keys())
    place = itemgetter("id", "sample", "start", "length", "words")
    found: dict[tuple[str, int], list[Mark]] = {}
    for (name, sample, start, length, words), same in groupby(sorted(spans, key=place), place):
        sources = [paths.get(span["doc_id"], span["doc_id"][:12]) for span in same]
        found.setdefault((name, sample), []).append(Mark(start, length, words, sources))
    return {name: sorted(marks, key=lambda mark: -mark.words) for name, marks in found.items()}


# ---- the page and its summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a model's evaluation; an evaluation on other documents has a page of its own."""
    run, measured = outcome.run, outcome.measured
    if measured is None:
        return None
    beside = sorted(LINKED.intersection(path.name for path in outcome.folder.glob("*.html")))

    def draw() -> list[str]:
        return evaluation_page(collect_evaluation(run.store, measured, beside), run.corpus)

    name = f"evaluation-{measured.evaluation.key[:_KEY]}" if measured.texts else "evaluation"
    return outcome.draw_once(name, f"Evaluation of {measured.model}", [asdict(measured), beside], draw)


def evaluation_page(found: Row, corpus: str) -> list[str]:
    """Return the page of what `collect_evaluation` returns, and its summary in Markdown."""
    title = f"Corpus {corpus}: the evaluation"
    baselines = baselines_of(found.evaluation.metrics)
    return draw_page("evaluation.html", notices(found), title=title, baselines=baselines, **vars(found))


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Return a model's figures beside those of its baselines as Markdown; empty without any."""
    if not metrics:
        return ""
    share = 100 * metrics["val/below_unigram"]
    below = (
        f"{abs(share):.1f} % {'fewer' if share >= 0 else 'more'} bits per byte than the unigram baseline, on "
        f"{metrics['val/documents']:.0f} documents ({metrics['val/bytes']:,.0f} bytes)."
    )
    return f"{render('metrics.md', metrics=metrics, baselines=baselines_of(metrics))}\n{below}"


def notices(found: Row) -> list[Notice]:
    """Return what to look at first, the gravest first."""
    return notices_of("evaluation_notices.html", baselines=baselines_of(found.evaluation.metrics), **vars(found))
