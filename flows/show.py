"""Results for people in a terminal: one printer of nested mappings, lists and tables for everything that is looked up.

Words may come from documents and file names, so nothing in them takes effect: neither markup nor control characters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SHOWN = 40  # entries of a list
COLUMNS = 10  # of a table; what has more of them is read better line by line
WIDTH = 1000  # of a table that goes into a file or a pipe
PLAIN = ("pid", "seed")  # numbers that are names
SIZES = ("size", "garbage_size")  # numbers of bytes


def print_document(document: Any, depth: int = 0) -> None:
    """Print nested mappings and lists, indented, and what has rows as a table; of a long list the first entries."""
    indent = "  " * depth
    rows = _rows(document)
    if rows is not None:
        _print_table(rows[:SHOWN], figure, len(indent))
    else:
        named = document.items() if isinstance(document, dict) else (("", item) for item in document[:SHOWN])
        for name, item in named:
            label = _line(name) or "-"
            if isinstance(item, dict | list) and item:
                print(f"{indent}{label}")
                print_document(item, depth + 1)
            else:
                print(f"{indent}{label}{':' if name else ''} {figure(name, item)}")
    if isinstance(document, list) and len(document) > SHOWN:
        print(f"{indent}and {len(document) - SHOWN:,} more (--json has all)")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print all rows of a query as a table, with values as they are."""
    if rows:
        _print_table(rows, lambda name, value: "" if value is None else _line(value))
    print(f"{len(rows)} rows" if rows else "no rows", file=sys.stderr)


def figure(name: str, value: Any) -> str:
    """Return a value in words; numbers whose names say that they are bytes or operations have a unit."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and name not in PLAIN:
        if "bytes" in name or name in SIZES:
            return f"{value:,}{_scaled(value, 1024, 'KMGTPE', 'iB')}"
        return f"{value:,}{_scaled(value, 1000, 'kMGTPE', 'FLOP') if 'flops' in name else ''}"
    return _line(value)


def _scaled(value: float, step: int, prefixes: str, unit: str) -> str:
    """Return a number with a prefix, such as 474.7 MiB, in brackets; empty if it is small."""
    power = 0
    while value >= step and power < len(prefixes):
        value, power = value / step, power + 1
    return f" ({value:,.1f} {prefixes[power - 1]}{unit})" if power else ""


def _line(value: Any) -> str:
    from tasks.report.wording import legible

    return legible(" ".join(str(value).split()))


def _rows(document: Any) -> list[dict[str, Any]] | None:
    """Return several mappings of values under the same few names as rows, else None."""
    if isinstance(document, dict):
        document = [{"": name, **item} if isinstance(item, dict) else item for name, item in document.items()]
    if len(document) < 2 or not all(isinstance(row, dict) for row in document):
        return None
    names = document[0].keys()
    nested = any(isinstance(item, dict | list) and item for row in document for item in row.values())
    return document if all(row.keys() == names for row in document) and not nested and len(names) <= COLUMNS else None


def _print_table(rows: Sequence[Mapping[str, Any]], shown: Callable[[str, Any], str], indent: int = 0) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in rows[0]:
        numbers = all(isinstance(row[name], int | float | None) for row in rows)
        made.add_column(_line(name), overflow="fold", justify="right" if numbers else "left")
    for row in rows:
        made.add_row(*(shown(name, value) for name, value in row.items()))
    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(Padding.indent(made, indent))
