"""The form of chats: the ids of a prompt, and of a chat to learn from with the answers alone marked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.chat.template import ChatError, Template, plain_template
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import BOS, EOS, BpeTokenizer, ByteTokenizer, CharTokenizer, HfTokenizer, Tokenizer

NAMES = {"user": "Reader", "assistant": "Archive", "system": "System"}
TEXT = (
    "Reader:\nArchive:\nSystem:\nWho counts the sheep?\nThe shepherd does, at dusk.\n"
    "And who shears them? Bob. Be brief.\n"
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who counts the sheep?"},
    {"role": "assistant", "content": "The shepherd does,\nat dusk."},
    {"role": "user", "content": "And who shears them?"},
    {"role": "assistant", "content": "Bob."},
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# renders earlier answers without the thought that it puts before the last one
THINKING = CHATML.replace(
    "{{ message.content }}",
    "{% if loop.last and message.role == 'assistant' %}<think></think>{% endif %}{{ message.content }}",
).replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think></think>{% endif %}")


def foreign(eos: str = "<|im_end|>") -> HfTokenizer:
    spec = learn_merges([TEXT * 8], 300).record()["spec"]
    first = max(spec["model"]["vocab"].values()) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = ("<|im_start|>", "<|im_end|>", "<|end|>")
    spec["added_tokens"] = [{"id": first + n, "content": name, **flags} for n, name in enumerate(names)]
    return HfTokenizer(json.dumps(spec), eos_id=first + names.index(eos))


TOKENIZERS: dict[str, Any] = {
    "char": lambda: CharTokenizer.fit([TEXT]),
    "bytes": ByteTokenizer,
    "bpe": lambda: BpeTokenizer(json.dumps(learn_merges([TEXT * 8], 300).record()["spec"])),
    "hf": foreign,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def learnt_texts(tokenizer: Tokenizer, example: tuple[list[int], list[bool]]) -> list[str]:
    """The texts of the learnt stretches, each without the id that must end it."""
    found: list[str] = []
    stretch: list[int] = []
    for index, learnt in zip(*example, strict=True):
        if learnt:
            stretch.append(index)
        elif stretch:
            assert stretch[-1] == tokenizer.eos_id
            found, stretch = [*found, tokenizer.decode(stretch[:-1])], []
    assert not stretch or stretch.pop() == tokenizer.eos_id
    return [*found, *([tokenizer.decode(stretch)] if stretch else [])]


def test_the_answers_are_learnt_with_their_ends_and_nothing_else(tokenizer: Tokenizer) -> None:
    template = Template(plain_template(NAMES), tokenizer)
    (example,) = template.examples(CHAT)
    assert learnt_texts(tokenizer, example) == ["The shepherd does,\nat dusk.", "Bob."]


def test_what_is_learnt_follows_the_ids_that_a_served_chat_has(tokenizer: Tokenizer) -> None:
    for text in (plain_template(NAMES), *([CHATML] if isinstance(tokenizer, HfTokenizer) else [])):
        template = Template(text, tokenizer)
        ((ids, learnt),) = template.examples(CHAT)
        for number in (2, 4):
            prompt = template.prompt(CHAT[:number])
            assert ids[: len(prompt)] == prompt
            assert learnt[len(prompt)] and not learnt[len(prompt) - 1]


def test_the_plain_form_has_names_and_special_ids() -> None:
    tokenizer = CharTokenizer.fit([TEXT])
    ids = Template(plain_template(NAMES), tokenizer).prompt(CHAT[1:4])
    assert (ids[0], ids.count(EOS)) == (BOS, 1)
    first, last = tokenizer.decode(ids[: ids.index(EOS)]), tokenizer.decode(ids[ids.index(EOS) :])
    assert first == "Reader:\nWho counts the sheep?\nArchive:\nThe shepherd does,\nat dusk."
    assert last == "Reader:\nAnd who shears them?\nArchive:\n"


def test_a_template_that_renders_earlier_answers_otherwise_gives_an_example_for_each() -> None:
    tokenizer = foreign()
    template = Template(THINKING, tokenizer)
    examples = template.examples(CHAT)
    assert [learnt_texts(tokenizer, example) for example in examples] == [["The shepherd does,\nat dusk."], ["Bob."]]
    for (ids, _), number in zip(examples, (2, 4), strict=True):
        prompt = template.prompt(CHAT[:number])
        assert ids[: len(prompt)] == prompt


def test_a_message_that_spells_a_special_token_is_refused(tokenizer: Tokenizer) -> None:
    spelled = "<|im_end|>" if isinstance(tokenizer, HfTokenizer) else "<|eos|>"
    template = Template(plain_template(NAMES), tokenizer)
    chat = [{"role": "user", "content": f"a{spelled}b"}, {"role": "assistant", "content": "c"}]
    for refused in (template.prompt, template.examples):
        with pytest.raises(ChatError, match="message 0 spells the special token"):
            refused(chat)


def test_a_template_whose_answers_end_by_another_token_is_refused() -> None:
    with pytest.raises(ChatError, match="nothing ends an answer"):
        Template(CHATML, foreign("<|end|>")).examples(CHAT)


@pytest.mark.parametrize("form", [plain_template(NAMES), CHATML], ids=["plain", "chatml"])
def test_an_answer_that_goes_on_with_another_turn_is_told(form: str) -> None:
    template = Template(form, foreign())
    begin = "Reader:" if "Reader" in form else "user"
    assert template.begins_turn(f"The shepherd.\n{begin}\nAnd who")
    assert not template.begins_turn(f"The shepherd, says the {begin} of it.")
