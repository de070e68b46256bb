"""The report of a generation as one HTML file that needs nothing else: no network, no script, no other files.

It shows a person what was asked and what was written, each token shaded by how sure the model was of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise

from storage.lineage import manifest_of
from tasks.report.frame import report_page
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, figure, scrolled, table
from tasks.report.old_charts import Layer, Part, Plot, histogram_figure, legend, whole_bar
from tasks.report.preview import GenerationFigures, Piece, Shown, collect_generation, generation_summary, summary
from tasks.report.wording import counted, cut
from tasks.report.written import Outcome, Page

SECTIONS = {
    "completions": "Completions",
    "lengths": "Lengths",
    "errors": "Not continued",
    "settings": "Settings",
}
FOOTER = "Made by sheepfold from the table of completions; ask it anything with sheepfold sql."
# what finish reasons are called, and the colour of each
REASONS = {
    "stop": ("ended by itself or by a stop string", "sure"),
    "length": ("cut at the limit", "limit"),
    "context": ("cut where the context was full", "full"),
    "exhausted": ("every token was forbidden", "unsure"),
}
# a token at least so likely has this shade; the last one is for all others
SHADES = ((0.5, "shade-0"), (0.2, "shade-1"), (0.05, "shade-2"), (0.01, "shade-3"), (0.0, "shade-4"))
_BINS = 24
_FIELDS = 400  # characters of the other columns
_BEST = 5
_NAME, _ERROR = 60, 400
_KEY, _COMMAND = 12, 160
CSS = """
.completion { border-top: 1px solid var(--rule); padding: 14px 0; }
.completion:first-of-type { border-top: 0; padding-top: 0; }
.completion .head { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: .85rem; color: var(--quiet);
  margin: 0 0 6px; max-width: none; overflow-wrap: anywhere; }
.completion .head b { color: var(--text); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; margin: 0; max-width: none;
  max-height: 24em; overflow-y: auto; line-height: 1.75; }
.text .asked { color: var(--quiet); }
.text i { font-style: normal; border-radius: 3px; padding: 1px 0; }
.columns { font-size: .82rem; color: var(--quiet); overflow-wrap: anywhere; margin: 6px 0 0; max-width: none; }
.shade-0 { background: transparent; }
.shade-1 { background: color-mix(in srgb, var(--contrary) 12%, transparent); }
.shade-2 { background: color-mix(in srgb, var(--contrary) 22%, transparent); }
.shade-3 { background: color-mix(in srgb, var(--contrary) 33%, transparent); }
.shade-4 { background: color-mix(in srgb, var(--contrary) 46%, transparent); }
.fate.sure { background: var(--green); } .fate.limit { background: var(--ink); }
.fate.full { background: var(--gold); } .fate.unsure { background: var(--violet); }
.fate.lost { background: var(--contrary); }
.bar { fill: var(--ink); }
.scale { display: flex; flex-wrap: wrap; gap: 6px 14px; font-size: .85rem; margin: 0 0 16px; max-width: none; }
.scale i { font-style: normal; border-radius: 3px; padding: 1px 6px; border: 1px solid var(--rule); }
#errors td.wrap { overflow-wrap: anywhere; } #settings td.wrap { overflow-wrap: anywhere; min-width: 6em; }
@media print { .text i { print-color-adjust: exact; } .text { max-height: none; } }
"""


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's generation."""
    run, made = outcome.run, outcome.made("generate")
    if made is None:
        return None

    def draw() -> list[str]:
        figures = collect_generation(run.store, made)
        return [generation_page(figures, run.corpus), generation_summary(figures)]

    drawn_from = [made.key, manifest_of(run.store, made).created]
    return outcome.draw_once("generation", f"Completions by the model of {run.corpus}", drawn_from, draw)


def generation_page(figures: GenerationFigures, corpus: str) -> str:
    """The page.

    Args:
        corpus: its name.
    """
    made = {
        "completions": _completions(figures),
        "lengths": _lengths(figures),
        "errors": _errors(figures),
        "settings": _settings(figures),
    }
    n = sum(figures.reasons.values())
    facts = {
        "Prompts": f"{figures.prompts:,}",
        "Continuations": f"{n:,}",
        "Tokens": f"{figures.tokens:,}",
        "Tokens each": f"{figures.tokens / n:.1f}" if n else "none",
        "Perplexity of what it wrote": f"{figures.perplexity:.2f}" if figures.tokens else "none",
        "Model": figures.model[:12] or "none",
    }
    parts = [Part(class_, title, figures.reasons[name]) for name, (title, class_) in REASONS.items()]
    parts.append(Part("lost", "could not be continued", figures.n_errors))
    overview = whole_bar([part for part in parts if part.n], "How the continuations ended")
    return report_page(
        f"Corpus {legible(corpus)}: what the model wrote",
        summary(figures),
        facts,
        SECTIONS,
        made,
        overview=overview,
        style=CSS,
        footer=FOOTER,
    )


