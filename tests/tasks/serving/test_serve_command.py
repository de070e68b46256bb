"""`sheepfold serve`: the champion of a home, its sources, and the commands of the guide."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from generation_samples import model_folder
from tiny_run import Ran, copy_of_store, direct_run, text_of

from storage.home import Home
from storage.manifest import ArtifactRef
from storage.registry import Models, Registered, write_models
from tasks.core.child import module_command, python_path
from tasks.core.run import Run
from tasks.registry.models import UnknownModel, checkpoint_of
from tasks.serving.served import load_served
from tests.documented import shown


def make_champion(run: Run, ref: ArtifactRef, version: str) -> None:
    made = Models({ref.digest: Registered(ref, ref, ref, version=version)}, {"champion": ref.digest})
    write_models(run.store, "default", made)


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Iterator[Home]:
    """A home with the tiny model as its champion."""
    home = copy_of_store(tiny, tmp_path / "home")
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        make_champion(run, tiny.checkpoint, "1")
    yield home


def test_a_new_champion_is_loaded_once(home: Home, tmp_path: Path) -> None:
    first = load_served(home, "champion", "default")
    assert first is not None and (first.name, first.names) == ("sheepfold/1", ("sheepfold", "champion"))
    assert load_served(home, "champion", "default", first) is None
    with direct_run(home) as run:
        make_champion(run, checkpoint_of(run, str(model_folder(tmp_path / "other"))), "2")
    second = load_served(home, "champion", "default", first)
    assert second is not None and second.name == "sheepfold/2" and second.digest != first.digest
    assert second.sources is None  # it was not trained here


def test_the_sources_of_a_text_are_documents_of_the_training(home: Home) -> None:
    served = load_served(home, "champion", "default")
    assert served is not None and served.sources is not None
    found = [served.sources(text_of(number)[:300]) for number in range(12)]
    paths = {place["path"] for one in found for span in one["spans"] for place in span["found_in"]}
    assert len(paths) > 3 and all(re.fullmatch(r"text-\d\d\.txt", Path(path).name) for path in paths)


def test_a_model_that_does_not_exist_is_told(home: Home) -> None:
    with pytest.raises(UnknownModel, match="no model 'chanpion'"):
        load_served(home, "chanpion", "default")


def started(home: Home, *options: str, **variables: str) -> subprocess.Popen[str]:
    command = [*module_command("flows.cli"), "serve", "champion", "--home", str(home.path), *options]
    environment = {**os.environ, **python_path(), **variables}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", *(pytest.param(host, marks=pytest.mark.full) for host in ("::", "example.org"))]
)
def test_other_machines_are_let_in_with_a_key_only(home: Home, host: str) -> None:
    process = started(home, "--host", host, SHEEPFOLD_API_KEY="")
    _, told = process.communicate()
    assert process.returncode == 1 and "set SHEEPFOLD_API_KEY to a secret" in told


@pytest.mark.full
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_what_the_guide_asks_is_answered(home: Home, tmp_path: Path) -> None:
    page = "docs/guides/serving.md"
    with direct_run(home) as run:
        wide = model_folder(tmp_path / "wide", shape={"max_seq_len": 128})  # for the prompts of the guide
        make_champion(run, checkpoint_of(run, str(wide)), "2")
    process = started(home, "--port", "0")
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", told)
        assert found, told
        lines = [line for block in shown() if block.page == page for line in block.lines if line.startswith("curl")]
        (program,) = (block.text for block in shown("python") if block.page == page)
        commands = [*([*shlex.split(line), "--fail-with-body"] for line in lines), [sys.executable, "-c", program]]
        assert len(commands) > 4
        for command in commands:
            own = [part.replace(":8000", f":{found[1]}") for part in command]
            answer = subprocess.run(own, capture_output=True, text=True)
            assert answer.returncode == 0 and answer.stdout, answer.stdout + answer.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130  # as every command that Ctrl-C ends
    finally:
        process.kill()
