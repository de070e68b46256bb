"""MLflow's model registry: one registered model per corpus, with versions identified by their checkpoint's digest.

MLflow can be rebuilt from the store: the ref `models/CORPUS` records which checkpoints were registered, and which of
them have an alias.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.manifest import ArtifactRef
from storage.store import Store
from storage.tracking import Tracking

MODEL_NAME = "sheepfold"
DEFAULT_CORPUS = "default"
MODELS_REF = "models/"
CHAMPION, CHALLENGER, PREVIOUS = ALIASES = "champion", "challenger", "previous"
DIGEST_TAG = "sheepfold.checkpoint_digest"
KEY_TAG = "sheepfold.checkpoint_key"
STAGE_TAG = "sheepfold.checkpoint_stage"
_ADDRESS = re.compile(rf"(?:models:/)?({MODEL_NAME}(?:-[^@/]+)?)[@/]([\w-]+)")
_WORD = re.compile(r"[\w-]+")
DESCRIPTION = (
    "Language models trained by Sheepfold. `champion` passed all gates and has fewer bits per byte than the champion "
    "before it; `challenger` is the newest version that did not pass; `previous` is the champion before. Versions can "
    "be searched by tags, such as tags.`sheepfold.gates` = 'passed'."
)


def model_name(corpus: str) -> str:
    """Return the name of a corpus's registered model."""
    return MODEL_NAME if corpus == DEFAULT_CORPUS else f"{MODEL_NAME}-{corpus}"


def _corpus_of(name: str) -> str:
    return name.removeprefix(MODEL_NAME).removeprefix("-") or DEFAULT_CORPUS


def may_be_registered(model: str) -> bool:
    """Return True if a model's name may be an alias, a number, a run id or a `models:/` address."""
    return bool(_ADDRESS.fullmatch(model) or _WORD.fullmatch(model))


@dataclass(frozen=True)
class Registered:
    """Record of one registered checkpoint, in the store.

    Attributes:
        evaluation: metrics of the last promotion.
        gates: verdicts of the last promotion.
        traced: True if that promotion's settings allowed to search the training text for generated passages.
        tags: tags of the model version.
    """

    checkpoint: ArtifactRef
    evaluation: ArtifactRef
    gates: ArtifactRef
    traced: bool = True
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """Registered checkpoints of a corpus, as the store records them.

    Attributes:
        models: by digest of the checkpoint, the oldest first.
        aliases: digest of the checkpoint by alias.
    """

    models: Mapping[str, Registered] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def read_models(store: Store, corpus: str) -> Models:
    """Return the record of a corpus's registered checkpoints; empty before the first promotion."""
    value = store.read_ref(MODELS_REF + corpus) or {"models": [], "aliases": {}}
    models = []
    for item in value["models"]:
        refs = {name: ArtifactRef(**item[name]) for name in ("checkpoint", "evaluation", "gates")}
        models.append(Registered(**{**item, **refs}))
    return Models({item.checkpoint.digest: item for item in models}, value["aliases"])


