"""Lineage follows manifests back to where an artefact comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.lineage import ancestor, ancestors, manifest_of, segment_of
from storage.manifest import ArtifactRef, RefSet
from storage.store import Store, StoreError

Put = Callable[..., ArtifactRef]


@pytest.fixture
def chain(put: Put) -> dict[str, ArtifactRef]:
    """extract -> normalise -> measure, refine -> tokenise -> dataset, with the tokenizer fitted on the documents."""
    refs = {"extract": put("extract", "e"), "other": put("extract", "other")}
    refs["normalise"] = put("normalise", "n", inputs={"segment": refs["extract"]})
    refs["measure"] = put("measure", "m", inputs={"documents": refs["normalise"]})
    refs["refine"] = put("refine", "r", inputs={"documents": refs["normalise"], "measures": refs["measure"]})
    documents = RefSet((refs["refine"],), "union")
    refs["tokenizer"] = put("tokenizer", "t", inputs={"documents": documents})
    refs["tokenise"] = put("tokenise", "s", inputs={"documents": refs["refine"], "tokenizer": refs["tokenizer"]})
    refs["dataset"] = put(
        "dataset", "d", inputs={"tokens": RefSet((refs["tokenise"],), "union"), "tokenizer": refs["tokenizer"]}
    )
    return refs


def test_ancestors_come_once_each_with_their_distance_the_nearest_first(
    store: Store, chain: dict[str, ArtifactRef]
) -> None:
    found = [(depth, manifest.ref) for depth, manifest in ancestors(store, chain["dataset"])]
    assert found == [
        (0, chain["dataset"]),
        (1, chain["tokenizer"]),
        (1, chain["tokenise"]),
        (2, chain["refine"]),
        (3, chain["normalise"]),
        (3, chain["measure"]),
        (4, chain["extract"]),
    ]


def test_an_ancestor_is_found_by_its_stage(store: Store, chain: dict[str, ArtifactRef]) -> None:
    assert ancestor(store, chain["dataset"], "extract").ref == chain["extract"]
    with pytest.raises(StoreError, match=f"dataset/{chain['dataset'].key} was not made from .* of stage train"):
        ancestor(store, chain["dataset"], "train")


@pytest.mark.parametrize("stage", ["extract", "normalise", "measure", "refine", "tokenise"])
def test_a_per_segment_artefact_leads_back_to_its_segment(
    store: Store, chain: dict[str, ArtifactRef], stage: str
) -> None:
    assert segment_of(store, chain[stage]) == chain["extract"].key


def test_an_artefact_that_is_gone_is_named(store: Store, chain: dict[str, ArtifactRef]) -> None:
    (store.folder(chain["normalise"]) / "manifest.json").unlink()
    with pytest.raises(StoreError, match=f"normalise/{chain['normalise'].key} is not in the store"):
        segment_of(store, chain["tokenise"])
    with pytest.raises(StoreError, match="run the command that made it again"):
        manifest_of(store, ArtifactRef("train", "0123", "d"))
