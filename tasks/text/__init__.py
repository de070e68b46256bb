"""Pure functions over texts and NumPy arrays: words, measures, signatures, pairs of near-duplicates, overlap."""
