"""The report of a training as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person how the loss went, at what speed, what the network wrote on the way, and all that it was made from.
"""

from __future__ import annotations

from storage.lineage import manifest_of
from tasks.report.frame import report_page
from tasks.report.inspect.labels import legible
from tasks.report.training import sections
from tasks.report.training.collect import collect_training
from tasks.report.training.figures import TrainingFigures
from tasks.report.training.summary import training_summary
from tasks.report.training.words import facts, lead
from tasks.report.written import Outcome, Page

SECTIONS = {
    "first": "Look at first",
    "loss": "Loss",
    "pace": "Speed",
    "samples": "Samples",
    "data": "Data",
    "events": "Events",
    "settings": "Settings",
    "lineage": "Lineage",
}
FOOTER = "Made by sheepfold from the training's artefact; the same curves are in its MLflow run."
CSS = """
#loss figure + figure { margin-top: 22px; }
#loss figure + .scroll, .facts + p { margin-top: 16px; }
#samples .prompt { margin: 14px 0 6px; }
#samples td.wrap { overflow-wrap: anywhere; white-space: pre-wrap; unicode-bidi: isolate; min-width: min(60vw, 30em); }
#settings td.wrap { overflow-wrap: anywhere; min-width: 6em; }
#settings table { width: 100%; }
#events td.wrap { overflow-wrap: anywhere; }
"""


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's training."""
    run, training = outcome.run, outcome.made("train")
    if training is None:
        return None
    beside = sorted(outcome.pages() - {"training.html"})

    def draw() -> list[str]:
        figures = collect_training(run.store, training, outcome.metrics, beside)
        return [training_page(figures, run.corpus), training_summary(figures)]

    drawn_from = [training.key, manifest_of(run.store, training).created, dict(sorted(outcome.metrics.items())), beside]
    return outcome.draw_once("training", f"Training of the model of {run.corpus}", drawn_from, draw)


def training_page(figures: TrainingFigures, corpus: str) -> str:
    """The page.

    Args:
        corpus: its name.
    """
    made = {
        "first": sections.first_section(figures),
        "loss": sections.loss_section(figures),
        "pace": sections.pace_section(figures),
        "samples": sections.samples_section(figures),
        "data": sections.data_section(figures),
        "events": sections.events_section(figures),
        "settings": sections.settings_section(figures),
        "lineage": sections.lineage_section(figures),
    }
    title = f"Corpus {legible(corpus)}: the training"
    return report_page(title, lead(figures), facts(figures), SECTIONS, made, style=CSS, footer=FOOTER)
