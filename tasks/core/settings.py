"""All settings of a run, in sections; each stage reads its own section and nothing else.

A section's fields are the one definition of its settings: type, default, range and meaning. The command line, the
configuration file, the environment, the flows' forms and docs/reference/settings.md follow from them. Unknown names are
refused, because a mistyped setting that is ignored is a wrong result. A section is imported when it is first asked for:
a prompt at the keyboard needs one of twenty.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from model.architecture import ModelConfig
from model.config import USUAL, Execution, Sampling, TrainConfig
from model.presets import LADDER, preset, recipe_beside
from storage.errors import UserError
from tasks.core.option import MAX_SEED, STRICT, option

if TYPE_CHECKING:
    import tasks.chat.settings
    import tasks.curate.policy
    import tasks.curate.settings
    import tasks.evaluation.gates
    import tasks.ingest.importing
    import tasks.readers.records
    import tasks.sources.address
    import tasks.text.cleaning
    import tasks.tokens.settings

AUTO = "auto"  # a preset that stands for what is proposed for a corpus and a machine
# That is proposed: Muon reaches a loss in fewer tokens than AdamW, and what a rate that falls for half of the time adds
# at the end is more than what it leaves out before (measured: docs/guides/training.md).
PROPOSED = {"optimizer": "muon", "schedule": "wsd", "decay_ratio": 0.5, "min_lr_ratio": 0.0}
BUDGETS = ("train.minutes", "train.max_steps", "train.max_tokens")  # a training has one
PATHS = ("passwords.file", "tokenizer.file", "chat.template", "sources.metadata")
ENVIRONMENT = "SHEEPFOLD_"
PASSWORDS_FILE = f"{ENVIRONMENT}PASSWORDS_FILE"


@dataclass(frozen=True, config=STRICT)
class PasswordSettings:
    """Passwords of encrypted PDFs and archive members, tried after the empty password.

    Passwords come from a file only: Prefect stores the parameters of a flow in plain text in its database.
    """

    file: str = option("", f"Text file with one password per line; empty takes the file named by {PASSWORDS_FILE}.")

    def read(self) -> tuple[str, ...]:
        """Return the passwords, each once; none where no file is named.

        Raises:
            UserError: if the file cannot be read.
        """
        name, place = (self.file, "passwords.file") if self.file else (os.environ.get(PASSWORDS_FILE), PASSWORDS_FILE)
        if not name:
            return ()
        try:
            text = Path(name).expanduser().read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(
                f"the passwords in {name} ({place}) cannot be read: {why}; expected a text file, one password per line"
            ) from None  # a decoder's error holds what it could not decode
        return tuple(dict.fromkeys(line for line in text.split("\n") if line))


def _usual(name: str) -> Any:
    """Return a field of `Sampling` with the default that people get."""
    return field(default=USUAL[name], metadata=Sampling.__dataclass_fields__[name].metadata)


@dataclass(frozen=True, config=STRICT)
class GenerateSettings(Sampling):
    """Text generation: the sampling parameters of `model.config.Sampling`, and how the work is divided."""

    temperature: float = _usual("temperature")
    top_k: int = _usual("top_k")
    top_p: float = option(
        USUAL["top_p"],
        "Keep the smallest set of likeliest tokens whose probabilities reach p; 1 keeps all.",
        gt=0,
        le=1,
    )
    seed: int = option(0, "Seed of the sampling noise.", ge=0, le=MAX_SEED)
    min_new_tokens: int = _usual("min_new_tokens")
    min_p: float = _usual("min_p")
    typical_p: float = _usual("typical_p")
    ignore_eos: bool = option(False, "Never draw the token that ends a text.")
    max_seq_len: int = option(
        0, "Context to generate with, where the model's positions are computed; 0 is the one it was trained with.", ge=0
    )
    rope_scaling: Literal["", "none", "linear", "ntk", "yarn", "llama3"] = option(
        "", "Scaling of rotary positions to that context; empty keeps that of the model."
    )
    shard_tokens: int = option(
        2**17, "New tokens per shard of a file of prompts; a kill costs the shards in work.", ge=1
    )
    batch_size: int = option(0, "Continuations computed together; 0 picks by the device.", ge=0)

    def sampling(self) -> dict[str, Any]:
        """Return the settings that shape a completion, by name; the others divide the work."""
        return {name: getattr(self, name) for name in (*(item.name for item in fields(Sampling)), "ignore_eos")}

    def without_cut(self) -> GenerateSettings:
        """Return the same sampling with the default division of the work: what a completion depends on."""
        return GenerateSettings(**self.sampling(), **self.stretch())

    def stretch(self) -> dict[str, Any]:
        """Return the fields of `model.ModelConfig` in which generation differs from training."""
        return {name: value for name in ("max_seq_len", "rope_scaling") if (value := getattr(self, name))}


@dataclass(frozen=True, config=STRICT)
class EvaluationSettings:
    """Evaluation of a model."""

    stride: int = option(
        0,
        "Tokens between the windows over a long document: each token but the first is predicted from at least the "
        "context less this many tokens. 0 makes windows that do not overlap, which is fastest.",
        ge=0,
    )
    ngram_order: int = option(5, "Order of the n-gram baseline; 0 leaves it out.", ge=0, le=8)
    ngram_tokens: int = option(20_000_000, "Most training tokens to fit the baseline on.", ge=1)
    trace: bool = option(True, "Search the training text for completions and evaluation documents.")


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """The network: a preset, and fields of `model.ModelConfig` that replace the preset's.

    `sheepop`, `light_llm`, `llama_toy` and `fundamentals` bring settings of other sections as well, see docs/papers.md.
    """

    preset: str = option(AUTO, "One of the presets, or `auto` for the size that suits corpus, device and budget.")
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class TrainSettings:
    """The training: its budget, its number format, and fields of `model.TrainConfig`.

    There is one budget: steps before tokens before minutes, whichever is given.
    """

    minutes: float = option(
        5.0, "Training time in minutes on the clock; the number of steps follows the speed of the machine.", ge=0
    )
    max_steps: int = option(0, "Optimiser steps; 0 means that `max_tokens` or `minutes` decides.", ge=0)
    max_tokens: int = option(0, "Training tokens; 0 means that `minutes` decides.", ge=0)
    max_epochs: float = option(
        20.0, "Most passes over the training text under `minutes` or `max_tokens`; one step at least.", gt=0
    )
    seed: int = option(1337, "Seed of initial weights, data order and dropout.", ge=0, le=MAX_SEED)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = option(
        AUTO,
        "Number format: float32, autocast to bfloat16, or to float16 with loss scaling; auto is bf16 on a GPU that "
        "computes in it, else fp16, and fp32 on a CPU. What it stands for is recorded.",
    )
    base: str = option(
        "",
        "Model to continue from: an alias, a version number, a `models:/` address, a run id, or a folder with a "
        "model of this project or in a Hugging Face layout. It brings its network and its tokeniser.",
    )
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.minutes or self.max_steps or self.max_tokens):
            raise ValueError("training needs a budget: give minutes, max_steps or max_tokens above 0")


@dataclass(frozen=True, config=STRICT)
class ExecutionSettings(Execution):
    """Execution of a training; it changes no result except in the last bits."""

    processes: int = option(
        0,
        "Processes that train together on this machine, each on a GPU or a share of the cores. 0 means one, and up to "
        "one per core where a CPU trains for some minutes: as many as divide a step's sequences, in half the memory.",
        ge=0,
    )

    def fields(self) -> dict[str, Any]:
        """Fields of `model.config.Execution`."""
        return {name: value for name, value in self.to_dict().items() if name != "processes"}

    def words(self) -> str:
        """Return the execution settings that change the time of a step, in words; empty for one plain process."""
        ways = {
            f"{self.processes} processes by {self.sharding}": self.processes > 1,
            "compiled": self.compile,
            "activations computed again": self.recompute,
        }
        return ", ".join(words for words, holds in ways.items() if holds)


class Settings:
    """Every section; one without given values is made when it is first read.

    Args:
        given: What the sources gave, by dotted names: neither defaults nor the recipe of a preset.
    """

    sources: tasks.sources.address.WalkSettings
    documents: tasks.ingest.importing.DocumentsSettings
    extract: tasks.readers.records.ExtractOptions
    passwords: PasswordSettings
    limits: tasks.readers.records.Limits
    normalise: tasks.text.cleaning.NormaliseSettings
    dedup: tasks.curate.settings.DedupSettings
    classifier: tasks.curate.settings.ClassifierSettings
    policy: tasks.curate.policy.PolicySettings
    curate: tasks.curate.settings.CurateSettings
    refine: tasks.curate.settings.RefineSettings
    tokenizer: tasks.tokens.settings.TokenizerSettings
    dataset: tasks.tokens.settings.DatasetSettings
    mix: tasks.tokens.settings.MixSettings
    chat: tasks.chat.settings.ChatSettings
    model: ModelSettings
    train: TrainSettings
    execution: ExecutionSettings
    evaluate: EvaluationSettings
    gates: tasks.evaluation.gates.GateSettings
    generate: GenerateSettings

    def __init__(self, given: Mapping[str, Any] | None = None, **sections: Any) -> None:
        self.given: Mapping[str, Any] = given or {}
        vars(self).update(sections)

    if not TYPE_CHECKING:  # a checker knows the sections by their annotations, and no other attribute

        def __getattr__(self, name: str) -> Any:
            if name not in SECTIONS:
                raise AttributeError(name)
            return vars(self).setdefault(name, section_class(name)())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.sections() == other.sections()

    def sections(self) -> dict[str, Any]:
        """Return all sections by name."""
        return {name: getattr(self, name) for name in SECTIONS}

    def replace(self, **sections: Any) -> Settings:
        """Return the settings with other sections in place of some."""
        return Settings(**{**vars(self), **sections})

    def generate_with(self, recorded: Mapping[str, Any]) -> GenerateSettings:
        """Return the settings of generation for a model: those given, then those recorded with it, then the defaults.

        Args:
            recorded: Fields of `Sampling` by name.
        """
        given = {name.partition(".")[2]: value for name, value in self.given.items() if name.startswith("generate.")}
        found: GenerateSettings = _section("generate", {**recorded, **given})
        return found


SECTIONS: dict[str, str] = Settings.__annotations__  # classes, behind their modules where those are others
_PASSED_ON = {"model": ModelConfig, "train": TrainConfig}  # a section's overrides are fields of these
_ENTRY = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)  # of a docstring's arguments
_KINDS: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list"}


def section_class(section: str) -> type:
    """Return the class of a section."""
    module, _, name = SECTIONS[section].rpartition(".")
    found: type = getattr(import_module(module or __name__), name)
    return found


@cache
def settings_of(section: str) -> dict[str, FieldInfo]:
    """Return type, default and description of the settings of a section by name."""
    found = _fields(section_class(section))
    if section in _PASSED_ON:
        del found["overrides"]
        found |= {name: info for name, info in _fields(_PASSED_ON[section]).items() if name not in found}
        for name in ("vocab_size", "most_steps"):  # the tokeniser's; of `train.max_epochs`
            found.pop(name, None)
    return found


def all_settings() -> dict[str, FieldInfo]:
    """Return type, default and description of every setting by its dotted name."""
    return {f"{section}.{name}": info for section in SECTIONS for name, info in settings_of(section).items()}


def _fields(kind: type) -> dict[str, FieldInfo]:
    hints = get_type_hints(kind, include_extras=True)
    documented = dict(entry for base in reversed(kind.__mro__) for entry in _ENTRY.findall(base.__doc__ or ""))
    found = {item.name: FieldInfo.from_annotated_attribute(hints[item.name], item) for item in fields(kind)}
    for name, info in found.items():
        text = " ".join(documented.get(name, "").split())
        info.description = info.description or f"{text[:1].upper()}{text[1:]}"
    return found


def setting(name: str) -> FieldInfo:
    """Return type, default and description of a setting.

    Raises:
        UserError: for an unknown name, and for passwords that are given as a setting.
    """
    section, _, leaf = name.partition(".")
    if section == "passwords" and leaf != "file":
        raise UserError(
            f"{name} is refused: settings of a run are kept in plain text in Prefect's database; write the passwords "
            f"into a file, one per line, and name it by passwords.file or by the environment variable {PASSWORDS_FILE}"
        )
    if section in SECTIONS and leaf in settings_of(section):
        return settings_of(section)[leaf]
    known = all_settings()
    close = [item for item in known if item.partition(".")[2] == leaf]  # the right name in the wrong section
    close = close or difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
    raise UserError(f"unknown setting {name!r}; {hint}")


def kind_of(info: FieldInfo) -> str:
    """Return the type of a setting's values in words, or its choices."""
    kind = get_args(info.annotation)[0] if isinstance(info.annotation, UnionType) else info.annotation
    if get_origin(kind) is Literal:
        *others, last = [choice or '""' for choice in get_args(kind)]
        return f"{', '.join(others)} or {last}"
    return _KINDS[get_origin(kind) or kind]


