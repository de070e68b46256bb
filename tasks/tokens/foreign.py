"""Tokenisers from files: a `tokenizer.json`, GPT-2's pair of files or a character table.

The special ids come from config.json, tokenizer_config.json and special_tokens_map.json in the same folder.
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
_END_OF_TEXT = "<|endoftext|>"  # of GPT-2, whose files do not list special tokens


class ForeignTokenizerError(UserError):
    """A tokeniser's file that is missing or invalid."""


def tokenizer_files(path: Path, setting: str = "") -> dict[str, Path]:
    """Return the files of a tokeniser by the names that they need in another folder, main file first.

    Args:
        path: a file of any name, the first of a pair, or a folder with a tokenizer.json or a pair.
        setting: prefix of error messages.

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
            "encoder.json and vocab.bpe), or a character table; transformers.AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder) converts other files to a tokenizer.json"
        )
    merges = PAIRS.get(first.name, "")
    beside = {name: first.with_name(name) for name in (merges, *BESIDE) if name and first.with_name(name).is_file()}
    return {first.name if merges in beside else TOKENIZER_FILE: first, **beside}


def digest_of_tokenizer_file(path: Path) -> str:
    """Return the digest of all files that `read_tokenizer_file` reads.

    Raises:
        ForeignTokenizerError: there is no such file.
    """
    with _faults_of(path):
        return sha256_json(
            {name: sha256_file(file) for name, file in tokenizer_files(path, "tokenizer.file: ").items()}
        )


def read_tokenizer_file(path: Path, reserved: int = 0, rows: int | None = None) -> Tokenizer:
    """Read a tokeniser of this project or of Hugging Face's `tokenizers`, GPT-2's pair of files or a character table.

    The unk id of a foreign tokeniser is that of its model. If the model has none, and for pad, bos and eos, ids are
    looked up in config.json (ignoring ids without a token or of single characters), tokenizer_config.json and
    special_tokens_map.json, in this order; of several eos ids the one of tokenizer_config.json, or
    the first. GPT-2's pair defaults to its own eos.

    A character table is a JSON object of characters and ids, such as `{" ": 4, "!": 5}`; ids 0 to 3 are special, and
    may be named `<pad>`, `<unk>`, `<bos>` and `<eos>` in it.

    Args:
        path: see `tokenizer_files`.
        reserved: ids kept free at the end of the vocabulary; a tokeniser of this project records its own.
        rows: number of embeddings of the network; added tokens without one, as Gemma 3's of pictures, are left out.

    Raises:
        ForeignTokenizerError: the file does not exist or is not a tokeniser.
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
                raise ValueError(f"it reserves {found.reserved} ids, but tokenizer.reserved is {reserved}")
            return found
        elif "model" not in record:
            return CharTableTokenizer(_character_table(spec), reserved)
        added = record.get("added_tokens") or []
        if rows is not None and any(token["id"] >= rows for token in added):
            record["added_tokens"] = [token for token in added if token["id"] < rows]
            spec = json.dumps(record, ensure_ascii=False)
        vocabulary = HfTokenizer(spec).vocabulary()
        named = _special_ids(vocabulary, record, first.parent)
        if merges and named["eos_id"] is None:
            named["eos_id"] = vocabulary.get(_END_OF_TEXT)
        return HfTokenizer(spec, **named, reserved=reserved)


def _read_merges(path: Path) -> list[list[str]]:
    """Return the pairs of tokens in a merges.txt, without its version line."""
    pairs = []
    with _faults_of(path):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if line and not (number == 1 and line.startswith("#version")):
                pairs.append(line.split(" "))
                if len(pairs[-1]) != 2 or not all(pairs[-1]):
                    raise ValueError(f"line {number} is {line[:80]!r}, expected two tokens separated by a space")
    return pairs


def _character_table(text: str) -> dict[str, int]:
    pairs = json.loads(text, object_pairs_hook=list)
    twice = [entry for entry, count in Counter(entry for entry, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is in the table twice, expected each character once")
    special = {f"<{meaning}>": index for index, meaning in enumerate(MEANINGS)}
    found = {entry: index for entry, index in pairs if entry not in special or index != special[entry]}
    if not found:
        raise ValueError('an empty table, expected the JSON of a tokeniser or characters and ids, as in {" ": 4}')
    return found


def _special_ids(vocabulary: dict[str, int], spec: dict[str, Any], folder: Path) -> dict[str, int | None]:
    config, *others = (optional_json(folder / name) for name in BESIDE)
    # published files name Llama's ids 1 and 2 beside any vocabulary: single characters are never special
    added = {token["id"] for token in spec.get("added_tokens") or []}
    known = {index for token, index in vocabulary.items() if len(token) > 1 or index in added}
    named: dict[str, int | None] = {}
    for meaning in MEANINGS:
        ids = _ids(config, f"{meaning}_token_id", folder / CONFIG_FILE)
        # published files name -1, or GPT-2's 50256 beside a smaller vocabulary
        index = ids[0] if ids and ids[0] in known else None
        for source in others:
            token = source.get(f"{meaning}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and (index is None or vocabulary.get(token) in ids[1:]):
                index = vocabulary.get(token)  # of several, that of turns of a chat
        named[f"{meaning}_id"] = index
    unknown = unk_of_model(spec["model"])
    return named if unknown is None else {**named, "unk_id": unknown}


def _ids(config: dict[str, Any], name: str, path: Path) -> list[int]:
    found = config.get(name)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if any(type(index) is not int for index in ids):  # JSON's `true` would pass for 1
        raise ForeignTokenizerError(f"{path}: {name} is {found!r}, expected an id or a list of ids")
    return ids


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Convert exceptions to ForeignTokenizerError with the path of the file."""
    try:
        yield
    except ForeignTokenizerError:
        raise
    except TokenizerError as error:
        raise ForeignTokenizerError(str(error)) from error  # its message names the file
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


def optional_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no file, or something else in it."""
    if not path.is_file():
        return {}
    with _faults_of(path):
        found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
