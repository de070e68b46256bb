"""Verification of a store: files and tables of all artefacts, then split, token round trips and training sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from storage.catalog import read_state
from storage.home import Home
from storage.manifest import StageFacts
from storage.store import Store, StoreError
from storage.verify import Check, check_store, repair
from tasks.upkeep.checks import check_sequences, check_split, check_tokens


def verify_home(
    home: Home, store: Store, facts: Mapping[str, StageFacts], corpus: str, mend: bool = False
) -> dict[str, Any]:
    """Check everything that can be checked, and return the findings as `sheepfold verify --json` prints them.

    Args:
        facts: facts of every stage.
        mend: remove damaged artefacts, so that the next run makes them again.

    Raises:
        StoreError: if the store is empty.
    """
    if not store.stages():
        raise StoreError(f"there is nothing to check: no artefacts in {home.store}")
    checks: list[Check] = check_store(store, facts)
    if mend:
        done = repair(store, checks, facts)
        # problems beyond the damaged artefacts are not mended by removing these
        rest = [check for check in checks if len(check.problems) > len(check.damaged)]
        return {
            "ok": all(item.done for item in done) and not rest,
            "checks": [asdict(check) for check in checks],
            "repaired": [asdict(item) for item in done],
        }
    # damaged artefacts cannot be read, and a corpus from which documents were forgotten waits for its next run
    state = read_state(store, corpus) if not any(check.problems for check in checks) else {}
    if "snapshot" in state:
        by_stage = {"curate": check_split, "tokenise": check_tokens, "dataset": check_sequences}
        checks += [check(store, state) for stage, check in by_stage.items() if stage in state]
    return {"ok": not any(check.problems for check in checks), "checks": [asdict(check) for check in checks]}


def checks_at_a_glance(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings for a person: a table of checks, then the problems that they found."""
    checks = report["checks"]
    rows = [{"check": one["name"], "checked": one["checked"], "problems": len(one["problems"])} for one in checks]
    return {**report, "checks": rows, "problems": [problem for one in checks for problem in one["problems"]]}
