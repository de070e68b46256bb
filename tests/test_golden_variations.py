"""`pytest tests/test_golden.py --golden FILE` on entries that are stated in another way than in the bundled file.

What can be computed is compared, what cannot fails by its name, and what is withheld is skipped with the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
BUNDLED = {entry["id"]: entry for entry in json.loads((ROOT / "tests/golden/golden.json").read_text("utf-8"))}
WITHOUT = "this field is left out"
WALK = BUNDLED["s001-adamw-step1"]["inputs"] | {"grads": [0.3, -0.2]}
FREE = {name: value for name, value in WALK.items() if name != "fields"}  # of a choice of quantities
THETAS = [0.498995000033333, 0.498845489559286]
STEPS = [
    {"m": 0.03, "v": 9e-05, "mhat": 0.3, "vhat": 0.09, "sqrt_vhat": 0.3, "theta": THETAS[0]},
    {"m": 0.007, "v": 0.00012991, "mhat": 0.0368421052631579, "sqrt_vhat": 0.254926447719483, "theta": THETAS[1]},
]
LOSS = {"inputs": {"token_nll": [[0.5], [1.5, 2.5, 3.5]]}, "expected": {"per_sequence": 4.0}}


class Variation(NamedTuple):
    """A bundled entry with other fields, and a part of what is said of it."""

    base: str
    changes: dict[str, Any]
    outcome: str
    said: str = ""


def walk(expected: Any, inputs: Any = FREE, **further: Any) -> dict[str, Any]:
    return {
        "inputs": inputs,
        "expected": expected,
        "exact": WITHOUT,
        "tolerances": WITHOUT,
        "tolerance": 1e-9,
        **further,
    }


def inputs(base: str, **changes: Any) -> dict[str, Any]:
    return {
        "inputs": {name: value for name, value in {**BUNDLED[base]["inputs"], **changes}.items() if value != WITHOUT}
    }


CELLS = {"rows": 3, "columns": 2, "cells": 6}
CASES = {
    "a shape by rows, columns and cells": Variation("s000-w1-shape", {"corrected": CELLS}, "passed"),
    "a wrong number of cells": Variation("s000-w1-shape", {"corrected": {**CELLS, "cells": 9}}, "failed", "cells"),
    "the number of rows as a field": Variation("s000-w1-shape", {"rows": 3, "columns": 2}, "passed"),
    "a matrix by rows, columns and cells": Variation(
        "s000-w1-shape", {"inputs": {"rows": 3, "columns": 2, "cells": [0.1, 0.2, -0.1, 0.1, 0.05, -0.05]}}, "passed"
    ),
    "shapes of other values": Variation(
        "s000-shapes-hello", {"expected": {"S0": {"rows": 5, "columns": 5, "cells": 25}, "W_V": [512, 512]}}, "passed"
    ),
    "a value that the network does not have": Variation(
        "s000-shapes-hello", {"expected": {"W_3": [512, 512]}}, "failed", "expected.W_3"
    ),
    "the root of v_hat as a field": Variation("s001-adamw-step1", {"sqrt_vhat": 0.3}, "passed"),
    "a wrong root of v_hat": Variation("s001-adamw-step1", {"sqrt_vhat": 0.31}, "failed", "sqrt_vhat"),
    "the root of v_hat among the quantities": Variation(
        "s001-adamw-step1", walk([0.254926447719483], {**WALK, "fields": ["sqrt_vhat"]}), "passed"
    ),
    "a quantity that no step has": Variation(
        "s001-adamw-step1", walk([0.0], {**WALK, "fields": ["momentum"]}), "failed", "momentum"
    ),
    "all steps as mappings": Variation("s001-adamw-step1", walk(STEPS), "passed"),
    "a wrong second step": Variation(
        "s001-adamw-step1", walk([STEPS[0], {**STEPS[1], "m": 0.008}]), "failed", "'expected', 1, 'm'"
    ),
    "all steps as a field": Variation("s001-adamw-step1", walk({"theta": THETAS[1]}, steps=STEPS), "passed"),
    "all steps as rows": Variation(
        "s001-adamw-step1",
        walk([[one["m"], one["theta"]] for one in STEPS], {**WALK, "fields": ["m", "theta"]}),
        "passed",
    ),
    "all steps as columns": Variation(
        "s001-adamw-step1", walk({"m": [0.03, 0.007], "theta": THETAS, "vhat": 0.0649874937468744}), "passed"
    ),
    "all weights of Adam": Variation(
        "s001-adamw-step1",
        walk([0.499000000033333, 0.498855479508713], {**FREE, "weight_decay": 0.0}, op="adam_steps"),
        "passed",
    ),
    "fewer steps than are computed": Variation("s001-adamw-step1", walk(STEPS[:1]), "failed", "1 values are stated"),
    "the loss of other sequences": Variation("s004-loss-mean", {**LOSS, "corrected": {"per_token": 2.0}}, "passed"),
    "a wrong loss per sequence": Variation(
        "s004-loss-mean", {**LOSS, "expected": {"per_sequence": 4.1}, "corrected": {"per_token": 2.0}}, "failed", "4.1"
    ),
    "variance at another width": Variation(
        "s002-variance", {**inputs("s002-variance", d_k=5), "expected": {"var_raw": 5.0, "var_scaled": 1.0}}, "passed"
    ),
    "a gradient that is not clipped": Variation(
        "s001-clip", {**inputs("s001-clip", max_norm=2), "expected": [0.5, 0.8, 1.2], "exact": WITHOUT}, "passed"
    ),
    "norms as fields": Variation("s001-clip", {"norm": 1.52643375224738, "clipped_norm": 1}, "passed"),
    "parameters of a part": Variation("s004-enc-layer-params", {"norm": 320, "token_embedding": 3200}, "passed"),
    "the mean as a field": Variation("s001-ln", {"mean": 2.5, "var": 1.25}, "passed"),
    "a field that nothing computes": Variation("s001-clip", {"median": 0.8}, "failed", "the field median"),
    "a part that nothing computes": Variation("s002-flops", {"expected": {"head": 1}}, "failed", "expected.head"),
    "an input that nothing takes": Variation("s001-clip", inputs("s001-clip", p=2), "failed", "takes no input p"),
    "an unknown formula": Variation("s001-clip", {"op": "clip_by_value"}, "failed", "clip_by_value"),
    "a printed value that is right": Variation("s003-silu", {"expected": [0.922, 1.226]}, "failed", "agrees with"),
    "a wrong number of wrong values": Variation("s003-silu", {"n_bad": 1}, "failed", "n_bad"),
    "a size left out": Variation("s000-shapes-hello", inputs("s000-shapes-hello", n=WITHOUT), "skipped", "withheld: n"),
    "a matrix left out": Variation("s003-chain-none", inputs("s003-chain-none", W_o=WITHOUT), "skipped", "W_o"),
    "inputs left out": Variation("s001-ln", inputs("s001-ln", gamma=WITHOUT), "skipped", "inputs are withheld: gamma"),
    "a value of an input left out": Variation("s001-ln-stats", inputs("s001-ln-stats", x=[1.0, None]), "skipped", "x"),
    "all inputs left out": Variation("s001-clip-norm", {"inputs": WITHOUT}, "skipped", "inputs are withheld: g"),
    "the printed value left out": Variation("s001-clip", {"expected": WITHOUT}, "skipped", "withheld: expected"),
    "the correction left out": Variation("s003-silu", {"corrected": WITHOUT}, "skipped", "withheld: corrected"),
    "one value left out": Variation("s001-exps", {"expected": [1.221, None, 1.492]}, "skipped", "withheld: expected"),
    "one left out, one wrong": Variation("s001-exps", {"expected": [1.3, None, 1.492]}, "failed", "1.3"),
    "a setting left out": Variation(
        "s001-gen-defaults", {"expected": {"temperature": 1.0}}, "skipped", "top_k_example"
    ),
    "a setting that no check knows": Variation(
        "s000-init-sigma", {"expected": {"sigma": 0.02, "seed": 42, "mu": 0.0}}, "failed", "expected.mu"
    ),
    "another setting": Variation("s001-dropout", {"expected": 0.2}, "failed", "0.2"),
}


def entry_of(name: str) -> dict[str, Any]:
    """The varied entry; a claim is known by its id and keeps it."""
    base, changes, *_ = CASES[name]
    entry = {**BUNDLED[base], **changes}
    kept = base if entry["op"] in (None, "constant") else name
    return {field: value for field, value in entry.items() if value != WITHOUT} | {"id": kept}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Outcome and message of each variation, from one run of the command."""
    folder = tmp_path_factory.mktemp("golden")
    given, report = folder / "varied.json", folder / "report.xml"
    given.write_text(json.dumps([entry_of(name) for name in CASES]), encoding="utf-8")
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", "tests/test_golden.py", "--golden", str(given), *options]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    found = {}
    for case in ET.parse(report).iter("testcase"):
        said = {item.tag: item.get("message", "") for item in case}
        outcome = "failed" if "failure" in said else "skipped" if "skipped" in said else "passed"
        found[case.attrib["name"].removeprefix("test_golden[").removesuffix("]")] = (outcome, str(said))
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_an_entry_stated_otherwise_is(name: str, reports: dict[str, tuple[str, str]]) -> None:
    outcome, said = reports[entry_of(name)["id"]]
    assert outcome == CASES[name].outcome, said
    assert CASES[name].said in said
