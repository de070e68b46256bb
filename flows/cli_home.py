"""Commands that run no flow: queries, checks and upkeep of a home, import and export."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    print_document,
    print_rows,
    say,
)
from flows.options import MODEL_NAMES
from storage.errors import UserError
from storage.registry import CHAMPION

others = typer.Typer()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]
ModelRef = Annotated[str, typer.Argument(help=MODEL_NAMES)]
Target = Annotated[str, typer.Argument(help="Folder to write; it must not exist, or be empty.")]


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
    min_words: Annotated[int, typer.Option(help="Shortest span of a text that is shown, in words.", min=8)] = 8,
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

        tree = explain(open_home(home)[1], thing, corpus)
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
    # a repair covers all artefacts of the store, and a store without a corpus has artefacts to check too
    if not mend and corpus not in known and (known or corpus != "default"):
        raise unknown_corpus(store, corpus)
    report = verify_home(place, store, stage_facts(), corpus, mend)
    answer(report, as_json, lambda found: print_document(checks_at_a_glance(found)))
    if not report["ok"]:
        raise typer.Exit(1)


@others.command()
def status(
    sizes: Annotated[bool, typer.Option("--sizes", help="Also show the size of each stage in the store.")] = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show addresses, servers, corpora and their champions."""
    from flows.team.programs import team_status
    from tasks.upkeep.status import status_at_a_glance, status_of

    place, store = open_home(home)
    document = {
        **status_of(place, store, corpus),
        "prefect_file": str(Path(__file__).with_name("prefect.yaml")),
        **team_status(place),
    }
    if sizes:
        from tasks.upkeep.garbage import sizes_of

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
def optimizer(
    kind: Annotated[str, typer.Argument(help="Kind of optimizer: adamw, adam or adam_l2.")] = "adamw",
    theta: Annotated[float, typer.Option(help="Weight before the first step.")] = 1.0,
    gradients: Annotated[str, typer.Option(help="Gradients of the loss, one per step, such as 0.3,-0.2.")] = "0.1,0.2",
    lr: Annotated[float, typer.Option(help="Learning rate of every step.")] = 1e-3,
    betas: Annotated[str, typer.Option(help="Decay rates of the two moving averages.")] = "0.9,0.999",
    eps: Annotated[float, typer.Option(help="Added to the square root of v_hat.")] = 1e-8,
    weight_decay: Annotated[float | None, typer.Option(help="Default: that of train.weight_decay.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the steps of an optimizer with one weight: m, v, m_hat, v_hat, the bracket, theta."""
    from model.config import TrainConfig
    from model.optim import adam_walk

    path = _numbers("--gradients", gradients)
    settings: dict[str, Any] = {"optimizer": kind, "lr": lr, "eps": eps, "weight_decay": weight_decay}
    try:
        steps = adam_walk(TrainConfig(len(path), betas=_numbers("--betas", betas), **settings), theta, path)
    except ValueError as error:
        raise UserError(str(error)) from error
    answer([{"step": t, **asdict(step)} for t, step in enumerate(steps, start=1)], as_json, print_rows)


def _numbers(option: str, text: str) -> Any:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UserError(f"{option} {text}: expected numbers with commas between them, such as 0.9,0.999") from None


@others.command()
def count(
    preset: Annotated[str, typer.Option(help="Shape of the network, such as small, gpt2 or llama-7b.")] = "small",
    vocab_size: Annotated[int, typer.Option(help="Token ids; 0 takes those of the preset's own model.", min=0)] = 0,
    context: Annotated[int, typer.Option(help="Longest sequence in tokens; 0 takes the preset's.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Sequences per batch, for the memory figures.", min=1)] = 1,
    target: Annotated[float, typer.Option(help="Parameters, such as 1e9, for which the depth is chosen.", min=0)] = 0,
    table: Annotated[bool, typer.Option("--table", help="Compare the published GPT-2 and LLaMA sizes.")] = False,
    waves: Annotated[bool, typer.Option("--wavelengths", help="Wavelength of each pair of position columns.")] = False,
    base: Annotated[
        list[float] | None, typer.Option(help="Another base for --wavelengths, to compare; may be repeated.")
    ] = None,
    adapter_rank: Annotated[
        int, typer.Option(help="Rank of LoRA, which alone is trained, for the memory figures.", min=0)
    ] = 0,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Activations are computed again, as with execution.recompute.")
    ] = False,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Count a network's parameters, arithmetic and memory without building it."""
    from tasks.training.network_cost import (
        cost_at_a_glance,
        network_cost,
        network_shape,
        published_sizes,
        wavelength_table,
    )

    if base and not waves:
        raise UserError("--base compares wavelengths; add --wavelengths")
    if waves:
        rows = wavelength_table(network_shape(preset, vocab_size, context, assign or []), base or [])
        answer({"preset": preset, "wavelengths": rows}, as_json)
        return
    if table:
        if vocab_size or context or target or assign:
            raise UserError("--table shows the published sizes; leave out options that change the network")
        answer({"models": published_sizes()}, as_json)
        return
    found = network_cost(preset, vocab_size, context, batch, target, assign or [], adapter_rank, recompute)
    answer(found, as_json, lambda found: print_document(cost_at_a_glance(found)))


@others.command()
def inspect(
    prompt: Annotated[str, typer.Option(help="Text to inspect, up to 256 tokens.", show_default=False)] = "",
    model: Model = CHAMPION,
    preset: Annotated[
        str,
        typer.Option(
            help="A fresh network of this shape instead; ids are ASCII codes. llama_toy has the words and weights that "
            'its source states: try --prompt "Hi Thomas".'
        ),
    ] = "",
    out: Annotated[str, typer.Option(help="HTML file to write (default: inspect.html in the home's reports).")] = "",
    diagrams: Annotated[
        str, typer.Option(help="Folder for the block diagrams as SVG and diagrams.json; needs no prompt.")
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Columns of each value in the page and the JSON: a number, or all.")
    ] = "4",
    seed: Annotated[int, typer.Option(help="Seed of a fresh network and of the directions of the gains.", min=0)] = 0,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show every step from a prompt to the next token: values, attention, states, gains, block diagrams."""
    if preset and model != CHAMPION:
        raise UserError(f"--preset {preset} and --model {model} were both given; give one of them")
    if diagrams:
        if prompt or out:
            raise UserError("--diagrams draws the network without a prompt; leave out --prompt and --out")
        from tasks.report.diagrams import plan_of_folder, plan_of_preset, write_diagrams

        plan = plan_of_preset(preset) if preset else plan_of_folder(model_folder(home, model, corpus))
        drawn = write_diagrams(plan, absolute(diagrams))
        answer({"diagrams": drawn}, as_json, lambda _: [print(f"{item['file']}: {item['title']}") for item in drawn])
        return
    from tasks.report.inspection import Subject, inspect_prompt, inspection_text, to_json
    from tasks.report.inspection_page import to_html
    from tasks.report.page import write_page
    from tasks.training.bundle import Bundle

    if preset:
        subject = Subject.untrained(preset, seed)
    else:
        name = Path(model).resolve().name if Path(model).is_dir() else model
        subject = Subject.of_bundle(Bundle(model_folder(home, model, corpus)), name)
    found = inspect_prompt(subject, prompt, seed, columns)
    if out or not as_json:
        page = write_page(to_html(found), absolute(out) if out else open_home(home)[0].reports / "inspect.html")
        say(f"page: {page}")
    answer(to_json(found), as_json, lambda _: print(inspection_text(found)))


@others.command()
def layout(
    file: Annotated[str, typer.Argument(help="PDF to read.", show_default=False)],
    page: Annotated[int, typer.Option(help="Number of the page, from 1.", min=1)] = 1,
    out: Annotated[str, typer.Option(help="HTML file to write.")] = "layout.html",
    as_json: AsJson = False,
) -> None:
    """Draw the blocks of a PDF's page on its picture, in reading order, with the Markdown that becomes of them."""
    from tasks.report.layout_page import layout_page, to_html
    from tasks.report.page import write_page

    found = layout_page(absolute(file), page)
    say(f"page: {write_page(to_html(found), absolute(out))}")
    del found["picture"]
    answer(found, as_json, lambda _: print(found["markdown"]))


@others.command()
def forget(
    document: Annotated[str, typer.Argument(help="Document id, path, folder, or beginning of paths with a *.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded with the document's id.")] = "",
    dry_run: DryRun = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Remove documents from the store permanently, and list the models that were trained on them."""
    from tasks.upkeep.forget import forget as forget_documents

    answer(forget_documents(*open_home(home), document, reason, corpus, dry_run), as_json)
    if not dry_run:
        say("the files at their sources are not changed; the next run makes removed artefacts again")


@others.command()
def gc(
    dry_run: DryRun = False,
    grace_days: Annotated[float, typer.Option(help="Keep artefacts made or used within so many days.", min=0)] = 7,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Remove artefacts that no corpus, registered model, run or unfinished work needs."""
    from flows.stages import stage_facts
    from tasks.upkeep.garbage import collect_garbage

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
    model: ModelRef,
    target: Annotated[str, typer.Argument(help="Folder to write, which must not exist or be empty; or FILE.gguf.")],
    layout: Annotated[
        str,
        typer.Option(
            help="gpt2, llama, mistral, qwen2, qwen3, smollm3, gemma, gemma3_text or llama-original; otherwise the "
            "first that fits."
        ),
    ] = "",
    kind: Annotated[
        str, typer.Option("--type", help="Numbers of a GGUF file: f32, f16, bf16, q8_0 or q4_0 (default: f16).")
    ] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Write a model as a Hugging Face folder, or as a GGUF file for llama.cpp and Ollama; tokeniser included."""
    source, path = model_folder(home, model, corpus), absolute(target)
    if path.suffix == ".gguf":
        if layout:
            raise UserError("--layout is for Hugging Face folders; a GGUF file has one form for each network")
        from tasks.training.gguf_file import export_gguf

        found = export_gguf(source, path, kind or "f16", model, _lineage(source, home, corpus))
    else:
        if kind:
            raise UserError("--type is for GGUF files: give a target that ends in .gguf")
        from tasks.training.hugging_face import export_bundle

        found = export_bundle(source, path, layout)
    answer(asdict(found), as_json)


def _lineage(model: Path, home: str, corpus: str) -> dict[str, str]:
    """Return the manifest of a model of this home, and the card of its dataset if that is the corpus's newest."""
    from storage.catalog import read_state
    from storage.store import MANIFEST_NAME
    from tasks.report.dataset import CARD

    place, store = open_home(home)
    path, card = model / MANIFEST_NAME, place.reports_of(corpus) / CARD
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    newest = read_state(store, corpus).get("dataset", [])
    is_own = any(ref.digest in text for ref in newest) and card.is_file()
    return {"manifest": text, **({"data_card": card.read_text(encoding="utf-8")} if is_own else {})}


@others.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="Folder with config.json, safetensors and tokenizer.json; or FILE.gguf.")
    ],
    folder: Target,
    as_json: AsJson = False,
) -> None:
    """Convert a Hugging Face folder, LLaMA's own release or a GGUF file to a folder for `generate --model FOLDER`."""
    if source.lower().endswith(".gguf"):
        from tasks.training.gguf_file import import_gguf

        found = import_gguf(absolute(source), absolute(folder))
    else:
        from tasks.training.hugging_face import import_folder

        found = import_folder(absolute(source), absolute(folder))
    answer(asdict(found), as_json)


@others.command()
def export_corpus(
    folder: Target,
    what: Annotated[str, typer.Option(help="tokens (a list of ids per document) or documents.")] = "tokens",
    split: Annotated[str, typer.Option(help="Only train or validation.")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Write the corpus of the last completed run as Parquet: token lists or documents."""
    from tasks.ingest.export import export_corpus as write_corpus

    answer(asdict(write_corpus(open_home(home)[1], corpus, absolute(folder), what, split)), as_json)


@others.command()
def serve(
    model: Annotated[str, typer.Argument(help=MODEL_NAMES)] = CHAMPION,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    batch_size: Annotated[int, typer.Option(help="Completions computed together.", min=1)] = 32,
    most: Annotated[
        int, typer.Option(help="Completions that may run or wait; more are answered with 429.", min=1)
    ] = 256,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Give equal requests equal answers, to the bit; slower.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a model that does not exist yet.")] = False,
    corpus: Corpus = "default",
    home: HomeFolder = "",
) -> None:
    """Answer OpenAI's completions over HTTP; a new champion takes the old one's place without a lost request.

    With SHEEPFOLD_API_KEY in the environment, requests have to give it.
    """
    from tasks.serving.run import serve_model

    serve_model(open_home(home)[0], model, corpus, host, port, batch_size, most, deterministic, wait, say)


@others.command()
def rollback(
    reason: Annotated[str, typer.Option(help="Reason, a tag of the version that is rolled back.")] = "",
    to: Annotated[str, typer.Option(help="Version to return to (default: the previous champion).")] = "",
    corpus: Corpus = "default",
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Make the previous champion champion again; the version that is rolled back is not promoted again."""
    from tasks.registry.promote import roll_back

    answer(asdict(roll_back(*open_home(home), corpus, reason, to)), as_json)


@others.command()
def rebuild_tracking(home: HomeFolder = "", as_json: AsJson = False) -> None:
    """Rebuild MLflow's runs, versions, aliases and metrics from the store."""
    from tasks.registry.promote import rebuild

    answer(asdict(rebuild(*open_home(home))), as_json)
