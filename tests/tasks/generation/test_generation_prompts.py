"""Prompts as people write them, and completions that can be asked for again."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_run import Ran, copy_of_store, direct_run, tiny_settings

from flows.generate import make_completions
from model import ModelConfig, Transformer, save_weights
from storage.errors import UserError
from storage.home import Home
from storage.schemas import COMPLETIONS
from storage.store import open_store
from storage.tables import read_rows
from storage.tombstones import Tombstone, Tombstones, write_tombstones
from tasks.core.run import Run
from tasks.core.settings import GenerateSettings, Settings
from tasks.generation.completions import Prompt, PromptsError, given_id, one_prompt
from tasks.generation.prompts import cut_prompts, read_prompts
from tasks.registry.models import checkpoint_of
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import HfTokenizer


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_text_holds_a_prompt_per_line(tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.txt", "Once\r\n\n  twice \nthrice")
    assert read_prompts(path) == [Prompt("0", "Once"), Prompt("1", "  twice "), Prompt("2", "thrice")]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.txt", b"\xef\xbb\xbfOnce\n")
    assert read_prompts(path) == [Prompt("0", "Once")]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    prompt = "one\u2028prompt\x0bwith\x85odd\x0cseparators"
    assert [item.prompt for item in read_prompts(written(tmp_path / "prompts.txt", prompt))] == [prompt]
    record = json.dumps({"prompt": prompt}, ensure_ascii=False)
    assert [item.prompt for item in read_prompts(written(tmp_path / "prompts.jsonl", record))] == [prompt]


def test_ids_keep_their_json_type(tmp_path: Path) -> None:
    lines = ['{"id": 7, "prompt": "a"}', '{"id": "8", "prompt": "b"}', '{"id": 1.5, "prompt": "c", "x": 1}']
    lines += ['{"id": true, "prompt": "d"}', '{"id": null, "prompt": "e"}', '{"prompt": "f", "x": {"id": 3}}']
    prompts = read_prompts(written(tmp_path / "prompts.jsonl", "\n".join(lines)))
    ids = [given_id({"id": item.id, "fields": item.fields}) for item in prompts]
    assert json.dumps(ids) == '[7, "8", 1.5, true, "4", "5"]'


def test_jsonl_holds_an_object_per_line(tmp_path: Path) -> None:
    lines = ['{"id": "a", "prompt": "Once"}', "", '{"text": "twice\\nmore", "id": 7}', '{"prompt": ""}']
    path = written(tmp_path / "prompts.jsonl", "\n".join(lines))
    assert read_prompts(path) == [Prompt("a", "Once"), Prompt("7", "twice\nmore", '{"id": 7}'), Prompt("2", "")]


def test_parquet_holds_a_row_per_prompt(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [3, 4], "prompt": ["Once", "twice"]}), tmp_path / "prompts.parquet")
    assert read_prompts(tmp_path / "prompts.parquet") == [
        Prompt("3", "Once", '{"id": 3}'),
        Prompt("4", "twice", '{"id": 4}'),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "bad.jsonl",
            '{"prompt": 5}\n["b"]\n',
            r"no valid prompt; the first of 2: bad\.jsonl, line 1 holds no text .* int",
        ),
        ("empty.jsonl", "\n\n", r"empty\.jsonl has no prompts"),
        ("empty.txt", "  \n", r"empty\.txt has no prompts"),
        ("bad.csv", "prompt,prompt\na,b\n", r"bad\.csv cannot be read: two columns have one name"),
        ("bad.csv", 'prompt\n"a\n', r"bad\.csv, line 2 is not CSV"),
        ("bad.csv", "question\na\n", r"bad\.csv, line 2 has no 'prompt'; it has: question"),
        ("no.parquet", b"not a table", r"no\.parquet.*Parquet"),
        (
            "twice.jsonl",
            '{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n',
            r"twice\.jsonl.*'a'.*more than once",
        ),
    ],
)
def test_an_unusable_file_is_refused_by_name_and_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(PromptsError, match=message):
        read_prompts(written(tmp_path / name, content))


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": \n{"prompt": "c"}', "a.jsonl, line 2 is not JSON"),
        ("a.jsonl", '{"prompt": "a"}\n["b"]\n{"prompt": "c"}', "a.jsonl, line 2 holds no object but list"),
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"propmt": "b"}\n{"prompt": "c"}',
            "a.jsonl, line 2 has no 'prompt'; it has: pro",
        ),
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"prompt": 5}\n{"prompt": "c"}',
            "a.jsonl, line 2 holds no text in 'prompt'",
        ),
        ("a.csv", "prompt,kind\na,b\nc\nc,d\n", "a.csv, line 3 has 1 values under a header of 2 columns"),
        ("a.csv", 'prompt\na\n"b"x\nc\n', "a.csv, line 3 is not CSV"),
    ],
)
def test_a_bad_record_is_a_prompt_with_an_error_and_the_others_go_on(
    tmp_path: Path, name: str, content: str, error: str
) -> None:
    good, bad, last = read_prompts(written(tmp_path / name, content))
    assert [(item.prompt, item.error) for item in (good, last)] == [("a", None), ("c", None)]
    assert bad.prompt == ""
    assert (bad.error or "").startswith(error)


def test_a_bad_record_takes_the_id_of_no_other(tmp_path: Path) -> None:
    content = '{"id": "1", "prompt": "a"}\n{"id": "2", "prompt": "b"}\n{oops\n{"id": "4", "prompt": "d"}'
    assert [item.id for item in read_prompts(written(tmp_path / "a.jsonl", content))] == ["1", "2", "line 3", "4"]


def test_a_parquet_row_without_text_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["Once", None]}), tmp_path / "prompts.parquet")
    good, bad = read_prompts(tmp_path / "prompts.parquet")
    assert (good.error, bad.error) == (None, "prompts.parquet, row 2 holds no text in 'prompt'")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match=r"no prompts file .*nowhere\.txt"):
        read_prompts(tmp_path / "nowhere.txt")


def test_a_prompt_with_a_lone_surrogate_is_refused_and_any_other_given_back() -> None:
    assert one_prompt("caf\u00e9 \U0001f600").prompt == "caf\u00e9 \U0001f600"
    with pytest.raises(PromptsError, match=r"^PROMPT: .* lone surrogate .* give UTF-8 text"):
        one_prompt(os.fsdecode(b"caf\xe9"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.txt", b"good\ncaf\xe9 au lait\nfine\n"),
        ("latin.csv", b"prompt\ngood\ncaf\xe9 au lait\nfine\n"),
        ("latin.jsonl", b'{"prompt": "good"}\n{"prompt": "caf\xe9 au lait"}\n{"prompt": "fine"}\n'),
        ("surrogate.jsonl", b'{"prompt": "good"}\n{"prompt": "caf\\ud800 au lait"}\n{"prompt": "fine"}\n'),
    ],
)
def test_a_prompt_that_is_not_utf_8_has_an_error_of_its_own(tmp_path: Path, name: str, content: bytes) -> None:
    good, bad, fine = read_prompts(written(tmp_path / name, content))
    assert (good, fine) == (Prompt("0", "good"), Prompt("2", "fine"))
    assert bad.prompt == "caf? au lait"
    assert bad.error is not None
    assert "lone surrogate" in bad.error


def test_csv_holds_a_prompt_per_record_and_its_other_columns_travel_along(tmp_path: Path) -> None:
    text = 'id,prompt,kind\na,"one, two\nthree",x\nb,plain,"say ""y"""\n'
    path = written(tmp_path / "prompts.csv", text)
    one, two = read_prompts(path)
    assert (one.id, one.prompt, json.loads(one.fields or "")) == ("a", "one, two\nthree", {"kind": "x"})
    assert (two.id, two.prompt, json.loads(two.fields or "")) == ("b", "plain", {"kind": 'say "y"'})


