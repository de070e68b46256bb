"""Registry of the functions that compute entries of golden.json: operations by the entry's `op`, claims by its id.

An operation's parameters are named like the entry's inputs; one named `entry` is given the entry, one named `others`
all entries by id, for figures that another one states the weights of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import ModuleType
from typing import Any

import pytest

Entry = dict[str, Any]
Function = Callable[..., Any]

CLAIMS: dict[str, Function] = {}


@dataclass
class Found:
    """Result of an operation.

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


def claim(*ids: str) -> Callable[[Function], Function]:
    """Registers the check of a setting, or of something that a network does."""
    return lambda function: CLAIMS.update(dict.fromkeys(ids, function)) or function  # type: ignore[func-returns-value]


def called(function: Function, entry: Entry, others: Mapping[str, Entry], **inputs: Any) -> Any:
    """Calls an operation or a claim with the inputs and with what it asks for by name."""
    context = {"entry": entry, "others": others}
    asked = {name: value for name, value in context.items() if name in inspect.signature(function).parameters}
    return function(**inputs, **asked)


def operations(*modules: ModuleType) -> dict[str, Function]:
    """Public functions of the modules by their names, and what stands in their tables FORMULAS."""
    found: dict[str, Function] = {}
    for module in modules:
        own = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
        found |= {name: one for name, one in own.items() if inspect.isfunction(one) and not name.startswith("_")}
        found |= module.FORMULAS
    return found


def computed(function: Function, entry: Entry, others: Mapping[str, Entry]) -> Found:
    """The entry's values from an operation, which gets the inputs by name."""
    inputs, known = entry.get("inputs") or {}, dict(inspect.signature(function).parameters)
    open_ended = [known.pop(name) for name in list(known) if known[name].kind is inspect.Parameter.VAR_KEYWORD]
    names = [name for name in known if name not in ("entry", "others")]
    needed = [name for name in names if known[name].default is inspect.Parameter.empty]
    check_inputs(inputs, needed, [*inputs] if open_ended else names)
    found = called(function, entry, others, **inputs)
    return found if isinstance(found, Found) else Found(found)


def check_inputs(inputs: Mapping[str, Any], needed: Iterable[str], known: Iterable[str]) -> None:
    """Fails by name where there is an input that nothing takes, and skips where one is left out."""
    unknown = [name for name in inputs if name not in known]
    assert not unknown, f"the operation takes no input {', '.join(unknown)}; it takes {', '.join(known)}"
    withheld = [name for name in {**dict.fromkeys(needed), **inputs} if has_gap(inputs.get(name))]
    if withheld:
        pytest.skip(f"inputs are withheld: {', '.join(withheld)}")


def has_gap(value: Any) -> bool:
    """Is it, or a value inside it, left out?"""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(has_gap, inside))
