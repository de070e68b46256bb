"""Results for people: tables and lines in the terminal and in the Markdown report of a run.

Functions named after a result return Markdown or text; those named `print_` print. Heavy libraries are imported by the
functions that need them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.pages.markdown import plain, table

if TYPE_CHECKING:
    from storage.home import Home
    from tasks.evaluation_report.pairs import PairFigures
    from tasks.inspection.inspection import Inspection
    from tasks.run import StageReport

SHOWN = 20  # entries of a list in a terminal
DOCUMENTS, COMPLETIONS = 10, 4  # of a comparison
NAME = 60  # characters of a name, and of a document's beginning
TEXT = 240  # characters of a completion
NEXT_TOKENS = 5


# The report of a run


def stage_table(stages: Sequence[StageReport], planned: bool = False) -> str:
    """Return the stages as a table."""
    rows = []
    for item in stages:
        seconds = f"~{item.seconds:.0f}" if planned and not item.cached else f"{item.seconds:.1f}"
        row = [item.stage, str(item.computed), str(item.reused), seconds, str(item.rows)]
        rows.append([*row, item.reason] if planned else row)
    head = ["stage", "computed", "reused", "seconds", "rows"]
    return "\n".join(table([*head, "reason"] if planned else head, rows))


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Return a model's figures beside those of its baselines; empty without any."""
    from tasks.evaluation.sums import baselines_of

    if not metrics:
        return ""
    known = [("this model", ""), *((name, f"{of}_") for name, of in baselines_of(metrics))]
    if "val/champion_bits_per_byte" in metrics:
        known.insert(1, ("other champion", "champion_"))
    rows = []
    for name, of in known:
        loss, bits = metrics[f"val/{of}loss"], metrics[f"val/{of}bits_per_byte"]
        rows.append([name, f"{loss:.4f}", f"{math.exp(loss):.2f}", f"{bits:.4f}"])
    rows.append(["zstd -19", "", "", f"{metrics['val/zstd19_bits_per_byte']:.4f}"])
    below = (
        f"{100 * metrics['val/below_unigram']:.1f} % fewer bits per byte than the unigram baseline, on "
        f"{metrics['val/documents']:.0f} documents ({metrics['val/bytes']:,.0f} bytes)."
    )
    return "\n".join([*table(["", "loss", "perplexity", "bits per byte"], rows), "", below])


def gates_table(gates: Iterable[Mapping[str, Any]]) -> str:
    """Return the gates' verdicts as a table."""
    rows = [[item["gate"].replace("_", " "), item["verdict"], plain(item["sentence"], 400)] for item in gates]
    return "\n".join(table(["gate", "verdict", "why"], rows))


def corpus_table(home: Home, corpus: str) -> str:
    """Return the number of files by status and reason; empty for a corpus that was never ingested."""
    from storage.catalog import Catalog, read_state
    from storage.store import open_store

    store = open_store(home.store, home.cache)
    if not read_state(store, corpus):
        return ""
    rows = Catalog(store, corpus).query(
        "select status, case when status = 'ok' then '' else reason_code end as why, count(*) as files "
        "from files group by all order by files desc, status, why"
    )
    cells = [[str(row["files"]), row["status"], row["why"]] for row in rows]
    return "\n".join(table(["files", "status", "why"], cells))


def suggestion_text(suggestion: Mapping[str, Any]) -> str:
    """Return what was proposed and why."""
    shape, plan = suggestion["model"], suggestion["train"]
    steps = f"{suggestion['max_steps']:,} steps" if suggestion["max_steps"] else "the steps asked for"
    head = (
        f"**{suggestion['preset']}**: {shape['n_layer']} layers of width {shape['d_model']}, context "
        f"{shape['max_seq_len']}, batches of {plan['batch_size'] * plan['grad_accum']}, highest learning rate "
        f"{plan['lr']:g}, {steps}."
    )
    rows = []
    for item in suggestion["candidates"]:
        figures = ["", "", "", item["note"]]
        if item["step_seconds"] is not None:
            seconds, passes = f"{item['step_seconds']:.3f}", f"{item['passes']:.1f}"
            figures = [seconds, f"{item['steps']:,}", passes, f"{item['loss']:.2f}"]
        rows.append([item["name"], f"{item['parameters']:,}", *figures])
    lines = table(["network", "parameters", "s/step", "steps", "passes", "promised loss"], rows)
    return "\n\n".join([head, "\n".join(f"- {reason}" for reason in suggestion["why"]), "\n".join(lines)])


