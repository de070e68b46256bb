"""The form of a chat: a Jinja template, rendered as `transformers` renders it, and its token ids.

The template is trusted; messages are not: one whose content spells a special token is refused, or it could end itself
and speak for another.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.text.conversations import ASSISTANT, USER
from tasks.tokens.hf_spec import library_tokenizer
from tasks.tokens.tokenizer_kinds import N_SPECIAL, SPECIAL_TOKENS, HfTokenizer, Tokenizer
from tasks.training.bundle import CHAT_FILE


class ChatError(ValueError):
    """A chat that does not go with a template."""


def plain_template(names: Mapping[str, str]) -> str:
    """Return a template of the role's name and the text below it, where the id that ends a text follows each answer.

    Args:
        names: name of each role.
    """
    roles = json.dumps(dict(names), ensure_ascii=False)
    return (
        f"{{%- set names = {roles} -%}}\n"
        "{{- bos_token -}}\n"
        "{%- for message in messages -%}\n"
        "{{- names[message.role] + ':\\n' + (message.content | trim) -}}\n"
        "{{- eos_token if message.role == 'assistant' else '\\n' -}}\n"
        "{%- endfor -%}\n"
        f"{{%- if add_generation_prompt -%}}{{{{- names['{ASSISTANT}'] + ':\\n' -}}}}{{%- endif -%}}\n"
    )


def read_template(folder: Path, tokenizer: Tokenizer, clock: Callable[[str], str] = time.strftime) -> Template | None:
    """Return the template of a bundle, if it has one.

    Raises:
        ValueError: it cannot be read.
    """
    path = folder / CHAT_FILE
    return Template(path.read_text(encoding="utf-8"), tokenizer, clock) if path.is_file() else None


def stopped_clock(form: str) -> str:
    """Return a fixed date in a form of `strftime`: a stage gives the same result on every day."""
    return time.strftime(form, time.gmtime(1_767_225_600))  # 1 January 2026


class _Generation(Extension):
    """The block `generation`, by which `transformers` finds the answers of a chat."""

    tags = {"generation"}  # noqa: RUF012 — as the library declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Template:
    """The form of a chat with a tokeniser.

    Args:
        text: in Jinja.
        clock: returns the date for a template that writes it.

    Raises:
        ValueError: it is no template.
    """

    def __init__(self, text: str, tokenizer: Tokenizer, clock: Callable[[str], str] = time.strftime) -> None:
        self.tokenizer = tokenizer
        if isinstance(tokenizer, HfTokenizer):
            by_id = {index: token for token, index in tokenizer.vocabulary().items()}
            spelled = {by_id[index]: index for index in tokenizer.special_ids if index in by_id}
            self._engine = library_tokenizer(tokenizer.spec)
            self._engine.encode_special_tokens = False
            self._engine.add_special_tokens(sorted(spelled, key=len, reverse=True))
        else:
            spelled = dict(zip(SPECIAL_TOKENS, range(N_SPECIAL), strict=True))
            by_id = dict(enumerate(SPECIAL_TOKENS))
            self._engine = None
        self._ids = spelled
        longest_first = map(re.escape, sorted(spelled, key=len, reverse=True))
        self._special = re.compile(f"({'|'.join(longest_first)})" if spelled else r"(?!)")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals |= {name: "" if index is None else by_id[index] for name, index in ids.items()}
        environment.globals |= {"raise_exception": _refuse, "strftime_now": clock}
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from error

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a chat, with the beginning of the answer.

        Raises:
            ChatError: the template refuses the chat, or a message spells a special token.
        """
        self._check(messages)
        return self._encode(self._rendered(messages, add_generation_prompt=True))

    def examples(self, messages: Sequence[Mapping[str, str]]) -> list[tuple[list[int], list[bool]]]:
        """Return the ids of a chat to learn from, and for each id True where it is learnt: in answers and their ends.

        It is one example if the template renders the chat's beginnings as they are in the whole. One that renders
        earlier answers otherwise, such as without their reasoning, gives an example for each answer.

        Raises:
            ChatError: as for `prompt`, or nothing ends the answers.
        """
        self._check(messages)
        answers = [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]
        bounds = [
            (self._rendered(messages[:place], add_generation_prompt=True), self._rendered(messages[: place + 1]))
            for place in answers
        ]
        texts = [text for pair in bounds for text in pair]
        if all(text.startswith(before) for before, text in pairwise(texts)):
            return [self._example(texts)]
        for prompt, whole in bounds:
            if not whole.startswith(prompt):
                raise ChatError("the template does not begin an answer as it renders it")
        return [self._example(pair) for pair in bounds]

    def begins_turn(self, text: str) -> bool:
        """Return True if a line of an answer is one by which the template begins somebody's turn."""
        try:
            chat = [{"role": USER, "content": "\0"}, {"role": ASSISTANT, "content": "\0"}]
            rendered = self._special.sub("", self._rendered(chat))
        except ChatError:
            return False
        heads = {line.strip() for line in rendered.split("\n") if line.strip() and "\0" not in line}
        return any(line.strip() in heads for line in text.split("\n"))

    def _example(self, texts: Sequence[str]) -> tuple[list[int], list[bool]]:
        """Return ids and what is learnt of them; every other text ends an answer, and each continues the one before."""
        ids: list[int] = []
        learnt: list[bool] = []
        before = ""
        for number, text in enumerate(texts):
            whole = self._encode(text)
            # the ids of a prompt are those that a served chat has, although the whole may be encoded otherwise
            new = whole[len(ids) :] if whole[: len(ids)] == ids else self._encode(text[len(before) :])
            n_learnt = 0
            if number % 2:
                ends = [place for place, index in enumerate(new, 1) if index == self.tokenizer.eos_id]
                if not ends:
                    raise ChatError(
                        "nothing ends an answer: the template does not write the token that ends a text behind it. "
                        "Name the one that it writes as eos_token in the tokeniser's tokenizer_config.json before the "
                        "import, or give another chat.template"
                    )
                n_learnt = ends[-1]  # a line's end behind it is never generated
            ids += new
            learnt += [True] * n_learnt + [False] * (len(new) - n_learnt)
            before = text
        return ids, learnt

    def _check(self, messages: Sequence[Mapping[str, str]]) -> None:
        for number, message in enumerate(messages):
            if found := self._special.search(message["content"]):
                raise ChatError(
                    f"message {number} spells the special token {found[0]!r}, which would end it; leave that out"
                )

    def _rendered(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = False) -> str:
        given = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(**given, tools=None, documents=None)
        except Exception as error:  # a template raises anything, and the client is told
            raise ChatError(f"the chat does not fit the model's template: {error}") from error

    def _encode(self, text: str) -> list[int]:
        if self._engine is not None:
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        else:
            parts = self._special.split(text)  # text and special tokens in turns
            ids = np.concatenate(
                [
                    [self._ids[part]] if number % 2 else self.tokenizer.encode([part])[0]
                    for number, part in enumerate(parts)
                    if part
                ]
                or [[]]
            ).tolist()
        if not ids:
            raise ChatError("the model's template makes nothing of the chat")
        return ids


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)
