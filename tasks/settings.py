"""All settings of a run, in sections; each stage reads its own section and nothing else.

Values come from, in rising precedence: the defaults here, a configuration file, `--set section.name=value`, and the
command's own options. Unknown names are refused, because a mistyped setting that is ignored is a wrong result. So are
two budgets of a training in one source; a budget takes the place of another one from a lower source.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import UserError
from tasks.corpora.settings import DocumentsSettings
from tasks.curate.classifier.settings import ClassifierSettings
from tasks.curate.hygiene import NormaliseSettings
from tasks.curate.policy import PolicySettings
from tasks.curate.settings import CurateSettings, DedupSettings, RefineSettings
from tasks.gates.settings import GateSettings
from tasks.ingest.records import ExtractOptions, Limits
from tasks.ingest.sources.resolve import WalkSettings
from tasks.tokens.mix import MixSettings
from tasks.train_settings import AUTO, ExecutionSettings, ModelSettings, TrainSettings, check_seed

if TYPE_CHECKING:
    from model.architecture import ModelConfig

# a training has one budget; asking for one in a source takes the place of what lower sources asked for
BUDGETS = ("train.minutes", "train.max_steps", "train.max_tokens")
PASSWORDS_FILE = "SHEEPFOLD_PASSWORDS_FILE"
_EXPECTED = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}


class SettingsError(UserError):
    """A setting that is unknown or has an impossible value."""


@dataclass(frozen=True)
class PasswordSettings:
    """What encrypted documents are opened with, after the empty password: PDFs and members of archives.

    Passwords come from a file only: what is given as a setting becomes a parameter of a flow, and those are kept in
    plain text in Prefect's database.

    Attributes:
        file: a text file with one password on each line; the environment variable SHEEPFOLD_PASSWORDS_FILE names one
            where this is empty.
    """

    file: str = ""

    def read(self) -> tuple[str, ...]:
        """The passwords, each once; none where no file is named.

        Raises:
            SettingsError: if the file cannot be read.
        """
        name, place = (self.file, "passwords.file") if self.file else (os.environ.get(PASSWORDS_FILE), PASSWORDS_FILE)
        if not name:
            return ()
        try:
            text = Path(name).expanduser().read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(
                f"the passwords in {name} ({place}) cannot be read: {why}; expected a text file, one password per line"
            ) from None  # a decoder's error holds what it could not decode
        return tuple(dict.fromkeys(line for line in text.split("\n") if line))


@dataclass(frozen=True)
class TokenizerSettings:
    """How text becomes ids.

    Attributes:
        kind: `char`, `ascii` (ids are ASCII codes; all else is lost), `bytes`, `word` (for toys), `bpe`, `file` (an
            existing tokeniser), or `auto`, which picks `char` or `bpe` by the size of the training text.
        vocab_size: ids in all, for `bpe`, `char` and `word`; 0 picks by the size of the training text, or takes all
            characters.
        fit_bytes: at most so much training text is read to fit the vocabulary.
        file: with `file`, a `tokenizer.json` of Hugging Face's `tokenizers` or of this project.
        reserved: ids kept free at the end of the vocabulary, for later use.
        bos: let every document begin with the id that begins a text.
        eos: let every document end with the id that ends a text.
        engine: `auto` encodes by the fastest engine that gives the same ids as the reference, `reference` by that.
    """

    kind: str = "auto"
    vocab_size: int = 0
    fit_bytes: int = 32 * 2**20
    file: str = ""
    reserved: int = 0
    bos: bool = True
    eos: bool = True
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("auto", "char", "ascii", "bytes", "word", "bpe", "file"):
            raise ValueError(f"tokenizer.kind is {self.kind!r}, expected auto, char, ascii, bytes, word, bpe or file")
        if self.engine not in ("auto", "reference"):
            raise ValueError(f"tokenizer.engine is {self.engine!r}, expected auto or reference")
        if bool(self.file) != (self.kind == "file"):
            raise ValueError(
                f"tokenizer.kind is {self.kind!r} and tokenizer.file is {self.file!r}; a file goes with kind file"
            )
        if self.reserved < 0:
            raise ValueError(f"tokenizer.reserved is {self.reserved}, expected 0 or more")
        if self.fit_bytes < 1:
            raise ValueError(f"tokenizer.fit_bytes is {self.fit_bytes}, expected 1 or more")
        if self.vocab_size:
            self._check_size()
        if self.vocab_size or self.reserved:
            from tasks.tokens.interface import check_vocab_size  # imports NumPy, which few settings are worth

            try:
                check_vocab_size(self.vocab_size, self.reserved)
            except ValueError as error:
                raise ValueError(f"tokenizer.{error}") from error

    def _check_size(self) -> None:
        given = f"tokenizer.vocab_size is {self.vocab_size}"
        fixed = {"ascii": "ASCII has 128 ids", "bytes": "bytes have 260 ids", "file": "a file has ids of its own"}
        if self.kind in fixed:
            raise ValueError(f"{given}, but {fixed[self.kind]}; leave it out")
        free = self.vocab_size - self.reserved
        beside = f" beside the {self.reserved} reserved ones" if self.reserved else ""
        if self.kind in ("char", "word") and free < 5:
            otherwise = "all characters" if self.kind == "char" else "as many as the text is worth"
            raise ValueError(f"{given}, expected 5 or more{beside} (4 ids are special), or 0 for {otherwise}")
        if self.kind in ("auto", "bpe") and free < 260:
            raise ValueError(f"{given}; byte-level BPE needs at least 260 (256 bytes, 4 special){beside}")


@dataclass(frozen=True)
class DatasetSettings:
    """How documents become training sequences.

    Attributes:
        packing: `chunk` cuts each document by itself, every sequence of one document, the last one padded; `concat`
            makes one stream of all documents and cuts it, a sequence may see the end of one and the beginning of the
            next; `pack` puts whole documents and the ends of long ones together so that hardly anything is padded, and
            none sees another.
        stride: with `chunk`, ids from one chunk's start to the next; 0 means the sequence length (no overlap).
        drop_last: with `concat`, leave out the last sequence of the training stream, which is short.
    """

    packing: str = "chunk"
    stride: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.packing not in ("chunk", "concat", "pack"):
            raise ValueError(f"dataset.packing is {self.packing!r}, expected chunk, concat or pack")
        if self.stride < 0:
            raise ValueError(f"dataset.stride is {self.stride}, expected 0 (no overlap) or more")
        if self.stride and self.packing != "chunk":
            raise ValueError(
                f"dataset.stride is {self.stride}, but only chunks overlap, and dataset.packing is {self.packing}; "
                "leave one of them out"
            )
        if self.drop_last and self.packing != "concat":
            raise ValueError(
                f"dataset.drop_last goes with dataset.packing=concat, found {self.packing}, which leaves nothing out"
            )


_CUTTING = ("shard_tokens", "batch_size")


@dataclass(frozen=True)
class GenerateSettings:
    """How text is sampled; what each does, and in which order, is said by `model.GenerationConfig`.

    Attributes:
        top_k: 0 is off, as 1 is for `top_p` and `typical_p`, and 0 for `min_p`.
        min_new_tokens: whoever asks for a continuation wants one.
        suppress: ids that are never drawn, beside those that stand for no text.
        ignore_eos: never draw the id that ends a text.
        shard_tokens: new tokens that one shard of a file of prompts may cost, about; what is done when a process dies
            counts by shards.
        batch_size: continuations that grow at once; 0 picks by the device.
    """

    max_new_tokens: int = 64
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    seed: int = 0
    min_new_tokens: int = 1
    n_samples: int = 1
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    suppress: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0
    overflow: str = "roll"
    ignore_eos: bool = False
    deterministic: bool = False
    shard_tokens: int = 2**17
    batch_size: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"generate.max_new_tokens is {self.max_new_tokens}, expected 1 or more")
        if self.temperature < 0:
            raise ValueError(f"generate.temperature is {self.temperature}, expected 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"generate.top_p is {self.top_p}, expected a share above 0 and at most 1")
        check_seed("generate.seed", self.seed)
        if self.top_k < 0:
            raise ValueError(f"generate.top_k is {self.top_k}, expected 0 (off) or more")
        if self.shard_tokens < 1:
            raise ValueError(f"generate.shard_tokens is {self.shard_tokens}, expected 1 or more")
        if self.batch_size < 0:
            raise ValueError(f"generate.batch_size is {self.batch_size}, expected 0 (by the device) or more")
        from model.config import GenerationConfig

        rest = {name: value for name, value in self.sampling().items() if name not in ("top_k", "ignore_eos")}
        try:
            GenerationConfig(**rest)
        except ValueError as error:
            raise ValueError(f"generate.{error}") from error

    def sampling(self) -> dict[str, Any]:
        """The settings that shape a completion, by name; the others say how the work is cut up."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _CUTTING}

    def without_cut(self) -> GenerateSettings:
        """The same, however the work is cut up: what a completion depends on."""
        return GenerateSettings(**self.sampling())


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is measured.

    Attributes:
        stride: tokens from one window of a long document to the next: each token is predicted with at least the
            network's context less so many tokens before it. 0 means windows that do not overlap, which is the
            quickest, and counts the first tokens of each as predicted from little.
        ngram_order: of the n-gram model that stands beside each figure; 0 leaves it out.
        ngram_tokens: training tokens that this model is fitted on at most.
        trace: whether completions and evaluation documents are looked for in the training text; each segment of it is
            indexed once.
    """

    stride: int = 0
    ngram_order: int = 5
    ngram_tokens: int = 20_000_000
    trace: bool = True

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise ValueError(f"evaluate.stride is {self.stride}, expected 0 (no overlap) or more")
        if not 0 <= self.ngram_order <= 8:
            raise ValueError(f"evaluate.ngram_order is {self.ngram_order}, expected 0 (none) to 8")
        if self.ngram_tokens < 1:
            raise ValueError(f"evaluate.ngram_tokens is {self.ngram_tokens}, expected 1 or more")


@dataclass(frozen=True)
class Settings:
    """Every section."""

    sources: WalkSettings = field(default_factory=WalkSettings)
    documents: DocumentsSettings = field(default_factory=DocumentsSettings)
    extract: ExtractOptions = field(default_factory=ExtractOptions)
    passwords: PasswordSettings = field(default_factory=PasswordSettings)
    limits: Limits = field(default_factory=Limits)
    normalise: NormaliseSettings = field(default_factory=NormaliseSettings)
    dedup: DedupSettings = field(default_factory=DedupSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    curate: CurateSettings = field(default_factory=CurateSettings)
    refine: RefineSettings = field(default_factory=RefineSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    dataset: DatasetSettings = field(default_factory=DatasetSettings)
    mix: MixSettings = field(default_factory=MixSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    evaluate: EvaluationSettings = field(default_factory=EvaluationSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    generate: GenerateSettings = field(default_factory=GenerateSettings)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration file {path} cannot be read: {error}") from error
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    return _flatten(tree)


def _parse(text: str) -> Any:
    """A value given as text: JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Read `section.name=value` items.

    Raises:
        SettingsError: for an item without `=`.
    """
    values = {}
    for item in assignments:
        name, sign, text = item.partition("=")
        if not sign:
            raise SettingsError(f"--set {item!r}: expected section.name=value, for example train.lr=0.001")
        values[name.strip()] = _parse(text.strip())
    return values


def _free_fields(section: str) -> set[str]:
    """Names that a section hands through to the network's or the trainer's own configuration."""
    from model.architecture import ModelConfig
    from model.config import TrainConfig

    if section == "model":
        return {item.name for item in fields(ModelConfig)} - {"vocab_size"}
    return {item.name for item in fields(TrainConfig)} - {"max_steps", "seed"}


def _place(sections: dict[str, dict[str, Any]], name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{name} is {value}, expected a finite number")
    section, _, leaf = name.partition(".")
    if section == "passwords" and leaf != "file":
        raise SettingsError(
            f"{name} is refused: settings of a run are kept in plain text in Prefect's database; write the passwords "
            f"into a file, one per line, and name it by passwords.file or by the environment variable {PASSWORDS_FILE}"
        )
    known = [f"{part}.{item}" for part, values in sections.items() for item in values if item != "overrides"]
    if section in sections and leaf in sections[section] and leaf != "overrides":
        declared = str(type(getattr(Settings(), section)).__annotations__[leaf])
        if value is None and "None" not in declared:
            expected = _EXPECTED.get(declared, "a value")
            raise SettingsError(f"{name} is null, expected {expected}; leave it out for its default")
        if isinstance(value, bool) and "bool" not in declared:
            raise SettingsError(f"{name} is {str(value).lower()}, expected a {declared.partition(' ')[0]}")
        sections[section][leaf] = value
        return
    if section in ("model", "train"):
        free = _free_fields(section)
        if leaf in free:
            sections[section]["overrides"][leaf] = value
            return
        known += [f"{section}.{item}" for item in free]
    close = difflib.get_close_matches(name, known, n=1)
    close = [item for item in known if item.partition(".")[2] == leaf] or close  # the right name in the wrong section
    hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
    raise SettingsError(f"unknown setting {name!r}{hint}")


def storable_assignments(assignments: Sequence[str]) -> list[str]:
    """The items as a flow may keep them: names checked, no password among them, the path in them absolute.

    Raises:
        SettingsError: for an unknown name, and for passwords that are given as a setting.
    """
    kept = []
    for item in assignments:
        ((name, value),) = parse_assignments([item]).items()
        _place(_sections(), name, value)
        if name in ("passwords.file", "tokenizer.file") and value:
            item = f"{name}={Path(str(value)).expanduser().absolute()}"
        kept.append(item)
    return kept


def _sections() -> dict[str, dict[str, Any]]:
    """Every section with its default values."""
    return {item.name: asdict(getattr(Settings(), item.name)) for item in fields(Settings)}


def load_settings(
    config: str | Path | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Put a run's settings together.

    Args:
        config: TOML or JSON file with the sections as tables.
        assignments: `section.name=value` items.
        options: dotted names and values from the command's own options; None and "" mean not given.

    Raises:
        SettingsError: for an unknown name, an impossible value or two budgets in one place, naming it.
    """
    given = {name: value for name, value in (options or {}).items() if value not in (None, "")}
    sources = {
        str(config): _read_file(Path(config)) if config else {},
        "--set": parse_assignments(assignments),
        "the options": given,
    }
    values: dict[str, Any] = {}
    for place, source in sources.items():
        if _asks_for_budget(place, source):
            values = {name: value for name, value in values.items() if name not in BUDGETS}
        values.update(source)
    sections = _sections()
    for name, value in values.items():
        _place(sections, name, value)
    return _build(sections)


