"""Commands about the names of registered models: taking a champion back, and getting a lost registry back."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli_common import AsJson, HomeFolder, plain_errors, print_json


def rollback(
    reason: Annotated[str, typer.Option(help="Why; it is kept with the version that is taken back.")] = "",
    to: Annotated[str, typer.Option(help="Number of the version to go back to; empty: the champion before.")] = "",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Make the champion before this one champion again; no promotion brings this one back by itself."""
    with plain_errors():
        from flows.names import roll_back_champion

        done = roll_back_champion(home, reason, to)
        if as_json:
            print_json(done)
            return
        if done["rebuilt"]:
            print("the registry lacked versions that the store knows, and is as the store has it again")
        words = f"version {done['champion']} is champion"
        if done["withdrawn"]:
            words += (
                f"; version {done['withdrawn']} was taken back{'' if done['moved'] else ' before'}: {done['reason']}"
            )
        print(words)


def rebuild_tracking(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Make MLflow's runs, versions, names and figures again from the store, where they are lost."""
    with plain_errors():
        from flows.names import rebuild_tracking as rebuild

        done = rebuild(home)
        if as_json:
            print_json(done)
            return
        names = ", ".join(f"{alias} is version {version}" for alias, version in done["names"].items())
        print(f"{done['runs']} run(s) and {len(done['versions'])} version(s) are there; {names or 'none has a name'}")
        for version in done["lost"]:
            print(f"version {version} cannot be had again: its checkpoint is not in the store")
        for version in done["deleted"]:
            print(f"version {version} cannot be had again: it was deleted in MLflow, which gives no number twice")
