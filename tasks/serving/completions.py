"""Requests in the form of OpenAI's completions.

Sampling settings that a request leaves out are those recorded with the model. `top_k`, `min_p`, `typical_p`,
`repetition_penalty` and `sources` are additions to that form.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model.config import GenerationConfig
from tasks.training.bundle import Bundle

MOST_PROMPTS, MOST_CHOICES, MOST_STOPS, LONGEST_STOP = 128, 128, 16, 500
PART = "token_id:"  # begins the spelling of a token that is no whole text
_BEFORE = 8  # tokens that may change the spelling of the next
_FINISH = {"stop": "stop", "exhausted": "stop"}  # all others are "length"

Ids = list[Annotated[int, Field(strict=True, ge=0)]]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class Refusal(Exception):
    """A request that is not answered.

    Attributes:
        status: HTTP status.
        param: field of the request at fault, if it is one.
        code: the reason for programs.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def document(self) -> dict[str, Any]:
        """Return the error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class Sampling(BaseModel):
    """Fields of every request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, ge=0, le=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: list[Stop] = Field([], max_length=MOST_STOPS)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    user: str | None = None
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    sources: bool = False

    @model_validator(mode="before")
    @classmethod
    def _even(cls, given: Any) -> Any:
        """Leave out what is null, and make one stop string a list."""
        if not isinstance(given, dict):
            return given
        kept = {name: value for name, value in given.items() if value is not None}
        return {**kept, "stop": [kept["stop"]]} if isinstance(kept.get("stop"), str) else kept

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return the request in a body.

        Raises:
            Refusal: it is none; the first fault is told.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0]) if first["loc"] else None
            if name is None:
                raise Refusal(400, f"the body is no JSON object: {first['msg']}", code="invalid_json") from None
            if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
                known = ", ".join(cls.model_fields)
                raise Refusal(400, f"{name} is unknown; known are {known}", name, "unknown_parameter") from None
            place = ".".join(map(str, first["loc"]))
            raise Refusal(400, f"{place}: {first['msg']}", name, "invalid_value") from None


