"""The report pages, each with something in every section: what holds for all of them is tested once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import corpus_report_samples
import dataset_report_samples
import evaluation_report_samples
import gates_samples
from corpus_report_samples import CORPUS

from tasks.report.comparison import pair_page
from tasks.report.corpus import collect, corpus_page
from tasks.report.dataset import collect_dataset, dataset_page
from tasks.report.evaluation import evaluation_page
from tasks.report.gates import gates_page


def corpus(folder: Path) -> str:
    """A corpus with something in every section, a page that was read badly among it."""
    sample = corpus_report_samples.rich(folder / "store")
    worst = [{"method": "ocr", "engine": "tesseract", "confidence": 0.1, "text": "read badly"}]
    sample.document("png", "scan.png", pages=worst, kind="image", file={"media_type": "image/png"})
    return corpus_page(collect(sample.catalog()), CORPUS)[0]


def dataset(folder: Path) -> str:
    """A dataset with hostile texts and names."""
    return dataset_page(collect_dataset(dataset_report_samples.rich(folder / "store").catalog(), CORPUS), CORPUS)[0]


REPORTS: dict[str, Callable[[Path], str]] = {  # each draws a page and may write into the folder
    "corpus": corpus,
    "dataset": dataset,
    "evaluation": lambda _: evaluation_page(evaluation_report_samples.rich(), CORPUS)[0],
    "gates": lambda _: gates_page(gates_samples.rich(), CORPUS)[0],
    "comparison": lambda _: pair_page(evaluation_report_samples.pair(), CORPUS),
}
