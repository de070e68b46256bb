"""The stage of generation: hostile prompts, shards that are found again, several samples, stop strings, workers."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from generation_samples import CONTEXT, completed, model_folder
from tiny_run import home_at

from storage.errors import UserError
from storage.home import Home
from storage.store import open_store
from storage.tables import read_rows
from tasks.generation.completions import Prompt
from tasks.generation.prompts import read_prompts
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import Tokenizer
from tasks.training.bundle import Bundle, TextCompletion
from tests.flows.runs import MARK, Command, answer, environment, invoke, kill_all, store_contents

SHARDED = ["--max-new-tokens", "8", "--deterministic", "--set", "generate.shard_tokens=40"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "ascii")


@pytest.fixture(scope="module")
def bundle(model: Path) -> Bundle:
    return Bundle(model)


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty prompts, six shards of five."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{n}", "prompt": "the fold " * (n % 4) + str(n), "n": n}) for n in range(30)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def by_one_worker(
    tmp_path_factory: pytest.TempPathFactory, model: Path, prompts_file: Path, prefect_server: str
) -> list[dict[str, Any]]:
    """Rows of the completions that one worker makes without a kill."""
    command = ["generate", "--prompts", str(prompts_file), "--model", str(model), *SHARDED, "--workers", "1"]
    rows: list[dict[str, Any]] = answer(tmp_path_factory.mktemp("one"), *command)["rows"]
    return rows


def ids_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def test_each_hostile_prompt_has_a_row_of_its_own_and_the_others_go_on(home: Home, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"id": "plain", "prompt": "the fold"},
        {"id": "empty", "prompt": ""},
        {"id": "huge", "prompt": "sheep " * (10 * 2**20 // 6)},
        {"id": "nul", "prompt": "a\0b\0"},
        {"id": "special", "prompt": "<|eos|><|bos|><|endoftext|>"},
        {"id": "surrogate", "prompt": "a \ud800 b"},
        {"id": "beyond", "prompt": "\u20ac \U0001f600 \u202e"},
        {"id": "last", "prompt": "the dog"},
    ]
    text = "\n".join(map(json.dumps, lines)).encode() + b'\n{"id": "latin", "prompt": "caf\xe9"}'
    file.write_bytes(text)
    rows = completed(home, model, read_prompts(file))
    assert ids_of(rows) == [*(str(line["id"]) for line in lines), "latin"]
    errors = {row["id"]: row["error"] for row in rows if row["error"]}
    assert errors.keys() == {"surrogate", "latin"}
    assert all("lone surrogate" in error for error in errors.values())
    for row in rows:
        assert row["finish_reason"] == "error" if row["id"] in errors else row["finish_reason"] in ("stop", "length")
    alone = completed(home, model, [Prompt("last", "the dog")], "generate.deterministic=true")
    again = completed(home, model, read_prompts(file), "generate.deterministic=true")
    assert [row for row in again if row["id"] == "last"] == alone


def test_a_prompt_too_long_for_the_context_is_refused_by_itself_where_that_is_asked_for(
    home: Home, model: Path
) -> None:
    asked = [Prompt("long", "x" * 60), Prompt("fits", "x" * (CONTEXT - 9)), Prompt("short", "x")]
    rows = completed(home, model, asked, "generate.overflow=refuse")
    assert [bool(row["error"]) for row in rows] == [True, False, False]
    assert rows[0]["error"].startswith("the prompt has 61 tokens, 69 with max_new_tokens=8, and the context holds 48;")


STRETCH = ("generate.max_seq_len=192", "generate.rope_scaling=yarn")


def test_a_rotary_model_continues_texts_beyond_the_context_it_was_trained_with(home: Home, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "rotary", shape={"pos": "rope"})
    asked = [Prompt("long", "the fold and the dog " * 6)]
    how = ("generate.temperature=0", "generate.overflow=refuse")
    (refused,) = completed(home, model, asked, *how)
    assert "the context holds 48" in refused["error"]
    (row,) = completed(home, model, asked, *how, *STRETCH)
    network = Bundle(model, max_seq_len=192, rope_scaling="yarn")
    assert (network.model_config.rope_factor, network.model_config.rope_original_len) == (4.0, CONTEXT)
    (prompt,) = network.encode_prompts([asked[0].prompt])
    with torch.no_grad():
        logits = network.model(torch.tensor([[*prompt, *row["ids"]]]))[0, len(prompt) - 1 : -1]
    logits[:, list(network.ids_without_text())] = -torch.inf
    assert len(row["ids"]) == 8 and row["ids"] == logits.argmax(-1).tolist()


def test_learned_positions_are_not_stretched(home: Home, model: Path) -> None:
    with pytest.raises(UserError, match="max_seq_len=192, but there are weights for max_seq_len=48 learned positions"):
        completed(home, model, [Prompt("a", "the fold")], *STRETCH)


def test_samples_of_a_prompt_are_rows_beside_each_other_and_differ(home: Home, model: Path) -> None:
    asked = [Prompt("a", "the fold"), Prompt("b", "a dog")]
    rows = completed(home, model, asked, "generate.n_samples=3", "generate.temperature=2", "generate.top_p=1")
    assert [(row["id"], row["sample"]) for row in rows] == [(name, n) for name in "ab" for n in range(3)]
    assert len({row["text"] for row in rows}) == len(rows)


def test_what_a_prompt_gets_depends_on_its_id_not_on_its_place(home: Home, model: Path) -> None:
    asked = [Prompt(f"p{n}", f"the fold {n}") for n in range(6)]
    how = ("generate.deterministic=true", "generate.temperature=1.5")
    there, back = completed(home, model, asked, *how), completed(home, model, asked[::-1], *how)
    assert there == back[::-1]


def test_the_likeliest_ids_stand_beside_each_chosen_one(home: Home, model: Path) -> None:
    (row,) = completed(home, model, [Prompt("a", "the fold")], "generate.top_logprobs=3", "generate.temperature=0")
    assert [len(ids) for ids in row["top_ids"]] == [3] * row["n_tokens"] == [len(v) for v in row["top_logprobs"]]
    assert [ids[0] for ids in row["top_ids"]] == row["ids"]
    assert [values[0] for values in row["top_logprobs"]] == pytest.approx(row["logprobs"])


def test_prompts_at_the_end_of_a_file_cost_only_their_own_shard(home: Home, model: Path) -> None:
    asked = [Prompt(f"p{n}", f"the fold {n}") for n in range(12)]
    completed(home, model, asked[:10], "generate.shard_tokens=40")
    before = set(open_store(home.store).keys("complete"))
    rows = completed(home, model, asked, "generate.shard_tokens=40")
    after = set(open_store(home.store).keys("complete"))
    assert ids_of(rows) == [prompt.id for prompt in asked]
    assert (len(before), len(after - before)) == (2, 1)


def test_settings_that_do_not_go_with_the_model_are_told_by_name(home: Home, model: Path) -> None:
    done = invoke(home.path, "generate", "x", "--model", str(model), "--set", "generate.suppress=[5000]")
    assert done.exit_code == 1
    assert "generate: the settings name token 5000; the model's tokens are 0 to" in done.stderr


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_stream_is_the_completion_in_pieces(bundle: Bundle, temperature: float) -> None:
    how: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 30, "top_p": 1.0}
    (whole,) = bundle.complete(["the fold"], keys=[5], **how)
    *pieces, last = bundle.stream("the fold", key=5, **how)
    assert len(pieces) > 10
    assert "".join(str(piece) for piece in pieces) == whole.text
    assert isinstance(last, TextCompletion)
    assert (last.ids, last.finish_reason, last.logprobs) == (whole.ids, whole.finish_reason, whole.logprobs)


def test_pieces_of_a_stream_hold_whole_characters(tmp_path: Path) -> None:
    tokenizer: Tokenizer = learn_merges(["€ü😀" * 30], 260)  # a byte is a token
    bundle = Bundle(model_folder(tmp_path / "bytes", tokenizer))
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "stop": ["zz"]}
    (whole,) = bundle.complete(["the fold"], keys=[0], **how)
    *pieces, _ = bundle.stream("the fold", key=0, **how)
    assert "".join(str(piece) for piece in pieces) == whole.text


def test_a_text_ends_where_its_stop_string_begins(bundle: Bundle) -> None:
    how: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 30, "ignore_eos": True}
    (free,) = bundle.complete(["the fold"], **how)
    stop = free.text[10:13]
    (ended,) = bundle.complete(["the fold"], stop=[stop], **how)
    assert (ended.text, ended.finish_reason) == (free.text[: free.text.find(stop)], "stop")
    *pieces, _ = bundle.stream("the fold", stop=[stop], **how)
    assert "".join(str(piece) for piece in pieces) == ended.text


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temprature": 1}, "unknown setting temprature; expected "),
        ({"eos_id": 3}, "unknown setting eos_id"),
        ({"top_p": 1.5}, "top_p"),
        ({"n_samples": 0}, "n_samples"),
        ({"overflow": "wrap"}, "overflow"),
        ({"logit_bias": {"9999": 1}}, "the settings name token 9999; the model's tokens are 0 to"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(bundle: Bundle, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundle.complete(["x"], **setting)


DYING = """
import os, signal, sys
from tasks.generation import complete as module
whole, n_calls = module.complete_shard, 0
def dying(*args, **named):
    global n_calls
    n_calls += 1
    made = whole(*args, **named)
    if n_calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return made
