"""Flows as Prefect's deployments name them."""

from flows.cleanup import cleanup
from flows.evaluate import evaluate
from flows.generate import generate
from flows.ingest import ingest
from flows.retrain import retrain
from flows.train import train

__all__ = ["cleanup", "evaluate", "generate", "ingest", "retrain", "train"]
