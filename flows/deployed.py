"""Flows as Prefect's deployments name them, with `settings` in place of `overrides` and None for options not given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from prefect import Flow

from flows import cleanup as cleanup_flow
from flows import evaluate as evaluate_flow
from flows import generate as generate_flow
from flows import ingest as ingest_flow
from flows import retrain as retrain_flow
from flows import train as train_flow


def _adapted(flow: Any) -> Any:
    def run(**given: Any) -> Any:
        lines = [f"{name}={value}" for name, value in (given.pop("settings", None) or {}).items()]
        if lines:
            given["overrides"] = "\n".join(lines)
        return flow.fn(**{name: value for name, value in given.items() if value is not None})

    body: Callable[..., Any] = run
    body.__name__, body.__doc__ = flow.fn.__name__, flow.fn.__doc__
    signature = inspect.signature(flow.fn, eval_str=True)
    parameters = [
        parameter.replace(default=None, annotation=parameter.annotation | None)
        if parameter.name != "overrides"
        else parameter.replace(name="settings", default=None, annotation=dict[str, Any] | None)
        for parameter in signature.parameters.values()
    ]
    body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return Flow(body, name=flow.name, task_runner=flow.task_runner, persist_result=False)


ingest = _adapted(ingest_flow.ingest)
retrain = _adapted(retrain_flow.retrain)
train = _adapted(train_flow.train)
evaluate = _adapted(evaluate_flow.evaluate)
generate = _adapted(generate_flow.generate)
cleanup = _adapted(cleanup_flow.cleanup)
