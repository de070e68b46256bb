"""The worked examples of the source documents, recomputed: `pytest tests/test_golden.py [--golden FILE]`.

Each entry of the file is a figure printed in a document. Where the document is right the project must reproduce it,
where it is wrong the project must give the corrected value and the printed one must be off. An entry goes through the
formula that its `op` names or, where nothing is computed, through a check of its own; both are in the package golden.
One that nobody knows fails. The summary at the end counts which way each entry went.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import CLAIMS, NOT_COMPUTABLE, OPERATIONS, Entry, Found

DIGITS = 1e-9
INFINITIES = {"inf", "-inf"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    entries = json.loads(Path(metafunc.config.getoption("--golden")).read_text(encoding="utf-8"))
    metafunc.parametrize("entry", entries, ids=[entry["id"] for entry in entries])


def test_golden(entry: Entry, record_property: Any) -> None:
    if entry["id"] in CLAIMS:
        claim = CLAIMS[entry["id"]]
        record_property("golden", f"{claim.kind}, {'own function' if claim.own else 'direct arithmetic'}")
        claim.check(entry)
        return
    if entry["id"] in NOT_COMPUTABLE:
        record_property("golden", "not computable")
        pytest.skip(f"{entry['id']} is not computable: {NOT_COMPUTABLE[entry['id']]}")
    if entry["op"] not in OPERATIONS:
        record_property("golden", "unknown")
        pytest.fail(f"nothing here computes {entry['id']} (op {entry['op']!r})")
    operation = OPERATIONS[entry["op"]]
    outcome = "corrected" if entry["status"] == "wrong" else "reproduced"
    record_property("golden", f"{outcome}, {'own function' if operation.own else 'direct arithmetic'}")
    found = operation(entry)
    if entry["status"] == "wrong":
        check_corrected(entry, found)
    else:
        check_reproduced(entry, found)
    for name in found.extras.keys() & entry.keys():
        assert_equal(found.extras[name], entry[name], DIGITS, name)


def check_reproduced(entry: Entry, found: Found) -> None:
    """The project agrees with the exact value to nine digits, and with the printed one to its last digit."""
    if "exact" in entry:
        assert_equal(found.value, entry["exact"], DIGITS, "exact")
    assert_equal(found.value, entry["expected"], entry.get("tolerances", entry["tolerance"]), "expected")


def check_corrected(entry: Entry, found: Found) -> None:
    """The project gives the corrected value, and the printed one is off wherever the file says so."""
    assert_equal(found.value, without_prose(entry["corrected"]), DIGITS, "corrected")
    ours = leaves(found.value if found.printed is None else found.printed)
    printed = leaves(entry["expected"])
    coarsest = entry.get("printed_half_ulp", entry["tolerance"])
    if ours.keys() != printed.keys():
        return  # a document that prints another number of values is wrong already
    wrong = {path for path in printed if not close(ours[path], printed[path], min(coarsest, half_digit(printed[path])))}
    stated = {tuple(index) if isinstance(index, list) else (index,) for index in entry.get("bad_indices", [])}
    assert wrong, f"the printed value {entry['expected']} agrees with {found.value}"
    assert not stated - wrong, f"printed values said to be wrong are right: {sorted(stated - wrong)}"
    if stated:
        rest = printed.keys() - stated
        off = {path for path in rest if not close(ours[path], printed[path], max(coarsest, half_digit(printed[path])))}
        assert not off, f"printed values said to be right are wrong: {sorted(off)}"


def half_digit(printed: float) -> float:
    """Half a unit of the last digit of a printed number; zeros at its end are lost in JSON."""
    text = repr(printed).removesuffix(".0")
    return 0.0 if "e" in text else 0.5 * 10.0 ** -len(text.partition(".")[2])


def assert_equal(value: Any, wanted: Any, tolerance: Any, name: str) -> None:
    """Both have the same parts, and each differs by its tolerance at most."""
    ours, theirs = leaves(value), leaves(wanted)
    assert ours.keys() == theirs.keys(), f"{name}: other parts, {sorted(map(str, ours.keys() ^ theirs.keys()))}"
    allowed = tolerance if isinstance(tolerance, list) else [tolerance] * len(theirs)
    off = {
        path: (ours[path], theirs[path])
        for path, limit in zip(theirs, allowed, strict=True)
        if not close(ours[path], theirs[path], limit)
    }
    assert not off, f"{name}: (ours, stated) differ at {off}"


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Equal but for the tolerance; a last bit of float64 is no difference where the file gives 15 digits."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-14, abs_tol=tolerance)
    return bool(a == b)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Every number or text in nested lists, dictionaries and tensors, by its path."""
    if isinstance(value, torch.Tensor | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: leaf for name in sorted(value) for key, leaf in leaves(value[name], (*path, name)).items()}
    if isinstance(value, list):
        return {key: leaf for place, item in enumerate(value) for key, leaf in leaves(item, (*path, place)).items()}
    if isinstance(value, str) and value not in INFINITIES:
        return {path: value}
    return {path: value if value is None else float(value)}


def without_prose(value: Any) -> Any:
    """A corrected value without the rules that are stated in words beside its numbers."""
    if not isinstance(value, dict):
        return value
    return {name: item for name, item in value.items() if not isinstance(item, str) or item in INFINITIES}
