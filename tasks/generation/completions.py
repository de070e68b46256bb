"""Prompts and their completions by a loaded model; light enough for a single prompt, without stages and tables."""

from __future__ import annotations

import difflib
import hashlib
import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.errors import UserError
from tasks.training.bundle import Bundle, TextCompletion

BATCH_SIZES = {"cpu": 32, "cuda": 256}  # completions per batch
ID_COLUMN = "id"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: id of its record, as text.
        prompt: the text, with replacement characters for what is not UTF-8.
        fields: other columns of its record as JSON, including an id that is not text; None if there are none.
        error: reason why no model can complete it; None if valid.
    """

    id: str
    prompt: str
    fields: str | None = None
    error: str | None = None


class PromptsError(UserError):
    """A prompts file that cannot be used."""


class TemplateError(UserError):
    """An invalid template, or one with an unknown column."""


Template = list[tuple[str, str | None]]  # pieces of text, each followed by a column or None


def parse_template(text: str) -> Template:
    """Parse a template: `{column}` is replaced by a column's value, `{{` and `}}` by braces.

    Raises:
        TemplateError: a brace is unmatched, or braces contain more than a name.
    """
    try:
        found = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TemplateError(
            f"the template {_short(text)} has an unmatched brace ({error}); write {{column}} for "
            "a column, and {{ or }} for a brace"
        ) from error
    for _, name, form, conversion in found:
        if name is not None and (not name or form or conversion):
            shown = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
            raise TemplateError(
                f"the template {_short(text)} has {shown}; expected only the name of a column "
                "between braces, and {{ or }} for a brace"
            )
    return [(literal, name) for literal, name, _, _ in found]


def fill_template(template: Template, record: Mapping[str, Any], place: str) -> str:
    """Return the prompt of a record.

    Args:
        place: position of the record, for messages.

    Raises:
        TemplateError: the record lacks a column, or a value in it.
    """
    columns, known = [name for _, name in template if name is not None], list(record)
    for name in columns:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {{{close[0]}}}?" if close else "write {{ and }} for braces of the text"
            listed = ", ".join(map(repr, known)) or "none"
            raise TemplateError(f"{place}: the template names the column {name!r}; columns are {listed}; {hint}")
    for name in columns:
        if record[name] is None:
            raise TemplateError(f"{place}: the column {name!r} of the template has no value here")
    return "".join(text + ("" if name is None else str(record[name])) for text, name in template)


def one_prompt(text: str, template: str = "") -> Prompt:
    """Return the prompt of the command line, where bytes that are not UTF-8 become lone surrogates.

    Raises:
        PromptsError: the prompt is not UTF-8.
        TemplateError: the template is invalid, or has another column than `prompt`.
    """
    if template:
        text = fill_template(parse_template(template), {"prompt": text}, "PROMPT")
    if not text.isascii():
        from tasks.readers.rows import encoding_fault  # imports five modules; ASCII prompts do not need them

        if fault := encoding_fault(text):
            raise PromptsError(f"PROMPT: the prompt {fault}; give UTF-8 text")
    return Prompt("0", text)


def given_id(row: Mapping[str, Any]) -> Any:
    """Return the id of a prompt or completion in its JSON type in the prompts file.

    Args:
        row: has `id` as text, and `fields`, other columns as JSON, including an id that was not text.
    """
    carried = json.loads(row["fields"]) if row["fields"] else {}
    value = carried.get(ID_COLUMN)
    return row[ID_COLUMN] if value is None else value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


def complete_prompts(
    bundle: Bundle,
    digest: str,
    asked: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    batch_size: int,
    progress: Progress | None = None,
    on_text: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of the completions of prompts.

    Args:
        digest: digest of the model.
        asked: fields of each `Prompt`.
        settings: see `Bundle.sampling_config`.
        on_text: called with each piece of text if there is a single prompt and sample.

    Raises:
        ValueError: the settings are invalid for the model.
    """
    model_faults = bundle.prompt_faults([row["prompt"] for row in asked if row["error"] is None], **settings)
    remaining = (f"the prompt {fault}" if fault else "" for fault in model_faults)
    faults = [row["error"] or next(remaining) for row in asked]
    good = [row for row, fault in zip(asked, faults, strict=True) if not fault]
    found: Sequence[TextCompletion] = ()
    if on_text is not None and len(good) == 1 and settings["n_samples"] == 1:
        for piece in bundle.stream(good[0]["prompt"], key=noise_key(good[0]["id"]), **settings):
            if isinstance(piece, str):
                on_text(piece)
            else:
                found = [piece]
    else:
        texts, keys = [row["prompt"] for row in good], [noise_key(row["id"]) for row in good]
        found = bundle.complete(texts, keys=keys, batch_size=batch_size, on_step=progress, **settings)
    completions = iter(found)
    rows = []
    for row, fault in zip(asked, faults, strict=True):
        failed = [TextCompletion("", "error", 0, [])]
        made = failed if fault else [next(completions) for _ in range(settings["n_samples"])]
        rows += [
            {
                "id": row["id"],
                "prompt": row["prompt"],
                "fields": row["fields"],
                "sample": item.sample,
                "text": item.text,
                "finish_reason": item.finish_reason,
                "n_tokens": item.n_tokens,
                "logprobs": item.logprobs,
                "ids": item.ids,
                "top_ids": [[token for token, _ in best] for best in item.top_logprobs],
                "top_logprobs": [[value for _, value in best] for best in item.top_logprobs],
                "error": fault or None,
                "model": digest,
                "settings": json.dumps(settings, sort_keys=True),
                "seed": settings["seed"],
            }
            for item in made
        ]
    return rows


def noise_key(name: str) -> int:
    """Return the seed of the random numbers of the prompt with this id."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
