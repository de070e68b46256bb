"""Commands that start and stop the servers of a team on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, HomeFolder, plain_errors, print_json, say


def up(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="What the deployments read (default: ./documents).", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on (default: this machine only).")] = "",
    prefect_port: Annotated[
        int, typer.Option(help="Port of Prefect's server (default 4200).", min=0, max=65535, show_default=False)
    ] = 0,
    mlflow_port: Annotated[
        int, typer.Option(help="Port of MLflow's server (default 5000).", min=0, max=65535, show_default=False)
    ] = 0,
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
    prompts: Annotated[str, typer.Option(help="File that generate/batch continues (default: ./prompts.txt).")] = "",
    schedules: Annotated[
        bool | None, typer.Option("--schedules/--no-schedules", help="Switch the deployments' schedules on or off.")
    ] = None,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Start Prefect's and MLflow's servers and two workers under supervisord, and make the deployments.

    Options that are not given keep their last value.
    """
    with plain_errors():
        from dataclasses import replace

        from flows.embedded import ends_in_order
        from flows.team.settings import TeamFolder
        from flows.team.up import bring_up, switch_schedules, team_status
        from storage.home import Home

        place = Home.from_environment(home or None)
        kept = TeamFolder(place).settings()
        given: dict[str, Any] = {
            "host": host or None,
            "prefect_port": prefect_port or None,
            "mlflow_port": mlflow_port or None,
            "postgres": postgres,
            "auth": auth,
            "allowed_hosts": allowed_hosts,
            "source": _sources(sources) if sources else kept.source or _usual_source(),
            "prompts": _absolute(prompts) if prompts else kept.prompts or _absolute("prompts.txt"),
        }
        settings = replace(kept, **{name: value for name, value in given.items() if value is not None})
        with ends_in_order():
            started = bring_up(place, settings, say)
            if schedules is not None:
                switch_schedules(place, schedules)
        if as_json:
            print_json({"started": started, **team_status(place)})
            return
        print(f"Prefect  {settings.prefect_url}\nMLflow   {settings.mlflow_url}")
        print(f"reads    {', '.join(settings.source.splitlines())}")
        print(f"logs     {TeamFolder(place).logs}")
        print(f"to reach them from a shell: . {TeamFolder(place).environment}")
        if settings.auth:
            print("that file also holds the names and passwords")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _sources(sources: list[str]) -> str:
    """Return sources as flow parameters hold them: absolute, one per line."""
    from tasks.ingest.sources.resolve import resolve_sources

    return "\n".join(map(str, resolve_sources(sources)))


def _usual_source() -> str:
    """Make the default folder of documents."""
    Path("documents").mkdir(exist_ok=True)
    return _sources(["documents"])


def down(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Stop the workers, whose runs are queued again, then the servers."""
    with plain_errors():
        from flows.team.up import bring_down
        from storage.home import Home

        ended = bring_down(Home.from_environment(home or None), say)
        if as_json:
            print_json({"ended": ended})
        else:
            print(f"ended {', '.join(ended)}" if ended else "nothing was running")
