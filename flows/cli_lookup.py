"""Commands that look things up, check or measure them; only `verify --repair` changes what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_common import (
    AsJson,
    Assign,
    Corpus,
    HomeFolder,
    Model,
    absolute,
    answer,
    model_folder,
    open_home,
    others,
    say,
)
from flows.show import print_document, print_rows
from storage.errors import UserError

CHAMPION = "champion"


@others.command()
def sql(
    query: Annotated[str, typer.Argument(help="DuckDB SQL over files, pages, documents, quarantine, tokens, ...")],
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Query the tables of the corpus's last completed run."""
    from storage.catalog import Catalog, waits_for_run

    _, store = open_home(home)
    rows = Catalog(store, corpus).query(query)
    if waits := waits_for_run(store, corpus):
        say(waits)
    answer(rows, as_json, print_rows)


@others.command()
def why(
    thing: Annotated[
        str, typer.Argument(help="Model, artefact key, document id, path, or completion (KEY/ID, or KEY/ID#SAMPLE).")
    ] = "",
    text: Annotated[str, typer.Option(help="Instead: a text, to find its spans in the corpus's training text.")] = "",
    min_words: Annotated[int, typer.Option(help="Shortest span of a text that is shown, in words.")] = 8,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show the lineage of a model version, dataset, completion or document, and the memorised spans of a completion."""
    if bool(thing) == bool(text):
        raise UserError("give either a THING or --text TEXT")
    if text:
        from tasks.lineage.memorised import explain_text

        tree = explain_text(open_home(home)[0], text, corpus, min_words)
    else:
        from tasks.lineage.why import explain

        tree = explain(*open_home(home), thing, corpus)
        if "completion" in tree:
            from tasks.lineage.memorised import explain_memorised

            tree |= explain_memorised(open_home(home)[0], tree, min_words)
    answer(tree, as_json)


@others.command()
def verify(
    mend: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged, so that the next run makes it again.")
    ] = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Check a store: digests, schemas, split, token round trips."""
    from flows.stages import stage_facts
    from storage.catalog import corpora, unknown_corpus
    from tasks.upkeep.verify import checks_at_a_glance, verify_home

    place, store = open_home(home)
    known = corpora(store)
    # artefacts are repaired whatever their corpus, and a store without a corpus has artefacts to check, too
    if not mend and corpus not in known and (known or corpus != "default"):
        raise unknown_corpus(store, corpus)
    report = verify_home(place, store, stage_facts(), corpus, mend)
    answer(report, as_json, lambda found: print_document(checks_at_a_glance(found)))
    if not report["ok"]:
        raise typer.Exit(1)


@others.command()
def status(
    sizes: Annotated[bool, typer.Option("--sizes", help="Also the size of each stage in the store.")] = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show addresses, servers, corpora and their champions."""
    from flows.team.up import team_status
    from tasks.upkeep.status import status_at_a_glance, status_of

    place, store = open_home(home)
    document = {
        **status_of(place, store, corpus),
        "prefect_file": str(Path(__file__).with_name("prefect.yaml")),
        **team_status(place),
    }
    if sizes:
        from tasks.upkeep.gc import sizes_of

        document["sizes"] = sizes_of(store)
    answer(document, as_json, lambda found: print_document(status_at_a_glance(found)))


@others.command()
def sample(
    folder: Annotated[str, typer.Argument(help="Folder to fill.")] = "sample-corpus", as_json: AsJson = False
) -> None:
    """Build a small corpus of text, code, PDFs and images from the standard library."""
    from tasks.sources.sample import build_sample

    written = build_sample(absolute(folder))
    answer({"folder": str(absolute(folder)), "files": len(written)}, as_json)


@others.command()
def count(
    preset: Annotated[str, typer.Option(help="Shape of the network, such as small, gpt2 or llama-7b.")] = "small",
    vocab_size: Annotated[int, typer.Option(help="Token ids; 0 takes those of the preset's own model.", min=0)] = 0,
    context: Annotated[int, typer.Option(help="Longest sequence in tokens; 0 takes the preset's.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Sequences per batch, for the memory figures.", min=1)] = 1,
    target: Annotated[float, typer.Option(help="Parameters, such as 1e9, for which the depth is chosen.", min=0)] = 0,
    table: Annotated[bool, typer.Option("--table", help="Compare the published GPT-2 and LLaMA sizes.")] = False,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Count a network's parameters, arithmetic and memory without building it."""
    from tasks.training.network_cost import cost_at_a_glance, network_cost, published_sizes

    if table:
        if vocab_size or context or target or assign:
            raise UserError("--table shows the published sizes as they are; leave out what would change them")
        answer({"models": published_sizes()}, as_json)
        return
    found = network_cost(preset, vocab_size, context, batch, target, assign or [])
    answer(found, as_json, lambda found: print_document(cost_at_a_glance(found)))


@others.command()
def inspect(
    prompt: Annotated[str, typer.Option(help="The text to look at, up to 256 tokens.", show_default=False)] = "",
    model: Model = CHAMPION,
    preset: Annotated[str, typer.Option(help="A fresh network of this shape instead; ids are ASCII codes.")] = "",
    out: Annotated[str, typer.Option(help="HTML file to write (default: inspect.html in the home's reports).")] = "",
    seed: Annotated[int, typer.Option(help="Seed of a fresh network and of the gains' directions.", min=0)] = 0,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show every step from a prompt to the next token: values, attention, states, gains, block diagrams."""
    from tasks.report.inspect.architecture import Subject
    from tasks.report.inspect.inspection import InspectError, inspect_prompt, inspection_text, to_json
    from tasks.report.inspect.page import write_page
    from tasks.training.bundle import Bundle

    if not prompt:
        raise InspectError('the prompt is empty; give a text to look at, such as --prompt "Hello World"')
    if preset and model != CHAMPION:
        raise UserError(f"--preset {preset} and --model {model} were both given; give one of them")
    if preset:
        subject = Subject.untrained(preset, seed)
    else:
        name = Path(model).resolve().name if Path(model).is_dir() else model
        subject = Subject.of_bundle(Bundle(model_folder(home, model, corpus)), name)
    found = inspect_prompt(subject, prompt, seed)
    if out or not as_json:
        page = write_page(found, absolute(out) if out else open_home(home)[0].reports / "inspect.html")
        say(f"page: {page}")
    answer(to_json(found), as_json, lambda _: print(inspection_text(found)))
