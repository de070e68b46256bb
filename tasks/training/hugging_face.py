"""Export of a bundle to a Hugging Face folder, and import of a Hugging Face folder as a bundle.

`transformers` and `tokenizers` read an export without any code of ours; an import is a bundle like one that was trained
here. The network's part is `model.hf`; this module adds the tokeniser, which gives the same ids on both sides. Every
folder appears whole or not at all.
"""

from __future__ import annotations

import json
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
from tasks.training.bundle import CONFIG_FILE, WEIGHTS_FILE, Bundle

_BUNDLE_FILES = (WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE)
_FRAMING = "sheepfold_framing"  # of tokenizer_config.json; `transformers` keeps the entry and does nothing with it


class ExchangeError(UserError):
    """A model that cannot be exported, or a folder that cannot be imported."""


@dataclass(frozen=True)
class Exchanged:
    """Result of an export or import.

    Attributes:
        layout: one of `model.hf_config.LAYOUTS`.
        prompts_begin_with: what `generate` puts before every prompt.
    """

    folder: str
    layout: str
    n_parameters: int
    vocab_size: int
    tokenizer: str
    prompts_begin_with: str


def export_bundle(bundle_folder: Path, target: Path, layout: str = "") -> Exchanged:
    """Write a bundle as a folder for `AutoModelForCausalLM` and `AutoTokenizer` of `transformers`.

    `tokenizer.json` adds no special tokens to a text, as `Tokenizer.encode` does not; what the network was trained on
    begins with the `bos_token_id` of config.json, so a prompt has to begin with it; where training had no such id, or
    none that ends a text, config.json names none. Text that spells a special token is encoded as text there, too.
    generation_config.json forbids the ids that `Bundle.complete` never draws.

    Args:
        bundle_folder: the model.
        target: where to; it must not exist, or be empty.
        layout: one of `model.hf_config.LAYOUTS`; otherwise the first that fits. "llama-original" has the names of
            LLaMA's own release, which `transformers` does not read.

    Raises:
        ExchangeError: the folder holds no model, the model does not fit the layout, or any, or `target` is taken.
    """
    from model import count_parameters
    from model.hf import fresh_folder, write_hf
    from model.hf_config import LayoutError, layout_of

    missing = [name for name in _BUNDLE_FILES if not (bundle_folder / name).is_file()]
    if missing:
        raise ExchangeError(f"{bundle_folder} is no model folder: it lacks {', '.join(missing)}")
    bundle = Bundle(bundle_folder)
    tokenizer = bundle.tokenizer
    bos_id = tokenizer.bos_id if bundle.bos else None
    ids = {"bos_id": bos_id, "eos_id": bundle.end_id, "pad_id": tokenizer.pad_id}
    framing = {"bos": bundle.bos, "eos": bundle.eos}
    generation = {"suppress_tokens": list(bundle.ids_without_text()) or None, "min_new_tokens": 1}
    try:
        layout = layout_of(bundle.model_config, layout)  # refuse before anything is written
        with fresh_folder(target) as work:
            write_hf(bundle.model, work, layout, **ids, generation=generation)
            write_hf_tokenizer(tokenizer, work, bundle.model_config.max_seq_len, framing)
    except LayoutError as error:
        raise ExchangeError(str(error)) from error
    shape = bundle.model_config
    size, begin = count_parameters(bundle.model)["total"], tokenizer.beginning(bundle.bos)
    return Exchanged(str(target), layout, size, shape.vocab_size, tokenizer.kind, begin)


def import_folder(hf_folder: Path, target: Path) -> Exchanged:
    """Make a bundle of a folder of a GPT-2, LLaMA, Mistral, Qwen2 or Qwen3 model, or of LLaMA's own release.

    The tokeniser becomes one of kind `hf` with the special ids that config.json and tokenizer_config.json name. Prompts
    will begin with bos, or for want of it with eos, whatever the folder says of adding special tokens. How often its
    ids occurred in training is unknown, so all counts are zero, and the unigram baseline of an evaluation is the
    uniform one.

    Args:
        hf_folder: config.json (or LLaMA's params.json), safetensors and tokenizer.json, or GPT-2's vocab.json and
            merges.txt.
        target: where to; it must not exist, or be empty.

    Raises:
        ExchangeError: something in the folder is missing, not supported, or contradicts the rest; or `target` is taken.
    """
    from model import count_parameters
    from model.checkpoint import save_weights
    from model.hf import fresh_folder, from_hf, read_shape
    from model.hf_config import LayoutError

    if not hf_folder.is_dir():
        raise ExchangeError(f"no folder {hf_folder}: give a folder with a model of Hugging Face")
    try:
        tokenizer = read_hf_tokenizer(hf_folder)
        layout, _ = read_shape(hf_folder)
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
            (work / CONFIG_FILE).write_text(json.dumps(config, indent=1, sort_keys=True), encoding="utf-8")
            rows = ({"token": token, "count": 0} for token in range(model.config.vocab_size))
            write_table(work / COUNTS_FILE, TOKEN_COUNTS, rows)
    except LayoutError as error:
        raise ExchangeError(str(error)) from error
    size, begin = count_parameters(model)["total"], tokenizer.beginning(framing.get("bos", True))
    return Exchanged(str(target), layout, size, model.config.vocab_size, tokenizer.kind, begin)


def _read_framing(hf_folder: Path) -> dict[str, bool]:
    """Return the framing that an export records; a folder from elsewhere does not have it."""
    path = hf_folder / TOKENIZER_CONFIG_FILE
    written = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    framing = written.get(_FRAMING) if isinstance(written, dict) else None
    framing = framing if isinstance(framing, dict) else {}
    return {name: bool(framing[name]) for name in ("bos", "eos") if name in framing}


def write_hf_tokenizer(
    tokenizer: Tokenizer, folder: Path, context: int, framing: Mapping[str, bool] | None = None
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Special tokens are words of the vocabulary that no text can spell; tokenizer_config.json names them. They are not
    listed as added tokens, or a bare `tokenizers.Tokenizer` would find them in texts.

    Args:
        context: longest sequence of the network, in tokens.
        framing: `bos` and `eos`, True if the network was trained with these around documents; for `import_folder`.
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
            "split_special_tokens": True,  # text that spells a special token is text
            **special,
            **({_FRAMING: dict(framing)} if framing else {}),
        },
    )


def hf_spec(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer.json that gives the same ids and texts as the tokeniser."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    if isinstance(tokenizer, HfTokenizer):
        return {**tokenizer.record()["spec"], "truncation": None, "padding": None, "post_processor": None}
    if isinstance(tokenizer, BpeTokenizer):
        return {**tokenizer.record()["spec"], "added_tokens": [], "post_processor": None}
    if isinstance(tokenizer, CharTableTokenizer):  # words of one character: a text is cut between all code points
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


def read_hf_tokenizer(folder: Path) -> HfTokenizer:
    """Return the tokeniser of a Hugging Face folder, with the special ids that the files beside it name.

    Raises:
        ExchangeError: there is no tokeniser, or `tokenizers` cannot read it.
    """
    try:
        found = read_tokenizer_file(folder)
    except ForeignTokenizerError as error:
        raise ExchangeError(str(error)) from error
    if not isinstance(found, HfTokenizer):
        raise ExchangeError(f"{folder / TOKENIZER_FILE} is a tokeniser of Sheepfold, expected one of Hugging Face")
    return found
