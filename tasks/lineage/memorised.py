"""Spans of a text that stand in training documents, as `sheepfold why` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from storage.catalog import read_state
from storage.errors import UserError
from storage.manifest import ArtifactRef, RefSet
from storage.store import Store
from tasks.tracing.echoes import load_segments
from tasks.tracing.sources import datasets_of, sources_of
from tasks.tracing.spans import covered_chars, outstanding, shared_spans

SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3
UNKNOWN = {"echoes": None, "no_echoes": "the model was not trained in this home, so its training text is unknown"}


def datasets_of_corpus(store: Store, corpus: str) -> list[ArtifactRef]:
    """Return the datasets of a corpus's last completed run.

    Raises:
        UserError: if it has none yet.
    """
    found = read_state(store, corpus).get("dataset")
    if not found:
        raise UserError(
            f"corpus {corpus!r} has no dataset yet, so there is no training text to look into: run "
            "`sheepfold prepare SOURCE` or `run` first"
        )
    return found


def datasets_of_completion(store: Store, found: Mapping[str, Any]) -> list[ArtifactRef]:
    """Return the datasets that the model of a completion was trained on; none if it was trained elsewhere.

    Args:
        found: what `tasks.lineage.why.explain` returned for the completion.
    """
    stage, _, key = found["artifact"].partition("/")
    made = store.find(stage, key)
    return datasets_of(store, made.ref) if made is not None else []


def memorised_spans(
    store: Store, text: str, datasets: Sequence[ArtifactRef], texts: RefSet, indexes: RefSet, min_words: int
) -> dict[str, Any]:
    """Return the longest spans that a text shares with training documents, each with the documents it stands in.

    Args:
        datasets: what the model was trained on.
        texts: training texts of these (`tasks.tracing.sources.training_texts`).
        indexes: their indexes, in the same order (artefacts of the stage `trace_index`).
        min_words: length of the shortest span.
    """
    spans = shared_spans([text], load_segments(store, texts, indexes), texts.live or (), min_words)[0]
    groups = outstanding(spans)
    shown = [group[:SHOWN_DOCUMENTS] for group in groups[:SHOWN_SPANS]]
    sources = sources_of(store, datasets, texts, {span.doc_id for group in shown for span in group})
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
