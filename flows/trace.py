"""Trace texts to the training documents that they share spans with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from storage.catalog import read_state
from storage.digest import rows_digest
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from tasks.machine import Machine
from tasks.run import Run
from tasks.settings import EvaluationSettings
from tasks.stage import Call
from tasks.tokens.dataset import dataset
from tasks.tracing.contamination import ContaminationSettings, OverlapSettings, contamination, gram_overlap
from tasks.tracing.echoes import EchoSettings, echoes, load_segments
from tasks.tracing.index import TraceIndexSettings, trace_index
from tasks.tracing.sources import datasets_of, sources_of, training_texts
from tasks.tracing.spans import SharedSpan, check_min_words, covered_chars, outstanding, shared_spans

SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3


def _training_texts(run: Run, checkpoint: ArtifactRef) -> RefSet | None:
    """Return the texts that a model was trained on; None for a model from elsewhere."""

    def read(ref: ArtifactRef) -> RefSet | None:
        datasets = datasets_of(run.store, ref)
        return training_texts(run.store, datasets) if datasets else None

    return run.read(checkpoint, read, RefSet((checkpoint,), "", live=((),)))


def trace_indexes(run: Run, texts: RefSet) -> RefSet:
    """Return the indexes of training texts, in their order; they are made when they are first asked for."""
    return _as_set(trace_index.map(run, [Call(TraceIndexSettings(), {"documents": ref}) for ref in texts.refs]))


def trace_model(
    run: Run, settings: EvaluationSettings, checkpoint: ArtifactRef, evalset: ArtifactRef, completions: ArtifactRef
) -> tuple[ArtifactRef | None, ArtifactRef | None]:
    """Find completions, and the documents that a model is measured on, in its training text.

    Returns:
        Artefacts of `echoes` and `contamination`; None where the settings leave it out, or nobody knows the text.
    """
    texts = _training_texts(run, checkpoint) if settings.trace else None
    if texts is None:
        return None, None
    found = echoes(run, EchoSettings(), completions=completions, texts=texts, indexes=trace_indexes(run, texts))
    calls = []
    for ref, trained in zip(texts.refs, texts.live or (), strict=True):
        inputs = {"evalset": evalset, "documents": ref, "trained": set(trained)}
        calls.append(Call(OverlapSettings.of(trained), inputs))
    overlaps = _as_set(gram_overlap.map(run, calls))
    return found, contamination(run, ContaminationSettings(), evalset=evalset, overlaps=overlaps)


def _as_set(refs: Sequence[ArtifactRef]) -> RefSet:
    """Return artefacts as one input."""
    waiting = [ref for ref in refs if not ref.made]
    return RefSet(tuple(refs), "" if waiting else rows_digest((ref.key, ref.digest) for ref in refs))


def trace_text(run: Run, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of datasets, in the form that `why` prints.

    Raises:
        UserError: if shorter spans are asked for than are always found.
    """
    check_min_words(min_words)
    texts = training_texts(run.store, datasets)
    indexes = trace_indexes(run, texts)
    spans = shared_spans([text], load_segments(run.store, texts, indexes), texts.live or (), min_words)[0]
    groups = outstanding(spans)
    shown = [group[:SHOWN_DOCUMENTS] for group in groups[:SHOWN_SPANS]]
    sources = sources_of(run.store, datasets, texts, {span.doc_id for group in shown for span in group})
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
                    {**asdict(sources[span.doc_id]), **_place(span)} for span in group if span.doc_id in sources
                ],
            }
            for group, whole in zip(shown, groups, strict=False)
        ],
        "more_spans": len(groups) - len(shown),
    }


def _place(span: SharedSpan) -> dict[str, Any]:
    names = ("doc_id", "doc_start", "doc_length", "before", "passage", "after")
    return {name: getattr(span, name) for name in names}


def explain_text(home: str, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return what a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or shorter spans are asked for than are always found.
    """
    place = Home.from_environment(home or None)
    with Machine() as machine:
        run = Run(place, machine, corpus)
        found = read_state(run.store, corpus).get(dataset.name)
        if not found:
            raise UserError(
                f"corpus {corpus!r} has no dataset yet, so there is no training text to search: run "
                "`sheepfold prepare SOURCE` or `run` first"
            )
        return {"text": text, "echoes": trace_text(run, text, found, min_words)}


def explain_echoes(home: str, completion: dict[str, Any], min_words: int) -> dict[str, Any]:
    """Return what a completion shares with the training text of its model, for the document that `why` gives of it.

    Args:
        completion: That document, which names the generation as `artifact` and holds the row as `completion`.
    """
    check_min_words(min_words)
    with Machine() as machine:
        run = Run(Home.from_environment(home or None), machine)
        stage, _, key = completion["artifact"].partition("/")
        made = run.store.find(stage, key)
        datasets = datasets_of(run.store, made.ref) if made is not None else []
        if not datasets:
            return {
                "echoes": None,
                "no_echoes": "the model was not trained in this home, so its training text is unknown",
            }
        return {"echoes": trace_text(run, completion["completion"]["text"], datasets, min_words)}
