"""What a model will read: a page for people, a data card for whoever gets the model, a summary for the run."""

from tasks.dataset_report.card import data_card
from tasks.dataset_report.page import dataset_page
from tasks.dataset_report.provenance import provenance
from tasks.dataset_report.queries import collect_dataset
from tasks.dataset_report.summary import dataset_summary

__all__ = ["collect_dataset", "data_card", "dataset_page", "dataset_summary", "provenance"]
