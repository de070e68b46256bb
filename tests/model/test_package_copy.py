"""The package as a folder that travels: under another name, and without the rest of the house."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import model

PACKAGE = Path(model.__file__).parent


def test_copy_under_another_name_generates_beside_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PACKAGE, tmp_path / "other_name", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(tmp_path))
    other = importlib.import_module("other_name")
    try:
        assert other.Transformer is not model.Transformer
        assert {name for name in sys.modules if name.startswith("other_name.")}
        network = other.Transformer(other.ModelConfig(11, max_seq_len=8, n_layer=1, n_head=2, d_model=8))
        completions = other.generate(network, [[1], [2, 3]], other.GenerationConfig(max_new_tokens=12))
        assert [len(completion.ids) for completion in completions] == [12, 12]
        assert type(completions[0]).__module__.startswith("other_name.")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "other_name"]:
            del sys.modules[name]


def test_every_public_name_has_a_home() -> None:
    for name in model.__all__:
        assert getattr(model, name) is not None


def test_import_loads_nothing_of_the_other_packages() -> None:
    code = (
        "import sys, model; "
        "others = ('prefect', 'mlflow', 'pydantic', 'pandas', 'flows', 'tasks', 'storage'); "
        "print([name for name in others if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
