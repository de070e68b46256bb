"""An option that is given wins over the configuration file, also when it equals the default."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from runs import invoke

from flows.context import flow
from flows.options import GenerateOptions, RetrainOptions, TrainOptions
from tasks.core.settings import Settings

USUAL = Settings()


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration file in which everything differs from the defaults."""
    file = tmp_path / "run.toml"
    file.write_text(
        '[train]\nseed = 5\nmax_steps = 7\n[model]\npreset = "tiny"\n'
        '[generate]\ntemperature = 0.2\nmax_new_tokens = 500\nstop = ["x"]\n'
    )
    return str(file)


def test_on_the_command_line(tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run_flow(flow: str, options: Any) -> dict[str, Any]:
        asked.append(options.load())
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.cli.run_flow", run_flow)
    given = ["--seed", str(USUAL.train.seed), "--max-steps", "0", "--preset", USUAL.model.preset]
    invoke(tmp_path, "train", str(tmp_path), "--config", config, *given)
    invoke(tmp_path, "train", str(tmp_path), "--config", config)
    invoke(tmp_path, "train", str(tmp_path), "--config", config, "--set", f"train.seed={USUAL.train.seed}")
    taken = [(settings.train.seed, settings.train.max_steps, settings.model.preset) for settings in asked]
    assert taken == [(USUAL.train.seed, 0, USUAL.model.preset), (5, 7, "tiny"), (USUAL.train.seed, 7, "tiny")]


def test_a_variable_loses_to_an_option_of_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def continue_prompt(options: Any, prompt: str, on_text: Any, echo: bool) -> None:
        asked.append(options.load().generate.temperature)
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.cli.continue_prompt", continue_prompt)
    monkeypatch.setenv("SHEEPFOLD_GENERATE__TEMPERATURE", "0.2")
    invoke(tmp_path, "generate", "x")
    invoke(tmp_path, "generate", "x", "--temperature", str(USUAL.generate.temperature))
    assert asked == [0.2, USUAL.generate.temperature]


@pytest.mark.parametrize(
    ("options", "name", "parameters"),
    [
        (GenerateOptions, "generate", {"temperature": 0.8, "max_new_tokens": 64, "stop": []}),
        (TrainOptions, "train", {"source": ".", "seed": 1337, "max_steps": 0}),
        (RetrainOptions, "train", {"source": ".", "settings": {"train.seed": 1337}}),
    ],
)
def test_as_parameters_of_a_flow(config: str, options: Any, name: str, parameters: dict[str, Any]) -> None:
    @flow(options)
    def asked(options: Any) -> dict[str, Any]:
        return asdict(getattr(options.load(), name))

    def taken(parameters: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = asked.prefect.fn(**asked.prefect.validate_parameters(parameters))
        return found

    source = {key: value for key, value in parameters.items() if key == "source"}
    given = parameters.get("settings") or {f"{name}.{key}": parameters[key] for key in parameters.keys() - {"source"}}
    usual, filed = asdict(getattr(USUAL, name)), taken({**source, "config": config})
    found = taken({**parameters, "config": config})
    for key in (item.partition(".")[2] for item in given):
        assert filed[key] != usual[key] and found[key] == usual[key], key
