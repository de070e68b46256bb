"""A flow and a deployment of one's own around Sheepfold's flows: retrain when documents changed, then tell somebody.

    sheepfold up ~/documents                                       # a team's servers and workers
    . .sheepfold/team/environment                                  # lead this shell to them
    python examples/own_deployment.py serve ~/documents            # this process waits for runs of nightly/own
    python examples/own_deployment.py deploy ~/documents           # or: the team's worker does
    prefect deployment run nightly/own --watch

Inside of a flow, Sheepfold's flows are called like functions and become its subflows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task

from flows.ingest import ingest
from flows.options import RetrainOptions, WatchOptions
from flows.retrain import retrain
from storage.catalog import read_state
from storage.home import Home
from storage.store import open_store
from tasks.lineage.changes import unannounced_share


@flow(name="nightly")
def nightly(
    source: str,
    corpus: str = "default",
    least_share: float = 0.01,
    home: str | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Ingest; retrain if enough documents came or went since the last training; notify.

    Args:
        source: Folders or files with documents, one per line.
        corpus: Name of the corpus.
        least_share: Share of changed documents that is worth a training.
        home: Home folder (default: SHEEPFOLD_HOME).
        settings: Further settings by dotted name, such as {"train.minutes": 10}.
    """
    asked = {"source": source, "corpus": corpus, "home": home, "settings": settings}
    ingest(WatchOptions(**asked))
    share = changed_share(home, corpus)
    if share < least_share:
        get_run_logger().info("%.1f %% of the documents changed: no training", 100 * share)
        return
    model = retrain(RetrainOptions(**asked))["model"]
    notify(f"models:/{model['name']}/{model['version']} is {model['alias']}: {model['reason']}")


def changed_share(home: str | None, corpus: str) -> float:
    """Return the share of a corpus's documents that came or went since its last training."""
    place = Home.from_environment(home)
    store = open_store(place.store, place.cache)
    return unannounced_share(store, corpus, read_state(store, corpus)["snapshot"][0])


@task
def notify(text: str) -> None:
    """Tell the team; put a message to a chat or a mail here."""
    get_run_logger().info(text)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("serve", "deploy"):
        raise SystemExit("expected: own_deployment.py serve|deploy SOURCE [SOURCE ...]")
    how, *sources = sys.argv[1:]
    given: dict[str, Any] = {
        "name": "own",
        "cron": "0 2 * * *",
        "tags": ["sheepfold"],  # the team's automations queue a run again if its process is killed
        "parameters": {"source": "\n".join(str(Path(item).resolve()) for item in sources)},
    }
    if how == "serve":
        nightly.serve(**given)
    else:
        here = Path(__file__).resolve()
        stored = nightly.from_source(source=str(here.parent), entrypoint=f"{here.name}:nightly")
        stored.deploy(work_pool_name="sheepfold", work_queue_name="retrain", **given)