def _completions(figures: GenerationFigures) -> str:
    why = (
        "Prompts in grey, continuations behind them. The darker a token, the less likely the model itself held it, "
        "before temperature and filters; point at one to see by how much."
    )
    if not figures.shown:
        return section("completions", "Completions", why, element("p", "Nothing was continued."))
    body = element("p", _scale(), class_="scale") + "".join(map(_completion, figures.shown))
    n = sum(figures.reasons.values())
    if n > len(figures.shown):
        body += element("p", f"The first {len(figures.shown)} of {n:,}; the others are in the table.", class_="why")
    if figures.key:
        words = f"sheepfold why {figures.key[:_KEY]}/{legible(figures.shown[0].name)}"
        told = "Where one comes from, and what it repeats of the training text:"
        body += element("p", f"{told} {element('code', escape(cut(words, _COMMAND)))}", class_="why")
    return section("completions", "Completions", why, body)


def _scale() -> str:
    """What the shades stand for."""
    words = [
        f"{SHADES[0][0]:.0%} and more",
        *(f"{least:.0%} to {above:.0%}" for (above, _), (least, _) in pairwise(SHADES)),
    ]
    words[-1] = f"less than {SHADES[-2][0]:.0%}"
    return "".join(element("i", escape(text), class_=shade) for text, (_, shade) in zip(words, SHADES, strict=True))


def _completion(item: Shown) -> str:
    title, _ = REASONS.get(item.finish_reason, (item.finish_reason, ""))
    mean = sum(piece.logprob for piece in item.pieces) / max(1, item.n_tokens)
    name = element("b", escape(legible(item.id))) + (f" sample {item.sample}" if item.sample else "")
    head = f"<span>{name}</span><span>{escape(title)}</span><span>{item.n_tokens:,} tokens</span>"
    head += f"<span>{figure(mean)} nats a token</span>"
    asked = f"… {item.prompt}" if item.cut else item.prompt
    text = element("span", _lines(asked), class_="asked", title=_asked_hint(item))
    text += "".join(map(_token, item.pieces)) or element("span", " (nothing)", class_="asked")
    body = element("p", head, class_="head") + element("p", text, class_="text", tabindex="0")
    if item.fields:
        body += element("p", escape(cut(legible(item.fields), _FIELDS)), class_="columns")
    return element("div", body, class_="completion")


def _asked_hint(item: Shown) -> str | None:
    return f"{item.cut:,} characters of the prompt are not shown" if item.cut else None


def _token(piece: Piece) -> str:
    probability = math.exp(min(0.0, piece.logprob))
    shade = next(name for least, name in SHADES if probability >= least)
    hint = f"{probability:.2%}, {piece.logprob:.2f} nats"
    if piece.best:
        others = (f"{legible(text)} {math.exp(min(0.0, value)):.1%}" for text, value in piece.best[:_BEST])
        hint += "; likeliest: " + ", ".join(others)
    return element("i", _lines(piece.text), class_=shade, title=hint)


def _lines(text: str) -> str:
    """A text to be read, with its line feeds as they are."""
    return "\n".join(escape(legible(line)) for line in text.split("\n"))


def _lengths(figures: GenerationFigures) -> str:
    why = "Tokens of each continuation. A bar at the right end is what the limit cut."
    if not figures.lengths:
        return section("lengths", "Lengths", why, element("p", "Nothing was continued."))
    top = max(figures.lengths)
    width = max(1, -(-(top + 1) // _BINS))
    n_bins = -(-(top + 1) // width)
    counts = [0] * n_bins
    for length in figures.lengths:
        counts[length // width] += 1
    middle = sorted(figures.lengths)[len(figures.lengths) // 2]
    edges = [float(place * width) for place in range(n_bins + 1)]
    note = f"from {min(figures.lengths):,} to {counted(top, 'token')}"
    plot = Plot("lengths-tokens", "Tokens", note, edges, [Layer("continuations", "bar", counts)], median=float(middle))
    key = legend({"": "continuations"})
    return section("lengths", "Lengths", why, element("div", histogram_figure(plot), class_="plots") + key)


def _errors(figures: GenerationFigures) -> str:
    why = "Prompts that were refused, each by itself; the others went on."
    if not figures.errors:
        return section("errors", "Not continued", why, element("p", "None: every prompt was continued."))
    rows: list[list[Cell | str | float]] = [
        [Cell(cut(legible(name), _NAME), "name", hint=legible(name)), Cell(cut(legible(error), _ERROR), "wrap")]
        for name, error in figures.errors
    ]
    body = scrolled(table(["prompt", "why"], rows, ""), "Prompts that were refused", tall=len(rows) > 12)
    if figures.n_errors > len(figures.errors):
        body += element("p", f"The first {len(figures.errors)} of {figures.n_errors:,}.", class_="why")
    return section("errors", "Not continued", why, body)


def _settings(figures: GenerationFigures) -> str:
    why = "How tokens were drawn; all are settings generate.NAME."
    rows: list[Sequence[Cell | str | float]] = [
        [name, Cell(legible(json.dumps(value, ensure_ascii=False)), "wrap")]
        for name, value in sorted(figures.settings.items())
    ]
    body = scrolled(table(["setting", "value"], rows, ""), "Settings") if rows else element("p", "None.")
    return section("settings", "Settings", why, body)
