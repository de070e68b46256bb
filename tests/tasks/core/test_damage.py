"""Artefacts, manifests and checkpoints that a disk spoilt: named in a sentence, made again when asked, never used."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import Ran, copy_of_store, run_whole

from storage.errors import UserError
from storage.store import Store
from tests.flows.runs import store_contents

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

# what is spoilt, and the stages after it that have to read it again
SPOILT = {
    "extract/pages.parquet": ("normalise",),
    "normalise/documents.parquet": ("measure", "score"),
    "refine/documents.parquet": ("tokenise",),
    "evalset/documents.parquet": ("evaluate",),
    "train/config.json": ("evaluate",),
}


def spoil(path: Path) -> None:
    """Overwrite the last half of a file, and leave its size and its date."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\x07" * (len(data) - len(data) // 2))


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_artefact_is_named_with_what_to_do_and_made_again_it_is_as_it_was(
    tiny: Ran, tiny_source: Path, tmp_path: Path, name: str
) -> None:
    stage, file = name.split("/")
    home = copy_of_store(tiny, tmp_path / "home", *SPOILT[name])
    for path in Path(home.store, stage).glob(f"*/{file}"):
        spoil(path)
    with pytest.raises(UserError, match=f"{file} is damaged: .* run again with --refresh {stage},"):
        run_whole(home, tiny_source)
    run_whole(home, tiny_source, refresh={stage})
    assert store_contents(home.path) == store_contents(tiny.run.home.path)


def test_a_spoilt_manifest_is_named_and_what_it_spoke_of_is_made_again_once_it_is_removed(
    tiny: Ran, tiny_source: Path, tmp_path: Path
) -> None:
    home = copy_of_store(tiny, tmp_path / "home")
    (path,) = Path(home.store, "dataset").glob("*/manifest.json")
    spoil(path)
    with pytest.raises(UserError, match=r"manifest\.json cannot be read .* remove .* and run again"):
        run_whole(home, tiny_source)
    Store(Path(home.store)).remove("dataset", path.parent.name)
    run_whole(home, tiny_source)
    assert store_contents(home.path) == store_contents(tiny.run.home.path)
