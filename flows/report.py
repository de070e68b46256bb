"""Results of flows: the document that `--json` prints, the Markdown report, and the pages in the home's reports.

A page is drawn only if what it shows has changed; its summary in Markdown lies beside it. Pages about a whole corpus
are drawn in a subprocess where the corpus is large, because its catalogue takes hundreds of MB.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.show import corpus_table, gates_table, metrics_table, stage_table, suggestion_text
from storage.catalog import Catalog, read_state
from storage.digest import sha256_json
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.registry import registered_versions
from storage.store import Store, open_store

if TYPE_CHECKING:
    from tasks.apart import Apart
    from tasks.evaluation_report.collect import Measured
    from tasks.registry.promote import Promotion
    from tasks.run import StageReport

BESIDE_EVALUATION = {"corpus.html", "dataset.html", "training.html", "generation.html"}
_KEY = 8  # characters of an evaluation's key in the name of a page


@dataclass
class RunResult:
    """Result of a flow, as `--json` prints it.

    Attributes:
        metrics: figures of the evaluation.
        model: name, version and alias of the registered model; None if the command registers none.
        completions: path of the Parquet table with the generated text; None if the command generates none.
        suggestion: proposed size, context, batch, learning rate and steps, with reasons; None if all were given.
        notes: remarks for the person.
    """

    stages: list[StageReport]
    metrics: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    mlflow_run_id: str | None = None
    completions: str | None = None
    suggestion: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        return asdict(self)


def run_report(home: Home, corpus: str, result: RunResult) -> str:
    """Return the report in Markdown.

    Prompts and continuations are left out, because they quote documents: see `flows.show.sample_table`.
    """
    parts = [f"# Corpus `{corpus}`", corpus_table(home, corpus), "## Stages", stage_table(result.stages)]
    if result.suggestion:
        parts += ["## Suggestion", suggestion_text(result.suggestion)]
    if result.metrics:
        parts += ["## Model", metrics_table(result.metrics)]
    if result.model:
        parts.append(
            f"Registered as `{result.model['name']}` version {result.model['version']}, "
            f"**{result.model['alias']}**: {result.model['reason']}."
        )
        parts.append(gates_table(result.model["gates"]))
    if result.notes:
        parts += ["## Notes", *(f"- {note}" for note in result.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


@dataclass(frozen=True)
class Page:
    """A page in the reports of a home.

    Attributes:
        topic: short name, such as `training`.
        title: what it shows, in words.
        summary: Markdown.
        files: the HTML page, then what lies beside it.
    """

    topic: str
    title: str
    summary: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class CorpusFiles:
    """Files of a corpus, for pictures of their pages.

    Attributes:
        paths: place by the sha256 of a file's bytes.
        passwords: tried on encrypted PDFs.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    passwords: Sequence[str] = ()


def write_pages(
    home: Home,
    store: Store,
    corpus: str,
    produced: Mapping[str, Sequence[ArtifactRef]],
    apart: Apart,
    files: CorpusFiles,
    metrics: Mapping[str, float],
    measured: Measured | None = None,
    promoted: Promotion | None = None,
) -> Iterator[Page]:
    """Write the pages of a run, one after the other.

    Args:
        produced: artefacts of the run, by stage; they decide which pages there are.
        apart: subprocesses for pages about a large corpus.
        metrics: figures of the evaluation; empty where there was none.
        measured: the model whose evaluation has a page.
        promoted: the model whose gates have a page.
    """
    if "snapshot" in produced:
        yield write_corpus_page(home, store, corpus, apart, files)
    if "dataset" in produced:
        yield write_dataset_page(home, store, corpus, apart)
    if produced.get("train"):
        yield write_training_page(home, store, corpus, produced["train"][0], metrics)
    if promoted is not None:
        yield write_gates_page(home, store, corpus, promoted)
    if produced.get("generate"):
        yield write_generation_page(home, store, corpus, produced["generate"][0])
    if measured is not None:
        yield write_evaluation_page(home, store, corpus, measured)


