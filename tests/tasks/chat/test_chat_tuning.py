"""A model learns from the conversations in documents: found, trained, judged, asked, explained and forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgotten_texts import holders_of
from tiny_run import direct_run, home_at, tiny_settings, with_tracking, write_texts

from flows.evaluate import evaluate_model
from flows.generate import sample
from flows.plan import plan_retraining
from flows.prepare import ingest_and_prepare
from flows.promote import promote_model
from flows.report import publish
from flows.train import train_model
from storage.catalog import Catalog, read_state
from storage.errors import UserError
from storage.home import Home
from storage.lineage import manifest_of
from storage.schemas import COMPLETIONS_FILE, LEARNT_FILE
from storage.store import open_store
from storage.tables import read_rows
from tasks.chat.talk import talk
from tasks.chat.template import Template
from tasks.core.run import Run
from tasks.core.settings import load_settings, parse_assignments
from tasks.lineage.memorised import explain_memorised
from tasks.lineage.why import explain
from tasks.registry.promote import rebuild
from tasks.serving.served import load_served
from tasks.tokens.index import open_sequences
from tasks.training.bundle import CHAT_FILE, Bundle
from tasks.upkeep.forget import forget
from tasks.upkeep.verify import check_sequences, check_tokens
from tests.open_models import TEMPLATE, open_model
from tests.tasks.serving.test_serving import client_of, running

CHATS = ("model.max_seq_len=128", "chat.pairs=all", "chat.answers=0", "chat.answer_tokens=24", "train.max_steps=60")
CORPUS = 24


def faq(number: int) -> str:
    return (
        f"# Pen {number}\n\nQ: How many sheep are in pen {number}?\nA: There are {number} sheep in it.\n\n"
        f"Q: Who watches pen {number}?\nA: The dog of pen {number} does.\n\n"
        "The fold is closed at dusk, and so is the gate.\n"
    )


def message(reply: str, number: int) -> str:
    quoted = "".join(f"> This is what message {earlier} says.\n" for earlier in range(1, number))
    return (
        f"From ann@fold.example Mon Jan  5 10:0{number}:00 2026\nFrom: ann@fold.example\n"
        f"Subject: {reply}The old gate\n\n"
        f"{'Ann wrote:' if quoted else ''}\n{quoted}\nThis is what message {number} says.\n\n"
    )


def write_corpus(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number in range(CORPUS):
        (folder / f"pen-{number:02}.txt").write_text(faq(number))
    rows = [
        {"messages": [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"I say {n} to you."}]}
        for n in range(8)
    ]
    write_texts(folder, range(3))  # without a conversation
    (folder / "thread.mbox").write_text("".join(map(message, ("", "Re: ", "Re: "), (1, 2, 3))))
    (folder / "chats.jsonl").write_text("".join(json.dumps({**row, "synthetic": True}) + "\n" for row in rows))
    return folder


class Tuned:
    """A home with a model that was trained on conversations."""

    def __init__(self, folder: Path, *assignments: str) -> None:
        self.home = with_tracking(home_at(folder / "home"))
        self.source = folder / "pens"
        if not self.source.exists():
            write_corpus(self.source)
        settings = tiny_settings(*CHATS, *assignments)
        with direct_run(self.home) as run:
            self.ingested, self.prepared, base = ingest_and_prepare(run, str(self.source), settings)
            self.checkpoint = train_model(run, settings, self.prepared, base)
            evalset, questions = self.prepared.evalset, self.prepared.questions
            self.evaluation, self.metrics = evaluate_model(run, self.checkpoint, evalset, questions=questions)
            self.promotion, _ = promote_model(run, self.checkpoint, self.evaluation, settings, questions)
            self.answers = sample(run, settings, self.checkpoint, evalset, questions)
            run.remember(train=self.checkpoint, evaluate=self.evaluation, generate=self.answers)
            publish(run)
            self.store, self.reports = run.store, run.reports


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return Tuned(tmp_path_factory.mktemp("tuned"))


def test_every_pair_has_its_document_and_passage(tuned: Tuned) -> None:
    rows = Catalog(tuned.store, "default").query(
        "select p.*, d.text from pairs p join documents d using (doc_id) order by doc_id, number"
    )
    assert {row["kind"] for row in rows} == {"questions", "conversation", "mail", "section"}
    assert all(row["synthetic"] == (row["kind"] in ("conversation", "section")) for row in rows)
    texts = {row["doc_id"]: row["text"] for row in rows}
    for row in rows:
        passage = row["text"][row["start"] : row["start"] + row["length"]]
        question, answer = (message["content"] for message in row["messages"])
        assert answer in passage
        assert question in (passage if row["asked_in"] == row["doc_id"] else texts[row["asked_in"]])


def test_a_reply_in_a_mailbox_answers_the_message_before_it(tuned: Tuned) -> None:
    query = "select messages, doc_id <> asked_in as apart from pairs where kind = 'mail'"
    rows = Catalog(tuned.store, "default").query(query)
    said = sorted([message["content"] for message in row["messages"]] for row in rows)
    assert said == [[f"This is what message {n} says." for n in pair] for pair in ((1, 2), (2, 3))]
    assert all(row["apart"] for row in rows)


def test_labels_are_the_answers_alone_and_attention_stays_within_a_conversation(tuned: Tuned) -> None:
    dataset = tuned.store.folder(tuned.prepared.dataset)
    with direct_run(tuned.home) as run:
        shards = {
            ref.key: run.store.folder(ref)
            for ref in manifest_of(run.store, tuned.prepared.dataset).input_refs("tokens")
        }
    source = open_sequences(dataset, shards, "train", 128)
    batch = source.batch(np.arange(len(source)))
    tokenizer = Bundle(tuned.store.folder(tuned.checkpoint)).tokenizer
    texts = [tokenizer.decode(row[row >= 0].tolist()) for row in batch.labels]
    assert texts and all("sheep in it" in text or "The dog of pen" in text or "I say" in text for text in texts)
    assert not any("How many" in text or "User" in text for text in texts)
    assert batch.documents is not None
    assert max(map(len, batch.documents)) > 1


def test_sequences_of_conversations_are_found_sound_and_a_wrong_mark_is_told(tuned: Tuned) -> None:
    state = read_state(tuned.store, "default")
    checks = [check_tokens(tuned.store, state), check_sequences(tuned.store, state)]
    assert [check.problems for check in checks] == [[], []]
    assert all(check.checked for check in checks)
    (shard,) = state["tokenise"]
    path = tuned.store.folder(shard) / LEARNT_FILE
    marks = np.load(path)
    wrong = marks.copy()
    wrong[np.flatnonzero(marks)[0]] = 0
    path.chmod(0o644)
    try:
        np.save(path, wrong)
        (problem,) = check_tokens(tuned.store, state).problems
    finally:
        np.save(path, marks)
    assert "conversation 0 has" in problem


def test_a_model_is_judged_by_the_answers_to_held_out_questions(tuned: Tuned) -> None:
    rows = read_rows(tuned.store.folder(tuned.answers) / COMPLETIONS_FILE)
    told = [json.loads(row["fields"]) for row in rows]
    held_out = {row["doc_id"] for row in read_rows(tuned.store.folder(tuned.prepared.evalset) / "documents.parquet")}
    assert {item["doc_id"] for item in told} <= held_out
    assert tuned.metrics["val/questions"] == len(rows) > 4
    assert tuned.metrics["val/format_obedience"] == sum(item["in_form"] for item in told) / len(told)
    n_bytes = sum(len(item["expected"].encode()) for item in told)
    assert tuned.metrics["val/bytes"] == n_bytes
    gates = {item.gate: item for item in tuned.promotion.verdicts}
    assert gates["format_obedience"].number == tuned.metrics["val/format_obedience"]


def test_likelihood_is_that_of_the_answers_tokens(tuned: Tuned) -> None:
    import torch

    bundle = Bundle(tuned.store.folder(tuned.checkpoint))
    template = Template((bundle.folder / CHAT_FILE).read_text(), bundle.tokenizer)
    nats = tokens = 0.0
    for row in read_rows(tuned.store.folder(tuned.answers) / COMPLETIONS_FILE):
        expected = json.loads(row["fields"])["expected"]
        ids, learnt = template.examples(
            [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": expected}]
        )[0]
        end = max(place for place, mark in enumerate(learnt) if mark) + 1
        with torch.no_grad():
            logits = bundle.model(torch.tensor([ids[: end - 1]])).log_softmax(-1)[0]
        chosen = [place for place in range(1, end) if learnt[place]]
        nats -= sum(float(logits[place - 1, ids[place]]) for place in chosen)
        tokens += len(chosen)
    assert tuned.metrics["val/tokens"] == tokens
    assert tuned.metrics["val/loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_the_same_request_again_computes_nothing(tuned: Tuned) -> None:
    again = Tuned.__new__(Tuned)
    settings = tiny_settings(*CHATS)
    with direct_run(tuned.home) as run:
        _, prepared, base = ingest_and_prepare(run, str(tuned.source), settings)
        again.checkpoint = train_model(run, settings, prepared, base)
        computed = {name: report.computed for name, report in run.reports.items() if report.computed}
    assert (again.checkpoint, computed) == (tuned.checkpoint, {})


def test_the_model_keeps_its_form_and_is_served(tuned: Tuned) -> None:
    served = load_served(tuned.home, "challenger" if tuned.promotion.alias == "challenger" else "champion", "default")
    assert served is not None and served.template is not None
    messages: Any = [{"role": "user", "content": "How many sheep are in pen 3?"}]
    with running(served.bundle, template=served.template) as (_, address):
        answer = client_of(address).chat.completions.create(model="sheepfold", messages=messages, temperature=0)
    (said,) = answer.choices
    assert said.message.role == "assistant"
    ids = served.template.prompt(messages)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)
    assert served.defaults["repetition_penalty"] == 1.1
    (expected, *_) = served.bundle.stream(ids, temperature=0.0, max_new_tokens=128 - len(ids))
    assert isinstance(expected, str) and (said.message.content or "").startswith(expected)


def test_a_chat_is_answered_line_by_line(tuned: Tuned) -> None:
    bundle = Bundle(tuned.store.folder(tuned.checkpoint))
    template = Template((bundle.folder / CHAT_FILE).read_text(), bundle.tokenizer)
    shown: list[str] = []
    lines = [
        "How many sheep are in pen 3?",
        "",
        "Who watches pen 3?",
        "<|eos|>",
        "x" * 500,
        "/new",
        "Say 3.",
        "/bye",
        "no",
    ]
    said = talk(bundle, template, lines, shown.append, temperature=0.0, max_new_tokens=24)
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert said[0]["content"] == "Say 3."
    text = "".join(shown)
    assert "spells the special token '<|eos|>'" in text and "say it in fewer words" in text
    assert said[1]["content"] in text


def test_why_leads_from_an_answer_to_the_pairs_that_it_repeats(tuned: Tuned) -> None:
    (row, *_) = read_rows(tuned.store.folder(tuned.answers) / COMPLETIONS_FILE)
    found = explain(tuned.store, f"{tuned.answers.key}/{row['id']}", "default")
    assert found["asked_from"]["doc_id"].startswith(row["id"].partition(":")[0])
    stages = {item["stage"] for item in found["made_from"]}
    assert {"train", "tokenise_pairs", "pairs", "refine", "extract"} <= stages
    assert any(item["path"].endswith(".txt") for item in found["files"])
    (pair, *_) = Catalog(tuned.store, "default").query(
        "select doc_id, number, messages from pairs where split = 'train' and kind = 'questions' and number = 1"
    )
    question, learnt = (message["content"] for message in pair["messages"])
    answer = {**found, "completion": {**found["completion"], "text": f"{question} A: {learnt}"}}
    spans = explain_memorised(tuned.home, answer, 8)["memorised"]["spans"]
    places = [place for span in spans for place in span["found_in"]]
    told = [(place["doc_id"], one["number"], one["question"]) for place in places for one in place["pairs"]]
    assert (pair["doc_id"], 1, question) in told


def test_forgetting_a_document_takes_its_pairs(tmp_path: Path) -> None:
    tuned = Tuned(tmp_path)
    words = "How many sheep are in pen 7"
    doc_id = next(
        row["doc_id"]
        for row in Catalog(tuned.store, "default").query("select doc_id, text from documents")
        if words in row["text"]
    )
    found = forget(tuned.home, tuned.store, doc_id, "asked to", "default", dry_run=False)
    assert {"pairs", "tokenise_pairs", "dataset"} <= found["removed"].keys()
    store = open_store(tuned.home.store, tuned.home.cache)
    assert holders_of(tuned.home, words) == []
    assert any(item["training"].endswith(tuned.checkpoint.key) for item in found["seen_by"])
    assert store.find("train", tuned.checkpoint.key) is not None


def test_a_registered_model_is_rebuilt_after_a_held_out_document_is_forgotten(tmp_path: Path) -> None:
    tuned = Tuned(tmp_path)
    evalset = read_rows(tuned.store.folder(tuned.prepared.evalset) / "documents.parquet")
    forget(tuned.home, tuned.store, evalset[0]["doc_id"], "asked to", "default", dry_run=False)
    rebuilt = rebuild(tuned.home, open_store(tuned.home.store, tuned.home.cache))
    assert (rebuilt.versions, rebuilt.lost) == (["sheepfold/1"], [])


def test_a_plan_of_what_was_done_finds_all_of_it(tuned: Tuned) -> None:
    run = Run(tuned.home, None, plan=True)
    plan_retraining(run, str(tuned.source), tiny_settings(*CHATS))
    assert {name: line.computed for name, line in run.reports.items() if line.computed} == {}
    assert {"pairs", "tokenise_pairs", "answers", "evaluate_answers"} <= run.reports.keys()
    assert "tokenise" not in run.reports


def test_another_template_is_another_training(tuned: Tuned) -> None:
    run = Run(tuned.home, None, plan=True)
    plan_retraining(run, str(tuned.source), tiny_settings(*CHATS, "chat.roles=system=Rules"))
    assert run.reports["pairs"].computed == 0
    assert run.reports["tokenise_pairs"].computed > 0
    assert run.reports["train"].computed == 1


@pytest.mark.full
@pytest.mark.parametrize("layout", ["qwen2", "gemma"])
def test_adapters_of_an_open_model_learn_to_answer_in_its_own_form(layout: str, tmp_path: Path) -> None:
    base = open_model(tmp_path / "base", layout)
    home = with_tracking(home_at(tmp_path / "home"))
    asked = ("curate.validation_share=0.3", "evaluate.trace=false", "train.max_steps=40", "train.batch_size=4")
    asked += ("train.lr=0.01", f"train.base={base}", "train.adapter=lora", "train.adapter_rank=4")
    asked += ("chat.pairs=questions", "chat.answer_tokens=16", "gates.replay=texts", "gates.slice_documents=2")
    settings = load_settings(None, parse_assignments(asked))
    write_texts(tmp_path / "all" / "texts", range(20, 50))
    pens = tmp_path / "all" / "pens"
    pens.mkdir()
    for number in range(CORPUS):
        (pens / f"{number}.txt").write_text(f"Q: Who is in {number}?\nA: Sheep.\n\nQ: And at {number}?\nA: A dog.\n")
    with direct_run(home) as run:
        _, prepared, found = ingest_and_prepare(run, str(tmp_path / "all"), settings)
        checkpoint = train_model(run, settings, prepared, found)
        evaluation, metrics = evaluate_model(run, checkpoint, prepared.evalset, questions=prepared.questions)
        promotion, _ = promote_model(run, checkpoint, evaluation, settings, prepared.questions)
        folder = run.store.folder(checkpoint)
    gates = {item.gate: item for item in promotion.verdicts}
    assert "not clearly worse than the base" in gates["answer_loss"].sentence
    assert gates["base_loss"].number is not None and "bits per byte on texts" in gates["base_loss"].sentence
    assert metrics["val/questions"] > 4
    assert (folder / CHAT_FILE).read_text() == TEMPLATE
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (("chat.pairs=mail",), "no evaluation document has a conversation of chat.pairs=mail"),
        (("dataset.packing=concat",), "chat.pairs packs conversations"),
        (("model.max_seq_len=8",), "there is no conversation to train on"),
        (("chat.template=missing.jinja",), "chat.template: missing.jinja cannot be read"),
    ],
    ids=["none", "packing", "context", "template"],
)
def test_what_cannot_be_trained_is_refused(assignments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "pens")
    settings = tiny_settings(*CHATS, *assignments)
    with direct_run(home_at(tmp_path / "home")) as run, pytest.raises(UserError, match=told):
        ingest_and_prepare(run, str(source), settings)


@pytest.fixture
def typed(tuned: Tuned) -> Iterator[Any]:
    def run(*lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "flows.cli",
            "chat",
            "--home",
            str(tuned.home.path),
            "--model",
            tuned.promotion.alias,
        ]
        return subprocess.run([*command, *options], input="\n".join(lines), capture_output=True, text=True, check=False)

    yield run


def test_the_command_chats_with_a_registered_model(typed: Any) -> None:
    done = typed("How many sheep are in pen 3?", "/bye", options=("--temperature", "0", "--json"))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["messages"]
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert said[1]["content"]


def test_a_model_that_continues_texts_says_so(tmp_path: Path) -> None:
    home: Home = with_tracking(home_at(tmp_path / "home"))
    settings = tiny_settings()
    with direct_run(home) as run:
        _, prepared, _ = ingest_and_prepare(run, str(write_texts(tmp_path / "texts")), settings)
        folder = run.store.folder(train_model(run, settings, prepared))
    command = [sys.executable, "-m", "flows.cli", "chat", "--home", str(home.path), "--model", str(folder)]
    done = subprocess.run(command, input="Hello\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "continues texts and does not chat" in done.stderr
