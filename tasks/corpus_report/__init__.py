"""What became of a corpus: a page for people (`corpus_report`), a summary for the run (`corpus_summary`)."""

from tasks.corpus_report.page import corpus_report, draw_report
from tasks.corpus_report.queries import collect
from tasks.corpus_report.summary import corpus_summary, draw_summary

__all__ = ["collect", "corpus_report", "corpus_summary", "draw_report", "draw_summary"]
