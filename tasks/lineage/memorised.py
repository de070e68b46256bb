"""Spans of a text that stand in training documents, as `sheepfold why` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from storage.catalog import read_state
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.lineage.echoes import load_segments
from tasks.lineage.spans import check_min_words, covered_chars, outstanding, shared_spans
from tasks.lineage.trace_index import trace_indexes
from tasks.lineage.training_texts import datasets_of, sources_of, training_texts

SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3
UNKNOWN = {"echoes": None, "no_echoes": "the model was not trained in this home, so its training text is unknown"}


def explain_text(home: Home, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or `min_words` is less than what the indexes always find.
    """
    with Machine() as machine:
        run = Run(home, machine, corpus)
        datasets = read_state(run.store, corpus).get("dataset")
        if not datasets:
            raise UserError(
                f"corpus {corpus!r} has no dataset yet, so there is no training text to look into: run "
                "`sheepfold prepare SOURCE` or `run` first"
            )
        return {"text": text, "echoes": memorised_spans(run, text, datasets, min_words)}


def explain_echoes(home: Home, found: Mapping[str, Any], min_words: int) -> dict[str, Any]:
    """Return the spans that a completion shares with the training text of its model.

    Args:
        found: What `tasks.lineage.why.explain` returned for the completion.
    """
    with Machine() as machine:
        run = Run(home, machine)
        stage, _, key = found["artifact"].partition("/")
        made = run.store.find(stage, key)
        datasets = datasets_of(run.store, made.ref) if made is not None else []
        if not datasets:
            return UNKNOWN
        return {"echoes": memorised_spans(run, found["completion"]["text"], datasets, min_words)}


def memorised_spans(run: Run, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    """Return the longest spans that a text shares with training documents, each with the documents it stands in.

    Args:
        datasets: what the model was trained on; their texts are indexed when they are first asked for.
        min_words: length of the shortest span.
    """
    check_min_words(min_words)
    texts = training_texts(run.store, datasets)
    segments = load_segments(run.store, texts, trace_indexes(run, texts))
    spans = shared_spans([text], segments, texts.live or (), min_words)[0]
    groups = outstanding(spans)
    shown = [group[:SHOWN_DOCUMENTS] for group in groups[:SHOWN_SPANS]]
    sources = sources_of(run.store, datasets, texts, {span.doc_id for group in shown for span in group})
    places = ("doc_id", "doc_start", "doc_length", "before", "passage", "after")
    return {
        "characters": len(text),
        "covered": covered_chars(spans) / max(1, len(text)),
        "spans": [
            {
                "words": group[0].words,
                "start": group[0].start,
                "text": text[group[0].start : group[0].start + group[0].length],
                "documents": len({span.doc_id for span in whole}),
                "found_in": [
                    {**asdict(sources[span.doc_id]), **{name: getattr(span, name) for name in places}}
                    for span in group
                    if span.doc_id in sources
                ],
            }
            for group, whole in zip(shown, groups, strict=False)
        ],
        "more_spans": len(groups) - len(shown),
    }
