"""MLflow's model registry: one registered model per corpus.

The ref `models/CORPUS` of the store records the registered checkpoints with their versions and aliases. Models are
looked up there, without MLflow; `Registry` writes to MLflow, which can be rebuilt from the record.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import UserError
from storage.manifest import ArtifactRef

if TYPE_CHECKING:
    from storage.store import Store
    from storage.tracking import Tracking

MODEL_NAME = "sheepfold"
DEFAULT_CORPUS = "default"
MODELS_REF = "models/"
MOST_VERSIONS = 200_000  # MLflow's limit on the results of a search
CHAMPION, CHALLENGER, PREVIOUS = ALIASES = "champion", "challenger", "previous"
DIGEST_TAG = "sheepfold.checkpoint_digest"
CHECKPOINT_KEY_TAG = "sheepfold.checkpoint_key"
STAGE_TAG = "sheepfold.checkpoint_stage"
DESCRIPTION = (
    "Language models trained by Sheepfold. `champion` passed all gates and has fewer bits per byte than the champion "
    "before it; `challenger` is the newest version that did not pass; `previous` is the champion before. Versions can "
    "be searched by tags, such as tags.`sheepfold.gates` = 'passed'."
)


def model_name(corpus: str) -> str:
    """Return the name of a corpus's registered model."""
    return MODEL_NAME if corpus == DEFAULT_CORPUS else f"{MODEL_NAME}-{corpus}"


@dataclass(frozen=True)
class Registered:
    """Record of one registered checkpoint, in the store.

    Attributes:
        evaluation: metrics of the last promotion.
        gates: verdicts of the last promotion.
        traced: True if the last promotion searched the training text for memorised spans.
        tags: tags of the model version.
        version: number in MLflow; empty while MLflow does not have it.
        run_id: run in MLflow.
    """

    checkpoint: ArtifactRef
    evaluation: ArtifactRef
    gates: ArtifactRef
    traced: bool = True
    tags: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    run_id: str = ""


