"""A chat with a model at the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from storage.errors import UserError
from tasks.chat.template import ChatError, Template, read_template
from tasks.training.bundle import Bundle, TextCompletion

ANEW, END = "/new", "/bye"
LONGEST = 512  # tokens of an answer


def form_of(bundle: Bundle, name: str) -> Template:
    """Return the form of chats with a model.

    Args:
        name: of the model, for messages.

    Raises:
        UserError: it has none.
    """
    template = read_template(bundle.folder, bundle.tokenizer)
    if template is None:
        raise UserError(
            f"{name} continues texts and does not chat: it has no template. `sheepfold run SOURCE --set "
            "chat.pairs=all` trains one on the conversations in documents; `sheepfold generate` continues a text"
        )
    return template


def talk(
    bundle: Bundle,
    template: Template,
    lines: Iterable[str],
    show: Callable[[str], None],
    system: str = "",
    **sampling: Any,
) -> list[dict[str, str]]:
    """Answer lines until they end; returns the messages of the last chat.

    Earlier turns are left out where the context has no room for them. A line that does not fit is told, and may be
    said otherwise.

    Args:
        lines: what the user says; `/new` begins another chat, `/bye` ends.
        show: called with each piece of an answer, and with a line end behind it.
        system: message that opens every chat.
        sampling: see `Bundle.sampling_config`.
    """
    opening = [{"role": "system", "content": system}] if system else []
    said: list[dict[str, str]] = list(opening)
    context, longest = bundle.model_config.max_seq_len, sampling.pop("max_new_tokens", LONGEST)
    reserved, number = min(longest, context // 4), 0
    for line in lines:
        text = line.strip()
        if text == END:
            break
        if text == ANEW:
            said = list(opening)
        if not text or text == ANEW:
            continue
        asked = [*said, {"role": "user", "content": text}]
        try:
            ids = template.prompt(asked)
            while len(ids) > context - reserved and len(asked) > len(opening) + 2:
                asked = [*opening, *asked[len(opening) + 2 :]]  # without its first question and answer
                ids = template.prompt(asked)
        except ChatError as error:
            show(f"({error})\n")
            continue
        if len(ids) >= context:
            show(f"(that has {len(ids)} tokens, and the context holds {context}: say it in fewer words)\n")
            continue
        answer = ""
        room = min(longest, context - len(ids))
        for piece in bundle.stream(ids, key=number, **{**sampling, "max_new_tokens": room}):
            if not isinstance(piece, TextCompletion):
                show(piece)
                answer += piece
        show("\n")
        said = [*asked, {"role": "assistant", "content": answer.strip()}]
        number += 1
    return said
