"""The page of a generation: what was asked and what was written, each token shaded by how sure the model was of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE
from storage.store import Store
from storage.tables import stream_columns, stream_rows
from tasks.report.charts import BarPlot, Layer, bar_figure
from tasks.report.page import draw_page
from tasks.report.queries import Row
from tasks.report.wording import counted
from tasks.report.written import Outcome, Page
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer

# what finish reasons are called, and the tone of each
REASONS = {
    "stop": ("ended by itself or by a stop string", "tone-green"),
    "length": ("cut at the limit", "tone-ink"),
    "context": ("cut where the context was full", "tone-gold"),
    "exhausted": ("every token was forbidden", "tone-violet"),
}
SHADES = (0.5, 0.2, 0.05, 0.01, 0.0)  # a token at least so likely has the shade of this place
SHOWN = 40  # completions
ERRORS_SHOWN = 40
_BINS = 24
_PROMPT_CHARS = 2_000  # of a prompt that are kept: its end, which is what is continued
_CONTEXT = 8  # tokens before one whose text is asked for


class Piece(NamedTuple):
    """Text of one token, or of several that share a character.

    Attributes:
        logprob: sum over its tokens, in nats.
        best: the likeliest tokens in the place of the first, with their log-probabilities, if they are known.
    """

    text: str
    logprob: float
    best: tuple[tuple[str, float], ...] = ()

    @property
    def shade(self) -> int:
        """The place in `SHADES`."""
        return next(place for place, least in enumerate(SHADES) if _probability(self.logprob) >= least)

    @property
    def hint(self) -> str:
        """Its probability, and the likeliest tokens in its place."""
        words = f"{_probability(self.logprob):.2%}, {self.logprob:.2f} nats"
        others = ", ".join(f"{text} {_probability(value):.1%}" for text, value in self.best[:5])
        return f"{words}; likeliest: {others}" if others else words


def _probability(logprob: float) -> float:
    return math.exp(min(0.0, logprob))


@dataclass
class GenerationFigures:
    """Figures of a batch generation.

    Attributes:
        prompts: that were asked.
        reasons: continuations by their finish reason; errors are none of them.
        lengths: tokens of each continuation.
        logprob: sum over all tokens, in nats.
        errors: ids and sentences of the first prompts that could not be continued.
        shown: the first completions: `id` and `sample`, `prompt`, `cut` (characters left out before it), `pieces`,
            `finish_reason`, `n_tokens`, and `fields` (other columns of the prompt's row, as JSON).
        settings: how tokens were drawn.
        model: digest of its checkpoint.
        key: of the artefact.
    """

    prompts: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    logprob: float = 0.0
    n_errors: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    shown: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    key: str = ""

    @property
    def continuations(self) -> int:
        return sum(self.reasons.values())

    @property
    def tokens(self) -> int:
        """Tokens of all continuations."""
        return sum(self.lengths)

    @property
    def perplexity(self) -> float:
        """The model's, of what it wrote itself; infinite where it was sure of the contrary, NaN of nothing."""
        if not self.tokens:
            return math.nan
        mean = -self.logprob / self.tokens
        return math.exp(mean) if mean < 700 else math.inf


# ---- reading


def collect_generation(store: Store, made: ArtifactRef) -> GenerationFigures:
    """Read the figures of an artefact of the stage `generate`."""
    path = store.folder(made) / COMPLETIONS_FILE
    figures, seen = GenerationFigures(key=made.key), set()
    for columns in stream_columns(path, ["id", "finish_reason", "n_tokens", "logprobs", "error"]):
        seen.update(columns["id"])
        for name, reason, length, logprobs, error in zip(*columns.values(), strict=True):
            if error is None:
                figures.reasons[reason] += 1
                figures.lengths.append(length)
                figures.logprob += sum(logprobs)
            else:
                figures.n_errors += 1
                figures.errors += [(name, error)] if figures.n_errors <= ERRORS_SHOWN else []
    figures.prompts = len(seen)
    tokenizer = _tokenizer(store, made)
    for row in islice((row for row in stream_rows(path) if row["error"] is None), SHOWN):
        figures.shown.append(_shown(row, tokenizer))
        figures.settings, figures.model = json.loads(row["settings"]), row["model"]
    return figures


def _tokenizer(store: Store, made: ArtifactRef) -> Tokenizer | None:
    """The tokeniser of the model behind a generation."""
    for name in ("parts", "checkpoint"):
        manifest = store.find(made.stage, made.key)
        if manifest is None or not manifest.inputs.get(name, {}).get("refs"):
            return None
        made = manifest.input_refs(name)[0]
    return load_tokenizer(store.folder(made) / TOKENIZER_FILE)


def _shown(row: dict[str, Any], tokenizer: Tokenizer | None) -> Row:
    prompt = row["prompt"][-_PROMPT_CHARS:]
    if tokenizer is None:
        pieces = [Piece(row["text"], sum(row["logprobs"]))]
    else:
        best = [list(zip(*pair, strict=True)) for pair in zip(row["top_ids"], row["top_logprobs"], strict=True)]
        pieces = text_pieces(tokenizer, prompt, row["ids"], row["logprobs"], best, len(row["text"]))
    kept = {name: row[name] for name in ("id", "sample", "finish_reason", "n_tokens", "fields")}
    return Row(**kept, prompt=prompt, cut=len(row["prompt"]) - len(prompt), pieces=pieces)


def text_pieces(
    tokenizer: Tokenizer,
    prompt: str,
    ids: Sequence[int],
    logprobs: Sequence[float],
    best: Sequence[Sequence[tuple[int, float]]] = (),
    length: int | None = None,
) -> list[Piece]:
    """Return a continuation token by token; tokens that share a character are one piece.

    Args:
        best: for each token the likeliest ones with their log-probabilities; may be empty.
        length: characters of the continuation, where a stop string was cut off.
    """
    context = tokenizer.encode([prompt])[0].tolist()[-_CONTEXT:]
    pieces: list[Piece] = []
    first, total = 0, 0
    for end in range(1, len(ids) + 1):
        before = [*context, *ids[:first]][-_CONTEXT:]
        text = tokenizer.decode_continuation(before, ids[first:end])
        if text.endswith("\ufffd") and end < len(ids):
            continue
        if length is not None:
            text = text[: length - total]
            if not text and end < len(ids):
                break
        total += len(text)
        likeliest = best[first] if first < len(best) else ()
        named = tuple((tokenizer.decode([token]), value) for token, value in likeliest)
        pieces.append(Piece(text, sum(logprobs[first:end]), named))
        first = end
    return pieces


# ---- the page and its summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's generation."""
    run, made = outcome.run, outcome.made("generate")
    if made is None:
        return None

    def draw() -> list[str]:
        return generation_page(collect_generation(run.store, made), run.corpus)

    drawn_from = [made.key, manifest_of(run.store, made).created]
    return outcome.draw_once("generation", f"Completions by the model of {run.corpus}", drawn_from, draw)


def generation_page(figures: GenerationFigures, corpus: str) -> list[str]:
    """Return the page, and its summary in Markdown.

    Args:
        corpus: its name.
    """
    return draw_page(
        "completions.html",
        title=f"Corpus {corpus}: what the model wrote",
        figures=figures,
        reasons=REASONS,
        shades=SHADES,
        lengths=_lengths(figures.lengths) if figures.lengths else None,
        settings={name: json.dumps(value, ensure_ascii=False) for name, value in sorted(figures.settings.items())},
    )


def _lengths(lengths: Sequence[int]) -> str:
    top = max(lengths)
    width = max(1, math.ceil((top + 1) / _BINS))
    edges = list(range(0, top + 1 + width, width))
    layer = Layer("continuations", "tone-ink", np.histogram(lengths, edges)[0].tolist())
    note = f"from {min(lengths):,} to {counted(top, 'token')}"
    middle = float(sorted(lengths)[len(lengths) // 2])
    return bar_figure(BarPlot("lengths-tokens", "Tokens", note, edges, [layer], median=middle, over="tokens"))
