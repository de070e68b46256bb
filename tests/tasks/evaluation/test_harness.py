"""The bridge to lm-evaluation-harness: a model of ours scored by the harness on a task that is defined here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness_samples import CHOICES, noted, outspoken
from tiny_run import Ran

pytest.importorskip("lm_eval")

from tasks.evaluation.harness import SheepfoldLM
from tasks.training.bundle import Bundle


@pytest.fixture(scope="module")
def harness(tiny: Ran) -> SheepfoldLM:
    assert tiny.checkpoint is not None
    return SheepfoldLM(str(tiny.folder(tiny.checkpoint)))


@pytest.fixture(scope="module")
def outspoken_harness(tiny: Ran, tmp_path_factory: pytest.TempPathFactory) -> SheepfoldLM:
    assert tiny.checkpoint is not None
    folder = shutil.copytree(tiny.folder(tiny.checkpoint), tmp_path_factory.mktemp("harness") / "model")
    return SheepfoldLM(outspoken(folder))


def asked(*requests: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=request) for request in requests]


def log_probability(bundle: Bundle, ids: list[int], first: int) -> float:
    """Of the ids from a place on, read in one pass."""
    with torch.no_grad():
        scores = bundle.model(torch.tensor([ids[:-1]])).double().log_softmax(-1)[0]
    return sum(float(scores[place - 1, ids[place]]) for place in range(first, len(ids)))


def test_a_continuation_is_scored_behind_its_context_with_the_space_between(harness: SheepfoldLM) -> None:
    bundle = harness.bundle
    pairs = [("the dog", " watches"), ("the dog ", "watches"), ("", "the dog"), ("the dog", "")]
    found = harness.loglikelihood(asked(*pairs))
    before, whole = bundle.encode(["the dog", "the dog watches"])
    assert found[0][0] == pytest.approx(log_probability(bundle, whole, len(before)), rel=1e-4)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2][0] == pytest.approx(log_probability(bundle, before, 1), rel=1e-4)
    assert found[3] == (0.0, True)


def test_what_greedy_decoding_writes_is_greedy(harness: SheepfoldLM) -> None:
    (text,) = harness.generate_until(asked(("the dog", {"max_gen_toks": 6})))
    found = harness.loglikelihood(asked(("the dog", text), ("the dog", " qqqq")))
    assert [greedy for _, greedy in found] == [True, False]


def test_a_long_text_is_scored_in_windows_that_predict_each_id_once(harness: SheepfoldLM) -> None:
    bundle, text = harness.bundle, "every lamb finds its mother in the straw near the old stone wall " * 3
    (ids,) = bundle.encode([text])
    width = bundle.model_config.max_seq_len
    assert len(ids) > 2 * width
    expected = 0.0
    for first in range(1, len(ids), width):
        end = min(first + width, len(ids))
        begin = max(0, end - 1 - width)
        expected += log_probability(bundle, ids[begin:end], first - begin)
    assert harness.loglikelihood_rolling(asked((text,)))[0] == pytest.approx(expected, rel=1e-4)


def test_text_ends_before_what_the_task_names(outspoken_harness: SheepfoldLM) -> None:
    def written(**settings: Any) -> str:
        return outspoken_harness.generate_until(asked(("the dog", {"max_gen_toks": 20, **settings})))[0]

    whole = written()
    assert len(whole) > 5
    assert written(until=whole[3]) == whole[: whole.index(whole[3])]
    assert written(until=["not there", whole[4:6]]) == whole[: whole.index(whole[4:6])]
    assert written(until=[]) == written(do_sample=False) == whole


def test_no_token_is_made_behind_what_the_task_names(
    outspoken_harness: SheepfoldLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = noted(outspoken_harness.bundle, monkeypatch)
    whole = outspoken_harness.generate_until(asked(("the dog", {"max_gen_toks": 20})))[0]
    outspoken_harness.generate_until(asked(("the dog", {"max_gen_toks": 20, "until": [whole[3]]})))
    assert [item.finish_reason for item in made] == ["length", "stop"]
    assert made[1].n_tokens < made[0].n_tokens


def test_a_setting_of_generation_that_there_is_not_is_refused(harness: SheepfoldLM) -> None:
    with pytest.raises(ValueError, match="generation_kwargs has num_beams, expected some of do_sample"):
        harness.generate_until(asked(("the dog", {"num_beams": 4})))


def test_the_harness_scores_a_task_of_ours(harness: SheepfoldLM, tmp_path: Path) -> None:
    """The figures are those of our own log-likelihoods; nothing is downloaded."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = [
        {"prompt": "the shepherd counts his", "choices": ["sheep", "qqzzq"], "answer": 0},
        {"prompt": "a dog watches from the", "choices": ["zzqzz", "gate"], "answer": 1},
        {"prompt": "rain comes over the", "choices": ["xxxx", "hill"], "answer": 0},
    ]
    data = tmp_path / "flock.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "flock.yaml").write_text(CHOICES.replace("DATA", str(data)))
    found = simple_evaluate(
        model=harness,
        tasks=["flock"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    right = 0
    for row in rows:
        scores = [harness.loglikelihood(asked((row["prompt"], f" {choice}")))[0][0] for choice in row["choices"]]
        right += scores.index(max(scores)) == row["answer"]
    assert found["results"]["flock"]["acc,none"] == pytest.approx(right / len(rows))
