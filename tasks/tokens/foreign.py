"""Tokenisers from elsewhere: a `tokenizer.json`, and what the files beside it say about special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from tasks.tokens.hf_spec import unk_of_model
from tasks.tokens.tokenizer_kinds import HfTokenizer, Tokenizer, TokenizerError, load_tokenizer

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
BESIDE = (CONFIG_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE)
MEANINGS = ("pad", "unk", "bos", "eos")


class ForeignTokenizerError(UserError):
    """A file with a tokeniser that is missing, or cannot be read."""


def read_tokenizer_file(path: Path, reserved: int = 0) -> Tokenizer:
    """Read a tokeniser of this project or of Hugging Face's `tokenizers`.

    Of the latter, which id stands for the unknown is what its model says. If it says nothing, and for those that begin
    and end a text and fill, it is looked up in config.json (where ids that no token has are passed over, and those of
    single characters), then in tokenizer_config.json, then in special_tokens_map.json beside it; it may be nowhere.
    Where several ids end a text, the first counts.

    Args:
        reserved: ids to be kept free at the end of the vocabulary; a tokeniser of this project has its own.

    Raises:
        ForeignTokenizerError: there is no such file, or no tokeniser in it.
    """
    _check_there(path)
    with _faults_of(path):
        spec = path.read_text(encoding="utf-8")
        record = json.loads(spec)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, expected the JSON of a tokeniser")
        if "kind" in record and "model" not in record:
            found = load_tokenizer(path)
            if reserved not in (0, found.reserved):
                raise ValueError(f"it reserves {found.reserved} ids, so {reserved} cannot be asked for")
            return found
        named = _special_ids(HfTokenizer(spec).vocabulary(), record, path.parent)
        return HfTokenizer(spec, **named, reserved=reserved)


def _special_ids(vocabulary: dict[str, int], spec: dict[str, Any], folder: Path) -> dict[str, int | None]:
    config, *others = (_optional_json(folder / name) for name in BESIDE)
    # no text could be written without its characters, and published files name Llama's 1 and 2 beside whatever is there
    added = {token["id"] for token in spec.get("added_tokens") or []}
    known = {index for token, index in vocabulary.items() if len(token) > 1 or index in added}
    named: dict[str, int | None] = {}
    for meaning in MEANINGS:
        index = _first_id(config, f"{meaning}_token_id", folder / CONFIG_FILE)
        if index not in known:
            index = None  # published files name -1, or GPT-2's 50256 beside a smaller vocabulary
        for source in others:
            token = source.get(f"{meaning}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if index is None and isinstance(token, str):
                index = vocabulary.get(token)
        named[f"{meaning}_id"] = index
    unknown = unk_of_model(spec["model"])
    return named if unknown is None else {**named, "unk_id": unknown}


def _first_id(config: dict[str, Any], name: str, path: Path) -> int | None:
    found = config.get(name)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if any(type(index) is not int for index in ids):  # JSON's `true` would pass for 1
        raise ForeignTokenizerError(f"{path}: {name} is {found!r}, expected an id or a list of ids")
    return ids[0] if ids else None


def digest_of_tokenizer_file(path: Path) -> str:
    """Return the digest of all that `read_tokenizer_file` reads.

    Raises:
        ForeignTokenizerError: there is no such file.
    """
    _check_there(path, "tokenizer.file: ")
    beside = [path.with_name(name) for name in BESIDE]
    with _faults_of(path):
        return sha256_json([sha256_file(path), *(sha256_file(file) if file.is_file() else "" for file in beside)])


def _check_there(path: Path, setting: str = "") -> None:
    if path.is_dir():
        raise ForeignTokenizerError(f"{setting}{path} is a folder: name the tokenizer.json in it")
    if not path.is_file():
        raise ForeignTokenizerError(f"{setting}there is no file {path}: expected a tokenizer.json")


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Raise every fault of a tokeniser with the file that it is in."""
    try:
        yield
    except ForeignTokenizerError:
        raise
    except TokenizerError as error:
        raise ForeignTokenizerError(str(error)) from error  # which names the file
    except RecursionError as error:
        raise ForeignTokenizerError(f"{path}: its JSON is nested too deep; the file is broken") from error
    except OSError as error:
        raise ForeignTokenizerError(f"{path}: it cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ForeignTokenizerError(f"{path}: it is not UTF-8, expected the JSON of a tokeniser") from error
    except json.JSONDecodeError as error:
        raise ForeignTokenizerError(f"{path}: it is not JSON ({error}), expected the JSON of a tokeniser") from error
    except ValueError as error:
        raise ForeignTokenizerError(f"{path}: {error}") from error


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with _faults_of(path):
        found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