def replace(path: Path, text: str) -> None:
    """Write a text file in one step."""
    new = path.with_suffix(f"{path.suffix}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def draw_once(
    home: Home, corpus: str, name: str, title: str, drawn_from: Any, draw: Callable[[Path], str], *beside: str
) -> Page:
    """Return a page, drawn if a file is missing or it was drawn from something else.

    Args:
        name: of the page and its summary, `name`.html and `name`.md.
        drawn_from: everything that decides what the page shows, as JSON.
        draw: writes the files, given the page's path; returns the summary.
        beside: names of further files that it writes.
    """
    folder = home.reports_of(corpus)
    page, summary = folder / f"{name}.html", folder / f"{name}.md"
    files = (page, *(folder / item for item in beside))
    mark = f"<!-- {sha256_json(drawn_from)} -->\n"
    text = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    if not text.endswith(mark) or not all(file.is_file() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        text = f"{draw(page).rstrip()}\n\n{mark}"
        summary.write_text(text, encoding="utf-8")  # last: its mark says that all files are there
    return Page(name.partition("-")[0], title, text, files)


def write_corpus_page(home: Home, store: Store, corpus: str, apart: Apart, files: CorpusFiles) -> Page:
    """Write the page of a corpus: its files, documents and what was refused."""
    state = read_state(store, corpus)

    def draw(page: Path) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="ascii") as locations:
            # ASCII holds names that are not UTF-8, too
            locations.writelines(json.dumps(item) + "\n" for item in files.paths.items())
            locations.flush()
            return _drawn_apart(
                home, store, corpus, apart, draw_corpus_page,
                locations=locations.name, passwords=list(files.passwords), page=str(page),
            )  # fmt: skip

    return draw_once(home, corpus, "corpus", f"Corpus {corpus}", state, draw)


def write_dataset_page(home: Home, store: Store, corpus: str, apart: Apart) -> Page:
    """Write the page and the data card of a corpus's dataset.

    Raises:
        StoreError: if the corpus was not prepared yet.
    """
    from tasks.dataset_report.provenance import STAGES

    state = {stage: refs for stage, refs in read_state(store, corpus).items() if stage in STAGES}

    def draw(page: Path) -> str:
        card = page.with_name("data-card.md")
        text = _drawn_apart(home, store, corpus, apart, draw_dataset_page, page=str(page), card=str(card))
        return f"{text}\n\nThe data card: `{card}`"

    return draw_once(home, corpus, "dataset", f"Dataset of {corpus}", state, draw, "data-card.md")


def _drawn_apart(
    home: Home, store: Store, corpus: str, apart: Apart, function: Callable[..., str], **arguments: Any
) -> str:
    from tasks.apart import TABLE_BYTES_PER_FILE

    listed = read_state(store, corpus).get("snapshot")
    size = manifest_of(store, listed[0]).counts["rows"] * TABLE_BYTES_PER_FILE if listed else 0
    where = {"store": home.store, "cache": str(home.cache), "corpus": corpus}
    text: str = apart.call(function, lambda done, total: None, size, **where, **arguments)
    return text


def draw_corpus_page(
    store: str,
    cache: str,
    corpus: str,
    locations: str,
    passwords: list[str],
    page: str,
    progress: Callable[[int, int], None],
) -> str:
    """Write the page of a corpus and return its summary; called in a subprocess.

    Args:
        store, cache: address of the store, and folder for local copies.
        locations: JSON lines with the sha256 and the place of each file.
        passwords: tried on encrypted PDFs when a picture of a page is drawn.
        page: path of the HTML file.
    """
    from tasks.corpus_report import collect, draw_report, draw_summary
    from tasks.corpus_report.thumbnails import Thumbnails

    figures = collect(Catalog(open_store(store, Path(cache)), corpus))
    with Path(locations).open(encoding="ascii") as lines:
        paths: dict[str, str] = dict(map(json.loads, lines))
    with Thumbnails(paths, passwords) as thumbnails:
        replace(Path(page), draw_report(figures, corpus, thumbnails))
    progress(1, 1)
    return draw_summary(figures)


