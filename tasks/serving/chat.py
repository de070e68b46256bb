"""Chats: requests and answers in OpenAI's form, and prompts by the template of a model.

A chat is rendered by the Jinja template that came with the model, as `transformers` renders it. The template is
trusted; messages are not: one whose content spells a special token is refused, or it could end itself and speak for
another.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.serving.completions import PART, Asked, Refusal, Sampling
from tasks.tokens.hf_spec import library_tokenizer
from tasks.tokens.tokenizer_kinds import HfTokenizer
from tasks.training.bundle import Bundle


class Part(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(min_length=1)
    content: str | list[Part]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _even(cls, given: Any) -> Any:
        """Leave out what an answer has empty when it is sent back, such as `tool_calls`."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value not in (None, [])}

    def for_template(self) -> dict[str, str]:
        """Return the message as templates expect it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text, **({"name": self.name} if self.name else {})}


class ResponseFormat(BaseModel):
    """The form of an answer."""

    type: Literal["text"]


class AskedChat(Sampling):
    """The body of a request for chat completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    # these ask for nothing here, and chat programs send them
    tools: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] = "none"
    parallel_tool_calls: bool = False
    response_format: ResponseFormat | None = None
    metadata: dict[str, Any] | None = None
    store: bool = False

    def completion(self, template: Template) -> Asked:
        """Return the request for completions of the rendered chat.

        Raises:
            Refusal: it cannot be rendered, or leaves no room in the context.
        """
        ids = template.ids([message.for_template() for message in self.messages])
        context = template.bundle.model_config.max_seq_len
        limit = self.max_completion_tokens or self.max_tokens or max(1, context - len(ids))
        if len(ids) + limit > context:
            message = f"the chat has {len(ids)} tokens, {len(ids) + limit} with the answer; the context holds {context}"
            raise Refusal(400, f"{message}: shorten one of them", "messages", "context_length_exceeded")
        fields = {name: getattr(self, name) for name in Sampling.model_fields}
        n_top = self.top_logprobs if self.logprobs else None
        return Asked(**fields, prompt=[ids], max_tokens=limit, logprobs=n_top)


class _Generation(Extension):
    """The block `generation`, by which `transformers` finds the answers of a chat."""

    tags = {"generation"}  # noqa: RUF012 — as the library declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


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
        special = sorted(filter(None, (spelled.get(index) for index in tokenizer.special_ids)), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._engine = library_tokenizer(tokenizer.spec)
        self._engine.encode_special_tokens = False
        self._engine.add_special_tokens(special)
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
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
            if found := self._special.search(message["content"]):
                told = f"message {number} spells the special token {found[0]!r}, which would end it; leave that out"
                raise Refusal(400, told, "messages", "invalid_value")
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None)
        except Exception as error:  # a template raises anything, and the client is told
            told = f"the chat does not fit the model's template: {error}"
            raise Refusal(400, told, "messages", "invalid_value") from error
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        if not ids:
            raise Refusal(400, "the model's template makes nothing of the chat", "messages", "invalid_value")
        return ids


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


@dataclass(frozen=True)
class ChatForm:
    """Answers of `/v1/chat/completions`.

    Attributes:
        n_top: likeliest tokens to tell in each place.
    """

    n_top: int
    prefix = "chatcmpl-"
    name = "chat.completion"
    event_name = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of the event that opens a stream."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        """Return a choice of an answer."""
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": self._content(logprobs), "finish_reason": reason}

    def event(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        """Return a choice of an event."""
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": self._content(logprobs), "finish_reason": reason}

    def _content(self, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None

        def entry(token: str, value: float | None) -> dict[str, Any]:
            whole = not token.startswith(PART)
            return {"token": token, "logprob": value, "bytes": list(token.encode()) if whole else None}

        def told(token: str, value: float | None, top: dict[str, float] | None) -> dict[str, Any]:
            best = list((top or {}).items())[: self.n_top]
            return {**entry(token, value), "top_logprobs": [entry(*pair) for pair in best]}

        parts = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        return {"content": [told(*part) for part in parts]}
