"""How entries of golden.json find what computes them: operations by the entry's `op`, claims by its id.

An operation's parameters are named like the entry's inputs; one named `entry` is given the entry, one named `others`
all entries by id, for figures that another one states the weights of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pytest

Entry = dict[str, Any]
Function = Callable[..., Any]

OPERATIONS: dict[str, Function] = {}
CLAIMS: dict[str, Function] = {}


@dataclass
class Found:
    """What an operation comes to.

    Attributes:
        value: the project's value of what the entry's `exact` or `corrected` states.
        printed: the project's value of what `expected` states, where that is another quantity than `corrected`.
        parts: the project's values of further fields of the entry, and of further names in a stated mapping.
    """

    value: Any
    printed: Any = None
    parts: dict[str, Any] = field(default_factory=dict)


class Shape(list[int]):
    """A shape, which an entry may state as a list or as rows, columns and cells."""

    def parts(self) -> dict[str, int]:
        """The last two sizes, and the number of values."""
        return {"rows": self[-2], "columns": self[-1], "cells": prod(self)}


def operation(*names: str) -> Callable[[Function], Function]:
    """Registers what computes entries with one of these values of `op`."""
    return lambda function: OPERATIONS.update(dict.fromkeys(names, function)) or function  # type: ignore[func-returns-value]


def claim(*ids: str) -> Callable[[Function], Function]:
    """Registers the check of a setting, or of something that a network does."""
    return lambda function: CLAIMS.update(dict.fromkeys(ids, function)) or function  # type: ignore[func-returns-value]


def called(function: Function, entry: Entry, others: Mapping[str, Entry], **inputs: Any) -> Any:
    """Calls an operation or a claim with the inputs and with what it asks for by name."""
    context = {"entry": entry, "others": others}
    asked = {name: value for name, value in context.items() if name in inspect.signature(function).parameters}
    return function(**inputs, **asked)


def computed(entry: Entry, others: Mapping[str, Entry]) -> Found:
    """The entry's values from the function of its `op`; skips if inputs are withheld, fails if there is an unknown one."""
    function, inputs = OPERATIONS[entry["op"]], entry.get("inputs") or {}
    known = {name: one for name, one in inspect.signature(function).parameters.items() if name not in ("entry", "others")}
    if all(one.kind is not one.VAR_KEYWORD for one in known.values()):
        unknown = inputs.keys() - known.keys()
        assert not unknown, f"op {entry['op']!r} takes no input {', '.join(sorted(unknown))}; it takes {', '.join(known)}"
    needed = [name for name, one in known.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    withheld = [name for name in {**dict.fromkeys(needed), **inputs} if has_gap(inputs.get(name))]
    if withheld:
        pytest.skip(f"inputs are withheld: {', '.join(withheld)}")
    found = called(function, entry, others, **inputs)
    return found if isinstance(found, Found) else Found(found)


def has_gap(value: Any) -> bool:
    """Is it, or a value inside it, left out?"""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(has_gap, inside))
