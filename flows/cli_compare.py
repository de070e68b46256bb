"""Two models on the same documents, as a table, as JSON and as a page: `compare` those that are there, or `ablate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, plain_errors, print_json, say

if TYPE_CHECKING:
    from tasks.evaluation_report.pairs import PairFigures

ModelRef = Annotated[str, typer.Argument(help="Alias, version, models:/ address, run id or folder.")]
DOCUMENTS = 10
COMPLETIONS = 4
NAME = 60  # characters of a name, and of a document's beginning
TEXT = 240  # of a completion


def compare(
    a: ModelRef,
    b: ModelRef,
    on: Annotated[str, typer.Option(help="train, validation, a text, a folder, JSONL or Parquet instead.")] = "",
    column: Annotated[str, typer.Option(help="Field of JSONL or Parquet that holds the text.")] = "",
    prompts: Annotated[str, typer.Option(help="File of prompts that both continue: text, JSONL or Parquet.")] = "",
    stride: Annotated[int, typer.Option(help="Tokens from one window to the next; 0: no overlap.", min=0)] = 0,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Compare two models on the corpus's frozen evaluation set: figures, slices, documents, completions."""
    with plain_errors():
        from flows.compare import compare_direct

        done = compare_direct(home, a, b, corpus, on, column, prompts, stride)
        if as_json:
            from tasks.evaluation_report.pairs import pair_document

            print_json({**pair_document(done.figures), "page": str(done.page)})
            return
        print(pair_table(done.figures))
        say(f"page: {done.page}")


def ablate(
    without: Annotated[
        str, typer.Option(help="A kind, a folder, a pattern of paths, or an SQL condition over documents.")
    ],
    model: Annotated[str, typer.Option(help="What is trained again (default: the corpus's last training).")] = "",
    prompts: Annotated[str, typer.Option(help="File of prompts that both continue: text, JSONL or Parquet.")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Train a model again without a source of its documents, and compare the two; nothing is registered."""
    with plain_errors():
        from flows.ablation import ablate_direct

        done = ablate_direct(home, without, corpus, model, prompts)
        if as_json:
            from dataclasses import asdict

            from tasks.evaluation_report.pairs import pair_document

            print_json(
                {
                    "without": done.without,
                    "documents_left_out": done.documents,
                    "documents_trained_on": done.trained_on,
                    **pair_document(done.compared.figures),
                    "notes": [*done.compared.figures.notes, *done.notes],
                    "stages": [asdict(item) for item in done.stages],
                    "page": str(done.compared.page),
                }
            )
            return
        print(f"left out: {done.documents:,} documents {done.without}; trained on the other {done.trained_on:,}\n")
        print(pair_table(done.compared.figures))
        for note in done.notes:
            print(f"note: {note}")
        say(f"page: {done.compared.page}")


def pair_table(figures: PairFigures) -> str:
    """The comparison in Markdown: verdict, figures, slices, documents, completions."""
    from tasks.evaluation_report.charts import interval_words
    from tasks.evaluation_report.pair_page import FIRST
    from tasks.evaluation_report.texts import in_a_line
    from tasks.evaluation_report.words import figure_name, verdict
    from tasks.pages.markdown import table

    found, names = figures.comparison, [_cell(name) for name in figures.names]
    lines = [verdict(found.difference, *names), *(f"note: {_cell(note, TEXT)}" for note in figures.notes)]
    metrics = {name: found.metrics.get(f"val/{name}", (None, None)) for name in FIRST}
    rows = [[figure_name(name), *map(_figure, values)] for name, values in metrics.items()]
    lines += ["", *table(["", *names], rows)]
    slices = [
        [
            _cell(f"{item.dimension} {item.value}"),
            _figure(item.a.bits_per_byte),
            _figure(item.b.bits_per_byte),
            interval_words(item.difference),
            f"{item.a.documents:,}",
        ]
        for item in found.slices
    ]
    head = ["bits per byte", *names, "difference (95 % interval)", "documents"]
    lines += ["", *table(head, slices)]
    documents = [
        [
            _cell(figures.paths.get(item.doc_id) or item.doc_id[:12]),
            f"{item.bits:+,.0f}".replace("-", "−"),
            _figure(item.a.bits_per_byte),
            _figure(item.b.bits_per_byte),
            _cell(figures.begins[item.doc_id]),
        ]
        for item in found.documents[:DOCUMENTS]
    ]
    lines += ["", *table(["changed most", "bits", *names, "begins"], documents)]
    for pair in figures.completions[:COMPLETIONS]:
        lines += ["", f"> {_cell(pair[0].prompt, TEXT)}"]
        lines += [f"- {name}: {_cell(in_a_line(item, TEXT), TEXT)}" for name, item in zip(names, pair, strict=True)]
    return "\n".join(lines)


def _cell(text: str, length: int = NAME) -> str:
    """Words that may come from documents, on one line of a table in a terminal."""
    from tasks.evaluation_report.texts import beginning
    from tasks.inspection.labels import legible

    return legible(beginning(text, length)).replace("|", "\\|")


def _figure(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"
