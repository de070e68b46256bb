"""The registry: versions are found by the digest of their weights, and aliases move without leaving a trace twice."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from storage.registry import DIGEST_TAG, KEY_TAG, MODEL_NAME, STAGE_TAG, ModelVersion, Registry
from storage.tracking import client

if TYPE_CHECKING:
    from storage.tracking import Tracking


@pytest.fixture
def registry(tracking: Tracking) -> Registry:
    return Registry(tracking, "default")


@pytest.fixture
def run_id(tracking: Tracking) -> str:
    return tracking.ensure_run(uuid.uuid4().hex, "train-test", {}, {})


def add_version(registry: Registry, run_id: str, digest: str) -> ModelVersion:
    """A version with the tags that `Registry.register` gives it, and no files."""
    registry._ensure_model()
    tags = {DIGEST_TAG: digest, KEY_TAG: f"key of {digest}", STAGE_TAG: "train"}
    created = registry.client.create_model_version(MODEL_NAME, source=f"runs:/{run_id}/none", run_id=run_id, tags=tags)
    found = registry.by_number(str(created.version))
    assert found is not None
    return found


def test_what_was_never_registered_is_none_and_no_error(registry: Registry) -> None:
    assert registry.by_alias(f"alias-{uuid.uuid4().hex}") is None
    assert registry.by_number("987654") is None
    assert registry.by_number("no number") is None
    assert registry.by_digest(uuid.uuid4().hex) is None
    assert registry.by_run(uuid.uuid4().hex) is None
    assert registry.by_run("it's no run") is None


def test_a_version_is_found_by_digest_number_and_run_with_its_checkpoint(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    assert (version.checkpoint.stage, version.checkpoint.key) == ("train", f"key of {digest}")
    assert version.run_id == run_id
    assert registry.by_digest(digest) == registry.by_run(run_id) == version


def test_of_two_versions_with_the_same_weights_the_first_is_found(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    first = add_version(registry, run_id, digest)
    second = add_version(registry, run_id, digest)
    assert registry.by_digest(digest) == first
    assert registry.by_run(run_id) == second


def test_a_version_names_the_logged_model_behind_it(registry: Registry, run_id: str) -> None:
    client(registry.tracking.home)  # other tests of this process have databases of their own
    logged = registry.client.create_logged_model(registry.tracking.experiment_id, name="logged")
    registry._ensure_model()
    created = registry.client.create_model_version(MODEL_NAME, source=f"models:/{logged.model_id}", run_id=run_id)
    found = registry.by_number(str(created.version))
    assert found is not None and found.model_id == logged.model_id
    assert add_version(registry, run_id, uuid.uuid4().hex).model_id == ""


def test_an_alias_moves_and_moving_it_to_where_it_stands_writes_nothing(
    registry: Registry, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = f"alias-{uuid.uuid4().hex}"
    first, second = (add_version(registry, run_id, uuid.uuid4().hex) for _ in range(2))
    registry.move_alias(alias, first.version)
    registry.move_alias(alias, second.version)
    found = registry.by_alias(alias)
    assert found is not None and found.version == second.version and found.aliases == (alias,)
    moved = registry.by_number(first.version)
    assert moved is not None and moved.aliases == ()

    def refuse(*_: object) -> None:
        raise AssertionError("written again")

    monkeypatch.setattr(registry.client, "set_registered_model_alias", refuse)
    registry.move_alias(alias, second.version)


def test_an_alias_can_be_dropped_twice(registry: Registry, run_id: str) -> None:
    alias = f"alias-{uuid.uuid4().hex}"
    version = add_version(registry, run_id, uuid.uuid4().hex)
    registry.move_alias(alias, version.version)
    registry.drop_alias(alias)
    registry.drop_alias(alias)
    assert registry.by_alias(alias) is None


def test_tags_of_a_version_are_added_to_those_it_has(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    registry.set_tags(version, {"sheepfold.bits_per_byte": "2.5"})
    found = registry.by_digest(digest)
    assert found is not None
    assert found.tags == {**version.tags, "sheepfold.bits_per_byte": "2.5"}
