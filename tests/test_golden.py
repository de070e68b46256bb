"""The worked examples of the source documents, recomputed: `pytest tests/test_golden.py [--golden FILE]`.

Each entry of the file is a figure printed in a document. Where the document is right the project must reproduce it,
where it is wrong the project must give the corrected value and the printed one must be off. An entry goes through the
formula that its `op` names or, where nothing is computed, through a check of its own; both are in the package golden.
Every field that states a value is compared. An entry or a field that nothing here computes fails by name; one whose
inputs or values are left out of the file is skipped with the reason, after what is there has been compared. The summary
at the end counts which way each entry went.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import OPERATIONS
from golden.exceptions import ARITHMETIC, NOT_COMPUTABLE
from golden.registry import CLAIMS, Entry, Found, Shape, called, computed, has_gap

DIGITS = 1e-9
INFINITIES = {"inf", "-inf"}
# fields that say what the entry is and how it is compared; the rest are values
ABOUT = {"id", "seed", "section", "what", "op", "status", "note", "numbers_from", "severity", "kind", "inputs"}
COMPARED = {"expected", "exact", "corrected", "tolerance", "tolerances", "printed_half_ulp"}
COUNTED = {"bad_indices", "n_bad", "n_values", "max_abs_error"}
Leaf = tuple[tuple[Any, ...], Any, Any]


def read(path: Path) -> list[Entry]:
    return json.loads(path.read_text(encoding="utf-8"))


BUNDLED = {entry["id"]: entry for entry in read(Path(__file__).parent / "golden" / "golden.json")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = read(Path(metafunc.config.getoption("--golden")))
    others = BUNDLED | {entry["id"]: entry for entry in given}
    names = [entry["id"] for entry in given]
    metafunc.parametrize(("entry", "others"), [(entry, others) for entry in given], ids=names)


def test_golden(entry: Entry, others: dict[str, Entry], record_property: Any) -> None:
    name, op = entry["id"], entry.get("op")
    if name in CLAIMS:
        record_property("golden", "claim")
        assert_stated_alike(entry, BUNDLED[name])
        called(CLAIMS[name], entry, others)
    elif op in OPERATIONS:
        went = "corrected" if entry.get("status") == "wrong" else "reproduced"
        record_property("golden", f"{went}, arithmetic of the test" if op in ARITHMETIC else went)
        check(entry, computed(OPERATIONS[op], entry, others))
    elif name in NOT_COMPUTABLE:
        record_property("golden", "not computable")
        pytest.skip(f"not computable: {NOT_COMPUTABLE[name]}")
    else:
        record_property("golden", "unknown")
        pytest.fail(f"nothing here computes {name} (op {op!r})")


def check(entry: Entry, found: Found) -> None:
    """Every stated value is what the project computes, but a printed one that the file says to be wrong."""
    named = found.parts | (found.value if isinstance(found.value, dict) else {})
    further = sorted(entry.keys() - ABOUT - COMPARED - COUNTED)
    unknown = [name for name in further if named.get(name) is None]
    assert not unknown, f"op {entry['op']!r} does not compute the field {', '.join(unknown)}"
    if entry.get("status") == "wrong":
        needed = ["corrected", "expected"]
        check_corrected(entry, found, named)
    else:
        needed = ["expected"]
        tolerance = entry.get("tolerances", entry.get("tolerance", DIGITS))
        for name, allowed in (("exact", DIGITS), ("expected", tolerance)):
            assert_equal(found.value, entry.get(name), allowed, name, named)
    for name in further:
        assert_equal(named[name], entry[name], DIGITS, name, named)
    withheld = [name for name in (*needed, *further) if has_gap(entry.get(name))]
    if withheld:
        pytest.skip(f"values are withheld: {', '.join(withheld)}; what is there was compared")


def check_corrected(entry: Entry, found: Found, named: dict[str, Any]) -> None:
    """The project gives the corrected value, and the printed one is off wherever the file says so."""
    corrected, printed = without_prose(entry.get("corrected")), entry.get("expected")
    assert_equal(found.value, corrected, DIGITS, "corrected", named)
    if isinstance(printed, dict) and found.printed is None and not printed.keys() & (named.keys() - found.parts.keys()):
        # the document states another quantity, which is not the one that it should be
        assert_equal(named, printed, entry.get("tolerance", DIGITS), "expected", named)
        assert [*printed.values()] != [*(corrected or {}).values()]
        return
    ours = found.value if found.printed is None else found.printed
    try:
        leaves = [leaf for leaf in aligned(ours, printed, named) if leaf[2] is not None]
    except AssertionError:
        return  # a document that prints another number of values is wrong already
    coarsest = entry.get("printed_half_ulp", entry.get("tolerance", math.inf))
    wrong = {path for path, own, value in leaves if not close(own, value, min(coarsest, half_digit(value)))}
    off = {path for path, own, value in leaves if not close(own, value, max(coarsest, half_digit(value)))}
    assert wrong or not leaves, f"the printed value {printed} agrees with {found.value}"
    farthest = max((abs(own - value) for _, own, value in leaves), default=0.0)
    n_bad = len(wrong)
    if "bad_indices" in entry:
        stated = {tuple(index) if isinstance(index, list) else (index,) for index in entry["bad_indices"]}
        assert not stated - wrong, f"printed values said to be wrong are right: {sorted(stated - wrong)}"
        assert not off - stated, f"printed values said to be right are wrong: {sorted(off - stated)}"
        n_bad = len(stated)
    for name, count, tolerance in (
        ("n_values", len(leaves), 0.0),
        ("n_bad", n_bad, 0.0),
        ("max_abs_error", farthest, 1e-3 * farthest),  # the file gives four digits
    ):
        assert_equal(count, entry.get(name), tolerance, name, {})


def half_digit(printed: float) -> float:
    """Half a unit of the last digit of a printed number; zeros at its end are lost in JSON."""
    text = repr(printed).removesuffix(".0")
    return 0.0 if "e" in text else 0.5 * 10.0 ** -len(text.partition(".")[2])


def assert_equal(value: Any, wanted: Any, tolerance: Any, name: str, named: dict[str, Any]) -> None:
    """Both have the same parts, and each differs by its tolerance at most."""
    leaves = list(aligned(value, wanted, named, (name,)))
    allowed = tolerance if isinstance(tolerance, list) else [tolerance] * len(leaves)
    pairs = zip(leaves, allowed, strict=True)
    off = {path: (own, stated) for (path, own, stated), limit in pairs if not close(own, stated, limit)}
    assert not off, f"(ours, stated) differ at {off}"


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Equal but for the tolerance; a last bit of float64 is no difference where the file gives 15 digits."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-14, abs_tol=tolerance)
    return b is None or bool(a == b)


def aligned(ours: Any, wanted: Any, named: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """Path, own and stated value of every number or text that is stated; a name is looked up in the computed parts.

    Raises:
        AssertionError: nothing of a stated name is computed, or the shapes differ.
    """
    if isinstance(ours, torch.Tensor | np.ndarray):
        ours = ours.tolist()
    where = ".".join(map(str, path))
    if wanted is None:
        return
    if isinstance(wanted, dict):
        if isinstance(ours, Shape):
            ours = ours.parts()
        parts = named | (ours if isinstance(ours, dict) else {})
        for name, item in wanted.items():
            assert name in parts, f"nothing computes {where}.{name}; computed are {', '.join(parts)}"
            yield from aligned(parts[name], item, {}, (*path, name))
    elif isinstance(wanted, list):
        assert isinstance(ours, list), f"{where}: a list of {len(wanted)} is stated, and {ours} computed"
        assert len(ours) == len(wanted), f"{where}: {len(wanted)} values are stated, and {len(ours)} computed"
        for place, item in enumerate(wanted):
            yield from aligned(ours[place], item, {}, (*path, place))
    else:
        assert not isinstance(ours, list | dict), f"{where}: one value is stated, and {ours} computed"
        is_text = isinstance(wanted, str) and wanted not in INFINITIES
        yield path, ours if is_text else float(ours), wanted if is_text else float(wanted)


def assert_stated_alike(entry: Entry, known: Entry) -> None:
    """A claim has the fields and parts that its check was written for."""
    withheld = []
    for name in ("inputs", "expected", "corrected", *(known.keys() - ABOUT - COMPARED - COUNTED)):
        own, reference = entry.get(name), known.get(name)
        if reference is not None and own is None:
            withheld.append(name)
        elif isinstance(reference, dict):
            further = own.keys() - reference.keys()
            assert not further, f"the check of this claim does not know {name}.{', '.join(sorted(further))}"
            withheld += [f"{name}.{part}" for part in reference if part not in own]
    further = entry.keys() - known.keys() - ABOUT - COMPARED - COUNTED
    assert not further, f"the check of this claim does not know the field {', '.join(sorted(further))}"
    if withheld:
        pytest.skip(f"inputs or values are withheld: {', '.join(withheld)}")


def without_prose(value: Any) -> Any:
    """A corrected value without the rules that are stated in words beside its numbers."""
    if not isinstance(value, dict):
        return value
    return {name: item for name, item in value.items() if not isinstance(item, str) or item in INFINITIES}
