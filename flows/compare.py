"""Two models on the same documents: what is missing is measured, then they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows import pipeline
from flows.actions import checkpoint_of
from flows.page_files import replace
from storage.digest import sha256_json
from storage.home import Home
from storage.manifest import ArtifactRef
from tasks.generation.prompts import read_prompts, sample_prompts
from tasks.registry.promote import trained_on
from tasks.resources import Resources
from tasks.session import Session, artifact
from tasks.settings import Settings

if TYPE_CHECKING:
    from tasks.evaluation_report.pairs import PairFigures, Side

_KEY = 8  # letters of each key in the name of a page


@dataclass(frozen=True)
class Compared:
    """A comparison and the page that shows it."""

    figures: PairFigures
    page: Path


def compare_direct(
    home: str, a: str, b: str, corpus: str, on: str = "", column: str = "", prompts: str = "", stride: int = 0
) -> Compared:
    """Compare two models by name, without Prefect; see `compare_models`."""
    settings = Settings()
    if stride:
        from dataclasses import replace as changed

        settings = changed(settings, evaluate=changed(settings.evaluate, stride=stride))
    place = Home.from_environment(home or None).create()
    with Resources(place) as resources:
        return compare_models(Session(place, resources, corpus=corpus), a, b, corpus, settings, on, column, prompts)


def compare_models(
    session: Session,
    a: str,
    b: str,
    corpus: str,
    settings: Settings | None = None,
    on: str = "",
    column: str = "",
    prompts: str = "",
) -> Compared:
    """Compare two models on the same documents and write the page.

    Args:
        a, b: an alias, a version, a `models:/` address, a run id or a folder.
        on, column: what they are measured on, see `flows.pipeline.evaluation_texts`; empty for the frozen evaluation
            set.
        prompts: a file of prompts that both continue; empty for the first words of a few of the documents.

    Raises:
        UserError: if a name leads to no model, or there is nothing to measure on.
    """
    checkpoints = (checkpoint_of(session, a), checkpoint_of(session, b))  # first: a wrong name costs nothing
    names = tuple(f"version {name}" if name.isdecimal() else name for name in (a, b))
    return compare_checkpoints(session, names, checkpoints, corpus, settings or Settings(), on, column, prompts)


def compare_checkpoints(
    session: Session,
    names: Sequence[str],
    checkpoints: Sequence[ArtifactRef],
    corpus: str,
    settings: Settings,
    on: str = "",
    column: str = "",
    prompts: str = "",
) -> Compared:
    """Compare two models that are at hand, whatever they are called; see `compare_models`."""
    from tasks.evaluation_report.pair_page import pair_page  # with it comes what draws
    from tasks.evaluation_report.pairs import Side, collect_pair

    evalset = pipeline.evaluation_texts(session, corpus, on, column)
    asked = read_prompts(Path(prompts).expanduser()) if prompts else sample_prompts(session.store, evalset)
    sides: list[Side] = []
    for name, checkpoint in zip(names, checkpoints, strict=True):
        evaluation, _ = pipeline.evaluate_model(session, checkpoint, evalset, settings.evaluate)
        made = pipeline.generate_text(session, settings, checkpoint, asked)
        sides.append(Side(name, checkpoint, artifact(evaluation), artifact(made)))
    figures = collect_pair(session.store, sides[0], sides[1], evalset, _doubts(session, sides, evalset))
    page = session.home.reports_of(corpus) / f"{_page_name(sides, evalset)}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    replace(page, pair_page(figures, corpus))
    return Compared(figures, page)


def _page_name(sides: list[Side], evalset: ArtifactRef) -> str:
    """A name for the page: the models, the documents, and how they were measured and asked.

    So the same pair on other documents, with another stride or with other prompts has a page of its own.
    """
    how = [ref.key for side in sides for ref in (side.evaluation, side.completions) if ref is not None]
    keys = [*(side.checkpoint.key for side in sides), evalset.key, sha256_json(how)]
    return "-".join(["comparison", *(key[:_KEY] for key in keys)])


def _doubts(session: Session, sides: list[Side], evalset: ArtifactRef) -> list[str]:
    """What makes a comparison doubtful."""
    return [
        f"{side.name} was trained on some of these documents, so its figures flatter it"
        for side in sides
        if trained_on(session.store, side.checkpoint, evalset)
    ]
