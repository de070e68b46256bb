"""The wiring of tracing: from what a model was trained on to the spans that a text shares with it.

Written, like the rest of the wiring, once for runs and for plans. The indexes are made when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flows.corpus import Maybe, MaybeSet
from storage.catalog import read_state
from storage.digest import rows_digest
from storage.errors import UserError
from storage.home import Home
from storage.manifest import ArtifactRef, RefSet
from storage.store import open_store
from tasks.resources import Resources
from tasks.session import Call, Pending, Session
from tasks.settings import EvaluationSettings
from tasks.tokens.dataset import dataset
from tasks.tracing.contamination import ContaminationSettings, OverlapSettings, contamination, gram_overlap
from tasks.tracing.echoes import EchoSettings, echoes, load_segments
from tasks.tracing.index import TraceIndexSettings, trace_index
from tasks.tracing.sources import datasets_of, sources_of, training_texts
from tasks.tracing.spans import SharedSpan, check_min_words, covered_chars, outstanding, shared_spans

SHOWN_SPANS = 10
SHOWN_DOCUMENTS = 3


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
    """What a text shares with the training documents of datasets, in the form that `why` prints.

    Raises:
        UserError: if shorter spans are asked for than are always found.
    """
    check_min_words(min_words)
    texts = training_texts(session.store, datasets)
    indexes = trace_indexes(session, texts)
    assert isinstance(indexes, RefSet)
    spans = shared_spans([text], load_segments(session.store, texts, indexes), texts.live or (), min_words)[0]
    groups = outstanding(spans)
    shown = [group[:SHOWN_DOCUMENTS] for group in groups[:SHOWN_SPANS]]
    sources = sources_of(session.store, datasets, texts, {span.doc_id for group in shown for span in group})
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
    """What a text shares with the training documents of a corpus's last completed run.

    Raises:
        UserError: if the corpus has no dataset, or shorter spans are asked for than are always found.
    """
    place = Home.from_environment(home or None)
    found = read_state(open_store(place.store, place.cache), corpus).get(dataset.name)
    if not found:
        raise UserError(
            f"corpus {corpus!r} has no dataset yet, so there is no training text to look into: run "
            "`sheepfold prepare SOURCE` or `run` first"
        )
    return {"text": text, "echoes": _trace(place, text, found, min_words)}


def explain_echoes(home: str, completion: dict[str, Any], min_words: int) -> dict[str, Any]:
    """What a completion shares with what its model was trained on, for the document that `why` gives of it.

    Args:
        completion: that document, which names the generation as `artifact` and holds the row as `completion`.
    """
    place = Home.from_environment(home or None)
    store = open_store(place.store, place.cache)
    stage, _, key = completion["artifact"].partition("/")
    made = store.find(stage, key)
    datasets = datasets_of(store, made.ref) if made is not None else []
    if not datasets:
        return {"echoes": None, "no_echoes": "the model was not trained in this home, so its training text is unknown"}
    return {"echoes": _trace(place, completion["completion"]["text"], datasets, min_words)}


def _trace(place: Home, text: str, datasets: Sequence[ArtifactRef], min_words: int) -> dict[str, Any]:
    check_min_words(min_words)
    with Resources(place) as resources:
        return trace_text(Session(place, resources), text, datasets, min_words)
