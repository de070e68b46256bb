"""The options of every flow, written once: Prefect's form, the command line and the settings follow from these models.

None means "not given" everywhere. An option that stands for a setting takes type, range and meaning from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from model.config import Sampling
from model.presets import PRESETS
from storage.errors import UserError
from storage.home import LONGEST_CORPUS_NAME
from tasks.core.settings import AUTO, Settings, limits_of, load_settings, setting

OPTION: Any = {"argument": False}  # required, and named on the command line all the same
REPEATED = ("source", "settings", "refresh")  # on the command line once for each source, setting, stage

MODEL_NAMES = "Alias, version, models:/ address, run id or folder."
Model = Annotated[str, Field(description=MODEL_NAMES)]
Texts = Annotated[
    str | None,
    Field(description="Texts to measure on instead of the evaluation set: train, validation, a file or a folder."),
]
Column = Annotated[str | None, Field(description="Field of JSON Lines or Parquet that holds the text.")]
BothPrompts = Annotated[str | None, Field(description="File of prompts that both models continue.")]


def setting_field(name: str, help: str = "", **schema: Any) -> Any:
    """Return the field of an option that stands for a setting, not given by default.

    Args:
        name: Dotted name of the setting.
        help: Help text; empty takes the setting's own.
    """
    info = setting(name)
    shown = "" if info.default in (None, "", ()) or info.default is False else f" (default: {info.default})"
    text = f"{help or info.description}{shown}"
    return Field(default=None, description=text, json_schema_extra={"setting": name, **schema}, **limits_of(info))


def take_parameters(function: Any, parameters: list[inspect.Parameter]) -> None:
    """Give a function of keyword arguments the signature that Typer and Prefect read, required parameters first."""
    ordered = sorted(parameters, key=lambda item: item.default is not inspect.Parameter.empty)
    function.__signature__ = inspect.Signature(ordered)
    function.__annotations__ = {item.name: item.annotation for item in ordered}


class Options(BaseModel):
    """Options of all flows."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    home: str | None = Field(None, description="Home folder (default: SHEEPFOLD_HOME, else .sheepfold).")

    def given(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {name: value for name, value in self if value is not None}


class CorpusOptions(Options):
    """Options of flows on a corpus."""

    corpus: str = Field(
        "default",
        description="Name of the corpus; its tokeniser, evaluation set and models are kept under it.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_CORPUS_NAME},
    )
    refresh: str | None = Field(None, description="Stages to compute again, separated by commas.")

    def stages_to_refresh(self) -> list[str]:
        """Return the names of the stages to compute again.

        Raises:
            UserError: for a stage that the flow does not import.
        """
        from tasks.core.stage import imported_stages

        names = [name.strip() for name in (self.refresh or "").split(",") if name.strip()]
        if unknown := sorted(set(names) - imported_stages().keys()):
            known = ", ".join(sorted(imported_stages()))
            raise UserError(f"--refresh {', '.join(unknown)}: no such stage here; stages are {known}")
        return names


class SettingsOptions(CorpusOptions):
    """Options of flows that take the settings which have no option of their own."""

    config: str | None = Field(None, description="Configuration file, TOML or JSON.")
    settings: dict[str, Any] | None = Field(
        None,
        description='Further settings by dotted name, such as {"train.lr": 0.001}.',
        json_schema_extra={"typed": "Further setting, section.name=value", "flag": "--set"},
    )

    def load(self) -> Settings:
        """Return the settings of a run: defaults, configuration file, environment, settings, options."""
        options = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, Mapping) and "setting" in extra:
                options[str(extra["setting"])] = getattr(self, name)
        return load_settings(self.config, self.settings, options)


class IngestOptions(SettingsOptions):
    """Options of flows that read documents."""

    source: str = Field(
        description="Folders, files, patterns, repositories or buckets with documents, one per line.",
        json_schema_extra={"typed": "Folders, files, patterns, repositories or buckets with documents."},
    )
    workers: int | None = Field(None, description="Processes and tasks at once; 0 is one per core.", ge=0)
    retry_failed: bool | None = Field(None, description="Extract again the files whose extraction failed.")


class WatchOptions(IngestOptions):
    """Options of `ingest`."""

    announce_share: float | None = Field(
        None, description="Emit an event when this share of the documents changed since the last model.", gt=0
    )


class PrepareOptions(IngestOptions):
    """Options of `prepare`."""

    preset: str | None = setting_field(
        "model.preset",
        "Preset of the network (see `count`), or auto for the one that `suggest` proposes.",
        enum=[None, AUTO, *PRESETS],
    )


