"""The cleanup flow: what a home that runs by itself needs every night. Small segments are joined, garbage goes."""

from typing import Annotated

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from pydantic import Field

from flows.clearing import clear_up
from flows.compaction import compact_home
from flows.context import HomeFolder, described

GraceDays = Annotated[float, Field(description="Keep all that was made or used within so many days.", ge=0)]
AtLeast = Annotated[int, Field(description="Join small segments when there are so many of them.", ge=2)]


@flow(name="cleanup", persist_result=False)
@described
def cleanup(grace_days: GraceDays = 7, at_least: AtLeast = 8, home: HomeFolder = "") -> dict[str, object]:
    """Join small segments, then remove what no corpus, registered model, run or unfinished work needs."""
    compacted = compact_home(home, at_least)
    cleared = clear_up(home, grace_days, dry_run=False)
    get_run_logger().info(
        "joined %d segments into %d; removed %d artefacts, %.1f MiB",
        sum(map(len, compacted["joined"].values())),
        len(compacted["joined"]),
        len(compacted["removed"]) + len(cleared["removed"]),
        cleared["bytes"] / 2**20,
    )
    create_table_artifact(cleared["sizes"], key="sheepfold-sizes", description="How much there is of each stage")
    return {"compacted": compacted, "cleared": cleared}
