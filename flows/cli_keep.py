"""Commands that decide what a home keeps, and that carry models and corpora in and out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flows.cli_common import AsJson, Corpus, HomeFolder, absolute, answer, model_folder, open_home, others, say

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
ModelRef = Annotated[str, typer.Argument(help="Alias, version, models:/ address, run id or folder.")]
Target = Annotated[str, typer.Argument(help="Folder to write; it must not exist, or be empty.")]
HfFolder = Annotated[str, typer.Argument(help="Folder with config.json, safetensors and tokenizer.json.")]


@others.command()
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

    answer(forget_documents(*open_home(home), document, reason, corpus, dry_run), as_json)
    if not dry_run:
        say("the files at their sources are not touched; the next run makes again what was removed")


@others.command()
def gc(
    dry_run: DryRun = False,
    grace_days: Annotated[float, typer.Option(help="Keep what was made or used within so many days.", min=0)] = 7,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Remove artefacts that no corpus, registered model, run or unfinished work needs."""
    from flows.stages import stage_facts
    from tasks.upkeep.gc import collect_garbage

    answer(collect_garbage(*open_home(home), stage_facts(), grace_days, dry_run), as_json)


@others.command()
def compact(
    dry_run: DryRun = False,
    at_least: Annotated[int, typer.Option(help="Join small segments when there are so many.", min=2)] = 8,
    grace_days: Annotated[float, typer.Option(help="Keep joined segments for so long after their use.", min=0)] = 1,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Join many small segments into few; no file is read again, and no digest changes."""
    from tasks.upkeep.compact import compact_home

    answer(compact_home(*open_home(home), at_least, grace_days, dry_run), as_json)


@others.command()
def export(
    model: ModelRef, folder: Target, corpus: Corpus = "default", home: HomeFolder = "", as_json: AsJson = False
) -> None:
    """Write a model as a Hugging Face folder (GPT-2, LLaMA or Qwen3 layout), tokeniser included."""
    from tasks.training.interchange import export_bundle

    answer(asdict(export_bundle(model_folder(home, model, corpus), absolute(folder))), as_json)


@others.command("import")
def import_(hf_folder: HfFolder, folder: Target, as_json: AsJson = False) -> None:
    """Make a model folder of a Hugging Face folder (GPT-2, LLaMA or Qwen3) for `generate --model FOLDER`."""
    from tasks.training.interchange import import_folder

    answer(asdict(import_folder(absolute(hf_folder), absolute(folder))), as_json)


@others.command()
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
    from tasks.ingest.export import export_corpus as write_corpus

    _, store = open_home(home)
    answer(asdict(write_corpus(store, read_state(store, corpus), absolute(folder), what, split)), as_json)


@others.command()
def rollback(
    reason: Annotated[str, typer.Option(help="Reason; a tag of the version that is taken back.")] = "",
    to: Annotated[str, typer.Option(help="Version to go back to (default: the previous champion).")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again; the one that is taken back is not promoted again."""
    from tasks.registry.promote import roll_back

    answer(asdict(roll_back(*open_home(home), corpus, reason, to)), as_json)


@others.command()
def rebuild_tracking(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Rebuild MLflow's runs, versions, aliases and metrics from the store."""
    from tasks.registry.promote import rebuild

    answer(asdict(rebuild(*open_home(home))), as_json)
