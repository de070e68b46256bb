"""What became of a corpus: a page for people (`corpus_page`), a summary for the run (`corpus_summary`)."""

from tasks.report.corpus.page import corpus_page
from tasks.report.corpus.queries import collect
from tasks.report.corpus.summary import corpus_summary

__all__ = ["collect", "corpus_page", "corpus_summary"]
