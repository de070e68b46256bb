"""Refining: what is private gives way to stand-ins and what is cut is gone, in the text that models see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ingest_run import Ingestion, edited, home_at, ingest, prose, write
from tiny_run import run_prepare, tiny_settings

from storage.catalog import Catalog, read_state
from storage.home import Home
from storage.tables import read_rows
from tasks.curate.refine import REPLACEMENTS, cut, refine_text
from tasks.tokens.tokenizer_kinds import load_tokenizer
from tasks.upkeep.verify import check_split, check_tokens

PRIVATE = {
    "email": "mary.shepherd@fold-and-pen.org",
    "ip": "203.0.57.198",
    "phone": "+44 20 7946 0958",
    "iban": "DE89 3704 0044 0532 0130 00",
    "card": "4539 1488 0343 6467",
    "secret": "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5",
}
ALL = "refine.redact=email,ip,phone,iban,card,secret"


def letter(number: int, kind: str) -> str:
    return f"{prose(number)}\nIts {kind} is {PRIVATE[kind]} as of today.\n{prose(number + 50)}"


def letters() -> dict[str, str]:
    return {f"{kind}.txt": letter(number, kind) for number, kind in enumerate(PRIVATE)}


def refined_digests(ran: Ingestion) -> list[str]:
    return [ref.digest for ref in ran.ingested.refined]  # type: ignore[union-attr]


def test_what_is_private_gives_way_to_its_stand_in_in_the_final_text(home: Home, tmp_path: Path) -> None:
    ran = ingest(home, write(tmp_path / "in", letters()), ALL)
    before, after = ran.texts("normalise"), ran.texts()
    for (name, written), kind in zip(letters().items(), PRIVATE, strict=True):
        assert PRIVATE[kind] in before[name]
        expected = written.replace(PRIVATE[kind], REPLACEMENTS[kind])
        assert after[name] == expected
        (row,) = ran.query(f"select text, redactions, n_bytes from documents where doc_id = '{ran.doc_id(name)}'")
        assert row == {"text": expected, "redactions": 1, "n_bytes": len(expected.encode())}


def test_other_kinds_refine_anew_and_measure_nothing(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", letters())
    ingest(home, source)
    assert ingest(home, source, ALL).computed() == {"refine": 6}


@pytest.mark.full
def test_what_is_tokenised_holds_stand_ins_and_not_what_they_stand_for(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", letters())
    ran = run_prepare(home, source, tiny_settings("tokenizer.kind=bpe", "tokenizer.vocab_size=300", ALL))
    tokenizer = load_tokenizer(ran.folder(ran.prepared.tokenizer) / "tokenizer.json")
    rows = Catalog(ran.run.store, "default").query("select ids from tokens")
    texts = [tokenizer.decode(row["ids"]) for row in rows]
    frozen = [row["text"] for row in read_rows(ran.folder(ran.prepared.evalset) / "documents.parquet")]
    assert len(texts) == 6
    assert frozen
    everything = "\n".join([*texts, *frozen])
    assert [kind for kind, value in PRIVATE.items() if value in everything] == []
    assert [kind for kind in PRIVATE if REPLACEMENTS[kind] not in everything] == []
    state = read_state(ran.run.store, "default")
    assert check_tokens(ran.run.store, state).problems == []
    assert check_split(ran.run.store, state).problems == []


def test_cuts_and_redactions_meet_in_one_document(home: Home, tmp_path: Path) -> None:
    question = prose(8_000, 40).replace("\n", " ").rstrip(".")
    named = tmp_path / "questions.txt"
    named.write_text(question)
    mail, address = PRIVATE["email"], PRIVATE["ip"]
    text = f"{prose(1)}\nwrite to {mail} or\n\n{question}\n\nto {mail} at {address}\n{prose(2)}"
    source = write(tmp_path / "in", {"both.txt": text, **{f"{n}.txt": prose(n) for n in range(5, 9)}})
    ran = ingest(home, source, f"curate.evaluation_sets={named}")
    refined = ran.texts()["both.txt"]
    mail, address = REPLACEMENTS["email"], REPLACEMENTS["ip"]
    assert refined == f"{prose(1)}\nwrite to {mail} or\n\nto {mail} at {address}\n{prose(2)}"
    (row,) = ran.query(f"select redactions, cut_chars from documents where doc_id = '{ran.doc_id('both.txt')}'")
    (found,) = ran.cut_parts()
    assert row == {"redactions": 3, "cut_chars": len(found[1])}


@pytest.mark.full
def test_a_segment_without_new_cuts_is_not_refined_anew_when_another_gets_some(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.ingest.segments.SEGMENT_FILES", 2)
    question = prose(8_000, 40).replace("\n", " ")
    named = tmp_path / "questions.txt"
    named.write_text(question)
    files = {"quoting.txt": f"{prose(1, 200)}\n\n{question}", **{f"{n}.txt": prose(n) for n in range(5, 12)}}
    source = write(tmp_path / "in", files)
    before = ingest(home, source)
    after = ingest(home, source, f"curate.evaluation_sets={named}")
    assert len(after.ingested.refined) == 4
    assert (after.reports["refine"].computed, after.reports["refine"].reused) == (2, 6)
    assert len(set(after.ingested.refined) - set(before.ingested.refined)) == 1


@pytest.mark.full
def test_the_refined_text_is_the_same_in_a_process_of_its_own(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in", {**letters(), "near.txt": edited(prose(1), 1, 1)})
    in_place = ingest(home, source, ALL)
    monkeypatch.setattr("tasks.core.subprocesses.WORTH_A_PROCESS", 0)
    apart = ingest(home_at(tmp_path / "apart"), source, ALL)
    assert refined_digests(apart) == refined_digests(in_place)
    assert apart.texts() == in_place.texts()


# cuts and redactions together, against an implementation that marks characters one by one

HOLE, KEPT = "\ue000", "\ue001"


def plainly(text: str, pii: Sequence[dict[str, Any]], kinds: Sequence[str], cuts: Sequence[tuple[int, int]]) -> str:
    """Cut first, with the private spans that are touched, then put stand-ins where the others are."""
    gone = {place for start, length in cuts for place in range(start, start + length)}
    halved = [
        (span["start"], span["length"])
        for span in pii
        if span["kind"] in kinds and not gone.isdisjoint(range(span["start"], span["start"] + span["length"]))
    ]
    marked = list(text)
    names = []
    for span in sorted(pii, key=lambda span: span["start"]):
        places = range(span["start"], span["start"] + span["length"])
        if span["kind"] in kinds and gone.isdisjoint(places):
            for place in places:
                marked[place] = HOLE
            names.append("ipv6" if span["kind"] == "ip" and ":" in text[places[0] : places[-1] + 1] else span["kind"])
            marked[places[0]] = KEPT
    left = cut("".join(marked), [*cuts, *halved]) if cuts else "".join(marked)
    assert left.count(KEPT) == len(names)
    left = left.replace(HOLE, "")
    for name in names:
        left = left.replace(KEPT, REPLACEMENTS[name], 1)
    return left


def private_text(draw: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A text of words and lines with private spans that do not overlap, some side by side."""
    parts: list[str] = []
    spans = []
    at = 0
    for _ in range(draw.randrange(1, 40)):
        kind = draw.choice(["email", "ip", "phone", "iban", "card", "secret", "", "", "", ""])
        part = draw.choice(["x", "yy zz", "word " * 3, " ", "\n", "\n\n", "ü\U0001f411", ""])
        if kind:
            part = draw.choice(["2001:db8::7", "10.1.2.3"]) if kind == "ip" else "q" * draw.randrange(1, 40)
            spans.append({"kind": kind, "start": at, "length": len(part)})
        parts.append(part)
        at += len(part)
    return "".join(parts), spans


