"""Training from a base model, whose network, weights and tokeniser replace those of the settings.

A base is an alias, a version number, a `models:/` address, a run id, or a folder, also in a Hugging Face layout. It is
resolved once per run, so that a moving alias does not matter.
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
from tasks.core.run import Run
from tasks.core.settings import ModelSettings, Settings
from tasks.lineage.training_data import forgotten_since
from tasks.registry.models import UnknownModel, checkpoint_of, resolve_version
from tasks.registry.promote import trained_on
from tasks.tokens.settings import TokenizerSettings
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE, read_sampling
from tasks.training.hugging_face import import_folder
from tasks.training.train import train

CARRIER = "small"  # any preset; all its fields are overridden
# fields of the network that may differ from the base's
FREE_FIELDS = ("drop_embed", "drop_attn", "drop_ffn", "drop_resid", "drop_resid_mlp")


class BaseError(UserError):
    """A model that cannot be a base, or settings that contradict it."""


@dataclass(frozen=True)
class Base:
    """A base model.

    `framing` has `bos` and `eos`, True if its training documents had them; `sampling` are its default settings.
    """

    name: str  # as given in the settings
    checkpoint: ArtifactRef
    folder: Path
    shape: dict[str, Any]  # fields of its `model.ModelConfig`
    framing: dict[str, bool]
    sampling: dict[str, Any]


def check_base(run: Run, settings: Settings) -> Base | None:
    """Return the base model of the settings, if any.

    Raises:
        BaseError: the settings contradict it, adapters have no base, or a plan would have to copy it into the store.
        UserError: the model does not exist.
    """
    name = settings.train.base
    adapter = settings.train.overrides.get("adapter", "none")
    if not name and adapter != "none":
        raise BaseError(f"train.adapter={adapter} trains small matrices beside the weights of a base; set train.base")
    if not name:
        return None
    if adapter != "none" and settings.tokenizer.extend:
        raise BaseError(
            f"tokenizer.extend={settings.tokenizer.extend} adds rows to the embedding, which train.adapter={adapter} "
            "freezes, so they would never be learned; leave one of them out"
        )
    if adapter != "none" and settings.execution.sharding == "fsdp" and settings.execution.processes != 1:
        raise BaseError(f"train.adapter={adapter} is not sharded: set execution.sharding=ddp")
    checkpoint = _checkpoint(run, name)
    folder = run.store.folder(checkpoint)
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    framing = {key: bool(config.get(key, True)) for key in ("bos", "eos")}
    base = Base(name, checkpoint, folder, config["model"], framing, read_sampling(folder))
    if "gate" in settings.train.overrides.get("adapter_targets", ()) and not ModelConfig.from_dict(base.shape).is_gated:
        raise BaseError(f"train.adapter_targets names gate, which the network of {name} does not have; leave it out")
    with_base(settings, base)
    if n := forgotten_since(run.store, checkpoint):
        run.note(
            f"train.base={name} was trained on {n} document(s) that were forgotten since, and so is every model based "
            "on it; unset train.base to train from random weights"
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
            f"train.base={name} is not in the store, and a plan does not copy it there: run, or plan without train.base"
        )
    if not is_outside or _is_bundle(folder):
        return checkpoint_of(run, name)
    run.home.create().cache.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=run.home.cache, prefix="base-") as place:
        taken = Path(place) / "bundle"
        import_folder(folder, taken)
        return checkpoint_of(run, str(taken))


def _is_bundle(folder: Path) -> bool:
    """Return True for a bundle, whose config.json has the network's fields under `model`."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model" in config and (folder / WEIGHTS_FILE).is_file()


def continuing(run: Run, settings: Settings, base: str | None) -> Settings:
    """Return the settings with `train.base` set; unchanged if it is the champion and there is none yet."""
    if not base:
        return settings
    try:
        if base == CHAMPION:
            resolve_version(run, base)
    except UnknownModel:
        run.note("there is no champion as base yet, so this training starts from random weights")
        return settings.replace(tokenizer=replace(settings.tokenizer, extend=0))
    return settings.replace(train=replace(settings.train, base=base))


def check_unread(run: Run, base: Base | None, evalset: ArtifactRef) -> None:
    """Refuse a base that was trained on documents of the evaluation set, as no model based on it can be promoted.

    Raises:
        BaseError: it was.
    """
    if base is not None and trained_on(run.store, base.checkpoint, evalset):
        raise BaseError(
            f"train.base={base.name} was trained on documents of the evaluation set {evalset.key[:12]}: the split was "
            "changed since, or its files were divided into several corpora. Metrics of a model based on it would be "
            "meaningless: unset train.base to train from random weights"
        )


def already_read(run: Run, asked: str | None, base: Base | None, dataset: ArtifactRef) -> ArtifactRef | None:
    """Return the champion if it is the base and was trained on this dataset, else None.

    So a schedule without new documents does not train the champion on the same data repeatedly.
    """
    if asked != CHAMPION or base is None or base.checkpoint.stage != train.name:
        return None
    if manifest_of(run.store, base.checkpoint).inputs["dataset"]["digest"] != dataset.digest:
        return None
    run.note("the champion was already trained on this dataset, so nothing was trained")
    return run.reuse(train, base.checkpoint)


def with_base(settings: Settings, base: Base | None) -> Settings:
    """Return the settings with the tokeniser and the network of a base; the tokeniser may be extended.

    Dropout may differ, and without learned positions also the context and the scaling of RoPE wavelengths.

    Raises:
        BaseError: the settings have another tokeniser, or weights of another shape.
    """
    if base is None:
        return settings
    if settings.model.preset != ModelSettings().preset:
        raise BaseError(
            f"train.base has its own network, but the preset {settings.model.preset} is set as well; unset one of them"
        )
    asked = settings.tokenizer
    own = TokenizerSettings(engine=asked.engine, extend=asked.extend)
    own = replace(own, fit_bytes=asked.fit_bytes if asked.extend else own.fit_bytes)
    foreign = [item.name for item in fields(asked) if getattr(asked, item.name) != getattr(own, item.name)]
    if foreign:
        raise BaseError(
            f"train.base has its own tokeniser, but tokenizer.{foreign[0]} is set as well; unset one of them"
        )
    free = (*FREE_FIELDS, *STRETCH_FIELDS)
    given = settings.model.overrides
    for name, value in given.items():
        if name not in free and base.shape.get(name) != value:
            raise BaseError(
                f"model.{name} is {value}, but the weights of the base have {base.shape.get(name)}; "
                f"unset it (only {', '.join(free)} may differ)"
            )
    bos, eos = base.framing["bos"], base.framing["eos"]
    taken = replace(own, kind="file", file=str(base.folder / TOKENIZER_FILE), bos=bos, eos=eos)
    stretch = {name: given[name] for name in STRETCH_FIELDS if name in given}
    try:
        shape = {**ModelConfig.from_dict(base.shape).stretched(**stretch).to_dict(), **given}
    except ValueError as error:
        raise BaseError(f"train.base={base.name} cannot have this context: {error}") from error
    del shape["vocab_size"]  # that of the tokeniser, as far as sequences are concerned
    return settings.replace(tokenizer=taken, model=ModelSettings(CARRIER, shape))