module.complete_shard = dying
from flows.cli import main
main()
"""


@pytest.mark.full
@pytest.mark.prefect
def test_a_killed_generation_goes_on_with_the_shard_that_it_was_at(
    tmp_path: Path, model: Path, prompts_file: Path, prefect_server: str, by_one_worker: list[dict[str, Any]]
) -> None:
    command = ["generate", "--prompts", str(prompts_file), "--model", str(model), *SHARDED]
    home = tmp_path / "killed"
    variables = {**environment(home), "PREFECT_API_URL": prefect_server}
    done = subprocess.run([sys.executable, "-c", DYING, *command], env=variables, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = open_store(str(home / "store"))
    before = {manifest.key: manifest.created for manifest in store.manifests("complete")}
    assert len(before) == 2
    rows = answer(home, *command)["rows"]
    after = {manifest.key: manifest.created for manifest in store.manifests("complete")}
    assert len(after) == 6
    assert before.items() <= after.items()
    assert ids_of(rows) == [f"p{n}" for n in range(30)]
    assert rows == by_one_worker


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "workers"), [(0, "1"), (2, "3")])
def test_a_generation_killed_at_any_moment_loses_and_doubles_no_row(
    tmp_path: Path,
    model: Path,
    prompts_file: Path,
    seed: int,
    workers: str,
    record_property: Callable[[str, object], None],
) -> None:
    arguments = ["generate", "--prompts", str(prompts_file), "--model", str(model), *SHARDED, "--workers", workers]
    begun = time.monotonic()
    Command(tmp_path / "whole", arguments).finish()
    seconds, chance, kills = time.monotonic() - begun, random.Random(seed), 0
    for number in range(3):
        command = Command(tmp_path / "killed", arguments)
        process = command.start(tmp_path / f"log-{number}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.2, 1.0) * seconds)  # before that Python starts, and nothing is done
        kill_all(command.variables[MARK])
        kills += process.wait() == -signal.SIGKILL
    record_property("kills", kills)
    made = Command(tmp_path / "killed", arguments).finish()
    assert isinstance(made, dict)
    assert ids_of(made["rows"]) == [f"p{n}" for n in range(30)]
    assert store_contents(tmp_path / "killed") == store_contents(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.prefect
def test_one_worker_and_four_write_the_same(
    tmp_path: Path, model: Path, prompts_file: Path, by_one_worker: list[dict[str, Any]]
) -> None:
    command = ["generate", "--prompts", str(prompts_file), "--model", str(model), *SHARDED, "--workers", "4"]
    assert ids_of(by_one_worker) == [f"p{n}" for n in range(30)]
    assert answer(tmp_path, *command)["rows"] == by_one_worker


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_columns_of_a_record_travel_to_its_completion(tmp_path: Path, model: Path, prompts_file: Path) -> None:
    command = ["generate", "--prompts", str(prompts_file), "--template", "{n}: {prompt}", "--model", str(model)]
    made = answer(tmp_path / "home", *command, "--max-new-tokens", "2")
    row = read_rows(Path(made["completions"]))[7]
    assert row["prompt"] == "7: the fold the fold the fold 7"
    assert json.loads(row["fields"]) == {"prompt": "the fold the fold the fold 7", "n": 7}
    assert Path(made["page"]).read_text().count('class="completion"') == 30


def test_a_prompt_is_streamed_the_same_each_time_and_nothing_is_kept(tmp_path: Path, model: Path) -> None:
    command = ["generate", "the fold", "--model", str(model), "--max-new-tokens", "20", "--stop", "~~~"]
    first, second = invoke(tmp_path, *command), invoke(tmp_path, *command)
    (row,) = answer(tmp_path, *command)["rows"]
    assert first.stdout == second.stdout == f"the fold{row['text']}\n"
    assert "tokens/s" in first.stderr
    assert open_store(str(tmp_path / "store")).keys("complete") == []


def listen() -> None:
    """Let Ctrl-C reach a command, also where the tests run in the background of a shell, which shuts it out."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.full
