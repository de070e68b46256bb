"""The cleanup flow: the store is cleared of what nothing needs any more."""

from typing import Annotated

from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field

from flows.clearing import clear_up
from flows.context import HomeFolder, described, flow_run_begins


@flow(name="cleanup", persist_result=False)
@described
def cleanup(
    grace_days: Annotated[
        float, Field(description="What was made or used within so many days stays; a run goes on with it.", ge=0)
    ] = 7,
    dry_run: Annotated[bool, Field(description="Only say what would be removed.")] = False,
    home: HomeFolder = "",
) -> dict[str, object]:
    """Remove artefacts that no corpus, registered model, run or unfinished work needs."""
    flow_run_begins()
    done = clear_up(home, grace_days, dry_run)
    table = [{name: item[name] for name in ("stage", "artefacts", "size", "garbage")} for item in done["sizes"]]
    create_table_artifact(table, key="sheepfold-store", description="What is in the store, in bytes by stage")
    verb = "can be removed" if dry_run else "are removed"
    create_markdown_artifact(
        f"{done['artefacts']} artefact(s) and {done['work']} unfinished work(s), {done['bytes'] / 2**20:,.1f} MiB, "
        f"{verb}; {len(done['left'])} left, because somebody uses them.\n",
        key="sheepfold-cleanup",
        description="What was cleared up",
    )
    return dict(done)


if __name__ == "__main__":
    cleanup()
