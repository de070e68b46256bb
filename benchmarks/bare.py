"""The baseline of `benchmarks.ingest`: direct calls of the engines.

    python -m benchmarks.bare pdf FILE...          one loop of pypdfium2 over the pages
    python -m benchmarks.bare nasty ENGINE FILE    true if an engine finds a text layer

Each prints one JSON document.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def read_pdfs(paths: Sequence[str]) -> dict[str, int]:
    """Return the numbers of pages and of characters of the text layers."""
    import pypdfium2

    pages = chars = 0
    for path in paths:
        document = pypdfium2.PdfDocument(path)
        for index in range(len(document)):
            page = document[index]
            layer = page.get_textpage()
            chars += len(layer.get_text_range())
            layer.close()
            page.close()
            pages += 1
        document.close()
    return {"pages": pages, "chars": chars}


def prints(text: str) -> bool:
    """Return True if a character is visible: for some fonts an engine returns control codes only."""
    return any(character.isprintable() and not character.isspace() for character in text)


def has_text(engine: str, path: str) -> dict[str, bool]:
    """Return True if an engine alone finds a text layer with visible characters (see `prints`) in a PDF."""
    if engine == "pypdf":
        import pypdf

        reader = pypdf.PdfReader(path)
        if reader.is_encrypted:
            reader.decrypt("")
        return {"text": any(prints(page.extract_text()) for page in reader.pages)}
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    return {"text": any(prints(page.get_textpage().get_text_range()) for page in document)}


def in_parallel(shares: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> tuple[float, list[str]]:
    """Run commands in parallel; returns the seconds from the first start to the last end, and their output.

    Args:
        shares: command lines.
    """
    started = time.perf_counter()
    running = [
        subprocess.Popen(share, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        for share in shares
    ]
    printed = [process.communicate()[0] for process in running]
    seconds = time.perf_counter() - started
    for process, share in zip(running, shares, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(share[:4])} ... ended with exit code {process.returncode}")
    return seconds, printed


def dealt(paths: Sequence[Path], sizes: Sequence[float], hands: int) -> list[list[str]]:
    """Return files in groups of similar size: the largest first, each to the smallest group."""
    shares: list[list[str]] = [[] for _ in range(hands)]
    loads = [0.0] * hands
    for size, path in sorted(zip(sizes, map(str, paths), strict=True), reverse=True):
        least = loads.index(min(loads))
        shares[least].append(path)
        loads[least] += size
    return shares


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    print(json.dumps(read_pdfs(arguments) if task == "pdf" else has_text(arguments[0], arguments[1])))
