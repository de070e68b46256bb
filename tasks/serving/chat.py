"""Chats: requests and answers in OpenAI's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.chat.template import ChatError, Template
from tasks.serving.completions import PART, Asked, Refusal, Sampling


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

    def completion(self, template: Template, context: int) -> Asked:
        """Return the request for completions of the rendered chat.

        Args:
            context: most tokens of chat and answer.

        Raises:
            Refusal: it cannot be rendered, or leaves no room in the context.
        """
        try:
            ids = template.prompt([message.for_template() for message in self.messages])
        except ChatError as error:
            raise Refusal(400, str(error), "messages", "invalid_value") from error
        limit = self.max_completion_tokens or self.max_tokens or max(1, context - len(ids))
        if len(ids) + limit > context:
            message = f"the chat has {len(ids)} tokens, {len(ids) + limit} with the answer; the context holds {context}"
            raise Refusal(400, f"{message}: shorten one of them", "messages", "context_length_exceeded")
        fields = {name: getattr(self, name) for name in Sampling.model_fields}
        n_top = self.top_logprobs if self.logprobs else None
        return Asked(**fields, prompt=[ids], max_tokens=limit, logprobs=n_top)


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