def write_models(store: Store, corpus: str, models: Models) -> None:
    """Write the record of a corpus's registered checkpoints, unless it is unchanged."""
    if models != read_models(store, corpus):
        value = {"models": [asdict(item) for item in models.models.values()], "aliases": dict(models.aliases)}
        store.write_ref(MODELS_REF + corpus, value)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model.

    Attributes:
        name: of the registered model.
        checkpoint: the artefact that it was made from.
        model_id: of the logged model that metrics are tied to; empty if there is none.
    """

    name: str
    version: str
    run_id: str
    checkpoint: ArtifactRef
    tags: dict[str, str]
    aliases: tuple[str, ...]
    model_id: str = ""


class Registry:
    """The registered model of one corpus."""

    def __init__(self, tracking: Tracking, corpus: str) -> None:
        self.tracking = tracking
        self.client = tracking.client
        self.corpus = corpus
        self.name = model_name(corpus)

    def _ensure_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_registered_model(self.name)
        except MlflowException:
            try:
                self.client.create_registered_model(self.name, description=DESCRIPTION)
            except MlflowException:
                self.client.get_registered_model(self.name)  # created by another process meanwhile

    def _read(self, found: Any) -> ModelVersion:
        tags = dict(found.tags)
        checkpoint = ArtifactRef(tags.get(STAGE_TAG, ""), tags.get(KEY_TAG, ""), tags.get(DIGEST_TAG, ""))
        logged = re.fullmatch(r"models:/(m-[0-9a-f]+)", str(found.source or ""))  # databases do not keep model_id
        return ModelVersion(
            str(found.name),
            str(found.version),
            str(found.run_id or ""),
            checkpoint,
            tags,
            tuple(found.aliases),
            logged[1] if logged else "",
        )

    def _search(self, condition: str) -> list[str]:
        found = self.client.search_model_versions(f"name = '{self.name}' and {condition}")
        return sorted((str(entry.version) for entry in found), key=int)

    def by_digest(self, digest: str) -> ModelVersion | None:
        """Return the first version of a checkpoint with this digest, or None."""
        numbers = self._search(f"tags.`{DIGEST_TAG}` = '{digest}'")
        return self.by_number(numbers[0]) if numbers else None  # search results lack the aliases

    def by_run(self, run_id: str) -> ModelVersion | None:
        """Return the newest version of a run, or None."""
        numbers = self._search(f"run_id = '{run_id}'") if re.fullmatch("[0-9a-f]{32}", run_id) else []
        return self.by_number(numbers[-1]) if numbers else None

    def by_alias(self, alias: str) -> ModelVersion | None:
        """Return the version with an alias, or None."""
        return self._get(self.client.get_model_version_by_alias, alias)

    def by_number(self, version: str) -> ModelVersion | None:
        """Return the version of this number, or None."""
        return self._get(self.client.get_model_version, version)

    def _get(self, get: Any, what: str) -> ModelVersion | None:
        from mlflow.exceptions import MlflowException

        try:
            return self._read(get(self.name, what))
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def find(self, model: str) -> ModelVersion | None:
        """Return the version behind an alias, a number, a run id or a `models:/` address, or None.

        An address may name the registered model of another corpus.
        """
        address = _ADDRESS.fullmatch(model)
        if address is not None:
            return Registry(self.tracking, _corpus_of(address[1])).find(address[2])
        if not _WORD.fullmatch(model):
            return None
        if model.isascii() and model.isdigit():
            return self.by_number(model)
        return self.by_alias(model) or self.by_run(model)

    def versions(self) -> list[ModelVersion]:
        """Return all versions, the oldest first."""
        aliases = self.aliases()
        found: list[ModelVersion] = []
        page: str | None = ""
        while page is not None:
            listed = self.client.search_model_versions(f"name = '{self.name}'", page_token=page or None)
            for entry in map(self._read, listed):  # search results lack the aliases
                own = (alias for alias, version in aliases.items() if version == entry.version)
                found.append(replace(entry, aliases=tuple(own)))
            page = listed.token or None
        return sorted(found, key=lambda version: int(version.version))

    def aliases(self) -> dict[str, str]:
        """Return the version number by alias."""
        from mlflow.exceptions import MlflowException

        try:
            aliases = self.client.get_registered_model(self.name).aliases
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return {}
            raise
        return {alias: str(version) for alias, version in sorted(aliases.items())}

    def register(
        self, checkpoint: ArtifactRef, run_id: str, description: str, tags: Mapping[str, str], **model: Any
    ) -> ModelVersion:
        """Register a checkpoint as a new version.

        Args:
            description: the model card, Markdown.
            model: arguments of `mlflow.pyfunc.log_model`.
        """
        source = self._logged_model(checkpoint, run_id, model)
        self._ensure_model()
        own = {DIGEST_TAG: checkpoint.digest, KEY_TAG: checkpoint.key, STAGE_TAG: checkpoint.stage}
        # all tags in one request, so that a version can always be found by its digest
        self.client.create_model_version(
            self.name,
            source=source,
            run_id=run_id,
            tags={**tags, **own},
            description=description,
            model_id=source.rpartition("/")[2],
        )
        first, *again = self._search(f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}'")
        for version in again:  # MLflow's client repeats a request whose response was lost
            self.client.delete_model_version(self.name, version)
        return self._read(self.client.get_model_version(self.name, first))

    def _logged_model(self, checkpoint: ArtifactRef, run_id: str, model: Mapping[str, Any]) -> str:
        import mlflow
        from mlflow.entities import LoggedModelStatus

        tags = {DIGEST_TAG: checkpoint.digest}
        found = mlflow.search_logged_models(
            experiment_ids=[self.tracking.experiment_id],
            filter_string=f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}'",
            output_format="list",
        )
        # not in the filter: PostgreSQL refuses MLflow's comparison of the status's name with its number
        for item in found:
            if item.status == LoggedModelStatus.READY:
                return str(item.model_uri)
        with mlflow.start_run(run_id=run_id), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow asks for type hints and an example beside the signature
            return str(mlflow.pyfunc.log_model(name=MODEL_NAME, tags=tags, **model).model_uri)

    def move_alias(self, alias: str, version: str) -> None:
        """Set an alias to a version, unless it is there already."""
        current = self.by_alias(alias)
        if current is None or current.version != version:
            self.client.set_registered_model_alias(self.name, alias, version)

    def drop_alias(self, alias: str) -> None:
        """Delete an alias if it exists."""
        if self.by_alias(alias) is not None:
            self.client.delete_registered_model_alias(self.name, alias)

    def set_tags(self, version: ModelVersion, tags: Mapping[str, str]) -> None:
        """Set those tags of a version that differ."""
        for name, value in tags.items():
            if version.tags.get(name) != value:
                self.client.set_model_version_tag(self.name, version.version, name, value)

    def delete_tag(self, version: ModelVersion, name: str) -> None:
        """Delete a tag of a version if it exists."""
        if name in version.tags:
            self.client.delete_model_version_tag(self.name, version.version, name)

    def describe(self, version: str, card: str) -> None:
        """Set the model card of a version, if it differs."""
        if self.client.get_model_version(self.name, version).description != card:
            self.client.update_model_version(self.name, version, card)

    def page_of(self, version: str) -> str | None:
        """Return the address of a version's page, or None without a server."""
        pages = self.tracking.pages
        return None if pages is None else f"{pages}/models/{self.name}/versions/{version}"


def bundle_folder(version: ModelVersion) -> Path:
    """Return a local copy of a version's bundle."""
    import mlflow

    folder = mlflow.artifacts.download_artifacts(f"models:/{version.name}/{version.version}")
    return Path(folder) / "artifacts" / "bundle"
