"""Flows refuse what cannot be before they make or start anything."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from storage.errors import UserError

FLOWS = {
    "ingest": {"source": "."},
    "prepare": {"source": "."},
    "train": {"source": "."},
    "retrain": {"source": "."},
    "evaluate": {},
    "promote": {},
    "generate": {"prompts": "prompts.txt"},
}


@pytest.mark.parametrize("name", FLOWS)
def test_a_corpus_name_that_no_file_can_bear_is_refused_before_a_home_is_made(name: str, tmp_path: Path) -> None:
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    with pytest.raises(UserError, match="'team/x' is not a valid name of a corpus"):
        flow.function(flow.options(**FLOWS[name], corpus="team/x", home=str(tmp_path / "home")))
    assert not (tmp_path / "home").exists()
