"""What became of a corpus: a page for people (`corpus_report`), a summary for the run (`corpus_summary`)."""

from tasks.corpus_report.page import corpus_report
from tasks.corpus_report.summary import corpus_summary

__all__ = ["corpus_report", "corpus_summary"]
