"""Continuing from a model: its network, its weights and its tokeniser take the place of what settings would choose.

A base is named as models are everywhere (an alias, a number, a `models:/` address, a run id, a folder of ours), or is a
folder in a layout of Hugging Face. It is found once for a run: an alias that moves meanwhile changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.actions import checkpoint_of, registry_of, resolve_version
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHAMPION, Registry, read_models
from tasks.bundle import CONFIG_FILE, WEIGHTS_FILE
from tasks.interchange import import_folder
from tasks.registry.promote import trained_on
from tasks.resources import Resources
from tasks.session import Session
from tasks.settings import Settings, TokenizerSettings
from tasks.tokens.tokenizer import TOKENIZER_FILE
from tasks.train_settings import ModelSettings
from tasks.training import train

CARRIER = "small"  # a preset all of whose fields are replaced
FREE_FIELDS = ("drop_embed", "drop_attn", "drop_ffn", "drop_resid")  # of the network; they shape no weight


class BaseError(UserError):
    """A model that a training cannot continue from, or settings that contradict it."""


@dataclass(frozen=True)
class Base:
    """A model to continue from.

    Attributes:
        checkpoint: its artefact.
        folder: where that lies.
        shape: fields of its `model.ModelConfig`.
        framing: whether ids that begin and end a text stood around its documents, `bos` and `eos`.
    """

    checkpoint: ArtifactRef
    folder: Path
    shape: dict[str, Any]
    framing: dict[str, bool]


def find_base(session: Session, settings: Settings) -> Base | None:
    """The model to continue from, if one is asked for.

    Raises:
        BaseError: if a plan would have to take it in first.
        UserError: if the name leads to no model.
    """
    name = settings.train.base
    if not name:
        return None
    if name not in session.bases:
        session.bases[name] = _base_of(session, _checkpoint(session, name))
    found: Base = session.bases[name]
    return found


def _checkpoint(session: Session, name: str) -> ArtifactRef:
    folder = Path(name).expanduser()
    if session.resources is None:
        return _planned(session, name, folder)
    if not folder.is_dir():
        return checkpoint_of(session, name)
    if _is_bundle(folder):
        return checkpoint_of(session, str(folder))
    session.home.create().cache.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=session.home.cache, prefix="base-") as place:
        taken = Path(place) / "bundle"
        import_folder(folder, taken)
        return checkpoint_of(session, str(taken))


def _planned(session: Session, name: str, folder: Path) -> ArtifactRef:
    """A registered model that the store has; a plan takes nothing in."""
    if not folder.is_dir():
        with Resources(session.home) as resources:
            ref = resolve_version(Registry(resources.tracking, session.corpus), name).checkpoint
        if session.store.find(ref.stage, ref.key) is not None:
            return ref
    raise BaseError(
        f"train.base={name} is not in the store, and a plan takes nothing in: run, or plan without train.base what "
        "comes before the training"
    )


def _is_bundle(folder: Path) -> bool:
    """Whether a folder is laid out as ours: its config.json holds the network's fields under `model`."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model" in config and (folder / WEIGHTS_FILE).is_file()


def _base_of(session: Session, checkpoint: ArtifactRef) -> Base:
    folder = session.store.folder(checkpoint)
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    framing = {name: bool(config.get(name, True)) for name in ("bos", "eos")}
    return Base(checkpoint, folder, config["model"], framing)


def continuing(session: Session, settings: Settings, base: str) -> Settings:
    """The settings of a run that is to continue from a model, by name; before there is a champion, from scratch."""
    if not base:
        return settings
    if base == CHAMPION and not _has_champion(session):
        session.note("there is no champion to continue from yet, so this training begins from scratch")
        return settings
    return replace(settings, train=replace(settings.train, base=base))


def _has_champion(session: Session) -> bool:
    known = session.home.has_tracking or read_models(session.store, session.corpus).aliases
    return bool(known) and registry_of(session).by_alias(CHAMPION) is not None


def check_unread(session: Session, settings: Settings, evalset: ArtifactRef) -> None:
    """Refuse, before it is trained, a model that continues one which was trained on documents of the evaluation set.

    It knows them as well, so no promotion would take it.

    Raises:
        BaseError: then.
    """
    base = find_base(session, settings)
    if base is not None and trained_on(session.store, base.checkpoint, evalset):
        raise BaseError(
            f"train.base={settings.train.base} was trained on documents of the evaluation set {evalset.key[:12]}: the "
            "split was changed since, or part of its files became a corpus of their own. Figures of a model that goes "
            "on from it would say nothing, so leave the base out to begin from scratch"
        )


def champion_of(session: Session, base: str, dataset: ArtifactRef) -> ArtifactRef | None:
    """The champion, if it is what a run continues from and has read this very dataset: then there is nothing to train.

    Else a schedule that nothing new came to would train its own last result again and again.
    """
    if base != CHAMPION or base not in session.bases:
        return None
    found: Base = session.bases[base]
    if found.checkpoint.stage != train.name:
        return None
    if manifest_of(session.store, found.checkpoint).inputs["dataset"]["digest"] != dataset.digest:
        return None
    session.note("the champion has read all of this already, so nothing was trained")
    return session.reuse(train, found.checkpoint)


def with_base(settings: Settings, base: Base | None) -> Settings:
    """The settings of a run that continues from a base: its tokeniser and shape.

    Raises:
        BaseError: if the settings ask for another tokeniser or another shape.
    """
    if base is None:
        return settings
    asked = settings.tokenizer
    own = TokenizerSettings(engine=asked.engine)
    given = [item.name for item in fields(asked) if getattr(asked, item.name) != getattr(own, item.name)]
    if given:
        raise BaseError(
            f"train.base brings its own tokeniser, but tokenizer.{given[0]} is given as well; leave one of them out"
        )
    for name, value in settings.model.overrides.items():
        if name not in FREE_FIELDS and base.shape.get(name) != value:
            raise BaseError(
                f"model.{name} is {value}, but the base has {base.shape.get(name)}; weights have the shape that they "
                f"were trained in: leave it out (only {', '.join(FREE_FIELDS)} may differ)"
            )
    if settings.model.preset != ModelSettings().preset:
        raise BaseError(
            f"train.base brings its own network, but the preset {settings.model.preset} is given as well; leave one of "
            "them out"
        )
    taken = TokenizerSettings(kind="file", file=str(base.folder / TOKENIZER_FILE), engine=asked.engine, **base.framing)
    shape = {**base.shape, **settings.model.overrides}
    del shape["vocab_size"]  # that of the tokeniser, as far as sequences are concerned
    return replace(settings, tokenizer=taken, model=ModelSettings(CARRIER, shape))
