"""External evaluation sets: 13-grams of every string in their files, and what becomes of rows that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dedup_samples import prose

from storage.errors import UserError
from tasks.curate.evaluation_sets import evaluation_grams
from tasks.readers.rows import Refused
from tasks.text.minhash import gram_hashes
from tasks.text.overlap import overlapping_spans

PAGE = prose(120, seed=1)


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def full_grams(*texts: str) -> set[int]:
    return set(gram_hashes(list(texts)).values.tolist())


def grams(*paths: Path) -> list[int]:
    refused = Refused()
    found = evaluation_grams(paths, refused).tolist()
    assert not refused.count, refused.sentence()
    return found


def test_evaluation_sets_are_read_from_every_string(tmp_path: Path) -> None:
    texts = [prose(20, seed) for seed in range(8)]
    table = pa.table(
        {
            "question": [texts[0], None],
            "choices": [[texts[1], texts[2]], []],
            "meta": [{"source": texts[3], "number": 1}, None],
            "kind": pa.array([texts[4], texts[4]]).dictionary_encode(),
            "score": [1.0, 2.0],
        }
    )
    pq.write_table(table, tmp_path / "set.parquet")
    lines = [{"text": texts[5], "n": 3}, {"nested": [{"answer": texts[6]}]}]
    write(tmp_path / "set.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    write(tmp_path / "set.txt", texts[7])
    found = grams(*(tmp_path / name for name in ("set.parquet", "set.jsonl", "set.txt")))
    assert set(found) == full_grams(*texts)
    assert found == sorted(found)


def test_a_folder_stands_for_the_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.json", json.dumps([PAGE]))
    write(tmp_path / "picture.bin", "no text")
    assert set(grams(tmp_path)) == full_grams(PAGE)


@pytest.mark.parametrize("name", ["._a.txt", ".cache/a.txt"])
def test_hidden_files_in_a_folder_are_passed_over(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.txt", PAGE)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"\0\x05\x16\x07\xff")  # the notes that macOS lays beside a file are no text
    assert set(grams(tmp_path)) == full_grams(PAGE)


def test_short_texts_of_an_evaluation_set_forbid_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"q": PAGE, "a": "yes it is"}))
    found = evaluation_grams([path], Refused())
    assert overlapping_spans("yes it is", found) == []
    assert set(found.tolist()) == full_grams(PAGE)


def test_evaluation_texts_go_through_what_documents_went_through(tmp_path: Path) -> None:
    text = prose(20, seed=1) + " e\u0301te\u0301"
    assert set(grams(write(tmp_path / "a.txt", text))) == full_grams(text.replace("e\u0301", "é"))


def test_a_map_gives_its_values_and_no_names_of_fields(tmp_path: Path) -> None:
    name, text = prose(20, seed=1), prose(20, seed=2)
    column = pa.array([[(name, text)]], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"answers": column}), tmp_path / "set.parquet")
    write(tmp_path / "set.jsonl", json.dumps({name: text}))
    assert set(grams(tmp_path / "set.parquet", tmp_path / "set.jsonl")) == full_grams(text)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{oops", "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON: its values are nested too deep"),
        (b'"caf\xe9"', "line 2: a text is not UTF-8: byte 0xe9"),
        (b'{"q": ["a \\ud800"]}', "line 2: a text holds a lone surrogate"),
    ],
)
def test_a_bad_line_is_refused_and_the_others_are_read(tmp_path: Path, bad: bytes, reason: str) -> None:
    first, last = prose(20, seed=1), prose(20, seed=2)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([json.dumps(first).encode(), bad, json.dumps([last]).encode()]))
    refused = Refused()
    assert set(evaluation_grams([tmp_path / "a.jsonl"], refused).tolist()) == full_grams(first, last)
    assert refused.count == 1
    assert f"a.jsonl, {reason}" in refused.sentence()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{oops\n{oops\n", "has no text .2 rows were refused: .*line 1 is not JSON.*line 2"),
        ("a.json", b"[" * 100_000, "not valid JSON"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8 text"),
        ("a.jsonl", b'"\xff"\n', "has no text .1 row was refused: .*line 1: a text is not UTF-8"),
        ("a.parquet", b"PAR1 but no more", "the Parquet file is damaged"),
        ("a.txt", b"  \n", "has no text"),
    ],
)
def test_a_damaged_evaluation_set_is_told(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        evaluation_grams([tmp_path / name], Refused())


def test_a_missing_evaluation_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        evaluation_grams([tmp_path / "nowhere"], Refused())
    with pytest.raises(UserError, match="a folder without files of"):
        evaluation_grams([tmp_path], Refused())
