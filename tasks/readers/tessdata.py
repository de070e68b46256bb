"""Where Tesseract's language data lies on this machine, and what to install where it does not.

The library comes with Python's package, the data do not: they are the system's, in a folder whose place depends on the
system. `TESSDATA_PREFIX` decides where it is set, as it does for Tesseract itself; else the usual places are looked at,
and last the `tesseract` program, if there is one, is asked.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Debian and Ubuntu have a folder for each major version; Fedora and openSUSE, Arch and Alpine, builds from source,
# Homebrew on both kinds of Mac, MacPorts and conda follow.
USUAL_PLACES = (
    "/usr/share/tesseract-ocr/[0-9]*/tessdata",
    "/usr/share/tesseract-ocr/tessdata",
    "/usr/share/tesseract/tessdata",
    "/usr/share/tessdata",
    "/usr/local/share/tessdata",
    "/opt/homebrew/share/tessdata",
    "/opt/local/share/tessdata",
)
_SUFFIX = ".traineddata"


def find_tessdata(languages: str) -> Path | None:
    """Find the folder that has the data of all these languages.

    Args:
        languages: Tesseract's codes joined by "+".

    Returns:
        The folder, or None if no single folder has them all.
    """
    names = languages.split("+")
    return next((folder for folder in _folders(os.environ.get("TESSDATA_PREFIX")) if has_all(folder, names)), None)


def has_all(folder: Path, names: list[str]) -> bool:
    """Whether the folder has the data of each of these languages."""
    return all((folder / f"{name}{_SUFFIX}").is_file() for name in names)


def explain_missing(languages: str) -> str:
    """Return a sentence that says what is missing and how to install it.

    Args:
        languages: Tesseract's codes joined by "+", for which `find_tessdata` found nothing.
    """
    prefix = os.environ.get("TESSDATA_PREFIX")
    folders = _folders(prefix)
    if not any(any(folder.glob(f"*{_SUFFIX}")) for folder in folders):
        where = f"the folder that TESSDATA_PREFIX names ({prefix})" if prefix else "the usual folders"
        return (
            f"OCR needs Tesseract's language data, and none was found in {where}; install it (Debian, Ubuntu: "
            "apt install tesseract-ocr; Fedora: dnf install tesseract; macOS: brew install tesseract), set "
            "TESSDATA_PREFIX to the folder with the .traineddata files, or switch OCR off"
        )
    names = languages.split("+")
    best = min(folders, key=lambda folder: sum(not has_all(folder, [name]) for name in names))
    missing = [name for name in names if not has_all(best, [name])]
    return (
        f"Tesseract has no data for the language {', '.join(missing)} in {best} (asked for: {languages}); install it "
        f"(Debian, Ubuntu: apt install tesseract-ocr-{missing[0].lower().replace('_', '-')}; Fedora: dnf install "
        f"tesseract-langpack-{missing[0]}; macOS: brew install tesseract-lang) or name another language"
    )


@cache
def _folders(prefix: str | None) -> tuple[Path, ...]:
    """The folders that may hold data, best first."""
    if prefix:
        # Tesseract 3 wanted the parent folder there; many set it so to this day.
        return tuple(folder for folder in (Path(prefix), Path(prefix) / "tessdata") if folder.is_dir())
    found = [folder for folder in _usual_folders() if folder.is_dir()]
    return tuple(found or _folder_of_the_program())


def _usual_folders() -> Iterator[Path]:
    """Where packages put the data; of several versions the newest first."""
    for place in USUAL_PLACES:
        yield from sorted(Path("/").glob(place.lstrip("/")), reverse=True)
    if "CONDA_PREFIX" in os.environ:
        yield Path(os.environ["CONDA_PREFIX"]) / "share" / "tessdata"


def _folder_of_the_program() -> tuple[Path, ...]:
    """The folder that the `tesseract` program itself reads; nothing if there is no such program."""
    try:
        done = subprocess.run(["tesseract", "--list-langs"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    told = re.search(r'languages in "?([^"\n]*?)"? \(\d+\)', (done.stdout + done.stderr).decode("utf-8", "replace"))
    return (Path(told[1]),) if told and Path(told[1]).is_dir() else ()
