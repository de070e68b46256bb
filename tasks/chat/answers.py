"""The stage `answers`: answers of a model to questions of the evaluation documents, and if they keep the form.

The questions are those of the conversations in the frozen documents, so that every model is asked the same. A chat has
the model's own template, or without one that of the settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import COMPLETIONS, COMPLETIONS_FILE, DOCUMENTS_FILE
from storage.store import Store
from storage.tables import stream_rows, write_table
from tasks.chat.settings import ChatSettings
from tasks.chat.template import ChatError, Template, plain_template, read_template, stopped_clock
from tasks.core.stage import Work, stage
from tasks.generation.prompts import SAMPLED_ID
from tasks.text.conversations import ASSISTANT, USER, Conversation, find_conversations
from tasks.training.bundle import CHAT_FILE, Bundle, TextCompletion

BATCH = 16


@dataclass(frozen=True)
class Questions:
    """Questions to ask a model.

    Attributes:
        template: form of the chat with a model that has none.
        kinds: kinds of conversations that are asked.
        most: number of questions, chosen by hash; 0 takes all.
        max_tokens: most tokens of an answer.
    """

    template: str
    kinds: tuple[str, ...]
    most: int
    max_tokens: int


@dataclass(frozen=True)
class Question:
    """A conversation in an evaluation document, whose last answer is asked for."""

    doc_id: str
    number: int  # in its document
    found: Conversation
    labels: dict[str, str] = field(default_factory=dict)  # of the document, see `tasks.evaluation.tables.DIMENSIONS`

    @property
    def messages(self) -> list[dict[str, str]]:
        """Messages as templates expect them, the expected answer last."""
        return [message._asdict() for message in self.found.messages]

    @property
    def expected(self) -> str:
        """The answer that stands in the document."""
        return self.found.messages[-1].content

    @property
    def id(self) -> str:
        """Id of the row of the answer."""
        return f"{self.doc_id[:SAMPLED_ID]}:{self.number}"


def chat_form(settings: ChatSettings, base: Path | None) -> str:
    """Return the template of chats, "" without chat tuning.

    Args:
        base: folder of the base model, if there is one.

    Raises:
        UserError: the file of the template cannot be read.
    """
    if not settings.pairs:
        return ""
    if settings.template:
        path = Path(settings.template).expanduser()
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"chat.template: {path} cannot be read: {error}") from error
    if base is not None and (base / CHAT_FILE).is_file():
        return (base / CHAT_FILE).read_text(encoding="utf-8")
    return plain_template(settings.names)


def questions_of(settings: ChatSettings, base: Path | None) -> Questions | None:
    """Return the questions of a run's settings; None without chat tuning."""
    form = chat_form(settings, base)
    return Questions(form, tuple(settings.kinds), settings.answers, settings.answer_tokens) if form else None


def read_questions(store: Store, evalset: ArtifactRef, asked: Questions) -> list[Question]:
    """Return the questions of an evaluation set, in the order of their documents."""
    found = list(_questions(store, evalset, asked))
    if asked.most and len(found) > asked.most:
        by_hash = sorted(found, key=lambda one: sha256(f"{one.doc_id}:{one.number}".encode()).digest())
        found = by_hash[: asked.most]
    return sorted(found, key=lambda one: (one.doc_id, one.number))


def _questions(store: Store, evalset: ArtifactRef, asked: Questions) -> Iterator[Question]:
    columns = ["doc_id", "kind", "language", "source", "method", "text"]
    for row in stream_rows(store.folder(evalset) / DOCUMENTS_FILE, columns):
        labels = {name: row[name] for name in columns[1:-1]}
        for number, item in enumerate(find_conversations(row["text"], row["kind"])):
            if item.kind in asked.kinds:
                yield Question(row["doc_id"], number, item, labels)


def check_questions(store: Store, evalset: ArtifactRef, asked: Questions) -> None:
    """Refuse an evaluation set without a question, by which no answer could be judged.

    Raises:
        UserError: it has none.
    """
    if next(_questions(store, evalset, asked), None) is None:
        raise UserError(
            f"no evaluation document has a conversation of chat.pairs={','.join(asked.kinds)}, so answers could not be "
            "judged: ask for more kinds, add documents, or hold out more of them (curate.validation_share)"
        )


