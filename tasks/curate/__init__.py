"""From pages to the documents that a model reads: normalisation, measures, deduplication, selection, split."""
