"""The registry: versions are found by the digest of their weights, and aliases move without leaving a trace twice."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.registry import (
    CHECKPOINT_KEY_TAG,
    DIGEST_TAG,
    MODEL_NAME,
    STAGE_TAG,
    Models,
    ModelVersion,
    Registered,
    Registry,
    find_version,
    registered_versions,
    write_models,
)
from storage.store import Store
from storage.tracking import client

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
    tags = {DIGEST_TAG: digest, CHECKPOINT_KEY_TAG: f"key of {digest}", STAGE_TAG: "train"}
    created = registry.client.create_model_version(MODEL_NAME, source=f"runs:/{run_id}/none", run_id=run_id, tags=tags)
    return next(version for version in registry.versions() if version.version == str(created.version))


def test_what_was_never_registered_is_none_and_no_error(registry: Registry) -> None:
    assert registry.by_digest().get(uuid.uuid4().hex) is None
    assert Registry(registry.tracking, "unknown").versions() == []


def test_a_version_is_found_by_its_digest_with_its_checkpoint(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    assert (version.checkpoint.stage, version.checkpoint.key) == ("train", f"key of {digest}")
    assert version.run_id == run_id


def test_of_two_versions_with_the_same_weights_the_first_is_found(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    first, second = (add_version(registry, run_id, digest) for _ in range(2))
    assert first != second and registry.by_digest().get(digest) == first


def test_a_version_has_its_aliases_in_their_order(registry: Registry, run_id: str) -> None:
    digest = uuid.uuid4().hex
    version = add_version(registry, run_id, digest)
    names = (f"a-{digest}", f"z-{digest}")
    for alias in reversed(names):
        registry.client.set_registered_model_alias(MODEL_NAME, alias, version.version)
    assert registry.by_digest()[digest].aliases == names


def test_a_recorded_version_that_mlflow_lacks_is_reported_with_the_remedy(registry: Registry) -> None:
    with pytest.raises(UserError, match=r"lacks the champion 0123 of corpus default.* `sheepfold rebuild-tracking`"):
        registry.recorded("0123", "champion")


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
    found = registry.by_digest().get(digest)
    assert found is not None
    assert found.tags == {**version.tags, "sheepfold.bits_per_byte": "2.5"}


RUN = "0123456789abcdef" * 2


def record(number: int, version: str = "") -> Registered:
    ref = ArtifactRef("train", f"key-{number}", f"digest-{number}")
    return Registered(ref, ref, ref, tags={"sheepfold.loss": "1.5"}, version=version, run_id=RUN if version else "")


def recorded(name: str, number: int, *aliases: str) -> ModelVersion:
    checkpoint = ArtifactRef("train", f"key-{number}", f"digest-{number}")
    return ModelVersion(name, str(number), RUN, checkpoint, {"sheepfold.loss": "1.5"}, aliases)


EXPECTED = [
    recorded("sheepfold", 1, "previous"),
    recorded("sheepfold", 3, "champion"),
    recorded("sheepfold-a b", 1, "champion"),
]


def test_the_versions_of_a_store_are_those_it_records_without_those_that_mlflow_does_not_have(store: Store) -> None:
    assert registered_versions(store) == []
    models = {f"digest-{number}": record(number, version) for number, version in ((1, "1"), (2, ""), (3, "3"))}
    write_models(store, "default", Models(models, {"champion": "digest-3", "previous": "digest-1"}))
    write_models(store, "a b", Models({"digest-1": record(1, "1")}, {"champion": "digest-1"}))
    assert registered_versions(store) == EXPECTED


@pytest.mark.parametrize(
    ("name", "corpus", "found"),
    [
        ("champion", "default", EXPECTED[1]),
        ("champion", "a b", EXPECTED[2]),
        ("1", "default", EXPECTED[0]),
        ("2", "default", None),
        ("models:/sheepfold@champion", "a b", EXPECTED[1]),
        ("models:/sheepfold-a b/1", "default", EXPECTED[2]),
        ("sheepfold/3", "a b", EXPECTED[1]),
        (RUN, "default", EXPECTED[2]),
        ("champion", "unknown", None),
        ("", "default", None),
    ],
)
def test_a_version_has_the_names_that_mlflow_gives_it(name: str, corpus: str, found: ModelVersion | None) -> None:
    assert find_version(EXPECTED, name, corpus) == found
