"""Evaluation: how good a model is on documents that it never saw, beside its baselines, and against another model."""
