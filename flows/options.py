"""The options of every flow, written once: Prefect's form, the command line and the settings follow from these models.

None means "not given" everywhere. An option that stands for a setting takes type, range and meaning from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from model.config import Sampling
from model.presets import PRESETS
from storage.errors import UserError
from storage.home import LONGEST_CORPUS_NAME
from tasks.settings import AUTO, Settings, load_settings, setting

OPTION: Any = {"option": True}  # required, and named on the command line all the same


def setting_field(name: str, help: str = "", **schema: Any) -> Any:
    """Return the field of an option that stands for a setting, not given by default.

    Args:
        name: Dotted name of the setting.
        help: Help text; empty takes the setting's own.
    """
    info = setting(name)
    shown = "" if info.default in (None, "", ()) or info.default is False else f" (default: {info.default})"
    limits = {
        key: getattr(item, key) for item in info.metadata for key in ("ge", "gt", "le", "lt") if hasattr(item, key)
    }
    text = f"{help or info.description}{shown}"
    return Field(default=None, description=text, json_schema_extra={"setting": name, **schema}, **limits)


class Options(BaseModel):
    """Options of all flows."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    home: Annotated[str | None, Field(description="Home folder (default: SHEEPFOLD_HOME, else .sheepfold).")] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {name: value for name, value in self if value is not None}


class CorpusOptions(Options):
    """Options of flows on a corpus, and the settings that have no option of their own."""

    corpus: Annotated[
        str,
        Field(
            description="Name of the corpus; its tokeniser, evaluation set and models are kept under it.",
            json_schema_extra={"minLength": 1, "maxLength": LONGEST_CORPUS_NAME},
        ),
    ] = "default"
    config: Annotated[str | None, Field(description="Configuration file, TOML or JSON.")] = None
    settings: Annotated[
        dict[str, Any] | None, Field(description='Further settings by dotted name, such as {"train.lr": 0.001}.')
    ] = None
    refresh: Annotated[str | None, Field(description="Stages to compute again, separated by commas.")] = None

    def load(self) -> Settings:
        """Return the settings of a run: defaults, configuration file, environment, settings, options."""
        options = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, Mapping) and "setting" in extra:
                options[str(extra["setting"])] = getattr(self, name)
        return load_settings(self.config, self.settings, options)

    def stages_to_refresh(self) -> list[str]:
        """Return the names of the stages to compute again.

        Raises:
            UserError: for a stage that does not exist.
        """
        from flows.stages import all_stages

        names = [name.strip() for name in (self.refresh or "").split(",") if name.strip()]
        known = all_stages() if names else {}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UserError(f"--refresh {', '.join(unknown)}: no such stage; stages are {', '.join(sorted(known))}")
        return names


class IngestOptions(CorpusOptions):
    """Options of flows that read documents."""

    source: Annotated[
        str, Field(description="Folders, files, patterns, repositories or buckets with documents, one per line.")
    ]
    workers: Annotated[int | None, Field(description="Processes and tasks at once; 0 is one per core.", ge=0)] = None
    retry_failed: Annotated[bool | None, Field(description="Extract files again whose extraction failed.")] = None


class WatchOptions(IngestOptions):
    """Options of `ingest`."""

    announce_share: Annotated[
        float | None,
        Field(description="Emit an event when this share of the documents changed since the last model.", gt=0),
    ] = None


class PrepareOptions(IngestOptions):
    """Options of `prepare`."""

    preset: str | None = setting_field(
        "model.preset",
        "Shape of the network (see `count`); auto takes what `suggest` proposes.",
        enum=[None, AUTO, *PRESETS],
    )


class TrainOptions(PrepareOptions):
    """Options of `train` and `suggest`."""

    minutes: float | None = setting_field("train.minutes")
    max_steps: int | None = setting_field("train.max_steps")
    max_tokens: int | None = setting_field("train.max_tokens")
    seed: int | None = setting_field("train.seed")
    deterministic: Annotated[bool | None, Field(description="Ask torch for deterministic kernels only.")] = None


class RetrainOptions(TrainOptions):
    """Options of `retrain`."""

    base: Annotated[
        str | None,
        Field(description="Model to continue from, such as champion (which is not trained again on what it has read)."),
    ] = None


class PromoteOptions(CorpusOptions):
    """Options of `promote`."""