def print_suggestion(result: Mapping[str, Any]) -> None:
    """Print the result of the flow `suggest`."""
    print(suggestion_text(result["suggestion"]))
    print("\n`sheepfold run` and `sheepfold train` with the same sources and budget take it.")
    for note in result["notes"]:
        print(f"note: {note}")


def sample_table(completions: str) -> str:
    """Return the first completions as a table."""
    from storage.tables import read_rows

    rows = []
    for row in read_rows(Path(completions))[:4]:
        written = row["text"] if row["error"] is None else f"(not continued: {row['error']})"
        prompt, text = (" ".join(words.split()).replace("|", "\\|") for words in (row["prompt"], written))
        rows.append([prompt, text[:200]])
    return "\n".join(table(["prompt", "continuation"], rows))


# Models: comparisons, exams, inspection


def pair_table(figures: PairFigures) -> str:
    """Return a comparison of two models: verdict, figures, slices, documents, completions."""
    from tasks.evaluation_report.charts import interval_words
    from tasks.evaluation_report.pair_page import FIRST
    from tasks.evaluation_report.texts import in_a_line
    from tasks.evaluation_report.words import figure_name, verdict

    found, names = figures.comparison, [_cell(name) for name in figures.names]
    lines = [verdict(found.difference, *names), *(f"note: {_cell(note, TEXT)}" for note in figures.notes)]
    metrics = {name: found.metrics.get(f"val/{name}", (None, None)) for name in FIRST}
    rows = [[figure_name(name), *map(_figure, values)] for name, values in metrics.items()]
    lines += ["", *table(["", *names], rows)]
    rows = [
        [
            _cell(f"{item.dimension} {item.value}"),
            _figure(item.a.bits_per_byte),
            _figure(item.b.bits_per_byte),
            interval_words(item.difference),
            f"{item.a.documents:,}",
        ]
        for item in found.slices
    ]
    lines += ["", *table(["bits per byte", *names, "difference (95 % interval)", "documents"], rows)]
    rows = [
        [
            _cell(figures.paths.get(item.doc_id) or item.doc_id[:12]),
            f"{item.bits:+,.0f}".replace("-", "−"),
            _figure(item.a.bits_per_byte),
            _figure(item.b.bits_per_byte),
            _cell(figures.begins[item.doc_id]),
        ]
        for item in found.documents[:DOCUMENTS]
    ]
    lines += ["", *table(["changed most", "bits", *names, "begins"], rows)]
    for pair in figures.completions[:COMPLETIONS]:
        lines += ["", f"> {_cell(pair[0].prompt, TEXT)}"]
        lines += [f"- {name}: {_cell(in_a_line(item, TEXT), TEXT)}" for name, item in zip(names, pair, strict=True)]
    return "\n".join(lines)


def _cell(text: str, length: int = NAME) -> str:
    """Return words that may come from documents on one line, without characters that break a table."""
    from tasks.evaluation_report.texts import beginning
    from tasks.inspection.labels import legible

    return legible(beginning(text, length)).replace("|", "\\|")


