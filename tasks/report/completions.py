"""The page of a generation: prompts and completions, each token shaded by its probability."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from model.metrics import NllSum
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS_FILE
from storage.store import Store
from storage.tables import stream_columns, stream_rows
from tasks.report.page import Outcome, Page, draw_page
from tasks.report.queries import Row
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer

SHADES = (0.5, 0.2, 0.05, 0.01, 0.0)  # least probability of each shade
SHOWN = 40  # most completions shown
ERRORS_SHOWN = 40
_PROMPT_CHARS = 2_000  # last characters shown of a prompt
_CONTEXT = 8  # preceding tokens that a token is decoded with


class Piece(NamedTuple):
    """Text of one token, or of several that share a character.

    Attributes:
        logprob: sum over its tokens, in nats.
        best: most likely tokens in place of the first one, with log-probabilities; may be empty.
    """

    text: str
    logprob: float
    best: tuple[tuple[str, float], ...] = ()

    @property
    def shade(self) -> int:
        """Index in `SHADES`."""
        return next(place for place, least in enumerate(SHADES) if _probability(self.logprob) >= least)

    @property
    def hint(self) -> str:
        """Tooltip: probability, log-probability and the most likely alternatives."""
        words = f"{_probability(self.logprob):.2%}, {self.logprob:.2f} nats"
        others = ", ".join(f"{text} {_probability(value):.1%}" for text, value in self.best[:5])
        return f"{words}; most likely: {others}" if others else words


def _probability(logprob: float) -> float:
    return math.exp(min(0.0, logprob))


# reading


def collect_generation(store: Store, made: ArtifactRef) -> Row:
    """Read the figures of an artefact of the stage `generate`.

    Returns:
        `prompts`, their number; `endings`, number of completions by finish reason; `tokens` of all of them, and
        `logprob`, their sum in nats; `n_errors`, and the first `errors` (id, message); `shown`, the first completions
        (`id`, `sample`, `prompt`, `cut` characters before it, `pieces`, `finish_reason`, `n_tokens`, and other columns
        of the prompt's row as `fields`); `settings`; `model`, the digest of its checkpoint; `key`.
    """
    path = store.folder(made) / COMPLETIONS_FILE
    found = Row(endings=Counter(), tokens=0, logprob=0.0, n_errors=0, errors=[], shown=[], settings={}, model="")
    seen = set()
    for columns in stream_columns(path, ["id", "finish_reason", "n_tokens", "logprobs", "error"]):
        seen.update(columns["id"])
        for name, reason, length, logprobs, error in zip(*columns.values(), strict=True):
            if error is None:
                found.endings[reason] += 1
                found.tokens += length
                found.logprob += sum(logprobs)
            else:
                found.n_errors += 1
                found.errors += [(name, error)] if found.n_errors <= ERRORS_SHOWN else []
    found.prompts, found.key = len(seen), made.key
    tokenizer = _tokenizer(store, made)
    for row in islice((row for row in stream_rows(path) if row["error"] is None), SHOWN):
        found.shown.append(_shown(row, tokenizer))
        found.settings, found.model = json.loads(row["settings"]), row["model"]
    return found


def _tokenizer(store: Store, made: ArtifactRef) -> Tokenizer | None:
    """Return the tokeniser of the model; None if it is not in the store."""
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
    """Split a completion into tokens; tokens that share a character are one piece.

    Args:
        best: most likely tokens at each position, with log-probabilities; may be empty.
        length: characters of the completion if a stop string was cut off.
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


# page and summary


def write(outcome: Outcome) -> Page | None:
    """Write the page of a run's generation; returns None without one."""
    run, made = outcome.run, outcome.made("generate")
    if made is None:
        return None

    def draw() -> list[str]:
        return generation_page(collect_generation(run.store, made), run.corpus)

    drawn_from = [made.key, manifest_of(run.store, made).created]
    return outcome.draw_once("generation", f"Completions by the model of {run.corpus}", drawn_from, draw)


def generation_page(found: Row, corpus: str) -> list[str]:
    """Return the page and its Markdown summary from the result of `collect_generation`."""
    settings = {name: json.dumps(value, ensure_ascii=False) for name, value in sorted(found.settings.items())}
    return draw_page(
        "completions.html",
        title=f"Corpus {corpus}: completions",
        shades=SHADES,
        perplexity=NllSum(-found.logprob, found.tokens).perplexity,
        **vars(found) | {"settings": settings},
    )