def range_of(info: FieldInfo) -> str:
    """Return the limits of a setting's values in words; empty where there are none."""
    words = {"ge": "{} or more", "gt": "a number above {}", "le": "at most {}", "lt": "below {}"}
    if any(getattr(item, "min_length", 0) for item in info.metadata):
        return "text that is not empty"
    limits = limits_of(info)
    if {"ge", "le"} <= limits.keys():
        return f"{limits['ge']} to {limits['le']}"
    return " and ".join(words[name].format(limit) for name, limit in limits.items())


def limits_of(info: FieldInfo) -> dict[str, Any]:
    """Return the limits of a field's values by their names in pydantic: ge, gt, le, lt."""
    names = ("ge", "gt", "le", "lt")
    return {name: getattr(item, name) for item in info.metadata for name in names if hasattr(item, name)}


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `section.name=value` items; a value is JSON where it can be, else text.

    Raises:
        UserError: for an item without `=`.
    """
    values = {}
    for item in assignments:
        name, sign, text = item.partition("=")
        if not sign:
            raise UserError(f"--set {item!r}: expected section.name=value, for example train.lr=0.001")
        values[name.strip()] = _parse(text.strip())
    return values


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a flow may keep them: names checked, no password among them, `PATHS` absolute.

    Raises:
        UserError: for an unknown name, and for passwords that are given as a setting.
    """
    kept = _flatten(settings)
    for name, value in kept.items():
        setting(name)
        if name in PATHS and value:
            kept[name] = str(Path(str(value)).expanduser().absolute())
    return kept


