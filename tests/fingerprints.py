"""The acknowledged code of every stage: `fingerprints.json` beside this file.

    python -m tests.fingerprints      (or `make fingerprints`) acknowledges the code as it is now

A stage whose code changes either gives other results than before, and then its version has to be raised, or it does
not, and then somebody has to say so. A test compares; this module knows how to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

FILE = Path(__file__).with_name("fingerprints.json")
COMMAND = "make fingerprints"


class Entry(TypedDict):
    """Version and code of one stage."""

    version: int
    fingerprint: str


Entries = dict[str, Entry]


def current() -> Entries:
    """Every stage of the pipeline as it is now."""
    from flows.stages import all_stages

    return {name: {"version": stage.version, "fingerprint": stage.code} for name, stage in sorted(all_stages().items())}


def recorded() -> Entries:
    """Every stage as it was acknowledged."""
    entries: Entries = json.loads(FILE.read_text(encoding="utf-8"))
    return entries


def write(entries: Entries) -> None:
    """Acknowledge."""
    FILE.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def complaints(known: Entries, now: Entries) -> list[str]:
    """What was neither marked as a change of results nor acknowledged as none, one sentence for each stage."""
    found = []
    for name in sorted(known.keys() | now.keys()):
        if name not in known:
            found.append(f"stage {name} is new: record it with `{COMMAND}`")
        elif name not in now:
            found.append(f"stage {name} is gone: if that is meant, forget it with `{COMMAND}`")
        elif now[name]["version"] < known[name]["version"]:
            found.append(
                f"the version of stage {name} went back from {known[name]['version']} to {now[name]['version']}: "
                "artefacts made before would be taken for those of this code; raise it instead"
            )
        elif now[name]["version"] > known[name]["version"]:
            found.append(
                f"the version of stage {name} was raised from {known[name]['version']} to {now[name]['version']}: "
                f"record that with `{COMMAND}`, so that the next change of its code is seen"
            )
        elif now[name]["fingerprint"] != known[name]["fingerprint"]:
            found.append(
                f"the code of stage {name}, or of a module that it imports, changed: if the same inputs and settings "
                f"now give another result, raise the version ({now[name]['version']}) in its @stage decorator, so that "
                f"nothing old is taken for it; then, or if results stay the same, acknowledge it with `{COMMAND}`"
            )
    return found


if __name__ == "__main__":
    before = recorded() if FILE.is_file() else {}
    after = current()
    for sentence in complaints(before, after):
        print(sentence.partition(":")[0])
    write(after)
