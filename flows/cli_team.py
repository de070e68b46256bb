"""Commands that start and stop the servers of a team on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_common import AsJson, HomeFolder, answer, others, say

Port = typer.Option(help="Port of Prefect's or MLflow's server (default 4200 and 5000).", min=1, max=65535)


@others.command()
def up(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="What the deployments read (default: ./documents).", show_default=False),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: this machine only).")] = None,
    prefect_port: Annotated[int | None, Port] = None,
    mlflow_port: Annotated[int | None, Port] = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            help="postgresql:// address for both servers; '' goes back to SQLite. With a password in it, give it by "
            "the variable: everyone on this machine can read a command line.",
            envvar="SHEEPFOLD_POSTGRES",
        ),
    ] = None,
    allowed_hosts: Annotated[
        str | None, typer.Option(help="More names under which MLflow answers, with commas; '' takes them back.")
    ] = None,
    auth: Annotated[bool | None, typer.Option("--auth/--no-auth", help="Ask for names and passwords.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="File that generate/batch continues (default: ./prompts.txt).")
    ] = None,
    schedules: Annotated[
        bool | None, typer.Option("--schedules/--no-schedules", help="Switch the deployments' schedules on or off.")
    ] = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Start Prefect's and MLflow's servers and two workers under supervisord, and make the deployments.

    Options that are not given keep their last value.
    """
    from flows.embedded import ends_in_order
    from flows.team.settings import TeamSettings
    from flows.team.up import bring_up, team_status
    from storage.home import Home
    from tasks.sources.address import resolve_sources

    place = Home.from_environment(home or None)
    kept = TeamSettings.kept(place)
    given = {
        "host": host,
        "prefect_port": prefect_port,
        "mlflow_port": mlflow_port,
        "postgres": postgres,
        "allowed_hosts": allowed_hosts,
        "auth": auth,
    }
    if not sources and not kept.source:
        Path("documents").mkdir(exist_ok=True)
    if sources or not kept.source:
        given["source"] = "\n".join(map(str, resolve_sources(sources or ["documents"])))
    if prompts or not kept.prompts:
        given["prompts"] = str(Path(prompts or "prompts.txt").expanduser().resolve())
    settings = kept.model_copy(update={name: value for name, value in given.items() if value is not None})
    with ends_in_order():
        started = bring_up(place, settings, say, schedules)
    answer({"started": started, **team_status(place)}, as_json)


@others.command()
def down(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Stop the workers, whose runs are queued again, then the servers."""
    from flows.team.up import bring_down
    from storage.home import Home

    answer({"ended": bring_down(Home.from_environment(home or None), say)}, as_json)
