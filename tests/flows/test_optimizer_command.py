"""`sheepfold optimizer`: the steps that it writes out are those of torch's optimisers."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner, Result

from flows.cli import app

GRADIENTS = [0.3, -0.2, 1e-4, 0.0, -5.0]
TORCH = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, (0.8, 0.95), 1e-6, weight_decay=0.2),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, (0.8, 0.95), 1e-6),
    "adam_l2": lambda parameters: torch.optim.Adam(parameters, 0.01, (0.8, 0.95), 1e-6, weight_decay=0.2),
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["optimizer", *arguments], env={"COLUMNS": "400", "TERM": "dumb"})


@pytest.mark.parametrize("kind", TORCH)
def test_each_step_is_the_one_that_torch_takes(kind: str) -> None:
    decay = [] if kind == "adam" else ["--weight-decay", "0.2"]
    settings = ["--lr", "0.01", "--betas", "0.8,0.95", "--eps", "1e-6", "--theta", "0.5", *decay]
    done = run(kind, *settings, "--gradients", ",".join(map(str, GRADIENTS)), "--json")
    assert done.exit_code == 0, done.output
    weight = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    optimizer = TORCH[kind]([weight])
    steps = json.loads(done.stdout)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    for gradient, step in zip(GRADIENTS, steps, strict=True):
        before = weight.item()
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        state = optimizer.state[weight]
        assert [step["m"], step["v"]] == pytest.approx([state["exp_avg"].item(), state["exp_avg_sq"].item()], rel=1e-14)
        assert step["theta"] == pytest.approx(weight.item(), rel=1e-14)
        assert step["bracket"] == pytest.approx((before - weight.item()) / 0.01, rel=1e-11)


def test_a_table_shows_every_quantity_of_the_formula() -> None:
    done = run("adamw", "--theta", "0.5", "--gradients", "0.3,-0.2", "--weight-decay", "0.01")
    head, _, first, second = done.stdout.splitlines()
    assert head.split() == ["step", "gradient", "m", "v", "m_hat", "v_hat", "sqrt_v_hat", "ratio", "bracket", "theta"]
    assert float(first.split()[-2]) == pytest.approx(1.00499996666667)
    assert float(second.split()[-1]) == pytest.approx(0.498845489559286)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["muon"], "use adamw, adam or adam_l2"),
        (["adam", "--weight-decay", "0.1"], "'adam' does not decay"),
        (["--gradients", "0.1,x"], "--gradients 0.1,x: expected numbers"),
        (["--gradients", "0.1,nan"], "expected finite numbers"),
        (["--betas", "0.9"], "expected two numbers"),
    ],
)
def test_what_has_no_steps_is_refused_in_one_sentence(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
