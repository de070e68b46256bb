"""Prompts and their completions by a loaded model, without stages and tables, which a single prompt does not need."""

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

BATCH_SIZES = {"cpu": 32, "cuda": 256}  # continuations that grow at once
ID_COLUMN = "id"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: how the caller knows it, as text.
        prompt: the text; where that is no UTF-8, with signs of replacement.
        fields: the other columns of its record as JSON, with an id that is not text; None where there are none.
        error: why it cannot be continued by any model; None if it can.
    """

    id: str
    prompt: str
    fields: str | None = None
    error: str | None = None


class PromptsError(UserError):
    """A prompts file that cannot be used."""


class TemplateError(UserError):
    """A template that cannot be used, or that asks for a column that is not there."""


Template = list[tuple[str, str | None]]  # pieces of text and the column behind each; None where none is


def parse_template(text: str) -> Template:
    """Return a template; `{column}` stands for a column's value, `{{` and `}}` for braces.

    Raises:
        TemplateError: for a brace that opens or closes nothing, and for more than a name between braces.
    """
    try:
        found = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TemplateError(
            f"the template {_short(text)} has a brace that opens or closes nothing ({error}); write {{column}} for "
            "a column, and {{ or }} for a brace"
        ) from error
    for _, name, form, conversion in found:
        if name is not None and (not name or form or conversion):
            shown = f"{{{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
            raise TemplateError(
                f"the template {_short(text)} holds {shown}; expected the name of a column and nothing else "
                "between braces, and {{ or }} for a brace"
            )
    return [(literal, name) for literal, name, _, _ in found]


def fill_template(template: Template, record: Mapping[str, Any], place: str) -> str:
    """Return the prompt of a record.

    Args:
        place: names the record for people.

    Raises:
        TemplateError: if the record lacks a column, or has no value in one.
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
    """Return the prompt of a command line, whose bytes that are not UTF-8 arrive as lone surrogates.

    Raises:
        PromptsError: if it is not UTF-8.
        TemplateError: if the template is none, or names another column than `prompt`.
    """
    if template:
        text = fill_template(parse_template(template), {"prompt": text}, "PROMPT")
    if not text.isascii():
        from tasks.readers.rows import encoding_fault  # loads five modules, which few single prompts need

        if fault := encoding_fault(text):
            raise PromptsError(f"PROMPT: the prompt {fault}; give UTF-8 text")
    return Prompt("0", text)


def given_id(row: Mapping[str, Any]) -> Any:
    """Return the id of a prompt or completion in the JSON type in which the prompts file has it.

    Args:
        row: with `id`, which is text, and `fields`, the other columns as JSON, among them an id that was not text.
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
        digest: Digest of the model.
        asked: Fields of `Prompt`.
        settings: As for `Bundle.sampling_config`.
        on_text: Called with each piece of a single continuation as it grows.

    Raises:
        ValueError: if the settings do not go with the model.
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
    """Return the number that names the noise of the prompt with this id."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
