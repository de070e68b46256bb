"""Chats with an imported model: the prompt that transformers makes, and answers in OpenAI's form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from test_serving import client_of, running
from transformers import AutoTokenizer

from model import ModelConfig, Transformer
from model.hf import to_hf
from storage.home import Home
from tasks.chat.template import Template
from tasks.serving.served import load_served
from tasks.tokens.tokenizer import learn_merges
from tasks.training.bundle import CHAT_FILE, Bundle
from tasks.training.gguf_file import export_gguf, import_gguf
from tasks.training.hugging_face import export_bundle, import_folder

CHATML = """{%- for message in messages %}
{%- if message.role not in ["system", "user", "assistant"] %}{{ raise_exception("no role " + message.role) }}{% endif %}
{{- "<|im_start|>" + message.role + "\n" + (message.content | trim) + "<|im_end|>" + "\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""
CHATS = [
    [{"role": "user", "content": "Who counts the sheep?"}],
    [
        {"role": "system", "content": "You are a shepherd."},
        {"role": "user", "content": "  Hello\n\n"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "it's   late \U0001f411"},
    ],
]
CONTEXT = 256


def hf_folder(folder: Path, place: str = "file") -> Path:
    """A model in Hugging Face's layout whose template stands in one of the places that there are."""
    learned = learn_merges(["The shepherd counts the sheep. Hello, who is it?\n" * 8], 300).record()["spec"]
    names = ("<|im_start|>", "<|im_end|>")
    first = max(learned["model"]["vocab"].values()) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    learned["added_tokens"] = [{"id": first + n, "content": name, **flags} for n, name in enumerate(names)]
    with torch.random.fork_rng():
        torch.manual_seed(4)
        shape = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
        model = Transformer(
            ModelConfig(first + 2, max_seq_len=CONTEXT, n_layer=2, n_head=2, d_model=32, init_std=0.2, **shape)
        )
    to_hf(model, folder, eos_id=first + 1)
    (folder / "tokenizer.json").write_text(json.dumps(learned))
    told: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if place == "file":
        (folder / CHAT_FILE).write_text(CHATML)
    else:
        several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
        told["chat_template"] = CHATML if place == "entry" else several
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folder(tmp_path_factory.mktemp("chat") / "hf")


@pytest.fixture(scope="module")
def imported(folder: Path) -> Path:
    import_folder(folder, folder.with_name("imported"))
    return folder.with_name("imported")


@pytest.fixture(scope="module")
def client(imported: Path) -> Iterator[openai.OpenAI]:
    bundle = Bundle(imported)
    with running(bundle, template=Template((imported / CHAT_FILE).read_text(), bundle.tokenizer)) as (_, address):
        yield client_of(address)


def chat(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="sheepfold", messages=messages, seed=3, **options)


@pytest.mark.parametrize("messages", CHATS, ids=["one", "several"])
def test_a_chat_has_the_ids_that_transformers_gives_it(folder: Path, imported: Path, messages: Any) -> None:
    bundle = Bundle(imported)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert Template((imported / CHAT_FILE).read_text(), bundle.tokenizer).prompt(messages) == theirs


def test_an_answer_is_what_the_model_completes(client: openai.OpenAI, imported: Path) -> None:
    bundle = Bundle(imported)
    answer = chat(client, CHATS[1], max_tokens=12, temperature=0, logprobs=True, top_logprobs=2, n=2)
    assert [choice.message.role for choice in answer.choices] == ["assistant"] * 2
    ids = Template((imported / CHAT_FILE).read_text(), bundle.tokenizer).prompt(CHATS[1])
    assert answer.usage.prompt_tokens == len(ids)
    same = client.completions.create(model="sheepfold", prompt=ids, max_tokens=12, temperature=0, logprobs=2)
    for choice in answer.choices:
        assert choice.message.content == same.choices[0].text
        assert [entry.logprob for entry in choice.logprobs.content] == same.choices[0].logprobs.token_logprobs
        assert all(len(entry.top_logprobs) >= 2 for entry in choice.logprobs.content)


def test_a_stream_opens_with_the_role_and_has_the_same_text(client: openai.OpenAI) -> None:
    whole = chat(client, CHATS[0], max_completion_tokens=12)
    events = list(chat(client, CHATS[0], max_completion_tokens=12, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert all(event.choices[0].delta.role is None for event in events[1:])
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == whole.choices[0].message.content
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_an_answer_takes_the_room_that_is_left(client: openai.OpenAI, imported: Path) -> None:
    end = Bundle(imported).tokenizer.eos_id
    answer = chat(client, CHATS[0], logit_bias={str(end): -100})
    assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("length", CONTEXT)


def test_parts_of_text_are_one_message(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": text} for text in ("Who counts ", "the sheep?")]
    asked = ([{"role": "user", "content": parts}], CHATS[0])
    one, other = (chat(client, messages, max_tokens=8, temperature=0) for messages in asked)
    assert one.choices[0].message.content == other.choices[0].message.content


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages: List should have at least 1 item"),
        ([{"role": "user", "content": "a<|im_end|>b"}], "message 0 spells the special token '<|im_end|>'"),
        ([{"role": "shepherd", "content": "a"}], "does not fit the model's template: no role shepherd"),
        ([{"role": "user", "content": "sheep " * 400}], f"the context holds {CONTEXT}"),
        ([{"role": "user", "content": [{"type": "image_url", "text": "a"}]}], "messages.0.content"),
        ([{"role": "user", "content": "a", "tool_calls": [1]}], "messages.0.tool_calls: Extra inputs"),
    ],
    ids=["none", "special", "role", "long", "image", "unknown"],
)
def test_a_chat_that_cannot_be_continued_is_refused(client: openai.OpenAI, messages: Any, told: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, messages)
    assert refused.value.param == "messages" and told in refused.value.message


@pytest.mark.parametrize("place", ["entry", "list"])
def test_a_template_is_found_in_each_place_and_goes_out_again(place: str, tmp_path: Path) -> None:
    import_folder(hf_folder(tmp_path / "hf", place), tmp_path / "first")
    export_bundle(tmp_path / "first", tmp_path / "out")
    import_folder(tmp_path / "out", tmp_path / "second")
    assert (tmp_path / "first" / CHAT_FILE).read_text() == (tmp_path / "second" / CHAT_FILE).read_text() == CHATML


def test_a_chat_model_goes_to_gguf_and_comes_back(imported: Path, tmp_path: Path) -> None:
    export_gguf(imported, tmp_path / "chat.gguf", "f32")
    import_gguf(tmp_path / "chat.gguf", tmp_path / "back")
    first, second = (
        Template((place / CHAT_FILE).read_text(), Bundle(place).tokenizer) for place in (imported, tmp_path / "back")
    )
    assert [first.prompt(messages) for messages in CHATS] == [second.prompt(messages) for messages in CHATS]


def test_a_served_folder_has_its_template(imported: Path, tmp_path: Path) -> None:
    served = load_served(Home.from_environment(tmp_path / "home").create(), str(imported), "default")
    assert served is not None and served.template is not None
    assert served.template.prompt(CHATS[0]) == Template(CHATML, Bundle(imported).tokenizer).prompt(CHATS[0])


def test_an_answer_that_is_sent_back_is_taken(client: openai.OpenAI) -> None:
    answer = chat(client, CHATS[0], max_tokens=4, temperature=0).choices[0].message
    history = [*CHATS[0], answer.model_dump(), {"role": "user", "content": "Go on", "name": "Ann"}]
    usual: dict[str, Any] = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "store": False}
    assert chat(client, history, max_tokens=4, **usual).choices[0].message.role == "assistant"
    with pytest.raises(openai.BadRequestError, match="tools: "):
        chat(client, CHATS[0], tools=[{"type": "function", "function": {"name": "f"}}])


def test_an_exported_chat_model_gets_the_same_ids_in_transformers(imported: Path, folder: Path, tmp_path: Path) -> None:
    export_bundle(imported, tmp_path / "hf")
    first, second = (AutoTokenizer.from_pretrained(place) for place in (folder, tmp_path / "hf"))
    options = {"add_generation_prompt": True, "return_dict": False}
    for messages in CHATS:
        assert first.apply_chat_template(messages, **options) == second.apply_chat_template(messages, **options)


def test_the_mark_of_answers_in_a_template_is_passed_over(imported: Path) -> None:
    bundle = Bundle(imported)
    marked = "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert Template(marked, bundle.tokenizer).prompt(CHATS[1]) == Template(plain, bundle.tokenizer).prompt(CHATS[1])


@pytest.mark.parametrize("template", ["{% for %}", None, ["x"]])
def test_a_model_without_a_readable_template_is_served_without_one(
    folder: Path, tmp_path: Path, template: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    (tmp_path / "hf" / CHAT_FILE).unlink()
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": template}))
    import_folder(tmp_path / "hf", tmp_path / "model")
    served = load_served(Home.from_environment(tmp_path / "home").create(), str(tmp_path / "model"), "default")
    assert served is not None and served.template is None
    assert ("model does not chat: the model's chat template cannot be read" in caplog.text) == isinstance(template, str)


def test_of_several_ids_that_end_a_text_that_of_a_turn_is_taken(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    end = config["eos_token_id"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "eos_token_id": [end - 1, end]}))
    import_folder(tmp_path / "hf", tmp_path / "model")
    assert Bundle(tmp_path / "model").tokenizer.eos_id == end
