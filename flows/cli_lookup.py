"""Commands that look things up, check them, or make a corpus to try things with; none of them computes an artefact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, plain_errors, print_json, say

SHOWN = 20  # entries of a list in a terminal


def sql(
    query: Annotated[str, typer.Argument(help="DuckDB SQL over files, pages, documents, quarantine, tokens, ...")],
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Query the tables of the corpus's last completed run."""
    with plain_errors():
        from storage.catalog import Catalog, waits_for_run
        from storage.home import Home
        from storage.store import open_store

        place = Home.from_environment(home or None)
        store = open_store(place.store, place.cache)
        rows = Catalog(store, corpus).query(query)
        if waits := waits_for_run(store, corpus):
            say(waits)
        if as_json:
            print_json(rows)
        else:
            _print_table(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        say("no rows")
        return
    table = Table(*rows[0].keys(), box=box.SIMPLE)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)
    say(f"{len(rows)} rows")


def why(
    thing: Annotated[
        str, typer.Argument(help="Model, artefact key, document id, path, or completion (KEY/ID[#SAMPLE]).")
    ] = "",
    text: Annotated[str, typer.Option(help="A text instead: what of it stands in the corpus's training text.")] = "",
    min_words: Annotated[int, typer.Option(help="Shortest span of a text that is shown, in words.")] = 8,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Where a model version, dataset, completion or document comes from, and what a completion repeats of it."""
    with plain_errors():
        from flows.cli_trace import print_echoes
        from flows.tracing import explain_echoes, explain_text
        from storage.errors import UserError

        if bool(thing) == bool(text):
            raise UserError("give either a THING or --text TEXT")
        if text:
            tree = explain_text(home, text, corpus, min_words)
        else:
            from flows.direct import explain

            tree = explain(home, thing, corpus)
            if "completion" in tree:
                tree |= explain_echoes(home, tree, min_words)
        if as_json:
            print_json(tree)
            return
        found = tree.pop("echoes", None)
        if thing:
            _print_tree(tree, 0)
        if found is not None:
            print(end="\n" if thing else "")
            print_echoes(found)


def _print_tree(value: Any, depth: int) -> None:
    items: Iterator[tuple[str, Any]]
    items = iter(value.items()) if isinstance(value, dict) else (("-", item) for item in value[:SHOWN])
    for name, item in items:
        if isinstance(item, dict | list):
            print(f"{'  ' * depth}{name}")
            _print_tree(item, depth + 1)
        else:
            print(f"{'  ' * depth}{name}: {item}")
    if isinstance(value, list) and len(value) > SHOWN:
        print(f"{'  ' * depth}and {len(value) - SHOWN:,} more (--json has all)")


def verify(
    mend: Annotated[
        bool, typer.Option("--repair", help="Set aside what is damaged, so that the next run makes it again.")
    ] = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Check a store: digests, schemas, split, token round trips."""
    with plain_errors():
        from flows.direct import verify_home
        from storage.catalog import corpora, unknown_corpus
        from storage.home import Home
        from storage.store import open_store

        place = Home.from_environment(home or None)
        store = open_store(place.store, place.cache)
        known = corpora(store)
        # what is repaired are artefacts, whosever they are; and a store without a corpus has artefacts to look at too
        if not mend and corpus not in known and (known or corpus != "default"):
            raise unknown_corpus(store, corpus)
        report = verify_home(home, corpus, mend)
        if as_json:
            print_json(report)
        else:
            for check in report["checks"]:
                print(f"{'ok  ' if not check['problems'] else 'BAD '} {check['name']}: {check['checked']} checked")
                for problem in check["problems"]:
                    print(f"     {problem}")
            for item in report.get("repaired", []):
                print(f"{'done' if item['done'] else 'LEFT'} {item['thing']}: {item['what']}")
            if mend and not report["repaired"]:
                print("nothing is damaged")
        if not report["ok"]:
            raise typer.Exit(1)


def status(
    sizes: Annotated[bool, typer.Option("--sizes", help="How much of each stage is in the store.")] = False,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Where everything is: addresses, corpora, the champion."""
    with plain_errors():
        from flows.direct import status_of
        from flows.team.up import team_status
        from storage.home import Home

        team = team_status(Home.from_environment(home or None))
        document = {**status_of(home), **team}
        if sizes:
            from flows.clearing import sizes_of

            document["sizes"] = sizes_of(home)
        if as_json:
            print_json(document)
        else:
            _print_tree(document, 0)


def sample(
    folder: Annotated[str, typer.Argument(help="Folder to fill.")] = "sample-corpus", as_json: AsJson = False
) -> None:
    """Build a small corpus of text, code, PDFs and images from what every Python has."""
    with plain_errors():
        from tasks.sample import build_sample

        written = build_sample(Path(folder).expanduser().resolve())
        if as_json:
            print_json({"folder": str(Path(folder).resolve()), "files": len(written)})
        else:
            print(f"{len(written)} files in {folder}")
