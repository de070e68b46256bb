"""Quotations of documents outside the store: pages of a home, and pages and samples beside its MLflow runs."""

from __future__ import annotations

import shutil
from collections.abc import Collection

from storage.home import Home
from storage.store import Store

PAGES = (".html", ".md")  # beside a run; they quote documents
TRAIN = "train"


def clear_pages(home: Home, trainings: Collection[str]) -> None:
    """Take away the pages of a home, which the next run draws again, and what quotes documents beside some runs.

    Args:
        trainings: keys of those whose runs are meant.
    """
    if home.reports.is_dir():
        shutil.rmtree(home.reports)
    if not trainings or not home.has_tracking:
        return
    from storage.tracking import Tracking
    from tasks.training.telemetry import SAMPLES_FILE

    tracking = Tracking(home)
    for key in sorted(trainings):
        for run_id in tracking.runs(key):
            tracking.remove_files(run_id, (*PAGES, SAMPLES_FILE))


def show_samples(home: Home, store: Store, trainings: Collection[str]) -> None:
    """Put the samples that trainings still have beside their runs again."""
    if not trainings or not home.has_tracking:
        return
    from storage.tracking import Tracking
    from tasks.training.telemetry import sync_samples

    tracking = Tracking(home)
    for key in sorted(trainings):
        runs, training = tracking.runs(key), store.find(TRAIN, key)
        if runs and training is not None:
            sync_samples(tracking, runs[-1], store.folder(training.ref))
