"""Chats: requests and answers in OpenAI's form, and prompts by the template of a model.

A chat is rendered by the Jinja template that came with the model, as `transformers` renders it. What spells a special
token in the template becomes that token; in a message it is refused, so that no message can end itself.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

from tasks.serving.completions import Asked, Refusal, Sampling
from tasks.tokens.tokenizer_kinds import HfTokenizer
from tasks.training.bundle import Bundle


class Part(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(pattern="^text$")
    text: str


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(min_length=1)
    content: str | list[Part]

    @property
    def text(self) -> str:
        """The content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class AskedChat(Sampling):
    """The body of a request for chat completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    def completion(self, template: Template) -> Asked:
        """Return the request for completions of the rendered chat.

        Raises:
            Refusal: it cannot be rendered, or leaves no room in the context.
        """
        ids = template.ids([{"role": message.role, "content": message.text} for message in self.messages])
        context = template.bundle.model_config.max_seq_len
        limit = self.max_completion_tokens or self.max_tokens or max(1, context - len(ids))
        if len(ids) + limit > context:
            message = f"the chat has {len(ids)} tokens, {len(ids) + limit} with the answer; the context holds {context}"
            raise Refusal(400, f"{message}: shorten one of them", "messages", "context_length_exceeded")
        fields = {name: getattr(self, name) for name in Sampling.model_fields}
        n_top = self.top_logprobs if self.logprobs else None
        return Asked(**fields, prompt=[ids], max_tokens=limit, logprobs=n_top)


class Template:
    """The template of a model.

    Args:
        text: in Jinja.

    Raises:
        ValueError: it is no template.
    """

    def __init__(self, text: str, bundle: Bundle) -> None:
        self.bundle, tokenizer = bundle, bundle.tokenizer
        if not isinstance(tokenizer, HfTokenizer):
            raise ValueError(f"a chat template, but a tokeniser of kind {tokenizer.kind!r}; expected an imported one")
        spelled = {index: token for token, index in tokenizer.vocabulary().items()}
        self._special = {spelled[index]: index for index in tokenizer.special_ids if index in spelled}
        self._cut = re.compile("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))) or r"(?!)")
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals |= {name: "" if index is None else spelled[index] for name, index in ids.items()}
        environment.globals |= {"raise_exception": _refuse, "strftime_now": time.strftime}
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from error

    def ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a chat, with the beginning of the answer.

        Raises:
            Refusal: the template refuses the chat, or a message spells a special token.
        """
        for number, message in enumerate(messages):
            if found := self._cut.search(f"{message['role']}\n{message['content']}"):
                told = f"message {number} spells the special token {found[0]!r}, which would end it; leave that out"
                raise Refusal(400, told, "messages", "invalid_value")
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None)
        except (TemplateError, TypeError) as error:
            told = f"the chat does not fit the model's template: {error}"
            raise Refusal(400, told, "messages", "invalid_value") from error
        ids: list[int] = []
        place = 0
        for found in (*self._cut.finditer(text), None):
            piece = text[place : found.start() if found else None]
            ids += map(int, self.bundle.tokenizer.encode([piece])[0])
            if found:
                ids.append(self._special[found[0]])
                place = found.end()
        return ids


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


class ChatForm:
    """Answers of `/v1/chat/completions`."""

    prefix, name, event_name = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def opening(index: int) -> dict[str, Any] | None:
        """Return the choice of the event that opens a stream."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    @staticmethod
    def choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        """Return a choice of an answer."""
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": _content(logprobs), "finish_reason": reason}

    @staticmethod
    def event(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        """Return a choice of an event."""
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": _content(logprobs), "finish_reason": reason}


def _content(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None

    def entry(token: str, value: float | None) -> dict[str, Any]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    parts = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return {
        "content": [
            {**entry(token, value), "top_logprobs": [entry(*pair) for pair in (top or {}).items()]}
            for token, value, top in parts
        ]
    }
