"""What became of a corpus: a page for people (`corpus_page`), a summary for the run (`corpus_summary`)."""

from tasks.corpus_report.page import corpus_page
from tasks.corpus_report.queries import collect
from tasks.corpus_report.summary import corpus_summary

__all__ = ["collect", "corpus_page", "corpus_summary"]