def draw_dataset_page(
    store: str, cache: str, corpus: str, page: str, card: str, progress: Callable[[int, int], None]
) -> str:
    """Write the page and the card of a dataset and return the summary; called in a subprocess.

    Args:
        store, cache: address of the store, and folder for local copies.
        page, card: paths of the HTML file and the Markdown file.
    """
    from tasks.corpus_report.queries import collect
    from tasks.dataset_report import collect_dataset, data_card, dataset_page, dataset_summary, provenance

    opened = open_store(store, Path(cache))
    files = collect(Catalog(opened, corpus))
    # a second catalogue, because the first returns the memory of its tables only when it is closed
    catalog = Catalog(opened, corpus)
    figures = collect_dataset(catalog, corpus)
    replace(Path(page), dataset_page(figures, corpus))
    replace(Path(card), data_card(figures, files, provenance(catalog), corpus))
    progress(1, 1)
    return dataset_summary(figures)


def write_training_page(
    home: Home, store: Store, corpus: str, training: ArtifactRef, metrics: Mapping[str, float]
) -> Page:
    """Write the page of a training.

    Args:
        metrics: figures of its evaluation; empty where it was not evaluated.
    """
    beside = sorted({path.name for path in home.reports_of(corpus).glob("*.html")} - {"training.html"})

    def draw(page: Path) -> str:
        from tasks.train_report.collect import collect_training
        from tasks.train_report.page import training_page
        from tasks.train_report.summary import training_summary

        figures = collect_training(store, training, metrics, beside)
        replace(page, training_page(figures, corpus))
        return training_summary(figures)

    drawn_from = [training.key, manifest_of(store, training).created, dict(sorted(metrics.items())), beside]
    return draw_once(home, corpus, "training", f"Training of the model of {corpus}", drawn_from, draw)


def write_generation_page(home: Home, store: Store, corpus: str, made: ArtifactRef) -> Page:
    """Write the page of a generation."""

    def draw(page: Path) -> str:
        from tasks.generation.page import generation_page
        from tasks.generation.preview import collect_generation, generation_summary

        figures = collect_generation(store, made)
        replace(page, generation_page(figures, corpus))
        return generation_summary(figures)

    drawn_from = [made.key, manifest_of(store, made).created]
    return draw_once(home, corpus, "generation", f"Completions by the model of {corpus}", drawn_from, draw)


def write_evaluation_page(home: Home, store: Store, corpus: str, measured: Measured) -> Page:
    """Write the page of a model's evaluation; an evaluation on other documents has a page of its own."""
    beside = sorted({path.name for path in home.reports_of(corpus).glob("*.html")} & BESIDE_EVALUATION)

    def draw(page: Path) -> str:
        from tasks.evaluation_report.collect import collect_evaluation
        from tasks.evaluation_report.page import evaluation_page
        from tasks.evaluation_report.summary import evaluation_summary

        figures = collect_evaluation(store, measured, beside)
        replace(page, evaluation_page(figures, corpus))
        return evaluation_summary(figures)

    name = f"evaluation-{measured.evaluation.key[:_KEY]}" if measured.texts else "evaluation"
    return draw_once(home, corpus, name, f"Evaluation of {measured.model}", [asdict(measured), beside], draw)


def write_gates_page(home: Home, store: Store, corpus: str, promoted: Promotion) -> Page:
    """Write the page of the gates' verdicts on a registered version."""
    versions = [item for item in registered_versions(store) if item.name == promoted.version.name]
    names = {alias: item.version for item in versions for alias in item.aliases}
    number = promoted.version.version

    def draw(page: Path) -> str:
        from tasks.gates.page import collect_gates, gates_page, gates_summary

        figures = collect_gates(store, promoted.gates, number, versions, names)
        replace(page, gates_page(figures, corpus))
        return gates_summary(figures)

    drawn_from = [asdict(promoted.gates), number, [asdict(item) for item in versions], names]
    return draw_once(home, corpus, "gates", f"Gates of version {number}", drawn_from, draw)