@dataclass(frozen=True)
class Models:
    """Registered checkpoints of a corpus, as the store records them.

    Attributes:
        models: by digest of the checkpoint, oldest first.
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
    """Write the record of a corpus's registered checkpoints; on S3 only if it has not changed since it was read."""
    value = {"models": [asdict(item) for item in models.models.values()], "aliases": dict(models.aliases)}
    store.write_ref(MODELS_REF + corpus, value)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model.

    Attributes:
        name: name of the registered model.
        checkpoint: the artefact that it was made from.
        model_id: id of the logged model that metrics are tied to; empty if there is none, or it was not requested.
    """

    name: str
    version: str
    run_id: str
    checkpoint: ArtifactRef
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    model_id: str = ""


def registered_versions(store: Store) -> list[ModelVersion]:
    """Return all versions that a store records, by name, oldest first."""
    found = []
    for corpus in (ref.removeprefix(MODELS_REF) for ref in store.refs(MODELS_REF)):
        known = read_models(store, corpus)
        for digest, item in known.models.items():
            names = tuple(sorted(alias for alias, of in known.aliases.items() if of == digest))
            if item.version:
                found.append(
                    ModelVersion(model_name(corpus), item.version, item.run_id, item.checkpoint, item.tags, names)
                )
    return sorted(found, key=lambda item: (item.name, int(item.version)))


def find_version(versions: Iterable[ModelVersion], model: str, corpus: str) -> ModelVersion | None:
    """Return the version with an alias, a number, a `models:/` address or a run id; None if there is none.

    Args:
        corpus: the corpus of an alias or a number that names no model.
    """
    name, separator, rest = model.removeprefix("models:/").partition("@" if "@" in model else "/")
    if not separator:
        name, rest = model_name(corpus), model
    known = list(versions)
    own = [item for item in known if item.name == name and (item.version == rest or rest in item.aliases)]
    by_run = [item for item in known if model and item.run_id == model]
    found = own or by_run
    return found[-1] if found else None


class Registry:
    """The registered model of one corpus in MLflow."""

    def __init__(self, tracking: Tracking, corpus: str) -> None:
        self.tracking = tracking
        self.client = tracking.client
        self.corpus = corpus
        self.name = model_name(corpus)

    def versions(self) -> list[ModelVersion]:
        """Return all versions in MLflow, oldest first."""
        aliases = [  # the results of `search_model_versions` lack them
            (alias, str(version))
            for model in self.client.search_registered_models(f"name = '{self.name}'")
            for alias, version in model.aliases.items()
        ]
        found = self.client.search_model_versions(f"name = '{self.name}'", max_results=MOST_VERSIONS)
        versions = []
        for item in sorted(found, key=lambda item: int(item.version)):
            checkpoint = ArtifactRef(*(item.tags.get(tag, "") for tag in (STAGE_TAG, CHECKPOINT_KEY_TAG, DIGEST_TAG)))
            names = tuple(sorted(alias for alias, version in aliases if version == str(item.version)))
            logged = re.fullmatch(r"models:/(m-[0-9a-f]+)", item.source or "")  # MLflow's databases lack model_id
            model_id = logged[1] if logged else ""
            versions.append(
                ModelVersion(
                    self.name, str(item.version), item.run_id or "", checkpoint, dict(item.tags), names, model_id
                )
            )
        return versions

    def by_digest(self) -> dict[str, ModelVersion]:
        """Return the first version of each checkpoint by its digest, oldest first."""
        found: dict[str, ModelVersion] = {}
        for version in self.versions():
            found.setdefault(version.checkpoint.digest, version)
        return found

    def recorded(self, digest: str, role: str = "model") -> ModelVersion:
        """Return the version of a checkpoint that the store records.

        Raises:
            UserError: if MLflow lacks it, because its database is new or was restored from an older one.
        """
        found = self.by_digest().get(digest)
        if found is None:
            raise UserError(
                f"MLflow at {self.tracking.home.shown_tracking_uri} lacks the {role} {digest[:12]} of corpus "
                f"{self.corpus}, which the store records: restore its database, or run `sheepfold rebuild-tracking`"
            )
        return found

    def register(
        self, checkpoint: ArtifactRef, run_id: str, description: str, tags: Mapping[str, str], **model: Any
    ) -> ModelVersion:
        """Register a checkpoint as a new version.

        Args:
            description: the model card, Markdown.
            **model: arguments of `mlflow.pyfunc.log_model`.
        """
        from mlflow.exceptions import MlflowException

        source = self._logged_model(checkpoint, run_id, model)
        try:
            self.client.create_registered_model(self.name, description=DESCRIPTION)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        own = {DIGEST_TAG: checkpoint.digest, CHECKPOINT_KEY_TAG: checkpoint.key, STAGE_TAG: checkpoint.stage}
        # with all tags in the same request, so that every version can be found by its digest
        self.client.create_model_version(
            self.name,
            source=source,
            run_id=run_id,
            tags={**tags, **own},
            description=description,
            model_id=source.rpartition("/")[2],
        )
        first, *again = (item for item in self.versions() if item.checkpoint.digest == checkpoint.digest)
        for item in again:  # MLflow's client repeats a request whose response was lost
            self.client.delete_model_version(self.name, item.version)
        return first

    def _logged_model(self, checkpoint: ArtifactRef, run_id: str, model: Mapping[str, Any]) -> str:
        import mlflow
        from mlflow.entities import LoggedModelStatus

        tags = {DIGEST_TAG: checkpoint.digest}
        found = mlflow.search_logged_models(
            experiment_ids=[self.tracking.experiment_id],
            filter_string=f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}'",
            output_format="list",
        )
        # not in the filter: there MLflow compares the status's name with its number, which PostgreSQL refuses
        for item in found:
            if item.status == LoggedModelStatus.READY:
                return str(item.model_uri)
        with mlflow.start_run(run_id=run_id), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow warns of missing type hints and input examples
            return str(mlflow.pyfunc.log_model(name=MODEL_NAME, tags=tags, **model).model_uri)

    def set_tags(self, version: ModelVersion, tags: Mapping[str, str]) -> None:
        """Set those tags of a version that differ."""
        for name, value in tags.items():
            if version.tags.get(name) != value:
                self.client.set_model_version_tag(self.name, version.version, name, value)

    def download_bundle(self, version: ModelVersion) -> Path:
        """Return a local copy of a version's bundle."""
        import mlflow

        folder = mlflow.artifacts.download_artifacts(f"models:/{version.name}/{version.version}")
        return Path(folder) / "artifacts" / "bundle"
