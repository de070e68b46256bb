"""Continue a prompt or a file of prompts at the keyboard, without Prefect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import pipeline
from flows.actions import checkpoint_of, completions_path
from flows.report import write_generation_page
from storage.errors import UserError
from storage.home import Home
from storage.tables import read_rows
from tasks.generation.prompts import Prompt, given_id, one_prompt, read_prompts
from tasks.generation.stage import complete
from tasks.resources import Resources
from tasks.session import Session, ThreadSession, artifact
from tasks.settings import load_settings


@dataclass(frozen=True)
class Asked:
    """What is to be continued: a text, or a file of prompts.

    Attributes:
        template: what a prompt is made of, see `tasks.generation.template`.
    """

    prompt: str = ""
    prompts: str = ""
    template: str = ""

    def read(self) -> list[Prompt]:
        """The prompts.

        Raises:
            UserError: if there is neither or both, or they cannot be read.
        """
        if bool(self.prompt) == bool(self.prompts):
            raise UserError("give either a PROMPT or --prompts FILE")
        if self.prompt:
            return [one_prompt(self.prompt, self.template)]
        return read_prompts(Path(self.prompts).expanduser(), self.template)

    @property
    def text(self) -> str:
        """The one prompt; empty for a file."""
        return one_prompt(self.prompt, self.template).prompt if self.prompt else ""


@dataclass(frozen=True)
class Generated:
    """Completions of a command.

    Attributes:
        rows: of the table.
        path: the table.
        page: the report on a file of prompts; empty for a single one.
        tokens: that were made now.
        seconds: that making them took, without loading the model; 0 if all were found in the store.
    """

    rows: list[dict[str, Any]]
    path: str
    page: str
    tokens: int
    seconds: float


def generate_direct(
    home: str,
    corpus: str,
    asked: Asked,
    model: str,
    assignments: Sequence[str],
    options: Mapping[str, Any],
    workers: int = 1,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Continue one prompt or a file of them.

    Args:
        assignments: settings, `section.name=value`.
        options: settings by their dotted names, None where they were not given.
        workers: shards computed at once.
        on_text: told the continuation of a single prompt piece by piece, while it is made.
    """
    prompts = asked.read()
    settings = load_settings(None, assignments, options)
    place = Home.from_environment(home or None).create()
    with Resources(place, workers, deterministic=settings.generate.deterministic) as resources:
        resources.shards_at_once = workers
        resources.on_text = on_text if asked.prompt else None
        session = Session(place, resources) if workers == 1 else ThreadSession(place, resources)
        checkpoint = checkpoint_of(session, model)
        made = artifact(pipeline.generate_text(session, settings, checkpoint, prompts))
        pipeline.remember(session, generate=made)
        pipeline.publish(session, corpus)
        page = write_generation_page(place, session.store, corpus, made).files[0] if asked.prompts else ""
        path = completions_path(session.store, made)
    report = session.reports[complete.name]
    rows = [{**row, "id": given_id(row)} for row in read_rows(Path(path))]
    tokens = sum(row["n_tokens"] for row in rows) if report.computed and not report.reused else 0
    return Generated(rows, path, str(page), tokens, _elapsed(resources.generated_between) if tokens else 0.0)


def _elapsed(between: Sequence[Sequence[float]]) -> float:
    """From the first begin to the last end; what ran side by side counts once."""
    return max(end for _, end in between) - min(begin for begin, _ in between)
