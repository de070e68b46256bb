"""From pages to the documents that a model reads: normalising, deduplication, split."""
