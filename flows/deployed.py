"""Entry points of Prefect's deployments: `flows.deployed.NAME`."""

from flows import compare, evaluate, generate, ingest, prepare, promote, retrain, train, upkeep
from flows.context import PipelineFlow

for _module in (compare, evaluate, generate, ingest, prepare, promote, retrain, train, upkeep):
    globals().update({name: item.prefect for name, item in vars(_module).items() if isinstance(item, PipelineFlow)})
