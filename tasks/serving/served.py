"""The model that is served: by its name, with the passages of a text that stand in its training text."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.accounting import count_parameters
from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.chat.template import Template, read_template
from tasks.core.machine import Machine
from tasks.core.run import Run
from tasks.core.settings import load_settings
from tasks.lineage.memorised import memorised_spans
from tasks.lineage.training_data import datasets_of
from tasks.registry.models import checkpoint_of, resolve_version, version_checkpoint
from tasks.report.page import render
from tasks.training.bundle import Bundle, read_sampling

LEAST_WORDS = 8  # of a passage that is shown
_log = logging.getLogger("sheepfold.serve")


@dataclass(frozen=True)
class Served:
    """A model that is served; its weights are read by the process that generates.

    Attributes:
        name: such as "sheepfold/3".
        names: other names that requests may give.
        digest: of its checkpoint.
        defaults: sampling settings that a request may leave out.
        template: of chats; None if the model has none.
        sources: returns the passages of a text that stand in the training text; None if that is unknown.
        created: Unix time from which it is served.
    """

    name: str
    names: tuple[str, ...]
    digest: str
    bundle: Bundle
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sources: Callable[[str], dict[str, Any]] | None = None
    template: Template | None = None
    created: int = field(default_factory=lambda: int(time.time()))


def load_served(home: Home, model: str, corpus: str, current: Served | None = None) -> Served | None:
    """Load a model.

    Args:
        model: alias, version, `models:/` address, run id or folder.
        current: the model that is loaded already; None is returned if it is the same.

    Raises:
        UnknownModel: the model does not exist.
    """
    run = Run(home, corpus=corpus)
    names: tuple[str, ...] = ()
    if Path(model).expanduser().is_dir():
        if current:
            return None  # a folder is read once
        checkpoint, name = checkpoint_of(run, model), Path(model).resolve().name
    else:
        version = resolve_version(run, model)
        if current and version.checkpoint.digest == current.digest:
            return None
        checkpoint, name = version_checkpoint(run, version), f"{version.name}/{version.version}"
        names = (version.name, *(() if model in (name, version.name) else (model,)))
    folder = run.store.folder(checkpoint)
    defaults = load_settings(None, {}).generate_with(read_sampling(folder)).sampling()
    sources = _sources(home, corpus, checkpoint) if datasets_of(run.store, checkpoint) else None
    bundle, template = Bundle(folder), None
    try:
        template = read_template(folder, bundle.tokenizer)
    except ValueError as error:
        _log.warning("%s does not chat: %s", name, error)
    return Served(name, names, checkpoint.digest, bundle, defaults, sources, template)


def page(served: Served, asks_key: bool) -> str:
    """Return the page on which a model can be tried."""
    bundle = served.bundle
    usual, shape = served.defaults, bundle.model_config
    defaults = {
        "max_tokens": min(usual["max_new_tokens"], shape.max_seq_len // 2),
        "temperature": usual["temperature"],
        "top_p": 1.0 if usual["top_p"] is None else usual["top_p"],
        "top_k": usual["top_k"] or 0,
        "seed": 0,
    }
    facts = {
        "Parameters": f"{count_parameters(shape)['total']:,}",
        "Context": f"{shape.max_seq_len:,} tokens",
        "Vocabulary": f"{bundle.tokenizer.vocab_size:,} ids ({bundle.tokenizer.kind})",
        "Checkpoint": served.digest[:12],
    }
    given = {"facts": facts, "defaults": defaults, "context": shape.max_seq_len, "asks_key": asks_key}
    return render("playground.html", name=served.name, model=[*served.names, served.name][0], **given)


def _sources(home: Home, corpus: str, checkpoint: ArtifactRef) -> Callable[[str], dict[str, Any]]:
    def sources(text: str) -> dict[str, Any]:
        with Machine() as machine:
            run = Run(home, machine, corpus)
            return memorised_spans(run, text, datasets_of(run.store, checkpoint), LEAST_WORDS)

    return sources