def test_columns_that_json_does_not_know_travel_as_text_or_nothing(tmp_path: Path) -> None:
    day = datetime.date(2026, 5, 1)
    table = pa.table({"prompt": ["a"], "day": [day], "share": [float("nan")], "tags": [["x", "y"]]})
    pq.write_table(table, tmp_path / "prompts.parquet")
    (prompt,) = read_prompts(tmp_path / "prompts.parquet")
    assert json.loads(prompt.fields or "") == {"day": "2026-05-01", "share": None, "tags": ["x", "y"]}


def test_a_template_puts_columns_together_and_all_of_them_travel_along(tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.csv", "id,question,style\n7,Who?,short\n8,Why?,long\n")
    first, second = read_prompts(path, "Q: {question} {{{style}}}\nA:")
    assert [first.prompt, second.prompt] == ["Q: Who? {short}\nA:", "Q: Why? {long}\nA:"]
    assert (first.id, json.loads(first.fields or "")) == ("7", {"question": "Who?", "style": "short"})


def test_a_record_without_a_value_for_the_template_has_an_error_of_its_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["Who?", None]}), tmp_path / "prompts.parquet")
    good, bad = read_prompts(tmp_path / "prompts.parquet", "{question}")
    reason = "prompts.parquet, row 2: the column 'question' of the template has no value here"
    assert (good.error, bad.error) == (None, reason)