@pytest.mark.parametrize("seed", range(20))
def test_cutting_and_redacting_together_is_marking_characters_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(150):
        text, spans = private_text(draw)
        kinds = draw.sample(["email", "ip", "phone", "iban", "card", "secret"], k=draw.randrange(0, 7))
        cuts = [(draw.randrange(len(text) + 1), draw.randrange(1, 30)) for _ in range(draw.choice([0, 1, 1, 2, 3]))]
        refined, n_redacted, _ = refine_text(text, draw.sample(spans, len(spans)), kinds, cuts)
        assert refined == plainly(text, spans, kinds, cuts)
        untouched = [
            span
            for span in spans
            if span["kind"] in kinds
            and not any(start < span["start"] + span["length"] and span["start"] < start + n for start, n in cuts)
        ]
        assert n_redacted == len(untouched)


@pytest.mark.timeout(20)
def test_many_spans_between_many_cuts_take_linear_time() -> None:
    """Looking at every cut for every span would take minutes."""
    n = 20_000
    text = "a@b.example word " * n
    pii = [{"kind": "email", "start": 17 * place, "length": 11} for place in range(n)]
    refined, n_redacted, _ = refine_text(text, pii, ["email"], [(17 * place + 12, 4) for place in range(n)])
    assert n_redacted == n
    assert refined.split() == [REPLACEMENTS["email"]] * n
