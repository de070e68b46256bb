"""Continue training from a model: its network, its weights and its tokeniser replace those of the settings.

A base is named as models are everywhere (alias, number, `models:/` address, run id, folder), or is a folder in a layout
of Hugging Face. It is resolved once for a run: an alias that moves meanwhile changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from model.architecture import STRETCH_FIELDS, ModelConfig
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import CHAMPION, find_version, registered_versions
from storage.tombstones import read_tombstones
from tasks.core.run import Run
from tasks.core.settings import ModelSettings, Settings
from tasks.lineage.training_data import trainings_of
from tasks.registry.models import UnknownModel, checkpoint_of, resolve_version
from tasks.registry.promote import trained_on
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE, read_sampling
from tasks.training.hugging_face import import_folder
from tasks.training.train import train

CARRIER = "small"  # a preset all of whose fields are replaced
# of the network; they shape no weight
FREE_FIELDS = ("drop_embed", "drop_attn", "drop_ffn", "drop_resid", "drop_resid_mlp")


class BaseError(UserError):
    """A model that a training cannot continue from, or settings that contradict it."""


@dataclass(frozen=True)
class Base:
    """A model to continue from.

    `framing` says which ids stood around its documents, `bos` and `eos`; `sampling` are its defaults of generation.
    """

    name: str  # as it was asked for
    checkpoint: ArtifactRef
    folder: Path
    shape: dict[str, Any]  # fields of its `model.ModelConfig`
    framing: dict[str, bool]
    sampling: dict[str, Any]


def check_base(run: Run, settings: Settings) -> Base | None:
    """Return the model to continue from, if one is asked for.

    Raises:
        BaseError: if the settings contradict it, or a plan would have to copy it into the store first.
        UserError: if the name leads to no model.
    """
    name = settings.train.base
    if not name:
        return None
    checkpoint = _checkpoint(run, name)
    folder = run.store.folder(checkpoint)
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    framing = {key: bool(config.get(key, True)) for key in ("bos", "eos")}
    base = Base(name, checkpoint, folder, config["model"], framing, read_sampling(folder))
    with_base(settings, base)
    trainings = {f"{one.stage}/{one.key}" for one in trainings_of(run.store, checkpoint)}
    tombstones = read_tombstones(run.store).documents.values()
    if n := sum(not trainings.isdisjoint(item.seen_by) for item in tombstones):
        run.note(
            f"train.base={name} saw documents that were forgotten since ({n}), and so did every model that "
            "continues it; leave the base out to begin from scratch"
        )
    return base


def _checkpoint(run: Run, name: str) -> ArtifactRef:
    folder = Path(name).expanduser()
    is_outside = folder.is_dir() and find_version(registered_versions(run.store), name, run.corpus) is None
    if run.plan:
        if not is_outside:
            ref = resolve_version(run, name).checkpoint
            if run.store.find(ref.stage, ref.key) is not None:
                return ref
        raise BaseError(
            f"train.base={name} is not in the store, and a plan copies nothing into it: run, or plan without train.base"
        )
    if not is_outside or _is_bundle(folder):
        return checkpoint_of(run, name)
    run.home.create().cache.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=run.home.cache, prefix="base-") as place:
        taken = Path(place) / "bundle"
        import_folder(folder, taken)
        return checkpoint_of(run, str(taken))


def _is_bundle(folder: Path) -> bool:
    """Return True for a folder in our layout: its config.json holds the network's fields under `model`."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model" in config and (folder / WEIGHTS_FILE).is_file()


def continuing(run: Run, settings: Settings, base: str | None) -> Settings:
    """Return the settings of a run that continues from a model, by name; before there is a champion, from scratch."""
    if not base:
        return settings
    try:
        if base == CHAMPION:
            resolve_version(run, base)
    except UnknownModel:
        run.note("there is no champion to continue from yet, so this training begins from scratch")
        return settings
    return settings.replace(train=replace(settings.train, base=base))


def check_unread(run: Run, base: Base | None, evalset: ArtifactRef) -> None:
    """Refuse, before the training, a base that was trained on documents of the evaluation set.

    Its continuation knows them as well, so no promotion would take it.

    Raises:
        BaseError: then.
    """
    if base is not None and trained_on(run.store, base.checkpoint, evalset):
        raise BaseError(
            f"train.base={base.name} was trained on documents of the evaluation set {evalset.key[:12]}: the split was "
            "changed since, or part of its files became a corpus of their own. Figures of a model that continues it "
            "would say nothing, so leave the base out to begin from scratch"
        )


def already_read(run: Run, asked: str | None, base: Base | None, dataset: ArtifactRef) -> ArtifactRef | None:
    """Return the champion if it is the base and has read this very dataset: then there is nothing to train.

    Otherwise a schedule without new documents would train its own last result again and again.
    """
    if asked != CHAMPION or base is None or base.checkpoint.stage != train.name:
        return None
    if manifest_of(run.store, base.checkpoint).inputs["dataset"]["digest"] != dataset.digest:
        return None
    run.note("the champion has read all of this already, so nothing was trained")
    return run.reuse(train, base.checkpoint)


def with_base(settings: Settings, base: Base | None) -> Settings:
    """Return the settings of a run that continues from a base: its tokeniser and shape.

    Dropout may differ, and where positions are computed the context with the scaling of rotary wavelengths.

    Raises:
        BaseError: if the settings ask for another tokeniser or for weights of another shape.
    """
    if base is None:
        return settings
    if settings.model.preset != ModelSettings().preset:
        raise BaseError(
            f"train.base brings its own network, but the preset {settings.model.preset} is given as well; leave one of "
            "them out"
        )
    asked = settings.tokenizer
    own = TokenizerSettings(engine=asked.engine)
    foreign = [item.name for item in fields(asked) if getattr(asked, item.name) != getattr(own, item.name)]
    if foreign:
        raise BaseError(
            f"train.base brings its own tokeniser, but tokenizer.{foreign[0]} is given as well; leave one of them out"
        )
    free = (*FREE_FIELDS, *STRETCH_FIELDS)
    given = settings.model.overrides
    for name, value in given.items():
        if name not in free and base.shape.get(name) != value:
            raise BaseError(
                f"model.{name} is {value}, but the base has {base.shape.get(name)}; weights have the shape that they "
                f"were trained in: leave it out (only {', '.join(free)} may differ)"
            )
    taken = TokenizerSettings(kind="file", file=str(base.folder / TOKENIZER_FILE), engine=asked.engine, **base.framing)
    stretch = {name: given[name] for name in STRETCH_FIELDS if name in given}
    try:
        shape = {**ModelConfig.from_dict(base.shape).stretched(**stretch).to_dict(), **given}
    except ValueError as error:
        raise BaseError(f"train.base={base.name} cannot have this context: {error}") from error
    del shape["vocab_size"]  # that of the tokeniser, as far as sequences are concerned
    return settings.replace(tokenizer=taken, model=ModelSettings(CARRIER, shape))
