"""What a model will read: a page for people, a data card for whoever gets the model, a summary for the run."""

from tasks.report.dataset.card import data_card
from tasks.report.dataset.page import dataset_page
from tasks.report.dataset.provenance import provenance
from tasks.report.dataset.queries import collect_dataset
from tasks.report.dataset.summary import dataset_summary

__all__ = ["collect_dataset", "data_card", "dataset_page", "dataset_summary", "provenance"]
