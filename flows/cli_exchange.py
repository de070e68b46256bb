"""Models to and from Hugging Face's folders (`export`, `import`), and corpora to Parquet (`export-corpus`)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, plain_errors, print_json, say

if TYPE_CHECKING:
    from tasks.interchange import Exchanged

ModelRef = Annotated[str, typer.Argument(help="Alias, version, models:/ address, run id or folder.")]
Target = Annotated[str, typer.Argument(help="Folder to write; it must not exist, or be empty.")]
What = Annotated[str, typer.Option(help="tokens (a list of ids for each document), documents, or sequences.")]
Split = Annotated[str, typer.Option(help="Only train or validation.")]
HfFolder = Annotated[str, typer.Argument(help="Folder with config.json, safetensors and tokenizer.json.")]


def export(model: ModelRef, folder: Target, home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Write a model as a Hugging Face folder (GPT-2, LLaMA or Qwen3 layout), tokeniser included."""
    with plain_errors():
        from flows.actions import checkpoint_of
        from storage.home import Home
        from tasks.interchange import export_bundle
        from tasks.resources import Resources
        from tasks.session import Session

        place = Home.from_environment(home or None).create()
        with Resources(place) as resources:
            session = Session(place, resources)
            checkpoint = checkpoint_of(session, model)
            written = export_bundle(session.store.folder(checkpoint), _path(folder))
        _tell(written, as_json)


def import_(hf_folder: HfFolder, folder: Target, as_json: AsJson = False) -> None:
    """Make a model folder of a Hugging Face folder (GPT-2, LLaMA or Qwen3) for `generate --model FOLDER`."""
    with plain_errors():
        from tasks.interchange import import_folder

        _tell(import_folder(_path(hf_folder), _path(folder)), as_json)


def export_corpus(
    folder: Target,
    what: What = "tokens",
    split: Split = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Write the corpus of the last completed run as Parquet: token lists, documents, or training sequences."""
    with plain_errors():
        from storage.catalog import read_state
        from storage.home import Home
        from storage.store import open_store
        from tasks.corpora.export import export_corpus as write_corpus

        place = Home.from_environment(home or None)
        store = open_store(place.store, place.cache)
        written = write_corpus(store, read_state(store, corpus), _path(folder), what, split)
        if as_json:
            print_json(asdict(written))
            return
        print(written.folder)
        ids = f" with {written.tokens:,} ids" if written.tokens else ""
        say(f"{written.rows:,} {what}{ids} in {len(written.files)} files")


def _path(folder: str) -> Path:
    return Path(folder).expanduser().resolve()


def _tell(written: Exchanged, as_json: bool) -> None:
    if as_json:
        print_json(asdict(written))
        return
    print(written.folder)
    say(
        f"{written.layout}: {written.n_parameters:,} parameters, {written.vocab_size:,} token ids, "
        f"tokeniser {written.tokenizer}"
    )
