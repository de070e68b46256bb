"""`sheepfold inspect --preset llama_toy --prompt "Hi Thomas"` is the walk-through of its source, figure by figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app

GOLDEN = Path(__file__).parents[1] / "golden" / "golden.json"
ROUNDED = 5.1e-5  # the answer's four digits


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The values of all steps, with all their columns."""
    home = str(tmp_path_factory.mktemp("walk"))
    arguments = ["--preset", "llama_toy", "--prompt", "Hi Thomas", "--columns", "all", "--json", "--home", home]
    ran = CliRunner().invoke(app, ["inspect", *arguments])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    return {step["name"].removeprefix("block_1."): np.array(step["first_columns"], float) for step in found["steps"]}


@pytest.fixture(scope="module")
def stated() -> dict[str, Any]:
    """The walk-through's weights, and its values without a rotation, as corrected."""
    return next(entry for entry in json.loads(GOLDEN.read_text()) if entry["id"] == "s003-chain-none")


def test_ids_and_vectors_are_those_of_the_words(steps: dict, stated: dict) -> None:
    assert steps["ids"].tolist() == stated["inputs"]["ids"] == [4, 8]
    np.testing.assert_allclose(steps["embedding"], np.array(stated["inputs"]["embedding"])[[4, 8]], atol=ROUNDED)


def test_queries_keys_and_values_are_the_stated_ones_before_they_are_rotated(steps: dict, stated: dict) -> None:
    expected = stated["expected"]
    for name, value in (("q_unrotated", "q_rope"), ("k_unrotated", "k_rope"), ("v", "v")):
        np.testing.assert_allclose(steps[name], expected[value], atol=ROUNDED)


def test_everything_behind_them_follows_by_the_formulas_with_the_rotation_of_one_radian(
    steps: dict, stated: dict
) -> None:
    weights, values = stated["inputs"], stated["expected"]
    turn = np.array([[np.cos(1), np.sin(1), 0], [-np.sin(1), np.cos(1), 0], [0, 0, 1]])
    q, k, v = (np.array(values[name]) for name in ("q_rope", "k_rope", "v"))
    q[:, 1], k[:, 1] = q[:, 1] @ turn, k[:, 1] @ turn
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(3)
    weight = np.tril(np.exp(scores))
    weight /= weight.sum(-1, keepdims=True)
    mixed = weight @ v
    attention = mixed.transpose(1, 0, 2).reshape(2, 6) @ np.array(weights["W_o"])
    state = np.array(weights["embedding"])[[4, 8]] + attention
    normed = state / np.sqrt((state**2).mean(-1, keepdims=True) + 1e-6) * np.array(weights["ffn_norm_weight"])
    moments = np.stack([state.mean(-1), state.var(-1)], axis=-1)
    by_name = {"q": q, "k": k, "scores": scores, "weights": weight, "mixed": mixed, "attention": attention}
    by_name |= {"sum_attention": state, "norm_ffn_moments": moments, "norm_ffn": normed}
    for name, value in by_name.items():
        np.testing.assert_allclose(steps[name], value, atol=ROUNDED, err_msg=name)
    gate = normed @ np.array(weights["W_gate_4cols"])
    np.testing.assert_allclose(steps["gate"][:, :4], gate, atol=ROUNDED)
    np.testing.assert_allclose(steps["silu_gate"][:, :4], gate / (1 + np.exp(-gate)), atol=ROUNDED)


def test_all_columns_reach_over_the_whole_vocabulary(steps: dict) -> None:
    assert steps["gate"].shape == (2, 24) and steps["logits"].shape == steps["probabilities"].shape == (2, 10)
    np.testing.assert_allclose(steps["probabilities"].sum(-1), 1, atol=10 * ROUNDED)
    head = np.array([0.03, 0.02, 0.05, -0.01, -0.04, 0.01]) + np.arange(10)[:, None] / 100 * [1, 1, -1, -1, 1, 1]
    np.testing.assert_allclose(steps["logits"], steps["norm"] @ head.T, atol=2 * ROUNDED)


@pytest.mark.parametrize("columns", ["0", "-1", "2.5", "every"])
def test_a_number_of_columns_that_is_none_is_refused(columns: str, tmp_path: Path) -> None:
    arguments = ["--preset", "llama_toy", "--prompt", "Hi", f"--columns={columns}", "--home", str(tmp_path)]
    ran = CliRunner().invoke(app, ["inspect", *arguments])
    assert ran.exit_code != 0 and "expected a number of at least 1, or all" in ran.output
