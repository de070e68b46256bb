"""The wiring of tracing: from what a model was trained on to the spans that a text shares with it.

Written, like the rest of the wiring, once for runs and for plans. The indexes are made when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.corpus import Maybe, MaybeSet
from storage.digest import rows_digest
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from storage.store import open_store
from tasks.lineage.memorised import UNKNOWN, datasets_of_completion, datasets_of_corpus, memorised_spans
from tasks.resources import Resources
from tasks.session import Call, Pending, Session
from tasks.settings import EvaluationSettings
from tasks.tracing.contamination import ContaminationSettings, OverlapSettings, contamination, gram_overlap
from tasks.tracing.echoes import EchoSettings, echoes
from tasks.tracing.index import TraceIndexSettings, trace_index
from tasks.tracing.sources import datasets_of, training_texts
from tasks.tracing.spans import check_min_words


def trace_indexes(session: Session, texts: RefSet) -> MaybeSet:
    """The indexes of training texts, in their order."""
    calls = [Call(TraceIndexSettings(), {"documents": ref}, 1) for ref in texts.refs]
    return _as_set(session.run_each(trace_index, calls))


def echo_completions(
    session: Session, checkpoint: Maybe, completions: Maybe, settings: EchoSettings | None = None
) -> Maybe | None:
    """How much of completions stands in what their model was trained on; None where nobody knows what that was.

    Args:
        checkpoint: the model; one that was taken in from elsewhere has no training texts.
        completions: an artefact of the stage `generate`.
    """
    settings = settings or EchoSettings()
    if isinstance(checkpoint, Pending):
        return session.run(echoes, settings, completions=completions, texts=checkpoint, indexes=checkpoint)
    datasets = datasets_of(session.store, checkpoint)
    if not datasets:
        return None
    texts = training_texts(session.store, datasets)
    indexes = trace_indexes(session, texts)
    return session.run(echoes, settings, completions=completions, texts=texts, indexes=indexes)


def contamination_of(session: Session, checkpoint: Maybe, evalset: Maybe) -> Maybe | None:
    """How much of evaluation documents stands in what a model was trained on; None where nobody knows what that was.

    Args:
        evalset: an artefact in the layout of the frozen evaluation set.
    """
    for value in (checkpoint, evalset):
        if isinstance(value, Pending):
            return session.run(contamination, ContaminationSettings(), evalset=value, overlaps=value)
    assert isinstance(checkpoint, ArtifactRef)
    datasets = datasets_of(session.store, checkpoint)
    if not datasets:
        return None
    texts = training_texts(session.store, datasets)
    calls = []
    for ref, trained in zip(texts.refs, texts.live or (), strict=True):
        settings = OverlapSettings.of(trained)
        if session.resources is not None:
            session.resources.trained[settings.trained] = set(trained)
        calls.append(Call(settings, {"evalset": evalset, "documents": ref}, 1))
    overlaps = _as_set(session.run_each(gram_overlap, calls))
    return session.run(contamination, ContaminationSettings(), evalset=evalset, overlaps=overlaps)


def trace_model(
    session: Session, settings: EvaluationSettings, checkpoint: Maybe, evalset: Maybe, completions: Maybe
) -> tuple[Maybe | None, Maybe | None]:
    """What stands in a model's training text of its completions, and of the documents that it is measured on.

    Returns:
        Artefacts of `echoes` and `contamination`; None where the settings leave it out, or nobody knows the text.
    """
    if not settings.trace:
        return None, None
    return echo_completions(session, checkpoint, completions), contamination_of(session, checkpoint, evalset)


def _as_set(refs: Sequence[Maybe]) -> MaybeSet:
    """Artefacts as one input, if they are all there."""
    known = []
    for ref in refs:
        if isinstance(ref, Pending):
            return ref
        known.append(ref)
    return RefSet(tuple(known), rows_digest((ref.key, ref.digest) for ref in known))


def trace_text(session: Session, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of datasets, making their indexes first.

    Raises:
        UserError: if `min_words` is less than what the indexes always find.
    """
    check_min_words(min_words)
    texts = training_texts(session.store, datasets)
    indexes = trace_indexes(session, texts)
    assert isinstance(indexes, RefSet)
    return memorised_spans(session.store, text, datasets, texts, indexes, min_words)


def explain_text(home: str, text: str, corpus: str, min_words: int) -> dict[str, Any]:
    """Return the spans that a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or `min_words` is less than what the indexes always find.
    """
    place = Home.from_environment(home or None)
    datasets = datasets_of_corpus(open_store(place.store, place.cache), corpus)
    return {"text": text, "echoes": _trace(place, text, datasets, min_words)}


def explain_echoes(home: str, completion: dict[str, Any], min_words: int) -> dict[str, Any]:
    """Return the spans that a completion shares with what its model was trained on.

    Args:
        completion: what `tasks.lineage.why.explain` returned for it.
    """
    place = Home.from_environment(home or None)
    datasets = datasets_of_completion(open_store(place.store, place.cache), completion)
    return {"echoes": _trace(place, completion["completion"]["text"], datasets, min_words)} if datasets else UNKNOWN


def _trace(place: Home, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    check_min_words(min_words)
    with Resources(place) as resources:
        return trace_text(Session(place, resources), text, datasets, min_words)
