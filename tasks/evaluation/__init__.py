"""Evaluation: how good a model is on documents that it never saw, beside its baselines, and against another model."""

from tasks.evaluation.compare import Comparison, compare_evaluations
from tasks.evaluation.stage import EvaluateSettings, evaluate
from tasks.evaluation.tables import Evaluation, read_documents, read_evaluation, read_metrics

__all__ = [
    "Comparison",
    "EvaluateSettings",
    "Evaluation",
    "compare_evaluations",
    "evaluate",
    "read_documents",
    "read_evaluation",
    "read_metrics",
]
