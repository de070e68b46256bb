"""What became of a corpus: a page for people, a summary for the run."""