def _asks_for_budget(place: str, source: Mapping[str, Any]) -> bool:
    """Whether a source of settings asks for a budget; 0 asks for none."""
    asked = [name for name in BUDGETS if source.get(name)]
    if len(asked) > 1:
        listed = " and ".join(f"{name} is {source[name]}" for name in asked)
        raise SettingsError(f"{place}: {listed}, but a training has one budget; leave out all but one")
    return bool(asked)


def _build(sections: dict[str, dict[str, Any]]) -> Settings:
    from pydantic import TypeAdapter, ValidationError

    built: dict[str, Any] = {}
    for item in fields(Settings):
        kind = type(getattr(Settings(), item.name))
        assert is_dataclass(kind)
        try:
            built[item.name] = TypeAdapter(kind).validate_python(sections[item.name])
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "value_error":  # one of ours, which says all
                raise SettingsError(str(first["ctx"]["error"])) from error
            place = ".".join([item.name, *(str(part) for part in first["loc"])])
            if item.name == "passwords":
                raise SettingsError(
                    f"{place}: {first['msg']}; expected the path of a file"
                ) from None  # maybe a password
            raise SettingsError(f"{place} is {first['input']!r}: {first['msg']}") from error
    strides = {name: built[name.partition(".")[0]].stride for name in ("dataset.stride", "evaluate.stride")}
    _check_overrides(built["model"], built["train"], strides)
    return Settings(**built)