def load_settings(
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Combine the settings of a run from all sources, here in rising precedence.

    Below all of them are the defaults, and above those the recipe of the preset; the environment
    (`SHEEPFOLD_SECTION__NAME`) overrides the file. A budget of a training in one source replaces that of the sources
    below it.

    Args:
        config: TOML or JSON file with the sections as tables.
        settings: values by dotted names, as `parse_assignments` returns them, or by sections.
        options: values of a command's own options by dotted names; None alone means not given.

    Raises:
        UserError: for an unknown name, an impossible value or two budgets in one source.
    """
    sources = {
        str(config): _read_file(Path(config).expanduser()) if config else {},
        "the environment": _environment(),
        "--set": _flatten(settings or {}),
        "the options": {name: value for name, value in (options or {}).items() if value is not None},
    }
    values: dict[str, Any] = {}
    for place, source in sources.items():
        budgets = [name for name in BUDGETS if source.get(name)]
        if len(budgets) > 1:
            listed = " and ".join(f"{name} is {source[name]}" for name in budgets)
            raise UserError(f"{place}: {listed}, but a training has one budget; leave out all but one")
        if budgets:
            values = {name: value for name, value in values.items() if name not in BUDGETS}
        values.update(source)
    recipe = recipe_beside(str(values.get("model.preset")), values)
    return _checked({**recipe, **values}).replace(given=values)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration file {path} cannot be read: {error}") from error
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(tree, Mapping):
        raise UserError(f"{path}: holds a {type(tree).__name__}, expected an object with the sections")
    return _flatten(tree)


def _environment() -> dict[str, Any]:
    names = [name for name in os.environ if name.startswith(ENVIRONMENT) and "__" in name]
    return {name.removeprefix(ENVIRONMENT).replace("__", ".").lower(): _parse(os.environ[name]) for name in names}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _checked(values: Mapping[str, Any]) -> Settings:
    given: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        info = setting(name)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} is {value}, expected a finite number")
        section, _, leaf = name.partition(".")
        own = given.setdefault(section, {})
        if leaf not in {item.name for item in fields(section_class(section))}:
            own.setdefault("overrides", {})[leaf] = value
            continue
        if value is None and NoneType not in get_args(info.annotation):
            raise UserError(f"{name} is null, expected {kind_of(info)}; leave it out for its default")
        if isinstance(value, bool) and kind_of(info) != _KINDS[bool]:  # pydantic takes true for 1
            raise UserError(f"{name} is {str(value).lower()}, expected {kind_of(info)}")
        own[leaf] = value
    settings = Settings(**{section: _section(section, own) for section, own in given.items()})
    _check_network(settings)
    return settings


def _section(section: str, given: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(section_class(section)).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "value_error":  # a section's own rule, which says all; the network's rules know no section
        said = str(first["ctx"]["error"])
        raise UserError(f"{section}.{said}" if re.match(r"\w+=", said) else said)
    name = f"{section}.{first['loc'][0]}"
    if section == "passwords":  # the value may be a password
        raise UserError(f"{name} is not text, expected the path of a file")
    out_of_range = first["type"].startswith(("greater", "less", "string_too_short"))
    expected = (range_of if out_of_range else kind_of)(setting(name))
    raise UserError(f"{name} is {first['input']!r}, expected {expected}")


def _check_network(settings: Settings) -> None:
    """Refuse an impossible network, training or overlap now, not after the documents have been read."""
    model, train = settings.model, settings.train
    if train.base:  # which brings the network, whose rotation may be stretched (`tasks.registry.base`)
        kept = {name: value for name, value in model.overrides.items() if not name.startswith("rope_")}
        model = replace(model, overrides=kept)
    try:
        contexts = [network.max_seq_len for network in networks_of(model, vocab_size=512).values()]
        proposed = proposed_beside(train.overrides) if model.preset == AUTO else {}
        TrainConfig.from_dict({**proposed, **train.overrides, "max_steps": 1, "seed": train.seed})
    except ValueError as error:
        raise UserError(str(error)) from error
    strides = {"dataset.stride": settings.dataset.stride, "evaluate.stride": settings.evaluate.stride}
    for name, stride in strides.items():
        if stride and model.preset == AUTO and "max_seq_len" not in model.overrides:
            raise UserError(
                f"{name} is {stride}, but the context is left open: give model.max_seq_len or a preset, too"
            )
        if stride > max(contexts):
            raise UserError(
                f"{name} is {stride}, expected at most the context of {max(contexts)} ids (model.max_seq_len), or ids "
                "would be skipped"
            )


def proposed_beside(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `model.TrainConfig` that are proposed beside those given: another schedule comes alone."""
    own = given.get("schedule", PROPOSED["schedule"]) != PROPOSED["schedule"]
    return {"optimizer": PROPOSED["optimizer"]} if own else PROPOSED


def networks_of(model: ModelSettings, vocab_size: int, **defaults: Any) -> dict[str, ModelConfig]:
    """Return the networks that the settings allow, by preset: the given one, or those of the ladder.

    Args:
        defaults: values where the settings give none.

    Raises:
        ValueError: if they allow none.
    """
    found: dict[str, ModelConfig] = {}
    problem = ValueError("no preset")
    for name in LADDER if model.preset == AUTO else (model.preset,):
        try:
            found[name] = preset(name, vocab_size, **{**defaults, **model.overrides})
        except ValueError as error:
            problem = error
    if not found:
        raise problem
    return found
