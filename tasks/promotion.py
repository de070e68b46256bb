"""Promotion: registers a model version and moves names. It makes nothing, and run again it changes nothing.

A challenger that passes all gates (`tasks.gates`) becomes champion, one that does not stays challenger: beside a
champion that means fewer bits per byte on the same evaluation set. A version that a person took back never becomes
champion by itself again.

Names move under a lock, one after the other, and in an order that a kill between two of them leaves nothing wrong and
the same command mends: `previous` before `champion`, and what is told of a version before it bears a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registered import newest_number, note_names
from storage.registry import CHALLENGER, CHAMPION, PREVIOUS, ModelVersion, Registry
from storage.store import Store
from tasks.curate.evalset import trains_on_evalset
from tasks.evaluation.tables import read_metrics
from tasks.gates.facts import curated_of
from tasks.gates.verdicts import Verdict, failed, read_verdicts
from tasks.model_card import model_card
from tasks.registration import DECIDES, LOCK, is_lost, note, register, search_tags

VERDICT_TAG = "sheepfold.verdict"
WITHDRAWN_TAG = "sheepfold.withdrawn"


@dataclass(frozen=True)
class Promotion:
    """What promotion did.

    Attributes:
        alias: name the version stands under now.
        moved: whether any name moved.
        reason: the verdict in one sentence.
        verdicts: those of the gates, in their order.
        gates: the artefact that holds them.
    """

    version: ModelVersion
    alias: str
    moved: bool
    reason: str
    verdicts: Sequence[Verdict]
    gates: ArtifactRef


@dataclass(frozen=True)
class Rival:
    """The champion that was measured.

    Attributes:
        version: its number in the registry.
        checkpoint: the model.
        evaluation: its figures on the challenger's evaluation set; None if it was trained on documents of that set.
    """

    version: str
    checkpoint: ArtifactRef
    evaluation: ArtifactRef | None


class ChampionChanged(RuntimeError):
    """Another version is champion than the one that was measured, or may be; nothing was written."""


def trained_on(store: Store, checkpoint: ArtifactRef, evalset: ArtifactRef) -> bool:
    """Whether a model, or one that it continues, was trained on documents of an evaluation set.

    False for one that was trained elsewhere.
    """
    if checkpoint.stage != "train":
        return False
    if trains_on_evalset(store, curated_of(store, checkpoint).ref, evalset):
        return True
    inputs = manifest_of(store, checkpoint)
    return "base" in inputs.inputs and any(trained_on(store, base, evalset) for base in inputs.input_refs("base"))


def decide(
    verdicts: Sequence[Verdict], own: float, rival: Rival | None, same_model: bool, withdrawn: str = ""
) -> tuple[bool, str]:
    """Whether the challenger becomes (or stays) champion, and why.

    Args:
        verdicts: of the gates.
        own: its bits per byte.
        rival: the champion; None when there is none.
        same_model: the challenger is the champion.
        withdrawn: why a person took this version back, if one did.
    """
    if same_model:
        return True, f"it is the champion already ({own:.4f} bits per byte)"
    if withdrawn:
        return False, f"it was taken back: {withdrawn}"
    held = failed(verdicts)
    if held:
        return False, "; ".join(item.sentence for item in held)
    if rival is None:
        return True, f"there was no champion ({own:.4f} bits per byte)"
    return True, next(item.sentence for item in verdicts if item.gate == "bits_per_byte")


def promote(
    store: Store,
    registry: Registry,
    run_id: str,
    checkpoint: ArtifactRef,
    evaluation: ArtifactRef,
    gates: ArtifactRef,
    rival: Rival | None,
    traced: bool = True,
) -> Promotion:
    """Register a model and let it stand where it belongs.

    Args:
        evaluation: its figures.
        gates: the verdicts on it, beside the rival.
        rival: the champion as it was measured; None when there was none.
        traced: whether its training text may be looked into when it is measured again.

    Raises:
        ChampionChanged: another version became champion in the meantime: bring the registry up to the store's book, and
            measure that one.
    """
    verdicts = read_verdicts(store.folder(gates))
    with store.lock(LOCK):
        if is_lost(store, registry):
            raise ChampionChanged("the store's book has versions that the registry lacks")
        champion = registry.by_alias(CHAMPION)
        measured = None if rival is None else rival.version
        if champion is not None and champion.version != measured:
            found = "none" if measured is None else f"version {measured}"
            raise ChampionChanged(f"version {champion.version} is champion, but {found} was measured")
        own = read_metrics(store, evaluation)[DECIDES]
        version = registry.by_digest(checkpoint.digest)
        same = version is not None and champion is not None and champion.version == version.version
        withdrawn = "" if version is None else version.tags.get(WITHDRAWN_TAG, "")
        wins, reason = decide(verdicts, own, rival if champion is not None else None, same, withdrawn)
        if version is None or not same:
            tags = {**_verdict_tags(verdicts), VERDICT_TAG: reason}
            card = model_card(store, checkpoint, evaluation, verdicts, _links(registry, run_id))
            if version is None:
                tags = {**search_tags(store, registry.tracking, run_id, checkpoint, evaluation), **tags}
                number = str(newest_number(store) + 1)
                version = register(store, registry, run_id, checkpoint, card, tags, number)
                registry.note_newest(int(version.version))  # before the book has it, or it would count as lost
            else:
                changed = {name: text for name, text in tags.items() if version.tags.get(name) != text}
                registry.tag(version.version, changed)
                registry.describe(version.version, card)
        note(store, registry, version.version, evaluation, gates, traced)
        alias = CHAMPION if wins else CHALLENGER
        moved = alias not in version.aliases
        _move(registry, version, champion, wins)
        note_names(store, registry.names())
        current = registry.by_number(version.version) or version
    return Promotion(current, alias, moved, reason, verdicts, gates)


def _move(registry: Registry, version: ModelVersion, champion: ModelVersion | None, wins: bool) -> None:
    """Let names stand where they belong."""
    if wins:
        if champion is not None and champion.version != version.version:
            registry.move_alias(PREVIOUS, champion.version)
        registry.move_alias(CHAMPION, version.version)
        challenger = registry.by_alias(CHALLENGER)
        if challenger is not None and challenger.version == version.version:
            registry.drop_alias(CHALLENGER)  # it has won; a name that stands for a loser would mislead
    else:
        registry.move_alias(CHALLENGER, version.version)


def _links(registry: Registry, run_id: str) -> dict[str, str]:
    """Where a model's card leads to: the pages of what trained it."""
    flow_run = registry.tracking.tags(run_id, ("prefect.ui_url",)).get("prefect.ui_url")
    found = {"the flow run in Prefect": flow_run, "the training's run in MLflow": registry.tracking.page_of_run(run_id)}
    return {name: address for name, address in found.items() if address}


def _verdict_tags(verdicts: Sequence[Verdict]) -> dict[str, str]:
    held = failed(verdicts)
    summary = "failed: " + ", ".join(item.gate for item in held) if held else "passed"
    return {"sheepfold.gates": summary, **{f"sheepfold.gate.{item.gate}": item.words() for item in verdicts}}