def _figure(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"


def exam_table(metrics: Mapping[str, float]) -> str:
    """Return accuracies beside what guessing reaches; the intervals hold 95 % of resamples."""
    rows = []
    for kind, title in {"multiple_choice": "multiple choice", "exact_match": "exact match"}.items():
        own = {name.rpartition("/")[2]: value for name, value in metrics.items() if f"/{kind}/" in name}
        if own:
            shares = [*_shares(own, "accuracy"), *_shares(own, "accuracy_by_bytes")]
            rows.append([title, f"{own['questions']:.0f}", *shares, f"{own['chance']:.1%}"])
    head = ["questions", "", "right", "interval", "by bytes", "interval", "guessing"]
    return "\n".join(table(head, rows))


def _shares(figures: Mapping[str, float], name: str) -> tuple[str, str]:
    if name not in figures:
        return "", ""
    return f"{figures[name]:.1%}", f"{figures[f'{name}_low']:.1%} to {figures[f'{name}_high']:.1%}"


def print_exam(result: Mapping[str, Any]) -> None:
    """Print the result of the flow `exam`."""
    print(f"{exam_table(result['metrics'])}\n\nanswers: {result['answers']}")


def harness_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures of lm-evaluation-harness, by task."""
    rows = []
    for task, figures in results.items():
        for name, value in figures.items():
            if isinstance(value, int | float) and "_stderr" not in name and "," in name:
                error = figures.get(name.replace(",", "_stderr,", 1))
                margin = f"{error:.4f}" if isinstance(error, float) else ""
                rows.append([task, name.partition(",")[0], f"{value:.4f}", margin])
    return "\n".join(table(["task", "figure", "value", "standard error"], rows))


def inspection_lines(found: Inspection) -> str:
    """Return tokens, lengths of states, likelihood and likeliest next tokens of an inspected prompt."""
    from tasks.inspection.inspection import next_tokens

    score, states = found.trace.score, found.trace.hidden.norm(dim=-1).mean(dim=1).tolist()
    lines = ["tokens:   " + " ".join(found.labels[:40]) + (" …" if found.n_tokens > 40 else "")]
    lines.append("states:   " + " → ".join(f"{length:.3g}" for length in states) + "  (mean length, h0 to the last)")
    if len(score.log_probs):
        lines.append(f"prompt:   {score.nll:.3f} nats per token, perplexity {score.perplexity:.4g}")
    likely = next_tokens(found, found.n_tokens - 1, NEXT_TOKENS)
    return "\n".join([*lines, "next:", *(f"  {item['probability']:6.1%}  {item['text']}" for item in likely)])


# Looking things up


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of a query as a table that fits the terminal."""
    if not rows:
        print("no rows", file=sys.stderr)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = Table(*rows[0].keys(), box=box.SIMPLE)
    for row in rows:
        made.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(made)
    print(f"{len(rows)} rows", file=sys.stderr)


def print_tree(value: Any, depth: int = 0) -> None:
    """Print nested mappings and lists, indented; of a long list the first entries."""
    items: Iterator[tuple[str, Any]]
    items = iter(value.items()) if isinstance(value, dict) else (("-", item) for item in value[:SHOWN])
    for name, item in items:
        if isinstance(item, dict | list):
            print(f"{'  ' * depth}{name}")
            print_tree(item, depth + 1)
        else:
            print(f"{'  ' * depth}{name}: {item}")
    if isinstance(value, list) and len(value) > SHOWN:
        print(f"{'  ' * depth}and {len(value) - SHOWN:,} more (--json has all)")


def print_status(document: Mapping[str, Any]) -> None:
    """Print the status of a home; of the champions of corpora only the versions, of the chosen one everything."""
    champions = {
        corpus: "none" if found is None else f"{found['name']} version {found['version']}"
        for corpus, found in document["champions"].items()
    }
    print_tree({**document, "champions": champions})


def print_lineage(tree: dict[str, Any]) -> None:
    """Print what `why` found, then the memorised spans."""
    found = tree.pop("echoes", None)
    if "thing" in tree:
        print_tree(tree)
    if found is not None:
        print(end="\n" if "thing" in tree else "")
        print_spans(found)


def print_spans(found: Mapping[str, Any]) -> None:
    """Print the spans that a text shares with training documents, the longest first, each with its documents.

    Args:
        found: what `tasks.lineage.memorised.memorised_spans` returned.
    """
    if not found["spans"]:
        print("no span of this text stands in the training text")
        return
    print(f"{found['covered']:.0%} of {found['characters']:,} characters stand in the training text:")
    for span in found["spans"]:
        print(f"\n{span['words']} words, at character {span['start']}, in {_counted(span['documents'], 'document')}:")
        print(f"  {_line(span['text'])}")
        for place in span["found_in"]:
            known = ", ".join(filter(None, [place["kind"], place["licence"] and f"licence {place['licence']}"]))
            print(f"    {place['path'] or place['doc_id']}{f' ({known})' if known else ''}, ", end="")
            print(f"characters {place['doc_start']:,} to {place['doc_start'] + place['doc_length']:,}:")
            print(f"      ...{_line(place['before'])} [{_line(place['passage'])}] {_line(place['after'])}...")
    if found["more_spans"]:
        print(f"\nand {_counted(found['more_spans'], 'shorter span')}")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _line(text: str) -> str:
    return " ".join(text.split())


def print_checks(report: Mapping[str, Any]) -> None:
    """Print the findings of `verify`."""
    for check in report["checks"]:
        print(f"{'ok  ' if not check['problems'] else 'BAD '} {check['name']}: {check['checked']} checked")
        for problem in check["problems"]:
            print(f"     {problem}")
    for item in report.get("repaired", []):
        print(f"{'done' if item['done'] else 'LEFT'} {item['thing']}: {item['what']}")
    if "repaired" in report and not report["repaired"]:
        print("nothing is damaged")


# Upkeep


def print_forgotten(done: Mapping[str, Any]) -> None:
    """Print what `forget` did or would do."""
    documents = done["documents"]
    print(f"{len(documents)} document(s) {'would be' if done['dry_run'] else 'are'} forgotten")
    for item in documents[:SHOWN]:
        print(f"  {item['doc_id'][:12]}  {item['path']}")
    if len(documents) > SHOWN:
        print(f"  and {len(documents) - SHOWN} more")
    if done["known"]:
        print(f"{done['known']} were forgotten before")
    for name in ("rewritten", "removed"):
        counts = ", ".join(f"{stage} {n}" for stage, n in done[name].items() if n)
        print(f"{name}: {counts or 'nothing'}")
    if done["seen_by"]:
        print("models that saw them, which stay as they are:")
    for item in done["seen_by"]:
        versions = ", ".join(" ".join([f"version {one['version']}", *one["aliases"]]) for one in item["versions"])
        print(
            f"  {item['training'][:18]} ({versions or 'not registered'}): trained on {item['documents_trained_on']}, "
            f"held out {item['documents_held_out']}{', some through the model it continues' if item['through'] else ''}"
        )
    for item in done["near_duplicates"][:SHOWN]:
        print(f"nearly the same, and kept: {item['doc_id'][:12]}  {item['path']}")


def print_garbage(done: Mapping[str, Any]) -> None:
    """Print what `gc` removed or would remove."""
    rows = [
        [
            item["stage"],
            f"{item['artefacts']:,}",
            f"{item['size'] / 2**20:,.1f}",
            f"{item['garbage']:,}",
            f"{item['garbage_size'] / 2**20:,.1f}",
        ]
        for item in done["sizes"]
    ]
    print(aligned(["stage", "artefacts", "MiB", "garbage", "MiB"], rows))
    print(
        f"{done['artefacts']} artefact(s) and {done['work']} unfinished work(s), {done['bytes'] / 2**20:,.1f} MiB, "
        f"{'can be removed' if done['dry_run'] else 'are removed'}"
    )
    for name in done["left"]:
        print(f"left, because somebody uses it: {name}")


def print_compacted(done: Mapping[str, Any]) -> None:
    """Print what `compact` joined or would join."""
    parts = sum(map(len, done["joined"].values()))
    print(f"{parts} segment(s) {'would be' if done['dry_run'] else 'are'} joined into {len(done['joined'])}")
    for name in done["followed"]:
        print(f"corpus {name} stands at them now")
    for name in done["waiting"]:
        print(f"corpus {name} will with its next run")
    if done["removed"]:
        print(f"{len(done['removed'])} artefact(s) of segments that were joined are removed")


# Networks


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers; an empty row is a rule."""
    widths = [max(len(row[place]) for row in [head, *rows] if row) for place in range(len(head))]
    rule = " " + "─" * (sum(widths) + 2 * (len(widths) - 1))

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return " " + "  ".join(cells).rstrip() if row else rule

    return "\n".join([line(head), rule, *(line(row) if row else rule for row in rows)])


def decimal(value: float) -> str:
    """Return floating-point operations with a thousand-step prefix, such as 285 MFLOP."""
    scaled, prefix = _scaled(value, 1000, "kMGTPE")
    return f"{scaled:,.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}FLOP"


def binary(value: float) -> str:
    """Return bytes with a 1024-step prefix, such as 474.7 MiB."""
    scaled, prefix = _scaled(value, 1024, "KMGTPE")
    return f"{scaled:,.1f} {prefix}iB" if prefix else f"{scaled:,.0f} B"


def _scaled(value: float, step: int, prefixes: str) -> tuple[float, str]:
    power = 0
    while value >= step and power < len(prefixes):
        value, power = value / step, power + 1
    return value, prefixes[power - 1] if power else ""


def print_cost(found: Mapping[str, Any]) -> None:
    """Print parameters, arithmetic and memory of a network.

    Args:
        found: what `tasks.network_cost.network_cost` returned.
    """
    shape, cost, counts, layer = (found[name] for name in ("config", "cost", "parameters", "layer"))
    lines = [f"{found['preset']}: {counts['total']:,} parameters", _shape_sentence(shape, found["padded_vocab_size"])]
    if "solved" in found:
        solved = found["solved"]
        lines.append(
            f"{solved['target']:,} parameters would be {solved['layers']:.2f} layers of "
            f"{solved['parameters_per_layer']:,}, with {solved['parameters_outside_layers']:,} outside them; "
            f"nearest is {solved['n_layer']}."
        )
    titles = {
        "token_embedding": "token embedding",
        "position": "positions",
        "attention": "attention",
        "mlp": "feed-forward",
        "norm": "norms",
        "head": "head (shares the embedding)" if shape["tie_weights"] else "head",
    }
    rows = [
        [title, f"{counts[key]:,}", _share(found["shares"][key]), f"{layer[key]:,}" if key in layer else ""]
        for key, title in titles.items()
    ]
    rows += [[], ["total", f"{counts['total']:,}", "100.0%", f"{sum(layer.values()):,}"]]
    rows.append(["rule: 12 d² a layer + tables", f"{found['rule_of_thumb']:,}", "", ""])
    lines += ["", aligned(["Parameters", "in all", "share", "per layer"], rows), ""]
    batch = f"{cost['batch_size']:,} x {cost['n_tokens']:,} tokens"
    flops = {
        "forward": "forward_flops_per_token",
        "  attention scores and values": "attention_flops_per_token",
        "  within the causal mask": "visible_attention_flops_per_token",
        "training (3 x forward)": "training_flops_per_token",
        "rule: 6 N": "rule_6n",
        "rule: 6 N + 12 L d T": "rule_palm",
        "": "",
        f"training step of {batch}": "training_step_flops",
    }
    rows = [[title, f"{cost[name]:,}", decimal(cost[name])] if name else [] for title, name in flops.items()]
    lines += [aligned(["Arithmetic per token", "FLOPs", ""], rows), ""]
    memory = {
        "weights": "weight_bytes",
        "gradients": "gradient_bytes",
        "AdamW's running means": "optimizer_bytes",
        "activations kept for backward": "activation_bytes",
        "training, sum of these": "training_bytes",
        "": "",
        "key-value cache, one token": "cache_bytes_per_token",
        f"key-value cache, {batch}{' (not cut to the window)' if shape['window'] is not None else ''}": "cache_bytes",
    }
    rows = [[title, f"{cost[name]:,}", binary(cost[name])] if name else [] for title, name in memory.items()]
    lines += [aligned([f"Memory at {cost['bytes_per_value']} bytes per value", "bytes", ""], rows), ""]
    print(*lines, f"Time grows as {cost['complexity']}.", sep="\n")


def _shape_sentence(shape: Mapping[str, Any], padded_vocab_size: int) -> str:
    heads = f"{shape['n_head']} heads of {shape['head_dim']}"
    if shape["n_kv_head"] != shape["n_head"]:
        heads += f" over {shape['n_kv_head']} key-value heads"
    vocabulary = f"{shape['vocab_size']:,} token ids"
    if padded_vocab_size != shape["vocab_size"]:
        vocabulary += f" (padded to {padded_vocab_size:,})"
    return (
        f"{_counted(shape['n_layer'], 'layer')}, d_model {shape['d_model']:,}, {heads}, d_ff {shape['d_ff']:,}, "
        f"{vocabulary}, context {shape['max_seq_len']:,}"
    )


def _share(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def print_sizes(found: Mapping[str, Any]) -> None:
    """Print the published sizes, as `tasks.network_cost.published_sizes` lists them."""
    names = ("n_layer", "d_model", "n_head", "d_ff", "parameters", "rule_of_thumb")
    cells = [[row["published"], *(f"{row[name]:,}" for name in names)] for row in found["models"]]
    head = ["Model", "layers", "d_model", "heads", "d_ff", "parameters", "12 d² rule"]
    rule = "12 d² rule: 12 d_model² per layer, plus the token embedding and, where it is a matrix of its own, the head."
    print(aligned(head, cells), rule, sep="\n")


def print_rollback(done: Mapping[str, Any]) -> None:
    """Print the champion after a rollback."""
    words = f"version {done['champion']} is champion"
    if done["withdrawn"]:
        words += f"; version {done['withdrawn']} was taken back{'' if done['moved'] else ' before'}: {done['reason']}"
    print(words)


def print_rebuilt(done: Mapping[str, Any]) -> None:
    """Print the contents of MLflow after a rebuild."""
    aliases = ", ".join(f"{alias} is version {version}" for alias, version in done["aliases"].items())
    print(f"{done['runs']} run(s) and {len(done['versions'])} version(s); {aliases or 'no aliases'}")
    for checkpoint in done["lost"]:
        print(f"{checkpoint} cannot be registered again: it is neither in the store nor in MLflow")