class Asked(Sampling):
    """The body of a request for completions."""

    prompt: str | list[str] | Ids | list[Ids]
    max_tokens: int = Field(16, ge=0)
    best_of: int | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    suffix: str | None = None

    @classmethod
    def read(cls, body: bytes) -> Self:
        asked = super().read(body)
        for name, is_wrong in (("suffix", asked.suffix), ("best_of", asked.best_of not in (None, asked.n))):
            if is_wrong:
                hint = "these models only continue a text" if name == "suffix" else "it must be n; leave it out"
                raise Refusal(400, f"{name} is not supported: {hint}", name, "unsupported_parameter")
        if asked.logprobs is not None and asked.stream and asked.echo:
            raise Refusal(400, "logprobs with echo are not streamed; leave out stream", "stream", "invalid_value")
        return asked

    @property
    def has_ids(self) -> bool:
        """True if prompts are given as ids."""
        return not isinstance(self.prompt, str) and not isinstance(self.prompt[0], str)

    def prompts(self, bundle: Bundle) -> list[list[int]]:
        """Return the ids of each prompt.

        Raises:
            Refusal: a prompt is empty, has unknown ids, or has too little room in the context.
        """
        parts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        texts = [part for part in parts if isinstance(part, str)]
        lists = [part for part in parts if isinstance(part, list)]
        ids = [part for part in parts if isinstance(part, int)]
        encoded = bundle.encode(texts) if texts else lists or [ids]
        if len(encoded) > MOST_PROMPTS:
            raise Refusal(400, f"{len(encoded)} prompts, expected up to {MOST_PROMPTS}", "prompt", "invalid_value")
        context, vocabulary = bundle.model_config.max_seq_len, bundle.tokenizer.vocab_size
        for number, ids in enumerate(encoded):
            if not ids:
                raise Refusal(400, f"prompt {number} is empty; begin it with a text", "prompt", "invalid_value")
            if max(ids) >= vocabulary:
                message = f"prompt {number} has the token {max(ids)}; the model's are 0 to {vocabulary - 1}"
                raise Refusal(400, message, "prompt", "invalid_value")
            if len(ids) + self.max_tokens > context:
                message = (
                    f"prompt {number} has {len(ids)} tokens, {len(ids) + self.max_tokens} with "
                    f"max_tokens={self.max_tokens}, and the model's context holds {context}; shorten one of them"
                )
                raise Refusal(400, message, "prompt", "context_length_exceeded")
        return encoded

    def settings(self, bundle: Bundle, defaults: Mapping[str, Any], deterministic: bool) -> GenerationConfig:
        """Return the sampling settings for a model.

        Args:
            defaults: what the request may leave out.
            deterministic: give equal requests equal texts, also without a seed.

        Raises:
            Refusal: it cannot have them.
        """
        same = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p", "typical_p")
        given = {name: getattr(self, name) for name in (*same, "repetition_penalty")}
        bias = self._bias(bundle)
        if defaults.get("strategy") == "greedy" and self.temperature is None:
            given["temperature"] = 0.0
        usual = secrets.randbelow(2**63) if not deterministic else defaults.get("seed")
        given |= {
            "max_new_tokens": max(1, self.max_tokens),
            "max_length": 0,
            "strategy": "sample",
            "min_new_tokens": 1 if self.echo and self.logprobs is not None else None,  # harnesses count on a token
            "seed": usual if self.seed is None else self.seed % 2**63,
            "stop": self.stop or None,
            "logit_bias": bias,
            "top_logprobs": self.logprobs or None,
            "deterministic": deterministic or None,
        }
        try:
            found: GenerationConfig = bundle.sampling_config(
                **{**defaults, **{name: value for name, value in given.items() if value is not None}}
            )
        except ValueError as error:
            raise Refusal(400, str(error), code="invalid_value") from error
        return found

    def _bias(self, bundle: Bundle) -> list[tuple[int, float]] | None:
        if self.logit_bias is None:
            return None
        try:
            pairs = [(int(token), float(number)) for token, number in self.logit_bias.items()]
        except ValueError:
            pairs = [(-1, 0.0)]
        if not all(0 <= token < bundle.tokenizer.vocab_size and abs(number) <= 100 for token, number in pairs):
            limit = bundle.tokenizer.vocab_size - 1
            message = f"logit_bias maps ids of tokens, 0 to {limit}, to numbers from -100 to 100"
            raise Refusal(400, message, "logit_bias", "invalid_value")
        return pairs


def finish_reason(reason: str) -> str:
    """Return OpenAI's name of a reason to end."""
    return _FINISH.get(reason, "length")


class Spelling:
    """Tokens of a text as strings with their places, for `logprobs`.

    A token that is no whole text by itself is spelled `token_id:17`.

    Args:
        before: ids before the first one.
    """

    def __init__(self, bundle: Bundle, before: Sequence[int]) -> None:
        self.bundle, self.before, self.offset = bundle, list(before[-_BEFORE:]), 0

    def token(self, index: int) -> str:
        """Return the text of a token after those before it."""
        text = self.bundle.tokenizer.decode_continuation(self.before, [index])
        return f"{PART}{index}" if not text or "\ufffd" in text else text

    def logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float | None], tops: Sequence[Sequence[tuple[int, float]] | None]
    ) -> dict[str, list[Any]]:
        """Return the field `logprobs` of some more tokens."""
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for place, index in enumerate(ids):
            text = self.token(index)
            best = tops[place] if place < len(tops) else None
            found["tokens"].append(text)
            found["token_logprobs"].append(logprobs[place])
            found["top_logprobs"].append(None if best is None else self._spelled([*best, (index, logprobs[place])]))
            found["text_offset"].append(self.offset)
            self.offset += len(self.bundle.tokenizer.decode_continuation(self.before, [index]))
            self.before = [*self.before, index][-_BEFORE:]
        return found

    def _spelled(self, best: Sequence[tuple[int, float | None]]) -> dict[str, float]:
        """Return tokens with their log-probabilities, without infinite ones, which JSON does not have."""
        found: dict[str, float] = {}
        for index, value in best:
            if value is not None and math.isfinite(value):
                found.setdefault(self.token(index), value)
        return found