def _check_overrides(model: ModelSettings, train: TrainSettings, strides: Mapping[str, int]) -> None:
    """Refuse an impossible network, training or overlap now, not after the documents have been read."""
    from model.config import TrainConfig

    try:
        contexts = [network.max_seq_len for network in _possible_networks(model)]
        TrainConfig.from_dict({**train.overrides, "max_steps": 1, "seed": train.seed})
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for name, stride in strides.items():
        if stride and model.preset == AUTO and "max_seq_len" not in model.overrides:
            raise SettingsError(
                f"{name} is {stride}, but the context is left open: give model.max_seq_len or a preset, too"
            )
        if stride > max(contexts):
            raise SettingsError(
                f"{name} is {stride}, expected at most the context of {max(contexts)} ids (model.max_seq_len), or ids "
                "would be skipped"
            )


def _possible_networks(model: ModelSettings) -> list[ModelConfig]:
    """Networks that the settings allow, one or those of the ladder.

    Raises:
        ValueError: if they allow none.
    """
    from model.presets import LADDER, preset

    found, problem = [], ValueError("no preset")
    for name in LADDER if model.preset == AUTO else (model.preset,):
        try:
            found.append(preset(name, vocab_size=512, **model.overrides))
        except ValueError as error:
            problem = error
    if not found:
        raise problem
    return found
