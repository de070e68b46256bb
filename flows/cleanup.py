"""The cleanup flow: what a home that runs by itself needs every night. Small segments are joined, garbage goes."""

from typing import Annotated

from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field

from flows.cli_common import open_home
from flows.context import HomeFolder, described, flow_run_begins
from tasks.upkeep.compact import compact_home
from tasks.upkeep.gc import collect_garbage

GraceDays = Annotated[float, Field(description="What was made or used within so many days stays.", ge=0)]
AtLeast = Annotated[int, Field(description="Join segments that fill none when there are so many.", ge=2)]
DryRun = Annotated[bool, Field(description="Only say what would be joined and removed.")]


@flow(name="cleanup", persist_result=False)
@described
def cleanup(
    grace_days: GraceDays = 7, at_least: AtLeast = 8, dry_run: DryRun = False, home: HomeFolder = ""
) -> dict[str, object]:
    """Join small segments, then remove what no corpus, registered model, run or unfinished work needs."""
    flow_run_begins()
    place, store = open_home(home)
    compacted = compact_home(place, store, at_least, grace_days, dry_run)
    cleared = collect_garbage(place, store, grace_days, dry_run)
    table = [{name: item[name] for name in ("stage", "artefacts", "size", "garbage")} for item in cleared["sizes"]]
    create_table_artifact(table, key="sheepfold-store", description="What is in the store, in bytes by stage")
    can_be = "can be" if dry_run else "are"
    create_markdown_artifact(
        f"{sum(map(len, compacted['joined'].values()))} segment(s) {can_be} joined into {len(compacted['joined'])}. "
        f"{len(compacted['removed']) + cleared['artefacts']} artefact(s) and {cleared['work']} unfinished work(s), "
        f"{cleared['bytes'] / 2**20:,.1f} MiB, {can_be} removed; {len(cleared['left'])} left, because somebody uses "
        "them.\n",
        key="sheepfold-cleanup",
        description="What was cleared up",
    )
    return {"compacted": compacted, "cleared": cleared}


if __name__ == "__main__":
    cleanup()
