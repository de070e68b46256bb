"""Commands that decide what a home keeps: forgetting documents, and clearing up what nothing needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, plain_errors, print_json, say

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
SHOWN = 20  # documents that are named


def forget(
    document: Annotated[str, typer.Argument(help="Document id, path, folder, or beginning of paths with a *.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the document's id.")] = "",
    dry_run: DryRun = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Take documents out of the store for good, and list the models that saw them."""
    with plain_errors():
        from flows.forgetting import forget as forget_documents

        done = forget_documents(home, document, reason, corpus, dry_run)
        if as_json:
            print_json(done)
            return
        _print_forgotten(done)


def _print_forgotten(done: dict[str, Any]) -> None:
    documents = done["documents"]
    print(f"{len(documents)} document(s) {'would be' if done['dry_run'] else 'are'} forgotten")
    for item in documents[:SHOWN]:
        print(f"  {item['doc_id'][:12]}  {item['path']}")
    if len(documents) > SHOWN:
        print(f"  and {len(documents) - SHOWN} more")
    if done["known"]:
        print(f"{done['known']} were forgotten before")
    for name in ("rewritten", "removed"):
        counts = ", ".join(f"{stage} {n}" for stage, n in done[name].items() if n)
        print(f"{name}: {counts or 'nothing'}")
    if done["seen_by"]:
        print("models that saw them, which stay as they are:")
    for item in done["seen_by"]:
        versions = ", ".join(" ".join([f"version {one['version']}", *one["aliases"]]) for one in item["versions"])
        print(
            f"  {item['training'][:18]} ({versions or 'not registered'}): trained on {item['documents_trained_on']}, "
            f"held out {item['documents_held_out']}{', some through the model it continues' if item['through'] else ''}"
        )
    for item in done["near_duplicates"][:SHOWN]:
        print(f"nearly the same, and kept: {item['doc_id'][:12]}  {item['path']}")
    if not done["dry_run"]:
        say("the files at their sources are not touched; the next run makes again what was removed")


def gc(
    dry_run: DryRun = False,
    grace_days: Annotated[float, typer.Option(help="Keep all that was made or used within so many days.", min=0)] = 7,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Remove artefacts that no corpus, registered model, run or unfinished work needs."""
    with plain_errors():
        from flows.clearing import clear_up

        done = clear_up(home, grace_days, dry_run)
        if as_json:
            print_json(done)
            return
        print_sizes(done["sizes"])
        print(
            f"{done['artefacts']} artefact(s) and {done['work']} unfinished work(s), {done['bytes'] / 2**20:,.1f} MiB, "
            f"{'can be removed' if dry_run else 'are removed'}"
        )
        for name in done["left"]:
            print(f"left, because somebody uses it: {name}")


def compact(
    dry_run: DryRun = False,
    at_least: Annotated[int, typer.Option(help="Join segments that fill none when there are so many.", min=2)] = 8,
    grace_days: Annotated[float, typer.Option(help="Keep what was joined for so long after its last use.", min=0)] = 1,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Join many small segments into few; no document is read or encoded again, and no digest changes."""
    with plain_errors():
        from flows.compaction import compact_home

        done = compact_home(home, at_least, grace_days, dry_run)
        if as_json:
            print_json(done)
            return
        parts = sum(map(len, done["joined"].values()))
        print(f"{parts} segment(s) {'would be' if dry_run else 'are'} joined into {len(done['joined'])}")
        for name in done["followed"]:
            print(f"corpus {name} stands at them now")
        for name in done["waiting"]:
            print(f"corpus {name} will with its next run")
        if done["removed"]:
            print(f"{len(done['removed'])} artefact(s) of segments that were joined are removed")


def print_sizes(stages: list[dict[str, Any]]) -> None:
    """Print how much of each stage is there."""
    print(f"{'stage':<18}{'artefacts':>10}{'MiB':>12}{'garbage':>10}{'MiB':>12}")
    for item in stages:
        print(
            f"{item['stage']:<18}{item['artefacts']:>10,}{item['size'] / 2**20:>12,.1f}"
            f"{item['garbage']:>10,}{item['garbage_size'] / 2**20:>12,.1f}"
        )
