"""Export of a bundle to a Hugging Face folder, and import of a Hugging Face folder as a bundle.

`transformers` and `tokenizers` read an export without code of Sheepfold. `model.hf` converts the network; this module
converts the tokeniser, which gives the same ids on both sides. Folders are written atomically.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.digest import sha256_file
from storage.errors import UserError
from storage.schemas import COUNTS_FILE, TOKEN_COUNTS
from storage.tables import write_table
from tasks.tokens.foreign import (
    MEANINGS,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_CONFIG_FILE,
    ForeignTokenizerError,
    optional_json,
    read_tokenizer_file,
)
from tasks.tokens.hf_spec import byte_spellings
from tasks.tokens.tokenizer_kinds import (
    SPECIAL_TOKENS,
    TOKENIZER_FILE,
    BpeTokenizer,
    ByteTokenizer,
    CharTableTokenizer,
    HfTokenizer,
    Tokenizer,
)
from tasks.training.bundle import CHAT_FILE, CONFIG_FILE, WEIGHTS_FILE, Bundle

_BUNDLE_FILES = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE)
FRAMING = "sheepfold_framing"  # entry of tokenizer_config.json, which `transformers` ignores


class ExchangeError(UserError):
    """A model that cannot be exported, or a folder that cannot be imported."""


@dataclass(frozen=True)
class Exchanged:
    """Result of an export or import.

    Attributes:
        layout: one of `model.hf_config.LAYOUTS`.
        prompts_begin_with: description of the id that `generate` puts before every prompt.
    """

    folder: str
    layout: str
    n_parameters: int
    vocab_size: int
    tokenizer: str
    prompts_begin_with: str


def export_bundle(bundle_folder: Path, target: Path, layout: str = "") -> Exchanged:
    """Write a bundle as a folder for `AutoModelForCausalLM` and `AutoTokenizer` of `transformers`.

    The exported tokeniser adds no special tokens: prompts must begin with the `bos_token_id` of config.json, as in
    training. config.json has no bos or eos if training had none. Text that spells a special token is encoded as
    text. generation_config.json suppresses the ids that `Bundle.complete` never samples.

    Args:
        bundle_folder: folder of the model.
        target: output folder; must not exist, or be empty.
        layout: one of `model.hf_config.LAYOUTS`; empty for the first that fits. "llama-original" has the names of
            LLaMA's own release, which `transformers` does not read.

    Raises:
        ExchangeError: the folder is not a model, the layout cannot represent it, or `target` is not empty.
    """
    from model import count_parameters
    from model.hf import fresh_folder, write_hf
    from model.hf_config import LayoutError, layout_of

    bundle = model_of(bundle_folder)
    tokenizer = bundle.tokenizer
    bos_id = tokenizer.bos_id if bundle.bos else None
    ids = {"bos_id": bos_id, "eos_id": bundle.end_id, "pad_id": tokenizer.pad_id}
    framing = {"bos": bundle.bos, "eos": bundle.eos}
    generation = {"suppress_tokens": list(bundle.ids_without_text()) or None, "min_new_tokens": 1}
    try:
        layout = layout_of(bundle.model_config, layout)  # refuse before anything is written
        with fresh_folder(target) as work:
            write_hf(bundle.model, work, layout, **ids, generation=generation)
            chats = (bundle_folder / CHAT_FILE).is_file()
            write_hf_tokenizer(tokenizer, work, bundle.model_config.max_seq_len, framing, chats)
            if chats:
                shutil.copyfile(bundle_folder / CHAT_FILE, work / CHAT_FILE)
    except LayoutError as error:
        raise ExchangeError(str(error)) from error
    shape = bundle.model_config
    size, begin = count_parameters(bundle.model)["total"], tokenizer.beginning(bundle.bos)
    return Exchanged(str(target), layout, size, shape.vocab_size, tokenizer.kind, begin)


def model_of(folder: Path) -> Bundle:
    """Return the model in a folder.

    Raises:
        ExchangeError: it has none.
    """
    missing = [name for name in _BUNDLE_FILES if not (folder / name).is_file()]
    if missing:
        raise ExchangeError(f"{folder} is not a model folder: it lacks {', '.join(missing)}")
    return Bundle(folder)


def import_folder(hf_folder: Path, target: Path) -> Exchanged:
    """Write a bundle from a folder of a model in one of `model.hf_config.LAYOUTS`.

    The tokeniser becomes one of kind `hf` with the special ids of config.json and tokenizer_config.json. Prompts begin
    with bos, or eos if there is no bos, whatever the folder says about adding special tokens. Training counts of its
    ids are unknown and set to 0, so the unigram baseline of an evaluation equals the uniform one.

    Args:
        hf_folder: config.json (or LLaMA's params.json), safetensors and tokenizer.json, or GPT-2's vocab.json and
            merges.txt.
        target: output folder; must not exist, or be empty.

    Raises:
        ExchangeError: a file is missing, unsupported or inconsistent with the others, or `target` is not empty.
    """
    from model import count_parameters
    from model.checkpoint import save_weights
    from model.hf import fresh_folder, from_hf, read_shape
    from model.hf_config import LayoutError

    if not hf_folder.is_dir():
        raise ExchangeError(f"no folder {hf_folder}: give the folder of a Hugging Face model")
    try:
        tokenizer = read_hf_tokenizer(hf_folder)
        layout, shape = read_shape(hf_folder)
        if tokenizer.vocab_size > shape.vocab_size:
            tokenizer = read_hf_tokenizer(hf_folder, shape.vocab_size)
        model = from_hf(hf_folder)
        if tokenizer.vocab_size > model.config.vocab_size:
            raise ExchangeError(
                f"the tokeniser in {hf_folder} has ids up to {tokenizer.vocab_size - 1}, but the network's vocab_size "
                f"is {model.config.vocab_size}; resize the network's embedding before saving it"
            )
        with fresh_folder(target) as work:
            save_weights(work / WEIGHTS_FILE, model)
            tokenizer.save(work / TOKENIZER_FILE)
            digest = sha256_file(work / TOKENIZER_FILE)
            framing = _read_framing(hf_folder)
            config = {"model": model.config.to_dict(), "tokenizer": digest, **framing}
            if template := _read_template(hf_folder):
                (work / CHAT_FILE).write_text(template, encoding="utf-8")
            (work / CONFIG_FILE).write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")
            rows = ({"token": token, "count": 0} for token in range(model.config.vocab_size))
            write_table(work / COUNTS_FILE, TOKEN_COUNTS, rows)
    except LayoutError as error:
        raise ExchangeError(str(error)) from error
    size, begin = count_parameters(model)["total"], tokenizer.beginning(framing.get("bos", True))
    return Exchanged(str(target), layout, size, model.config.vocab_size, tokenizer.kind, begin)


def _read_template(hf_folder: Path) -> str:
    """Return the template of chats; of several in tokenizer_config.json the one named "default"."""
    if (hf_folder / CHAT_FILE).is_file():
        return (hf_folder / CHAT_FILE).read_text(encoding="utf-8")
    written = optional_json(hf_folder / TOKENIZER_CONFIG_FILE).get("chat_template", "")
    if isinstance(written, list):
        named = (item for item in written if isinstance(item, dict) and item.get("name") == "default")
        written = next(named, {}).get("template")
    return written if isinstance(written, str) else ""


def _read_framing(hf_folder: Path) -> dict[str, bool]:
    """Return `bos` and `eos` as recorded by an export; empty for other folders."""
    framing = optional_json(hf_folder / TOKENIZER_CONFIG_FILE).get(FRAMING)
    framing = framing if isinstance(framing, dict) else {}
    return {name: bool(framing[name]) for name in ("bos", "eos") if name in framing}


def write_hf_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    context: int,
    framing: Mapping[str, bool] | None = None,
    chats: bool = False,
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Special tokens are tokens of the vocabulary named in tokenizer_config.json. They are not added tokens, because
    `tokenizers.Tokenizer` alone would match those in text.

    Args:
        context: longest sequence of the network, in tokens.
        chats: there is a template of chats, whose special tokens `transformers` has to find in the text.
        framing: `bos` and `eos`, True if training documents had them; read by `import_folder`.
    """
    from model.hf import write_json

    spec = hf_spec(tokenizer)
    write_json(folder / TOKENIZER_FILE, spec)
    spelling = {index: token for token, index in HfTokenizer(json.dumps(spec)).vocabulary().items()}
    ids = {meaning: getattr(tokenizer, f"{meaning}_id") for meaning in MEANINGS}
    special = {f"{meaning}_token": spelling[index] for meaning, index in ids.items() if index is not None}
    write_json(folder / SPECIAL_TOKENS_FILE, special)
    write_json(
        folder / TOKENIZER_CONFIG_FILE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": not chats,  # text that spells a special token is text
            **special,
            **({FRAMING: dict(framing)} if framing else {}),
        },
    )


