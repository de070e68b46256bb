"""The flows as Prefect loads them: entrypoints of deployments are `flows.deployed.NAME`."""

from flows import compare as _compare
from flows import evaluate as _evaluate
from flows import generate as _generate
from flows import ingest as _ingest
from flows import prepare as _prepare
from flows import promote as _promote
from flows import retrain as _retrain
from flows import train as _train
from flows import upkeep as _upkeep

ingest = _ingest.ingest.prefect
prepare = _prepare.prepare.prefect
train = _train.train.prefect
suggest = _train.suggest.prefect
evaluate = _evaluate.evaluate.prefect
generate = _generate.generate.prefect
promote = _promote.promote.prefect
retrain = _retrain.retrain.prefect
compare = _compare.compare.prefect
ablate = _compare.ablate.prefect
cleanup = _upkeep.cleanup.prefect
forget = _upkeep.forget.prefect
lm_eval = _upkeep.lm_eval.prefect
