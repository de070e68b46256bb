"""Commands that take a champion back and rebuild MLflow's database."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, plain_errors, print_json


def rollback(
    reason: Annotated[str, typer.Option(help="Why; a tag of the version that is taken back.")] = "",
    to: Annotated[str, typer.Option(help="Number of the version to go back to; empty: the previous champion.")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again; the one that is taken back is not promoted again."""
    with plain_errors():
        from flows.names import roll_back_champion

        done = roll_back_champion(home, corpus, reason, to)
        if as_json:
            print_json(done)
            return
        words = f"version {done['champion']} is champion"
        if done["withdrawn"]:
            before = "" if done["moved"] else " before"
            words += f"; version {done['withdrawn']} was taken back{before}: {done['reason']}"
        print(words)


def rebuild_tracking(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Rebuild MLflow's runs, versions, aliases and metrics from the store."""
    with plain_errors():
        from flows.names import rebuild_tracking as rebuild

        done = rebuild(home)
        if as_json:
            print_json(done)
            return
        aliases = ", ".join(f"{alias} is version {version}" for alias, version in done["aliases"].items())
        print(f"{done['runs']} run(s) and {len(done['versions'])} version(s); {aliases or 'no aliases'}")
        for checkpoint in done["lost"]:
            print(f"{checkpoint} cannot be registered again: it is neither in the store nor in MLflow")
