"""The figures of a generation and its first completions, for the page, and the figures alone for Prefect's UI.

In go an artefact of the stage `generate` and the tokeniser of its model, out come counts over all completions and, for
the first of them, every token's text beside its log-probability.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE
from storage.store import Store
from storage.tables import stream_columns, stream_rows
from tasks.report.markdown import plain
from tasks.report.wording import counted
from tasks.tokens.tokenizers import TOKENIZER_FILE, Tokenizer, load_tokenizer

SHOWN = 40  # completions
ERRORS_SHOWN = 40
ERRORS_TOLD = 8
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


@dataclass(frozen=True)
class Shown:
    """A completion that is shown."""

    id: str
    sample: int
    prompt: str
    cut: int  # characters of the prompt that are left out before it
    pieces: tuple[Piece, ...]
    finish_reason: str
    n_tokens: int
    fields: str | None

    @property
    def name(self) -> str:
        """What it is called within its generation."""
        return f"{self.id}#{self.sample}" if self.sample else self.id


@dataclass
class GenerationFigures:
    """What a generation gave.

    Attributes:
        prompts: that were asked.
        reasons: continuations by their finish reason; errors are none of them.
        lengths: tokens of each continuation.
        logprob: sum over all tokens, in nats.
        errors: ids and sentences of the first prompts that could not be continued.
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
    shown: list[Shown] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    key: str = ""

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


def collect_generation(store: Store, made: ArtifactRef) -> GenerationFigures:
    """The figures of an artefact of the stage `generate`."""
    path = store.folder(made) / COMPLETIONS_FILE
    figures, seen = GenerationFigures(key=made.key), set()
    for columns in stream_columns(path, ["id", "finish_reason", "n_tokens", "logprobs", "error"]):
        seen.update(columns["id"])
        for place, error in enumerate(columns["error"]):
            if error is not None:
                figures.n_errors += 1
                if len(figures.errors) < ERRORS_SHOWN:
                    figures.errors.append((columns["id"][place], error))
                continue
            figures.reasons[columns["finish_reason"][place]] += 1
            figures.lengths.append(columns["n_tokens"][place])
            figures.logprob += sum(columns["logprobs"][place])
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


def _shown(row: dict[str, Any], tokenizer: Tokenizer | None) -> Shown:
    prompt = row["prompt"][-_PROMPT_CHARS:]
    if tokenizer is None:
        pieces = [Piece(row["text"], sum(row["logprobs"]))]
    else:
        best = [list(zip(*pair, strict=True)) for pair in zip(row["top_ids"], row["top_logprobs"], strict=True)]
        pieces = text_pieces(tokenizer, prompt, row["ids"], row["logprobs"], best, len(row["text"]))
    return Shown(
        row["id"],
        row["sample"],
        prompt,
        len(row["prompt"]) - len(prompt),
        tuple(pieces),
        row["finish_reason"],
        row["n_tokens"],
        row["fields"],
    )


def text_pieces(
    tokenizer: Tokenizer,
    prompt: str,
    ids: Sequence[int],
    logprobs: Sequence[float],
    best: Sequence[Sequence[tuple[int, float]]] = (),
    length: int | None = None,
) -> list[Piece]:
    """A continuation token by token; tokens that share a character are one piece.

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


def generation_summary(figures: GenerationFigures) -> str:
    """What came of all prompts, in Markdown for the run's own page; without their words, which may be of documents."""
    lines = [summary(figures), "", "| ended by | continuations |", "|---|---:|"]
    lines += [f"| {reason} | {n:,} |" for reason, n in sorted(figures.reasons.items())]
    lines += ["", *(f"- {plain(name, 40)}: {plain(error)}" for name, error in figures.errors[:ERRORS_TOLD])]
    return "\n".join(lines).rstrip() + "\n"


def summary(figures: GenerationFigures) -> str:
    """What came out, in a sentence."""
    n = sum(figures.reasons.values())
    words = f"{counted(figures.prompts, 'prompt')} got {counted(n, 'continuation')} of {figures.tokens:,} tokens"
    if figures.n_errors:
        words += f"; {counted(figures.n_errors, 'prompt')} could not be continued"
    return words + "."
