"""Tokenisers from elsewhere: a `tokenizer.json`, GPT-2's pair of files or a table of characters, and the files beside.

The files beside say which ids are special.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from tasks.tokens.hf_spec import byte_level_spec, unk_of_model
from tasks.tokens.tokenizer_kinds import (
    TOKENIZER_FILE,
    CharTableTokenizer,
    HfTokenizer,
    Tokenizer,
    TokenizerError,
    load_tokenizer,
)

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
BESIDE = (CONFIG_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE)
PAIRS = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}  # as `transformers` and as GPT-2's authors name them
MEANINGS = ("pad", "unk", "bos", "eos")
_END_OF_TEXT = "<|endoftext|>"  # of GPT-2, whose own files say nothing of special tokens


class ForeignTokenizerError(UserError):
    """A file with a tokeniser that is missing, or cannot be read."""


def tokenizer_files(path: Path, setting: str = "") -> dict[str, Path]:
    """Return the files that make a tokeniser, the first one first, by names under which they make it in any folder.

    Args:
        path: a file of any name, the first of a pair, or a folder with a tokenizer.json or a pair.
        setting: the beginning of an error.

    Raises:
        ForeignTokenizerError: there is no such file.
    """
    first = path
    if path.is_dir():
        whole = (name for name, merges in PAIRS.items() if (path / name).is_file() and (path / merges).is_file())
        first = path / (TOKENIZER_FILE if (path / TOKENIZER_FILE).is_file() else next(whole, TOKENIZER_FILE))
    if not first.is_file():
        raise ForeignTokenizerError(
            f"{setting}there is no file {first}: expected a tokenizer.json, GPT-2's vocab.json and merges.txt (or "
            "encoder.json and vocab.bpe), or a table of characters; transformers.AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder) makes the first of other files"
        )
    merges = PAIRS.get(first.name, "")
    beside = {name: first.with_name(name) for name in (merges, *BESIDE) if name and first.with_name(name).is_file()}
    return {first.name if merges in beside else TOKENIZER_FILE: first, **beside}


def digest_of_tokenizer_file(path: Path) -> str:
    """Return the digest of all that `read_tokenizer_file` reads.

    Raises:
        ForeignTokenizerError: there is no such file.
    """
    with _faults_of(path):
        return sha256_json(
            {name: sha256_file(file) for name, file in tokenizer_files(path, "tokenizer.file: ").items()}
        )


def read_tokenizer_file(path: Path, reserved: int = 0) -> Tokenizer:
    """Read a tokeniser of this project or of Hugging Face's `tokenizers`, GPT-2's pair of files or a character table.

    Of a tokeniser from elsewhere, which id stands for the unknown is what its model says. If it says nothing, and for
    those that begin and end a text and fill, it is looked up in config.json (where ids that no token has are passed
    over, and those of single characters), then in tokenizer_config.json, then in special_tokens_map.json beside it; it
    may be nowhere, but for GPT-2's own end of a text. Where several ids end a text, the first counts.

    A character table is a JSON object of characters and ids, such as `{" ": 4, "!": 5}`; ids 0 to 3 are special, and
    may be named `<pad>`, `<unk>`, `<bos>` and `<eos>` in it.

    Args:
        path: as `tokenizer_files` takes it.
        reserved: ids to be kept free at the end of the vocabulary; a tokeniser of this project has its own.

    Raises:
        ForeignTokenizerError: there is no such file, or no tokeniser in it.
    """
    files = tokenizer_files(path)
    first = next(iter(files.values()))
    with _faults_of(first):
        spec = first.read_text(encoding="utf-8")
        record = json.loads(spec)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, expected the JSON of a tokeniser")
        if merges := files.get(PAIRS.get(first.name, "")):
            spec = byte_level_spec(record, _read_merges(merges))
            record = json.loads(spec)
        elif "kind" in record and "model" not in record:
            found = load_tokenizer(first)
            if reserved not in (0, found.reserved):
                raise ValueError(f"it reserves {found.reserved} ids, so {reserved} cannot be asked for")
            return found
        elif "model" not in record:
            return CharTableTokenizer(_character_table(spec), reserved)
        vocabulary = HfTokenizer(spec).vocabulary()
        named = _special_ids(vocabulary, record, first.parent)
        if merges and named["eos_id"] is None:
            named["eos_id"] = vocabulary.get(_END_OF_TEXT)
        return HfTokenizer(spec, **named, reserved=reserved)


def _read_merges(path: Path) -> list[list[str]]:
    """Return the pairs of tokens in a merges.txt, which follow a line with its version."""
    pairs = []
    with _faults_of(path):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if line and not (number == 1 and line.startswith("#version")):
                pairs.append(line.split(" "))
                if len(pairs[-1]) != 2 or not all(pairs[-1]):
                    raise ValueError(f"line {number} is {line[:80]!r}, expected two tokens with a space between")
    return pairs


def _character_table(text: str) -> dict[str, int]:
    pairs = json.loads(text, object_pairs_hook=list)
    twice = [entry for entry, count in Counter(entry for entry, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} stands in the table twice, expected each character once")
    special = {f"<{meaning}>": index for index, meaning in enumerate(MEANINGS)}
    found = {entry: index for entry, index in pairs if entry not in special or index != special[entry]}
    if not found:
        raise ValueError('an empty table, expected the JSON of a tokeniser or characters and ids, as in {" ": 4}')
    return found


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
