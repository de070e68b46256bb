"""A model with opinions for the tests of the harness: after twenty steps of training one writes hardly anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from model import save_weights
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE, Bundle, TextCompletion

CHOICES = """
task: flock
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def outspoken(folder: Path) -> Bundle:
    """The model of a folder with random weights that are large, written over its own; its texts do not end."""
    bundle = Bundle(folder)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    save_weights(folder / WEIGHTS_FILE, bundle.model)
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "eos": False}))
    return Bundle(folder)


def noted(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[TextCompletion]:
    """A list that grows by all that the bundle writes from now on."""
    found: list[TextCompletion] = []
    complete = bundle.complete

    def note(*arguments: Any, **named: Any) -> list[TextCompletion]:
        made = complete(*arguments, **named)
        found.extend(made)
        return made

    monkeypatch.setattr(bundle, "complete", note)
    return found
