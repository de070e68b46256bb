"""Commands that decide what a home keeps, and that carry models and corpora in and out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows import show
from flows.cli_common import AsJson, Corpus, HomeFolder, answer, model_folder, open_home, plain_errors, say

if TYPE_CHECKING:
    from tasks.interchange import Exchanged

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
ModelRef = Annotated[str, typer.Argument(help="Alias, version, models:/ address, run id or folder.")]
Target = Annotated[str, typer.Argument(help="Folder to write; it must not exist, or be empty.")]
HfFolder = Annotated[str, typer.Argument(help="Folder with config.json, safetensors and tokenizer.json.")]


@plain_errors()
def forget(
    document: Annotated[str, typer.Argument(help="Document id, path, folder, or beginning of paths with a *.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the document's id.")] = "",
    dry_run: DryRun = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Take documents out of the store for good, and list the models that saw them."""
    from tasks.upkeep.forget import forget as forget_documents

    done = forget_documents(*open_home(home), document, reason, corpus, dry_run)
    answer(done, as_json, show.print_forgotten)
    if not (dry_run or as_json):
        say("the files at their sources are not touched; the next run makes again what was removed")


@plain_errors()
def gc(
    dry_run: DryRun = False,
    grace_days: Annotated[float, typer.Option(help="Keep what was made or used within so many days.", min=0)] = 7,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Remove artefacts that no corpus, registered model, run or unfinished work needs."""
    from flows.stages import stage_facts
    from tasks.upkeep.gc import collect_garbage

    answer(collect_garbage(*open_home(home), stage_facts(), grace_days, dry_run), as_json, show.print_garbage)


@plain_errors()
def compact(
    dry_run: DryRun = False,
    at_least: Annotated[int, typer.Option(help="Join small segments when there are so many.", min=2)] = 8,
    grace_days: Annotated[float, typer.Option(help="Keep joined segments for so long after their use.", min=0)] = 1,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Join many small segments into few; no document is read or encoded again, and no digest changes."""
    from tasks.compaction.compact import compact_home

    answer(compact_home(*open_home(home), at_least, grace_days, dry_run), as_json, show.print_compacted)


@plain_errors()
def export(model: ModelRef, folder: Target, home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Write a model as a Hugging Face folder (GPT-2, LLaMA or Qwen3 layout), tokeniser included."""
    from tasks.interchange import export_bundle

    _exchanged(export_bundle(model_folder(home, model), _path(folder)), as_json)


@plain_errors()
def import_(hf_folder: HfFolder, folder: Target, as_json: AsJson = False) -> None:
    """Make a model folder of a Hugging Face folder (GPT-2, LLaMA or Qwen3) for `generate --model FOLDER`."""
    from tasks.interchange import import_folder

    _exchanged(import_folder(_path(hf_folder), _path(folder)), as_json)


@plain_errors()
def export_corpus(
    folder: Target,
    what: Annotated[str, typer.Option(help="tokens (a list of ids per document), documents, or sequences.")] = "tokens",
    split: Annotated[str, typer.Option(help="Only train or validation.")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Write the corpus of the last completed run as Parquet: token lists, documents, or training sequences."""
    from storage.catalog import read_state
    from tasks.corpora.export import export_corpus as write_corpus

    _, store = open_home(home)
    written = write_corpus(store, read_state(store, corpus), _path(folder), what, split)
    answer(asdict(written), as_json, lambda found: print(found["folder"]))
    if not as_json:
        ids = f" with {written.tokens:,} ids" if written.tokens else ""
        say(f"{written.rows:,} {what}{ids} in {len(written.files)} files")


def _path(folder: str) -> Path:
    return Path(folder).expanduser().resolve()


def _exchanged(written: Exchanged, as_json: bool) -> None:
    answer(asdict(written), as_json, lambda found: print(found["folder"]))
    if not as_json:
        say(
            f"{written.layout}: {written.n_parameters:,} parameters, {written.vocab_size:,} token ids, "
            f"tokeniser {written.tokenizer}"
        )


@plain_errors()
def rollback(
    reason: Annotated[str, typer.Option(help="Reason; a tag of the version that is taken back.")] = "",
    to: Annotated[str, typer.Option(help="Version to go back to (default: the previous champion).")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again; the one that is taken back is not promoted again."""
    from tasks.registry.promote import roll_back

    answer(asdict(roll_back(*open_home(home), corpus, reason, to)), as_json, show.print_rollback)


@plain_errors()
def rebuild_tracking(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Rebuild MLflow's runs, versions, aliases and metrics from the store."""
    from tasks.registry.promote import rebuild

    answer(asdict(rebuild(*open_home(home))), as_json, show.print_rebuilt)