class EvaluateOptions(CorpusOptions):
    """Options of `evaluate`."""

    model: Annotated[str, Field(description="Alias, version, models:/ address, run id or folder.")] = "champion"
    drift: Annotated[bool | None, Field(description="Measure it on documents that came after its training, too.")] = (
        None
    )
    on: Annotated[
        str | None, Field(description="Texts to measure on instead: train, validation, a file or a folder.")
    ] = None
    column: Annotated[str | None, Field(description="Field of JSON Lines or Parquet that holds the text.")] = None
    stride: Annotated[
        int | None, Field(description="Tokens from one window to the next; 0 is as it was judged (default: 0).", ge=0)
    ] = None
    tasks: Annotated[str | None, Field(description="JSON Lines file of questions to ask instead of texts.")] = None

    @model_validator(mode="after")
    def _one_measurement(self) -> Self:
        if self.tasks and (self.on or self.column or self.stride):
            raise UserError("--tasks puts questions, not documents: leave out --on, --column and --stride")
        if self.drift and (self.on or self.stride):
            raise UserError("--drift is measured against the usual evaluation: leave out --on and --stride, or --drift")
        return self


class _GenerateOptions(CorpusOptions):
    prompts: Annotated[
        str | None, Field(description="File of prompts: text (one per line), JSONL, CSV or Parquet.")
    ] = None
    template: Annotated[str | None, Field(description="Template of a prompt: text with {column} in it.")] = None
    model: Annotated[str, Field(description="Alias, version, models:/ address, run id or folder.")] = "champion"
    workers: Annotated[int | None, Field(description="Shards of a file computed at once (default: 1).", ge=1)] = None


def _sampling_fields() -> dict[str, Any]:
    """Return a field for each sampling parameter that is one value or a list of texts."""
    simple = {
        bool: bool | None,
        int: int | None,
        float: float | None,
        str: str | None,
        tuple[str, ...]: list[str] | None,
    }
    names = [f"generate.{item.name}" for item in fields(Sampling)]
    kinds = {name: simple.get(cast(Any, setting(name).annotation)) for name in names}
    return {name.partition(".")[2]: (kind, setting_field(name)) for name, kind in kinds.items() if kind}


GenerateOptions: Any = create_model("GenerateOptions", __base__=_GenerateOptions, **_sampling_fields())
GenerateOptions.__doc__ = "Options of `generate`: every sampling parameter is one."


class CompareOptions(CorpusOptions):
    """Options of `compare`."""

    a: Annotated[str, Field(description="First model: alias, version, models:/ address, run id or folder.")]
    b: Annotated[str, Field(description="Second model.")]
    on: Annotated[
        str | None, Field(description="Texts to measure on instead: train, validation, a file or a folder.")
    ] = None
    column: Annotated[str | None, Field(description="Field of JSON Lines or Parquet that holds the text.")] = None
    prompts: Annotated[str | None, Field(description="File of prompts that both continue.")] = None
    stride: int | None = setting_field("evaluate.stride")


class AblateOptions(CorpusOptions):
    """Options of `ablate`."""

    without: Annotated[
        str,
        Field(
            description="A kind, a folder, a pattern of paths, or an SQL condition over documents.",
            json_schema_extra=OPTION,
        ),
    ]
    model: Annotated[str | None, Field(description="Model to train again (default: the last training).")] = None
    prompts: Annotated[str | None, Field(description="File of prompts that both continue.")] = None


class LmEvalOptions(CorpusOptions):
    """Options of `lm_eval`."""

    tasks: Annotated[
        str, Field(description="Names of the harness's tasks, separated by commas.", json_schema_extra=OPTION)
    ]
    model: Annotated[str, Field(description="Alias, version, models:/ address, run id or folder.")] = "champion"
    include: Annotated[str | None, Field(description="Folder with further tasks as YAML.")] = None
    limit: Annotated[int | None, Field(description="Documents of each task; 0 takes all (default: 0).", ge=0)] = None
    shots: Annotated[
        int | None, Field(description="Solved examples before each question (default: the task's own).", ge=0)
    ] = None


class CleanupOptions(Options):
    """Options of `cleanup`."""

    grace_days: Annotated[float, Field(description="Keep artefacts made or used within so many days.", ge=0)] = 7
    at_least: Annotated[int, Field(description="Join small segments when there are so many.", ge=2)] = 8
    dry_run: Annotated[bool | None, Field(description="Only report what would be joined and removed.")] = None


class ForgetOptions(Options):
    """Options of `forget`."""

    thing: Annotated[str, Field(description="Document to forget: id, path, folder or pattern of paths.")]
    corpus: Annotated[str, Field(description="Name of the corpus.")] = "default"
    reason: Annotated[str, Field(description="Reason, kept with the tombstone.")] = ""
    dry_run: Annotated[bool | None, Field(description="Only report what would be done.")] = None
