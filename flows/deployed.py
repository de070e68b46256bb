"""The flows as Prefect loads them: entrypoints of deployments are `flows.deployed.NAME`."""

from flows import compare, evaluate, generate, ingest, prepare, promote, retrain, train, upkeep
from flows.context import PipelineFlow

for _module in (compare, evaluate, generate, ingest, prepare, promote, retrain, train, upkeep):
    globals().update({item.name: item.prefect for item in vars(_module).values() if isinstance(item, PipelineFlow)})
