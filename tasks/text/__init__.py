"""Pure functions on texts and NumPy arrays: words, measures, signatures, near-duplicates, overlap."""
