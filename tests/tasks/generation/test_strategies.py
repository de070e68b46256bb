"""Greedy, beam and contrastive search, bounds and echo, as they are asked for by command, file and setting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from generation_samples import CONTEXT, completed, model_folder

from storage.home import Home
from tasks.generation.completions import Prompt
from tasks.training.bundle import Bundle
from tests.flows.runs import answer, invoke, store_contents

GREEDY, BEAM, CONTRASTIVE = (("--strategy", name) for name in ("greedy", "beam", "contrastive"))
PROMPT = "the fold"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "ascii")


def rows_of(home: Path, model: Path, *arguments: str, prompt: str = PROMPT) -> list[dict[str, Any]]:
    command = ["generate", prompt, "--model", str(model), "--max-new-tokens", "10", *arguments]
    rows: list[dict[str, Any]] = answer(home, *command)["rows"]
    return rows


@pytest.mark.parametrize(
    "same",
    [
        ("--temperature", "0"),
        ("--top-k", "1"),
        (*BEAM, "--n-beams", "1"),
        (*CONTRASTIVE, "--alpha", "0"),
        (*CONTRASTIVE, "--top-k", "1"),
    ],
    ids=" ".join,
)
def test_what_is_greedy_by_another_name_gets_the_same_row(tmp_path: Path, model: Path, same: tuple[str, ...]) -> None:
    options = ("--set", "generate.top_logprobs=3")
    (greedy,), (other,) = (rows_of(tmp_path, model, *how, *options) for how in (GREEDY, same))
    differing = {name for name in greedy if greedy[name] != other[name]}
    assert differing <= {"settings", "logprobs", "top_logprobs"}
    assert other["logprobs"] == pytest.approx(greedy["logprobs"], abs=1e-4)
    assert len(other["top_logprobs"]) == len(other["ids"]) == 10


def test_the_best_beams_come_in_order_and_are_likelier_than_the_greedy_continuation(
    tmp_path: Path, model: Path
) -> None:
    (greedy,) = rows_of(tmp_path, model, *GREEDY)
    beams = rows_of(tmp_path, model, *BEAM, "--n-beams", "8", "--n-samples", "3", "--set", "generate.ignore_eos=true")
    sums = [math.fsum(row["logprobs"]) for row in beams]
    assert [row["sample"] for row in beams] == [0, 1, 2]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > math.fsum(greedy["logprobs"])


def test_contrast_leads_to_another_continuation(tmp_path: Path, model: Path) -> None:
    (greedy,) = rows_of(tmp_path, model, *GREEDY)
    (contrastive,) = rows_of(tmp_path, model, *CONTRASTIVE, "--top-k", "6", "--alpha", "0.9")
    assert contrastive["ids"] != greedy["ids"]


@pytest.mark.parametrize("strategy", ["beam", "contrastive"])
def test_no_search_chooses_what_is_forbidden(home: Home, model: Path, strategy: str) -> None:
    before = completed(home, model, [Prompt("0", PROMPT)], f"generate.strategy={strategy}")
    chosen = sorted(set(before[0]["ids"]))
    after = completed(
        home, model, [Prompt("0", PROMPT)], f"generate.strategy={strategy}", f"generate.suppress={chosen}"
    )
    assert chosen
    assert not set(after[0]["ids"]) & {*chosen, *Bundle(model).ids_without_text()}


@pytest.mark.full
def test_a_file_of_prompts_is_searched_once_and_a_long_one_costs_itself_alone(
    tmp_path: Path, model: Path, prefect_server: str
) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n{'sheep ' * CONTEXT}\nthe dog\n")
    command = ["generate", "--prompts", str(tmp_path / "prompts.txt"), "--model", str(model), *BEAM]
    command += ["--n-samples", "2", "--max-new-tokens", "10"]
    rows = answer(tmp_path, *command)["rows"]
    assert [row["id"] for row in rows] == ["0", "0", "1", "2", "2"]
    assert f"and the context holds {CONTEXT}" in rows[2]["error"]
    alone = rows_of(tmp_path, model, *BEAM, "--n-samples", "2")
    assert [row["ids"] for row in alone] == [row["ids"] for row in rows[:2]]
    before = store_contents(tmp_path)
    assert answer(tmp_path, *command)["rows"] == rows
    assert store_contents(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--strategy", "beams"], "strategy='beams'; expected one of sample, greedy, beam, contrastive"),
        (["--n-beams", "3"], "n_beams=3 has no effect: strategy='sample' does not use it"),
        (["--alpha", "0.5"], "alpha=0.5 has no effect"),
        ([*GREEDY, "--temperature", "0.5"], "temperature=0.5 has no effect: strategy='greedy' does not use it"),
        ([*GREEDY, "--n-samples", "2"], "n_samples=2 has no effect"),
        ([*GREEDY, "--top-p", "0.5"], "top_p=0.5 has no effect"),
        ([*BEAM, "--top-k", "5"], "top_k=5 has no effect"),
        ([*BEAM, "--seed", "5"], "seed=5 has no effect"),
        ([*BEAM, "--stop", "x"], "has no effect: strategy='beam'"),
        ([*BEAM, "--repetition-penalty", "2"], "repetition_penalty=2.0 has no effect"),
        ([*BEAM, "--n-samples", "5"], "n_samples=5 of n_beams=4"),
        (
            [*BEAM, "--n-beams", "400", "--max-new-tokens", "8"],
            "n_beams=400; expected less than the 125 tokens that are not suppressed",
        ),
        ([*BEAM, "--overflow", "stop"], "overflow='stop' does not go with strategy='beam'"),
        ([*BEAM, "--max-new-tokens", str(CONTEXT)], f"and the context holds {CONTEXT}"),
        ([*CONTRASTIVE, "--n-samples", "2"], "n_samples=2 has no effect"),
        ([*CONTRASTIVE, "--length-penalty", "2"], "length_penalty=2.0 has no effect"),
        (["--max-length", "20", "--max-new-tokens", "10"], "max_new_tokens=10 has no effect: max_length=20"),
        (["--max-length", "8"], "has 9 tokens, and max_length=8 leaves none for a continuation"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, model: Path, options: list[str], said: str
) -> None:
    done = invoke(tmp_path, "generate", PROMPT, "--model", str(model), *options)
    assert done.exit_code == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("strategy", ["sample", "greedy", "beam", "contrastive"])
def test_a_total_length_counts_the_prompt(tmp_path: Path, model: Path, strategy: str) -> None:
    """A character is a token, and one that begins the text stands before the prompt."""
    for prompt in (PROMPT, "a"):
        command = ["generate", prompt, "--model", str(model), "--strategy", strategy, "--max-length", "20"]
        (row,) = answer(tmp_path, *command, "--set", "generate.ignore_eos=true")["rows"]
        assert 1 + len(prompt) + row["n_tokens"] == 20


def test_the_prompt_is_printed_before_its_continuation_or_not(tmp_path: Path, model: Path) -> None:
    command = ["generate", PROMPT, "--model", str(model), *GREEDY, "--max-new-tokens", "10"]
    (row,) = answer(tmp_path, *command)["rows"]
    shown = {echo: invoke(tmp_path, *command, *echo).stdout for echo in ((), ("--echo",), ("--no-echo",))}
    assert shown[()] == shown[("--echo",)] == f"{PROMPT}{row['text']}\n"
    assert shown[("--no-echo",)] == f"{row['text']}\n"
    assert answer(tmp_path, *command, "--echo")["rows"][0]["text"] == PROMPT + row["text"]


def test_help_shows_the_defaults_of_generation(tmp_path: Path) -> None:
    shown = " ".join(invoke(tmp_path, "generate", "--help").stdout.replace("│", " ").split())
    for default in ("64", "sample", "4", "0.8", "0.95", "1"):
        assert f"(default: {default})" in shown