def test_ctrl_c_ends_a_stream_with_130_and_leaves_nothing_half_done(tmp_path: Path, model: Path) -> None:
    command = ["generate", "the fold", "--model", str(model), "--max-new-tokens", "100000000", "--set"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *command, "generate.ignore_eos=true"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=listen,
    )
    assert process.stdout is not None
    assert process.stdout.read(12).startswith(b"the fold")
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in complaints
    assert b"stopped" in complaints
    assert open_store(str(tmp_path / "store")).keys("complete") == []


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_a_file_of_which_no_prompt_can_be_continued_is_a_failure(tmp_path: Path, model: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes(b"caf\xe9\n")
    done = invoke(tmp_path / "home", "generate", "--prompts", str(tmp_path / "prompts.txt"), "--model", str(model))
    assert done.exit_code == 1
    assert "has no valid prompt; the first of 1: prompts.txt, line 1" in done.stderr
    assert "is not UTF-8" in done.stderr


def test_generations_lie_apart_by_what_was_asked(tmp_path: Path, model: Path) -> None:
    home = home_at(tmp_path)
    one = completed(home, model, [Prompt("a", "the fold")], "generate.seed=1", "generate.temperature=2")
    other = completed(home, model, [Prompt("a", "the fold")], "generate.seed=2", "generate.temperature=2")
    assert one[0]["text"] != other[0]["text"]
