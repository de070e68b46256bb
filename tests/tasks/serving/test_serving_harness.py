"""lm-evaluation-harness against the server: its scores and texts are the model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from harness_samples import CHOICES
from test_serving import CONTEXT, bundle_at, running

from tasks.training.hugging_face import export_bundle

pytest.importorskip("lm_eval")

CONTINUED = (
    CHOICES[: CHOICES.index("output_type")].replace("flock", "texts")
    + """
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["ZZ"], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
)
ROWS = [
    {"prompt": "the shepherd counts", "choices": ["sheep", "stones"], "answer": 0},
    {"prompt": "a dog", "choices": ["barks", "flies"], "answer": 1},
    {"prompt": "rain over the", "choices": ["sea", "hill"], "answer": 0},
]


def test_a_harness_scores_and_continues_as_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    bundle = bundle_at(tmp_path / "model", 1)
    export_bundle(tmp_path / "model", tmp_path / "exported")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, task in (("flock", CHOICES), ("texts", CONTINUED)):
        (tmp_path / f"{name}.yaml").write_text(task.replace("DATA", str(tmp_path / "rows.jsonl")))
    with running(bundle) as (_, address):
        client = LocalCompletionsAPI(
            base_url=f"{address}/v1/completions",
            model="sheepfold",
            tokenizer=str(tmp_path / "exported"),
            tokenizer_backend="huggingface",
            max_length=CONTEXT,
        )
        found = simple_evaluate(
            model=client,
            tasks=["flock", "texts"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )

    def ids_of(text: str) -> list[int]:
        return [int(index) for index in bundle.encode([text])[0][1:]]  # the harness gives no bos

    def own_score(prompt: str, choice: str) -> float:
        before, whole = ids_of(prompt), ids_of(f"{prompt} {choice}")
        with torch.no_grad():
            scores = bundle.model(torch.tensor([whole[:-1]])).double().log_softmax(-1)[0]
        return sum(float(scores[place - 1, whole[place]]) for place in range(len(before), len(whole)))

    for sample in found["samples"]["flock"]:
        row = sample["doc"]
        scores = [float(score) for score, _ in sample["filtered_resps"]]
        assert scores == pytest.approx([own_score(row["prompt"], choice) for choice in row["choices"]], rel=1e-4)
    for sample in found["samples"]["texts"]:
        (text,) = sample["filtered_resps"]
        ids = ids_of(sample["doc"]["prompt"])
        for _ in range(12):
            with torch.no_grad():
                logits = bundle.model(torch.tensor([ids]))[0, -1]
            logits[list(bundle.ids_without_text())] = -torch.inf
            ids.append(int(logits.argmax()))
        assert text and bundle.tokenizer.decode(ids).startswith(sample["doc"]["prompt"] + text)
