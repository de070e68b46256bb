"""The page of an evaluation: metrics beside baselines and the champion, slices, documents and completions."""

from __future__ import annotations

import json
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
MOST_DOCUMENTS = 8  # best documents shown, and worst ones
MOST_COMPLETIONS = 8  # completions shown
PROMPT_CHARS = 2_000  # last characters shown of a prompt
PATH = 80  # characters shown of a path
FEWEST_BYTES = 64  # of a listed document: metrics of shorter ones are noise
_KEY = 8  # characters of an evaluation's key in the name of a page
_SOURCES = 3  # documents named per span


@dataclass(frozen=True)
class Measured:
    """An evaluated model, with the artefacts that the page shows.

    Attributes:
        model: name for people.
        rival: name and evaluation on the same documents of another champion, if any.
        base: the same of the base of a model that answers.
        completions: an artefact of the stage `generate` or `answers`.
        memorised, contamination: artefacts of these stages, if training text was searched.
        texts: name of the documents; empty for the frozen evaluation set.
        read: True if the model was trained on some of the documents.
    """

    model: str
    checkpoint: ArtifactRef
    evalset: ArtifactRef
    evaluation: ArtifactRef
    rival: tuple[str, ArtifactRef] | None = None
    base: tuple[str, ArtifactRef] | None = None
    completions: ArtifactRef | None = None
    memorised: ArtifactRef | None = None
    contamination: ArtifactRef | None = None
    texts: str = ""
    read: bool = False


class Mark(NamedTuple):
    """A memorised span of a completion; `start` and `length` are in characters.

    Attributes:
        sources: paths, or ids, of the training documents that contain it.
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
        marks: the spans, longest first; None if not measured.
        error: reason why the prompt was not completed; empty if it was.
        expected: the answer in the document, of a question.
    """

    prompt: str
    text: str
    marks: Sequence[Mark] | None = None
    error: str = ""
    expected: str = ""

    @property
    def pieces(self) -> list[tuple[str, str]]:
        """Consecutive parts of the text with their tooltips; overlapping spans are merged, unmarked parts have none."""
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


# reading


def collect_evaluation(store: Store, measured: Measured, pages: Collection[str] = ()) -> Row:
    """Read everything that the page shows.

    Args:
        pages: file names of the other pages in the folder.

    Returns:
        `measured`; `evaluation`; `best` and `worst`, the documents with the fewest and the most bits per byte
        (`doc_id`, `path`, `kind`, `sums`, `begins`, and `seen`, the share of its 13-grams in training text); `rival`,
        the other champion (`name`, `metrics`, `bits` per byte by dimension and value, and the `difference` to it), or
        None; `exposures`, slices by the share of 13-grams in training text; `completions`; `memorised`, metrics of that
        stage; `answering`, name and metrics of the models that were asked; `pages`. Parts that were not measured are
        empty.

    Raises:
        StoreError: an artefact is missing.
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
        answering=_answering(store, measured),
        pages=sorted(pages),
    )


def _extremes(store: Store, measured: Measured, documents: Evaluated, seen: Mapping[str, float]) -> list[list[Row]]:
    """Return the documents with the fewest and with the most bits per byte, without overlap."""
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
    """Return the first 1,000 characters of evaluation documents, by id."""
    texts = rows_of(store.folder(evalset) / DOCUMENTS_FILE, doc_ids, ["doc_id", "text"])
    return {row["doc_id"]: row["text"][:1_000] for row in texts}


def _answering(store: Store, measured: Measured) -> list[tuple[str, dict[str, float]]]:
    found = [("this model", measured.evaluation), *filter(None, (measured.rival, measured.base))]
    rows = [(name, read_metrics(store, evaluation)) for name, evaluation in found]
    return [(name, metrics) for name, metrics in rows if "val/questions" in metrics]


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
    """Return the first completions of an artefact.

    Args:
        made: an artefact of the stage `generate`; None for none.
        marks: memorised spans by prompt id and sample; None if not measured.
    """
    if made is None:
        return []
    columns = ["id", "sample", "prompt", "text", "error", "fields"]
    found = []
    for row in islice(stream_rows(store.folder(made) / COMPLETIONS_FILE, columns), MOST_COMPLETIONS):
        prompt = row["prompt"]
        shown = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
        of_row = None if marks is None else marks.get((row["id"], row["sample"]), [])
        expected = json.loads(row["fields"] or "{}").get("expected", "") if made.stage == "answers" else ""
        shown += "\n\n" if expected else ""
        found.append(Completion(shown, row["text"], of_row, row["error"] or "", expected))
    return found


def _marks(store: Store, measured: Measured) -> dict[tuple[str, int], list[Mark]] | None:
    """Return memorised spans by prompt id and sample, longest first; None if not measured."""
    if measured.memorised is None:
        return None
    spans = read_rows(store.folder(measured.memorised) / SPANS_FILE)
    paths: dict[str, str] = {}
    doc_ids = {span["doc_id"] for span in spans}
    for dataset in datasets_of(store, measured.checkpoint):  # including those of base models
        paths |= first_paths(store, dataset, doc_ids - paths.keys())
    place = itemgetter("id", "sample", "start", "length", "words")
    found: dict[tuple[str, int], list[Mark]] = {}
    for (name, sample, start, length, words), same in groupby(sorted(spans, key=place), place):
        sources = [paths.get(span["doc_id"], span["doc_id"][:12]) for span in same]
        found.setdefault((name, sample), []).append(Mark(start, length, words, sources))
    return {name: sorted(marks, key=lambda mark: -mark.words) for name, marks in found.items()}


# page and summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a model's evaluation; one on other documents than the evaluation set gets a name of its own."""
    run, measured = outcome.run, outcome.measured
    if measured is None:
        return None
    beside = sorted(LINKED.intersection(path.name for path in outcome.folder.glob("*.html")))

    def draw() -> list[str]:
        return evaluation_page(collect_evaluation(run.store, measured, beside), run.corpus)

    name = f"evaluation-{measured.evaluation.key[:_KEY]}" if measured.texts else "evaluation"
    return outcome.draw_once(name, f"Evaluation of {measured.model}", [asdict(measured), beside], draw)


def evaluation_page(found: Row, corpus: str) -> list[str]:
    """Return the page and its Markdown summary from the result of `collect_evaluation`."""
    title = f"Corpus {corpus}: evaluation"
    baselines = baselines_of(found.evaluation.metrics)
    return draw_page("evaluation.html", notices(found), title=title, baselines=baselines, **vars(found))


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Return a Markdown table of a model and its baselines; empty without metrics."""
    if not metrics:
        return ""
    share = 100 * metrics["val/below_unigram"]
    below = (
        f"{abs(share):.1f} % {'fewer' if share >= 0 else 'more'} bits per byte than the unigram baseline, on "
        f"{metrics['val/documents']:.0f} documents ({metrics['val/bytes']:,.0f} bytes)."
    )
    return f"{render('metrics.md', metrics=metrics, baselines=baselines_of(metrics))}\n{below}"


def notices(found: Row) -> list[Notice]:
    """Return the notices of the page, most severe first."""
    return notices_of("evaluation_notices.html", baselines=baselines_of(found.evaluation.metrics), **vars(found))
