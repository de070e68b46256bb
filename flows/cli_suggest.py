"""The command that proposes what to train."""

from __future__ import annotations

from typing import Any

from flows.cli_common import print_json


def show_suggestion(result: dict[str, Any], as_json: bool) -> None:
    """Print what the suggest flow proposes."""
    found = result["suggestion"]
    if as_json:
        print_json({"suggestion": found, "stages": result["stages"], "notes": result["notes"]})
        return
    from flows.report import suggestion_text

    print(suggestion_text(found))
    print("\n`sheepfold run` and `sheepfold train` with the same sources and budget take it.")
    for note in result["notes"]:
        print(f"note: {note}")