def test_a_record_that_lacks_a_column_of_the_template_has_an_error_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", '{"question": "Who?"}\n{"questoin": "Why?"}')
    good, bad = read_prompts(path, "{question}")
    assert good == Prompt("0", "Who?", '{"question": "Who?"}')
    assert "prompts.jsonl, line 2: the template names the column 'question'" in (bad.error or "")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{questoin}", r"line 2: the template names the column 'questoin'; .*'question'.* did you mean \{question\}\?"),
        ("{answer}", r"names the column 'answer'; columns are 'id', 'question'; write \{\{ and \}\}"),
        ("Q: {question", r"an unmatched brace"),
        ("Q: question}", r"an unmatched brace"),
        ("{}", r"has \{\}; expected only the name of a column"),
        ("{question!r:>4}", r"has \{question!r:>4\}; expected only the name of a column"),
        ("{question.x}", r"names the column 'question.x'"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(tmp_path: Path, template: str, message: str) -> None:
    path = written(tmp_path / "prompts.csv", "id,question\n7,Who?\n")
    with pytest.raises(UserError, match=message):
        read_prompts(path, template)


def test_prompts_are_cut_from_the_beginning_so_that_more_of_them_leave_the_first_shards_alone() -> None:
    prompts = [Prompt(str(number), "word " * number) for number in range(50)]
    settings = GenerateSettings(max_new_tokens=10, n_samples=2, shard_tokens=100)
    shards, more = cut_prompts(prompts[:40], settings), cut_prompts(prompts, settings)
    assert [prompt for shard in more for prompt in shard] == prompts
    assert len(shards) > 4
    assert more[: len(shards) - 1] == shards[:-1]
    assert all(len(shard) <= 5 for shard in more)


PROMPTS = [Prompt("a", "The sheep"), Prompt("b", ""), Prompt("c", "x" * 100 + "€😀"), Prompt("d", "the dog")]


@pytest.fixture
def home(tiny: Ran, tmp_path: Path) -> Home:
    return copy_of_store(tiny, tmp_path / "home")


def complete(
    home: Home, tiny: Ran, prompts: list[Prompt], settings: Settings | None = None
) -> tuple[list[dict[str, Any]], Path, Run]:
    assert tiny.checkpoint is not None
    with direct_run(home) as run:
        ref = make_completions(run, settings or tiny_settings(), tiny.checkpoint, prompts)
        path = run.store.folder(ref) / "completions.parquet"
        return read_rows(path), path, run


def test_completions_of_a_model_that_read_forgotten_documents_say_so(home: Home, tiny: Ran) -> None:
    assert tiny.checkpoint is not None
    seen = Tombstone("one", "sha256 of it", seen_by=(f"train/{tiny.checkpoint.key}",))
    write_tombstones(open_store(home.store), Tombstones({"one": seen}))
    _, _, run = complete(home, tiny, PROMPTS[:1])
    (note,) = run.notes
    assert "was trained on 1 document(s) that were forgotten since: `sheepfold run SOURCE` trains one" in note


def test_completions_follow_their_schema_one_row_per_prompt(home: Home, tiny: Ran) -> None:
    rows, path, _ = complete(home, tiny, PROMPTS)
    assert pq.read_schema(path).equals(COMPLETIONS)
    assert [(row["id"], row["prompt"]) for row in rows] == [(item.id, item.prompt) for item in PROMPTS]
    assert tiny.checkpoint is not None
    for row in rows:
        assert row["finish_reason"] in ("stop", "length")
        assert len(row["logprobs"]) == row["n_tokens"] == len(row["text"]) <= 12
        assert (row["finish_reason"] == "length") == (row["n_tokens"] == 12)
        assert all(value <= 0 for value in row["logprobs"])
        assert row["model"] == tiny.checkpoint.digest
        assert json.loads(row["settings"])["max_new_tokens"] == 12


def test_the_same_request_is_found_in_the_store(home: Home, tiny: Ran) -> None:
    first, _, _ = complete(home, tiny, PROMPTS)
    again, _, run = complete(home, tiny, PROMPTS)
    assert again == first
    assert all(report.cached for report in run.reports.values())


def test_the_same_seed_gives_the_same_text_when_computed_anew(home: Home, tiny: Ran) -> None:
    first, path, _ = complete(home, tiny, PROMPTS)
    shutil.rmtree(path.parents[1])
    shutil.rmtree(path.parents[2] / "complete")
    again, _, run = complete(home, tiny, PROMPTS)
    assert again == first
    assert run.reports["complete"].computed == len(PROMPTS)


def test_an_empty_prompt_has_an_error_where_no_token_begins_a_text(home: Home, tiny: Ran, tmp_path: Path) -> None:
    assert tiny.checkpoint is not None
    folder = shutil.copytree(tiny.folder(tiny.checkpoint), tmp_path / "bundle")
    spec = json.dumps(learn_merges(["the sheep"], 300).record()["spec"])
    tokenizer = HfTokenizer(spec)
    tokenizer.save(folder / "tokenizer.json")
    config = ModelConfig(tokenizer.vocab_size, max_seq_len=16, n_layer=1, n_head=2, d_model=16)
    (folder / "config.json").write_text(json.dumps({"model": config.to_dict()}))
    save_weights(folder / "model.safetensors", Transformer(config))
    with direct_run(home) as run:
        checkpoint = checkpoint_of(run, str(folder))
        asked = [Prompt("a", "the"), Prompt("b", "")]
        made = make_completions(run, tiny_settings(), checkpoint, asked)
        good, bad = read_rows(run.store.folder(made) / "completions.parquet")
    assert (good["error"], bad["finish_reason"], bad["text"], bad["logprobs"]) == (None, "error", "", [])
    said = "the prompt is empty, and this model's tokeniser has no token to begin with; give a text"
    assert bad["error"] == said


def test_the_sample_continues_the_first_words_of_evaluation_documents(tiny: Ran) -> None:
    assert tiny.completions is not None
    rows = read_rows(tiny.folder(tiny.completions) / "completions.parquet")
    texts = read_rows(tiny.folder(tiny.prepared.evalset) / "documents.parquet", ["text"])
    openings = [re.match(r"(\S+\s+){7}\S+", row["text"]) for row in texts]
    assert {row["prompt"] for row in rows} == {found[0] for found in openings if found}  # with their line ends
