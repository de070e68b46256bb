"""The report pages, each with something in every section: what holds for all of them is tested once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import corpus_report_samples
import dataset_report_samples
import evaluation_report_samples
import gates_samples
from corpus_report_samples import CORPUS

from tasks.report.comparison import SECTIONS as PAIR_SECTIONS
from tasks.report.comparison import pair_page
from tasks.report.corpus import SECTIONS as CORPUS_SECTIONS
from tasks.report.corpus import collect, corpus_page
from tasks.report.dataset import SECTIONS as DATASET_SECTIONS
from tasks.report.dataset import collect_dataset, dataset_page
from tasks.report.evaluation import SECTIONS as EVALUATION_SECTIONS
from tasks.report.evaluation import evaluation_page
from tasks.report.gates import SECTIONS as GATE_SECTIONS
from tasks.report.gates import gates_page


class Report(NamedTuple):
    """One kind of page.

    Attributes:
        sections: names of the links, by the ids of the sections.
        draw: makes a page; it may write into the folder.
    """

    sections: Mapping[str, str]
    draw: Callable[[Path], str]


def corpus(folder: Path) -> str:
    """A corpus with something in every section, a page that was read badly among it."""
    sample = corpus_report_samples.rich(folder / "store")
    worst = [{"method": "ocr", "engine": "tesseract", "confidence": 0.1, "text": "read badly"}]
    sample.document("png", "scan.png", pages=worst, kind="image", file={"media_type": "image/png"})
    return corpus_page(collect(sample.catalog()), CORPUS)[0]


def dataset(folder: Path) -> str:
    """A dataset with hostile texts and names."""
    return dataset_page(collect_dataset(dataset_report_samples.rich(folder / "store").catalog(), CORPUS), CORPUS)[0]


REPORTS = {
    "corpus": Report(CORPUS_SECTIONS, corpus),
    "dataset": Report(DATASET_SECTIONS, dataset),
    "evaluation": Report(EVALUATION_SECTIONS, lambda _: evaluation_page(evaluation_report_samples.rich(), CORPUS)[0]),
    "gates": Report(GATE_SECTIONS, lambda _: gates_page(gates_samples.rich(), CORPUS)[0]),
    "comparison": Report(PAIR_SECTIONS, lambda _: pair_page(evaluation_report_samples.pair(), CORPUS)),
}
