"""MLflow's model registry: versions, aliases and their tags. A version is found by the digest of its weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage.manifest import ArtifactRef
from storage.tracking import Tracking

MODEL_NAME = "sheepfold"
CHAMPION, CHALLENGER, PREVIOUS = NAMES = "champion", "challenger", "previous"
DIGEST_TAG = "sheepfold.checkpoint_digest"
KEY_TAG = "sheepfold.checkpoint_key"
STAGE_TAG = "sheepfold.checkpoint_stage"
NEWEST_TAG = "sheepfold.newest"  # of the registered model: see `Registry.newest_number`


# What a request to a served model may set, by MLflow's types, with the defaults; a list's type is that of its items.
# `logit_bias` is a JSON object of token ids and numbers, and `details` asks for more than texts (see `tasks.serving`).
PARAMETERS: dict[str, tuple[str, Any]] = {
    "max_new_tokens": ("long", 64),
    "temperature": ("double", 0.8),
    "top_k": ("long", 0),
    "top_p": ("double", 0.95),
    "seed": ("long", 0),
    "min_new_tokens": ("long", 1),
    "n_samples": ("long", 1),
    "min_p": ("double", 0.0),
    "typical_p": ("double", 1.0),
    "repetition_penalty": ("double", 1.0),
    "frequency_penalty": ("double", 0.0),
    "presence_penalty": ("double", 0.0),
    "no_repeat_ngram": ("long", 0),
    "stop": ("string", []),
    "stop_ids": ("long", []),
    "suppress": ("long", []),
    "logit_bias": ("string", ""),
    "top_logprobs": ("long", 0),
    "overflow": ("string", "roll"),
    "ignore_eos": ("boolean", False),
    "deterministic": ("boolean", False),
    "details": ("boolean", False),
}


@dataclass(frozen=True)
class ModelVersion:
    """One registered version.

    Attributes:
        checkpoint: the artefact it was made from.
        model_id: of the logged model behind it, which figures are tied to; empty where there is none.
    """

    version: str
    run_id: str
    checkpoint: ArtifactRef
    tags: dict[str, str]
    aliases: tuple[str, ...]
    model_id: str = ""


class Registry:
    """The registered model `sheepfold` of one home."""

    def __init__(self, tracking: Tracking) -> None:
        self.tracking = tracking
        self.client = tracking.client

    def _ensure_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_registered_model(MODEL_NAME)
        except MlflowException:
            try:
                self.client.create_registered_model(
                    MODEL_NAME,
                    description="Language models trained by Sheepfold. `champion` passed all gates, fewer bits per "
                    "byte than the champion before it among them; `challenger` is the newest that did not; `previous` "
                    "was champion before. Search versions by tags, such as tags.`sheepfold.gates` = 'passed'.",
                )
            except MlflowException:
                self.client.get_registered_model(MODEL_NAME)  # another process was faster

    def _read(self, found: Any) -> ModelVersion:
        tags = dict(found.tags)
        checkpoint = ArtifactRef(tags.get(STAGE_TAG, ""), tags.get(KEY_TAG, ""), tags.get(DIGEST_TAG, ""))
        # databases keep a version's source alone, which names the logged model
        logged = re.fullmatch(r"models:/(m-[0-9a-f]+)", str(found.source or ""))
        return ModelVersion(
            str(found.version),
            str(found.run_id or ""),
            checkpoint,
            tags,
            tuple(found.aliases),
            logged[1] if logged else "",
        )

    def by_digest(self, digest: str) -> ModelVersion | None:
        """The version whose weights have this digest, or None."""
        self._ensure_model()
        numbers = self._numbers(digest)
        # a search does not say under which aliases a version stands
        return self.by_number(min(numbers, key=int)) if numbers else None

    def _numbers(self, digest: str) -> list[str]:
        """Numbers of the versions whose weights have this digest."""
        found = self.client.search_model_versions(f"name = '{MODEL_NAME}' and tags.`{DIGEST_TAG}` = '{digest}'")
        return [str(entry.version) for entry in found]

    def by_alias(self, alias: str) -> ModelVersion | None:
        """The version an alias stands at, or None."""
        from mlflow.exceptions import MlflowException

        try:
            return self._read(self.client.get_model_version_by_alias(MODEL_NAME, alias))
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def by_number(self, version: str) -> ModelVersion | None:
        """The version of this number, or None."""
        from mlflow.exceptions import MlflowException

        try:
            return self._read(self.client.get_model_version(MODEL_NAME, version))
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def by_run(self, run_id: str) -> ModelVersion | None:
        """The newest version of a run, or None."""
        if not re.fullmatch("[0-9a-f]{32}", run_id):
            return None  # no run of MLflow's is called so, and its search would take a quotation mark for syntax
        found = self.client.search_model_versions(f"name = '{MODEL_NAME}' and run_id = '{run_id}'")
        if not found:
            return None
        # a search does not say under which aliases a version stands
        return self.by_number(max((str(entry.version) for entry in found), key=int))

    def versions(self) -> list[ModelVersion]:
        """All versions, the oldest first."""
        from mlflow.exceptions import MlflowException

        try:
            aliases = self.client.get_registered_model(MODEL_NAME).aliases  # a search does not say them
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return []
            raise
        found: list[ModelVersion] = []
        page: str | None = ""
        while page is not None:
            listed = self.client.search_model_versions(f"name = '{MODEL_NAME}'", page_token=page or None)
            for entry in map(self._read, listed):
                own = sorted(alias for alias, version in aliases.items() if str(version) == entry.version)
                found.append(replace(entry, aliases=tuple(own)))
            page = listed.token or None
        return sorted(found, key=lambda version: int(version.version))

    def register(
        self,
        bundle: Path,
        script: Path,
        run_id: str,
        checkpoint: ArtifactRef,
        requirements: list[str],
        description: str,
        tags: Mapping[str, str],
        number: str = "",
    ) -> ModelVersion:
        """Register a bundle as a new version, unless its weights are registered already.

        Args:
            bundle: folder with weights, configuration, tokeniser and `code/`.
            script: the models-from-code script.
            description: the model card, Markdown.
            number: which the version is to have; numbers below it that nothing has are used up. Empty for the next one.
        """
        known = self.by_digest(checkpoint.digest)
        if known is not None and int(known.version) < int(number or 0):
            self.client.delete_model_version(MODEL_NAME, known.version)  # a kill left it on the way to its number
            known = None
        if known is not None:
            return known
        model_uri = self._logged_model(bundle, script, run_id, checkpoint, requirements)
        version_tags = {
            DIGEST_TAG: checkpoint.digest,
            KEY_TAG: checkpoint.key,
            STAGE_TAG: checkpoint.stage,
            **tags,
        }
        # one call with all tags, so that a version is never there without what it is found by
        while True:
            self.client.create_model_version(
                MODEL_NAME,
                source=model_uri,
                run_id=run_id,
                tags=version_tags,
                description=description,
                model_id=model_uri.rpartition("/")[2],
            )
            # MLflow gives no number twice, and its client asks again when an answer is lost: there may be two
            made = sorted(map(int, self._numbers(checkpoint.digest)))
            fitting = [version for version in made if version >= int(number or 0)][:1]
            for version in set(made) - set(fitting):
                self.client.delete_model_version(MODEL_NAME, str(version))
            if fitting:
                return self._read(self.client.get_model_version(MODEL_NAME, str(fitting[0])))

    def _logged_model(
        self, bundle: Path, script: Path, run_id: str, checkpoint: ArtifactRef, requirements: list[str]
    ) -> str:
        """Address of the logged model of a checkpoint, logged if it is not there."""
        import mlflow
        from mlflow.entities import LoggedModelStatus
        from mlflow.models.signature import ModelSignature
        from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

        found = mlflow.search_logged_models(
            experiment_ids=[self.tracking.experiment_id],
            filter_string=f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}'",
            output_format="list",
        )
        # not in the filter: MLflow compares the word with the number in its table, which PostgreSQL refuses
        ready = [item for item in found if item.status == LoggedModelStatus.READY]
        if ready:
            return str(ready[0].model_uri)
        signature = ModelSignature(
            inputs=Schema([ColSpec(DataType.string)]),
            outputs=Schema([ColSpec(DataType.string)]),
            params=ParamSchema(
                [
                    ParamSpec(name, DataType[kind], default, (-1,) if isinstance(default, list) else None)
                    for name, (kind, default) in PARAMETERS.items()
                ]
            ),
        )
        with mlflow.start_run(run_id=run_id), warnings.catch_warnings():
            # MLflow asks for type hints and an input example, to infer what the signature above says
            warnings.simplefilter("ignore")
            info = mlflow.pyfunc.log_model(
                name=MODEL_NAME,
                python_model=str(script),
                artifacts={"bundle": str(bundle)},
                signature=signature,
                pip_requirements=requirements,
                tags={DIGEST_TAG: checkpoint.digest},
            )
        return str(info.model_uri)

    def delete(self, version: str) -> None:
        """Take a version out of the registry; its number is used up."""
        self.client.delete_model_version(MODEL_NAME, version)

    def move_alias(self, alias: str, version: str) -> None:
        """Let an alias stand at a version; nothing happens when it does already."""
        current = self.by_alias(alias)
        if current is None or current.version != version:
            self.client.set_registered_model_alias(MODEL_NAME, alias, version)

    def drop_alias(self, alias: str) -> None:
        """Take an alias away, if it is there."""
        if self.by_alias(alias) is not None:
            self.client.delete_registered_model_alias(MODEL_NAME, alias)

    def tag(self, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for name, value in tags.items():
            self.client.set_model_version_tag(MODEL_NAME, version, name, value)

    def untag(self, version: str, name: str) -> None:
        """Take a tag of a version away; harmless if it is not there."""
        found = self.by_number(version)
        if found is not None and name in found.tags:
            self.client.delete_model_version_tag(MODEL_NAME, version, name)

    def names(self) -> dict[str, str]:
        """Version by alias."""
        self._ensure_model()
        aliases = self.client.get_registered_model(MODEL_NAME).aliases
        return {alias: str(version) for alias, version in sorted(aliases.items())}

    def newest_number(self) -> int:
        """The highest number that this registry ever had of the store's book.

        One that does not say is from before it was noted: it has what it has, if its names were given.
        """
        self._ensure_model()
        model = self.client.get_registered_model(MODEL_NAME)
        if NEWEST_TAG in model.tags:
            return int(model.tags[NEWEST_TAG])
        return max((int(item.version) for item in self.versions()), default=0) if CHAMPION in model.aliases else 0

    def note_newest(self, number: int) -> None:
        """Note that everything in the store's book up to a number is, or was, here."""
        self._ensure_model()
        known = self.client.get_registered_model(MODEL_NAME).tags.get(NEWEST_TAG)
        if known is None or int(known) < number:
            self.client.set_registered_model_tag(MODEL_NAME, NEWEST_TAG, str(number))

    def page_of(self, version: str) -> str | None:
        """Address of a version's page; None where no server shows any."""
        pages = self.tracking.pages
        return None if pages is None else f"{pages}/models/{MODEL_NAME}/versions/{version}"

    def description(self, version: str) -> str:
        """The model card of a version."""
        return str(self.client.get_model_version(MODEL_NAME, version).description or "")

    def describe(self, version: str, description: str) -> None:
        """Set the model card of a version, unless it is that already."""
        if self.description(version) != description:
            self.client.update_model_version(MODEL_NAME, version, description)

    def bundle_folder(self, version: ModelVersion) -> Path:
        """Local copy of a version's bundle."""
        import mlflow

        folder = mlflow.artifacts.download_artifacts(f"models:/{MODEL_NAME}/{version.version}")
        return Path(folder) / "artifacts" / "bundle"
