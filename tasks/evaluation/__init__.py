"""Evaluation: loss and bits per byte, baselines, comparisons, and the gates before promotion."""
