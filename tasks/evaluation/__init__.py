"""Evaluation: metrics, baselines, comparisons, and the gates of promotion."""
