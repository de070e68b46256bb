"""Trace texts to the training documents that they share spans with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.context import subflow
from storage.digest import rows_digest
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from tasks.lineage.memorised import UNKNOWN, datasets_of_completion, datasets_of_corpus, memorised_spans
from tasks.machine import Machine
from tasks.run import Run
from tasks.settings import EvaluationSettings
from tasks.stage import Call
from tasks.tracing.contamination import ContaminationSettings, OverlapSettings, contamination, gram_overlap
from tasks.tracing.echoes import EchoSettings, echoes
from tasks.tracing.index import TraceIndexSettings, trace_index
from tasks.tracing.sources import datasets_of, training_texts
from tasks.tracing.spans import check_min_words


def _training_texts(run: Run, checkpoint: ArtifactRef) -> RefSet | None:
    """Return the texts that a model was trained on; None for a model from elsewhere."""

    def read(ref: ArtifactRef) -> RefSet | None:
        datasets = datasets_of(run.store, ref)
        return training_texts(run.store, datasets) if datasets else None

    unmade: RefSet | None = RefSet((checkpoint,), "", live=((),))
    return run.read(checkpoint, read, unmade)


def trace_indexes(run: Run, texts: RefSet) -> RefSet:
    """Return the indexes of training texts, in their order; they are made when they are first asked for."""
    return _as_set(trace_index.map(run, [Call(TraceIndexSettings(), {"documents": ref}) for ref in texts.refs]))


@subflow("trace")
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
    """Return the spans that a text shares with the training documents of datasets, making their indexes first.

    Raises:
        UserError: if `min_words` is less than what the indexes always find.
    """
    check_min_words(min_words)
    texts = training_texts(run.store, datasets)
    return memorised_spans(run.store, text, datasets, texts, trace_indexes(run, texts), min_words)


def explain_text(home: Home, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return what a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or `min_words` is too small.
    """
    with Machine() as machine:
        run = Run(home, machine, corpus)
        datasets = datasets_of_corpus(run.store, corpus)
        return {"text": text, "echoes": trace_text(run, text, datasets, min_words)}


def explain_echoes(home: Home, found: dict[str, Any], min_words: int) -> dict[str, Any]:
    """Return what a completion shares with the training text of its model.

    Args:
        found: What `tasks.lineage.why.explain` returned for the completion.
    """
    check_min_words(min_words)
    with Machine() as machine:
        run = Run(home, machine)
        datasets = datasets_of_completion(run.store, found)
        if not datasets:
            return UNKNOWN
        return {"echoes": trace_text(run, found["completion"]["text"], datasets, min_words)}
