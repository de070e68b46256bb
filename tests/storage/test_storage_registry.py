"""The registry: versions are found by the digest of their weights, and aliases move without leaving a trace twice."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from storage.registry import DIGEST_TAG, KEY_TAG, MODEL_NAME, STAGE_TAG, ModelVersion, Registry
from storage.tracking import client
from storage.versions import registered_versions

if TYPE_CHECKING:
    from storage.tracking import Tracking


@pytest.fixture
def registry(tracking: Tracking) -> Registry:
    if not tracking.client.search_registered_models(f"name = '{MODEL_NAME}'"):
        tracking.client.create_registered_model(MODEL_NAME)
    return Registry(tracking, "default")


@pytest.fixture
def run_id(tracking: Tracking) -> str:
    return tracking.ensure_run(uuid.uuid4().hex, "train-test", {}, {})


def add_version(registry: Registry, run_id: str, digest: str) -> ModelVersion:
    """A version with the tags that `Registry.register` gives it, and no files."""
    tags = {DIGEST_TAG: digest, KEY_TAG: f"key of {digest}", STAGE_TAG: "train"}
    created = registry.client.create_model_version(MODEL_NAME, source=f"runs:/{run_id}/none", run_id=run_id, tags=tags)
    return next(version for version in registry.versions() if version.version == str(created.version))


def test_what_was_never_registered_is_none_and_no_error(registry: Registry) -> None:
    assert registry.by_digest(uuid.uuid4().hex) is None
    assert Registry(registry.tracking, "unknown").versions() == []


def test_a_version_is_found_by_its_digest_with_its_checkpoint(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    assert (version.checkpoint.stage, version.checkpoint.key) == ("train", f"key of {digest}")
    assert version.run_id == run_id


def test_of_two_versions_with_the_same_weights_the_first_is_found(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    first, second = (add_version(registry, run_id, digest) for _ in range(2))
    assert first != second and registry.by_digest(digest) == first


def test_both_ways_of_reading_find_the_same_versions(registry: Registry, run_id: str) -> None:
    version = add_version(registry, run_id, uuid.uuid4().hex)
    for alias in (f"z-{uuid.uuid4().hex}", f"a-{uuid.uuid4().hex}"):
        registry.client.set_registered_model_alias(MODEL_NAME, alias, version.version)
    assert registry.versions() == registered_versions(registry.tracking.home)


def test_a_version_names_the_logged_model_behind_it(registry: Registry, run_id: str) -> None:
    client(registry.tracking.home)  # other tests of this process have databases of their own
    logged = registry.client.create_logged_model(registry.tracking.experiment_id, name="logged")
    created = registry.client.create_model_version(MODEL_NAME, source=f"models:/{logged.model_id}", run_id=run_id)
    found = next(version for version in registry.versions() if version.version == str(created.version))
    assert found.model_id == logged.model_id
    assert add_version(registry, run_id, uuid.uuid4().hex).model_id == ""


def test_tags_of_a_version_are_added_to_those_it_has(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    registry.set_tags(version, {"sheepfold.bits_per_byte": "2.5"})
    found = registry.by_digest(digest)
    assert found is not None
    assert found.tags == {**version.tags, "sheepfold.bits_per_byte": "2.5"}