class TrainOptions(PrepareOptions):
    """Options of `train` and `suggest`."""

    minutes: float | None = setting_field("train.minutes")
    max_steps: int | None = setting_field("train.max_steps")
    max_tokens: int | None = setting_field("train.max_tokens")
    seed: int | None = setting_field("train.seed")
    deterministic: bool | None = Field(
        None, description="Bit-exact training on a GPU, which is slower; on a CPU it always is."
    )


class RetrainOptions(TrainOptions):
    """Options of `retrain`."""

    base: str | None = Field(
        None, description="Model to continue from, such as champion (which is not trained again on what it has read)."
    )


class EvaluateOptions(CorpusOptions):
    """Options of `evaluate`."""

    model: Model = "champion"
    drift: bool | None = Field(None, description="Measure the model also on documents that came after its training.")
    on: Texts = None
    column: Column = None

    @model_validator(mode="after")
    def _one_measurement(self) -> Self:
        if self.drift and self.on:
            raise UserError("--drift is measured against the usual evaluation: leave out --on or --drift")
        return self


class _GenerateOptions(SettingsOptions):
    prompts: str | None = Field(None, description="File of prompts: text (one per line), JSONL, CSV or Parquet.")
    template: str | None = Field(None, description="Template of a prompt: text with {column} in it.")
    model: Model = "champion"
    workers: int | None = Field(None, description="Shards of a file computed at once (default: 1).", ge=1)


def _sampling_fields() -> dict[str, Any]:
    """Return a field for each sampling parameter that is one value or a list of texts."""
    simple = {bool: bool, int: int, float: float, str: str, tuple[str, ...]: list[str]}
    names = [f"generate.{item.name}" for item in fields(Sampling)]
    kinds = {name: simple.get(cast(Any, setting(name).annotation)) for name in names}
    return {name.partition(".")[2]: (kind | None, setting_field(name)) for name, kind in kinds.items() if kind}


GenerateOptions: Any = create_model("GenerateOptions", __base__=_GenerateOptions, **_sampling_fields())
GenerateOptions.__doc__ = "Options of `generate`: every sampling parameter is one."


class CompareOptions(SettingsOptions):
    """Options of `compare`."""

    a: str = Field(description=f"First model. {MODEL_NAMES}")
    b: str = Field(description="Second model.")
    on: Texts = None
    column: Column = None
    prompts: BothPrompts = None
    stride: int | None = setting_field("evaluate.stride")


class AblateOptions(CorpusOptions):
    """Options of `ablate`."""

    without: str = Field(
        description="Documents to leave out: a kind, a folder, a pattern of paths, or an SQL condition on them.",
        json_schema_extra=OPTION,
    )
    model: str | None = Field(None, description="Model to train again (default: the last training).")
    prompts: BothPrompts = None


class LmEvalOptions(Options):
    """Options of `lm_eval`."""

    corpus: str = Field("default", description="Name of the corpus.")
    tasks: str = Field(description="Names of the harness's tasks, separated by commas.", json_schema_extra=OPTION)
    model: Model = "champion"
    include: str | None = Field(None, description="Folder with further tasks as YAML.")
    limit: int | None = Field(None, description="Most documents of each task; 0 takes all (default: 0).", ge=0)
    shots: int | None = Field(None, description="Solved examples before each question (default: the task's own).", ge=0)


class CleanupOptions(Options):
    """Options of `cleanup`."""

    grace_days: float = Field(7, description="Keep artefacts made or used within this many days.", ge=0)
    at_least: int = Field(8, description="Join small segments when there are at least this many.", ge=2)
    dry_run: bool | None = Field(None, description="Only report what would be joined and removed.")


class TeamOptions(BaseModel, frozen=True):
    """Options of `sheepfold up`; paths are absolute, sources one per line."""

    source: str = Field(
        default="",
        description="Sources that the deployments read (default: ./documents).",
        json_schema_extra={"argument": True},
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on (default: this machine only).")
    prefect_port: int = Field(default=4200, description="Port of Prefect's server (default: 4200).", ge=1, le=65535)
    mlflow_port: int = Field(default=5000, description="Port of MLflow's server (default: 5000).", ge=1, le=65535)
    serve_port: int = Field(
        default=0,
        description="Port at which the champion answers OpenAI's clients, as by `sheepfold serve` (default: 0, none).",
        ge=0,
        le=65535,
    )
    postgres: str = Field(
        default="",
        description="postgresql:// address for both servers; '' goes back to SQLite. With a password in it, give it by "
        "the variable: everyone on this machine can read a command line.",
        json_schema_extra={"variable": "SHEEPFOLD_POSTGRES"},
    )
    allowed_hosts: str = Field(
        default="", description="Further host names under which MLflow answers, separated by commas; '' removes them."
    )
    auth: bool = Field(
        default=False, description="Require user names and passwords.", json_schema_extra={"flag": "--auth/--no-auth"}
    )
    prompts: str = Field(default="", description="File that generate/batch continues (default: ./prompts.txt).")
