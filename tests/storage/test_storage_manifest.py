"""Manifests survive the way to disk and back, and say what they were made from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from storage.manifest import ArtifactRef, FileEntry, Manifest, RefSet, describe_inputs

SEGMENTS = (ArtifactRef("extract", "k2", "d2"), ArtifactRef("extract", "k1", "d1"))


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        stage="curate",
        version=3,
        key="k",
        digest="d",
        inputs=describe_inputs({"documents": RefSet(SEGMENTS, "union"), "snapshot": ArtifactRef("snapshot", "s", "e")}),
        settings={"salt": "Größe", "share": 0.1},
        files=[FileEntry("selection.parquet", 12, "ab" * 32)],
        counts={"rows": 7},
        tools={"pyarrow": "20"},
        code="c",
        created="2024-01-01T00:00:00+00:00",
        seconds=1.5,
    )


def test_a_manifest_reads_back_as_it_was_written(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_inputs_are_listed_in_an_order_that_does_not_depend_on_how_they_were_given() -> None:
    reverse = RefSet(SEGMENTS[::-1], "union")
    assert describe_inputs({"documents": RefSet(SEGMENTS, "union")}) == describe_inputs({"documents": reverse})


def test_input_refs_give_all_artefacts_behind_it_or_those_of_one_argument(manifest: Manifest) -> None:
    assert manifest.input_refs("documents") == sorted(SEGMENTS)
    assert manifest.input_refs() == [*sorted(SEGMENTS), ArtifactRef("snapshot", "s", "e")]


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 2}', "null"])
def test_a_record_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a manifest of format 1"):
        Manifest.from_json(text)


def test_a_record_with_an_unknown_field_is_refused(manifest: Manifest) -> None:
    record = {**json.loads(manifest.to_json()), "surprise": 1}
    with pytest.raises(TypeError, match="surprise"):
        Manifest.from_json(json.dumps(record))


@pytest.mark.parametrize("name", ["../selection.parquet", "/etc/passwd", "a/../../b", "a//b", "", ".", "a/.", "a\0b"])
def test_a_record_whose_file_would_lie_elsewhere_is_refused(manifest: Manifest, name: str) -> None:
    text = replace(manifest, files=[FileEntry(name, 1, "ab" * 32)]).to_json()
    with pytest.raises(ValueError, match="is outside of the artefact"):
        Manifest.from_json(text)


def test_a_record_with_files_in_folders_and_with_odd_names_is_read(manifest: Manifest) -> None:
    files = [FileEntry(name, 1, "ab" * 32) for name in ("a/b/c.npy", "..a", ".hidden", "a..b/c")]
    assert Manifest.from_json(replace(manifest, files=files).to_json()).files == files