def template_of(bundle: Bundle, asked: Questions) -> Template:
    """Return the form of chats with a model: its own, if its answers end in it, else that of the questions.

    Raises:
        UserError: a template cannot be read.
    """
    try:
        own = read_template(bundle.folder, bundle.tokenizer, stopped_clock)
        if own is not None:
            with suppress(ChatError):
                own.examples([{"role": USER, "content": "a"}, {"role": ASSISTANT, "content": "b"}])
                return own
        return Template(asked.template, bundle.tokenizer, stopped_clock)
    except ValueError as error:
        raise UserError(f"{bundle.folder}: {error}") from error


@stage(
    "answers", version=1, unit="question", tables={COMPLETIONS_FILE: COMPLETIONS}, keep_with=("checkpoint", "evalset")
)
def answers(work: Work, settings: Questions, *, checkpoint: ArtifactRef, evalset: ArtifactRef) -> str:
    """Ask a model the questions of an evaluation set, with the sampling settings by which it is served.

    A question that has no room in the context beside its expected answer is not asked, as none such is learnt.
    """
    work.seed(0)
    bundle = Bundle(work.folder(checkpoint), work.machine.device)
    template, asked = template_of(bundle, settings), read_questions(work.store, evalset, settings)
    rows = list(_answered(work, bundle, template, asked, settings.max_tokens, checkpoint.digest))
    work.counts["rows"] = work.counts["units"] = write_table(work.out / COMPLETIONS_FILE, COMPLETIONS, rows)
    work.counts["tokens"] = sum(row["n_tokens"] for row in rows)
    return sha256_json([[row["id"], row["text"], row["fields"], row["error"]] for row in rows])


def _answered(
    work: Work, bundle: Bundle, template: Template, asked: Sequence[Question], max_tokens: int, model: str
) -> Iterator[dict[str, Any]]:
    config = bundle.sampling_config(max_new_tokens=max_tokens, max_length=0, n_samples=1, seed=0)
    for first in range(0, len(asked), BATCH):
        some = asked[first : first + BATCH]
        prompts: list[list[int]] = []
        errors: list[str | None] = []
        for question in some:
            ids, error = _prompt(template, question, bundle.model_config.max_seq_len)
            errors.append(error)
            if error is None:
                prompts.append(ids)
        limits = [min(max_tokens, bundle.model_config.max_seq_len - len(ids)) for ids in prompts]
        keys = [first + number for number, error in enumerate(errors) if error is None]  # seeds of their own
        how = {"keys": keys, "limits": limits, "decode": bundle.tokenizer.decode_continuation}
        made = iter(bundle.network.generate(bundle.model, prompts, config, **how) if prompts else [])
        for question, error in zip(some, errors, strict=True):
            item = None if error is not None else next(made)
            found = TextCompletion("", "", 0, []) if item is None else bundle.text_of(prompts[item.prompt], item)
            yield _row(question, found, error, template, model)
        work.progress.update(first + len(some), len(asked), "questions")


def _prompt(template: Template, question: Question, context: int) -> tuple[list[int], str | None]:
    """Return the ids of a question, and why it cannot be asked."""
    try:
        ids = template.prompt(question.messages[:-1])
    except ChatError as error:
        return [], str(error)
    n_answer = len(template.tokenizer.encode([question.expected])[0]) + 1
    if len(ids) + n_answer > context:
        told = f"the question has {len(ids)} tokens, {len(ids) + n_answer} with the expected answer"
        return [], f"{told}; the context holds {context}"
    return ids, None


def _row(
    question: Question, found: TextCompletion, error: str | None, template: Template, model: str
) -> dict[str, Any]:
    text = found.text.strip()
    told = {
        "doc_id": question.doc_id,
        "kind": question.found.kind,
        "start": question.found.start,
        "length": question.found.length,
        "expected": question.expected,
        "exact": _words(text) == _words(question.expected),
        "in_form": error is None and keeps_form(found, template),
    }
    return {
        "id": question.id,
        "sample": 0,
        "prompt": question.found.messages[-2].content,
        "text": text,
        "finish_reason": found.finish_reason,
        "n_tokens": found.n_tokens,
        "logprobs": found.logprobs,
        "model": model,
        "settings": "{}",
        "seed": 0,
        "ids": found.ids,
        "top_ids": [],
        "top_logprobs": [],
        "fields": json.dumps(told, ensure_ascii=False),
        "error": error,
    }


def keeps_form(found: TextCompletion, template: Template) -> bool:
    """Return True if an answer says something, ends by itself, and does not go on with another's turn."""
    return bool(found.text.strip()) and found.finish_reason == "stop" and not template.begins_turn(found.text)


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