def hf_spec(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of an equivalent tokenizer.json."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    if isinstance(tokenizer, HfTokenizer):
        return {**tokenizer.record()["spec"], "truncation": None, "padding": None, "post_processor": None}
    if isinstance(tokenizer, BpeTokenizer):
        return {**tokenizer.record()["spec"], "added_tokens": [], "post_processor": None}
    if isinstance(tokenizer, CharTableTokenizer):  # words of one character: text is split at every code point
        words = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | tokenizer.vocabulary
        engine = Engine(models.WordLevel(words, unk_token=SPECIAL_TOKENS[1]))
        engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        engine.decoder = decoders.Fuse()
    elif isinstance(tokenizer, ByteTokenizer):  # byte-pair encoding without merges
        words = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *byte_spellings()])}
        engine = Engine(models.BPE(words, []))
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        engine.decoder = decoders.ByteLevel()
    else:
        raise ExchangeError(
            f"a tokeniser of kind {tokenizer.kind!r} cannot be exported; expected char, table, ascii, bytes, bpe or hf"
        )
    spec: dict[str, Any] = json.loads(engine.to_str())
    return spec


def read_hf_tokenizer(folder: Path, rows: int | None = None) -> HfTokenizer:
    """Return the tokeniser of a Hugging Face folder, with the special ids of its config files.

    Args:
        rows: number of embeddings of its network; added tokens without one are left out. None keeps all.

    Raises:
        ExchangeError: the tokeniser is missing, or `tokenizers` cannot read it.
    """
    try:
        found = read_tokenizer_file(folder, rows=rows)
    except ForeignTokenizerError as error:
        raise ExchangeError(str(error)) from error
    if not isinstance(found, HfTokenizer):
        raise ExchangeError(f"{folder / TOKENIZER_FILE} is a tokeniser of Sheepfold, expected one of Hugging Face")
    return found
