"""Curation through the pipeline: thresholds cost no measure, and no text is on both sides of the split."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_run import Ingestion, edited, home_at, ingest, prose, settings_of, write
from tiny_run import hash_share

from storage.catalog import read_state
from storage.errors import UserError
from storage.home import Home
from tasks.upkeep.verify import check_split

CURATE = settings_of().curate


def is_held_out(text: str) -> bool:
    """Return True if the hash of a text puts it into validation."""
    return hash_share(hashlib.sha256(text.encode()).hexdigest(), CURATE.salt) < CURATE.validation_share


def on_side(side: str, make: Callable[[int], str]) -> str:
    """The first of a row of texts that the hash puts on this side."""
    return next(text for seed in range(1_000, 2_000) if is_held_out(text := make(seed)) == (side == "validation"))


def texts(n: int) -> dict[str, str]:
    """Texts that have nothing in common."""
    return {f"{number:02}.txt": prose(number) for number in range(n)}


def problems(ran: Ingestion) -> list[str]:
    return check_split(ran.store, read_state(ran.store, "default")).problems


# policy


def test_another_threshold_computes_no_measure_again(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {**texts(8), "short.txt": "few words here\n"})
    assert "short.txt" in ingest(home, source).sides()
    ran = ingest(home, source, "policy.min_words=10")
    assert ran.codes() == {"short.txt": "few_words"}
    assert "3 words" in ran.dropped()["short.txt"][1]
    assert ran.computed() == {"curate": 1}
    assert (ran.reports["measure"].computed, ran.reports["measure"].reused) == (0, 9)
    assert ran.reports["dedup"].cached


@pytest.mark.full
def test_a_threshold_that_changes_no_decision_computes_nothing_behind_it(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", texts(6))
    first = ingest(home, source)
    again = ingest(home, source, "policy.max_words=99999")
    assert again.computed() == {"curate": 1}
    assert again.ingested.curated.digest == first.ingested.curated.digest


@pytest.mark.full
def test_a_document_that_the_policy_drops_does_not_move_its_cluster(home: Home, tmp_path: Path) -> None:
    """Its text decides all the same, or a threshold would move documents into validation."""
    held_out = on_side("validation", lambda seed: prose(seed, 150))
    trained = next(text for seed in range(500) if not is_held_out(text := edited(held_out, seed, 2) + " and one"))
    source = write(tmp_path / "in", {**texts(8), "a.txt": held_out, "b.txt": trained})
    near = ingest(home, source, "curate.near_duplicates=keep")
    assert near.sides()["a.txt"] == near.sides()["b.txt"] == "train"
    most = len(trained.split()) - 1
    dropped = ingest(home, source, "curate.near_duplicates=keep", f"policy.max_words={most}")
    assert dropped.codes()["b.txt"] == "many_words"
    assert dropped.sides()["a.txt"] == "train"


# near-duplicates and the split


def test_every_document_is_kept_or_dropped_with_a_reason(home: Home, tmp_path: Path) -> None:
    files = {**texts(9), "near.txt": edited(prose(1), 1, 1), "same.txt": prose(2) + "\n", "spam.txt": "buy now " * 900}
    ran = ingest(home, write(tmp_path / "in", files))
    assert ran.codes().keys() | ran.sides().keys() == files.keys()
    assert not ran.codes().keys() & ran.sides().keys()
    assert all(code and reason for code, reason in ran.dropped().values())


def test_near_duplicates_that_are_kept_are_on_one_side(home: Home, tmp_path: Path) -> None:
    files = {
        f"{number:02}-{copy}.txt": edited(prose(number, 200), copy, copy) for number in range(20) for copy in range(3)
    }
    ran = ingest(home, write(tmp_path / "in", files), "curate.near_duplicates=keep")
    sides = ran.sides()
    assert len(sides) == 60
    for number in range(20):
        assert len({sides[f"{number:02}-{copy}.txt"] for copy in range(3)}) == 1
    assert set(sides.values()) == {"train", "validation"}
    assert problems(ran) == []


def test_of_near_duplicates_one_is_kept_and_the_others_name_it(home: Home, tmp_path: Path) -> None:
    files = {**texts(6), "long.txt": prose(50, 200) + " and more", "short.txt": edited(prose(50, 200), 1, 2)}
    ran = ingest(home, write(tmp_path / "in", files))
    longest = max(("long.txt", "short.txt"), key=lambda name: len(files[name]))
    (other,) = {"long.txt", "short.txt"} - {longest}
    assert ran.codes() == {other: "near_duplicate"}
    assert f"document {ran.doc_id(longest)}" in ran.dropped()[other][1]


# containment


def manual_around(page: str, seed: int) -> str:
    return f"{prose(seed, 1500)}\n{page}\n{prose(seed + 5_000, 1500)}"


@pytest.mark.parametrize("page_side", ["train", pytest.param("validation", marks=pytest.mark.full)])
def test_a_page_that_stands_in_a_long_manual_on_the_other_side_is_dropped(
    home: Home, tmp_path: Path, page_side: str
) -> None:
    other = {"train": "validation", "validation": "train"}[page_side]
    page = on_side(page_side, lambda seed: prose(seed, 150))
    manual = on_side(other, lambda seed: manual_around(page, seed))
    others = {**texts(12), "long.txt": on_side("train", lambda seed: prose(seed, 6_000))}
    ran = ingest(home, write(tmp_path / "in", {**others, "page.txt": page, "manual.txt": manual}))
    assert not list(ran.rows(ran.ingested.duplicates, "pairs.parquet"))  # clusters do not see it
    code = {"train": "contained_in_validation", "validation": "contained_in_training"}[page_side]
    assert ran.codes() == {"page.txt": code}
    assert "100.0% of its 13-grams" in ran.dropped()["page.txt"][1]
    assert ran.sides()["manual.txt"] == other
    assert problems(ran) == []


@pytest.mark.full
def test_a_page_and_its_manual_on_the_same_side_both_stay(home: Home, tmp_path: Path) -> None:
    page = on_side("train", lambda seed: prose(seed, 150))
    manual = on_side("train", lambda seed: manual_around(page, seed))
    ran = ingest(home, write(tmp_path / "in", {**texts(12), "page.txt": page, "manual.txt": manual}))
    assert ran.codes() == {}


@pytest.mark.full
def test_a_document_that_quotes_less_than_the_threshold_stays(home: Home, tmp_path: Path) -> None:
    source_text = on_side("train", lambda seed: prose(seed, 400))
    quote = "\n".join(source_text.split("\n")[:5])  # 50 words of 450
    quoting = on_side("validation", lambda seed: f"{quote}\n{prose(seed + 50_000, 400)}")
    source = write(tmp_path / "in", {**texts(12), "source.txt": source_text, "quoting.txt": quoting})
    assert ingest(home, source).codes() == {}
    strict = ingest(home, source, "curate.max_containment=0.05")
    assert strict.codes() == {"quoting.txt": "contained_in_training"}
    assert strict.reports["measure"].cached
    assert problems(strict) == []


@pytest.mark.full
def test_of_two_documents_that_contain_each_other_only_one_is_dropped(home: Home, tmp_path: Path) -> None:
    """Half of each is the same; too little for near-duplicates, enough for a leak either way."""
    shared = prose(77, 200)
    one = on_side("train", lambda seed: f"{shared}\n{prose(seed, 200)}")
    other = on_side("validation", lambda seed: f"{prose(seed + 50_000, 200)}\n{shared}")
    ran = ingest(home, write(tmp_path / "in", {**texts(12), "one.txt": one, "other.txt": other}))
    assert ran.codes() == {"other.txt": "contained_in_training"}
    assert ran.sides()["one.txt"] == "train"
    assert problems(ran) == []


def test_where_all_of_validation_leaks_another_cluster_is_held_out(home: Home, tmp_path: Path) -> None:
    page = on_side("validation", lambda seed: prose(seed, 150))
    trained = {f"{n}.txt": on_side("train", lambda seed, n=n: prose(seed + 10_000 * n, 150)) for n in range(1, 5)}
    manual = on_side("train", lambda seed: manual_around(page, seed))
    ran = ingest(home, write(tmp_path / "in", {**trained, "page.txt": page, "manual.txt": manual}))
    sides = ran.sides()
    assert list(sides.values()).count("validation") == 1
    assert problems(ran) == []
    held_out = next(path for path, side in sides.items() if side == "validation")
    if held_out != "manual.txt":  # then the page may be trained on with it
        assert sides["page.txt"] == sides["manual.txt"] == "train"
    lowest = min(
        (path for path in ran.files() if path != "page.txt"),
        key=lambda path: hash_share(ran.selection()[path]["cluster"], CURATE.salt),
    )
    assert held_out == lowest


@pytest.mark.full
def test_a_corpus_of_one_text_in_many_pieces_is_trained_on_without_validation(home: Home, tmp_path: Path) -> None:
    """Whichever piece is held out stands in the whole, and the whole in its pieces: nothing can be measured on."""
    whole = prose(1, 600)
    lines = whole.split("\n")
    halves = {f"half-{n}.txt": "\n".join(lines[30 * n : 30 * n + 30]) for n in range(2)}
    ran = ingest(home, write(tmp_path / "in", {"whole.txt": whole, **halves}))
    assert problems(ran) == []
    assert "train" in ran.sides().values()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)])
def test_whatever_documents_share_nothing_crosses_the_split(home: Home, tmp_path: Path, seed: int) -> None:
    """Collages of paragraphs from a common stock, in all proportions."""
    draw = random.Random(seed)
    stock = [prose(9_000 + number, 60) for number in range(40)]
    files = {
        f"{number:03}.txt": "\n\n".join(
            [*draw.choices(stock, k=draw.randrange(1, 9)), prose(number, draw.choice([5, 100]))]
        )
        for number in range(80)
    }
    ran = ingest(
        home, write(tmp_path / "in", files), "curate.near_duplicates=keep" if seed == 1 else "dedup.threshold=0.7"
    )
    assert ran.codes().keys() | ran.sides().keys() == files.keys()
    assert problems(ran) == []


# external evaluation sets


def evaluation_file(folder: Path, kind: str, questions: list[str]) -> Path:
    path = folder / f"questions.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(len(questions))), "question": questions}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"data": {"q": question}, "n": 1}) + "\n" for question in questions))
    else:
        path.write_text("\n\n".join(questions))
    return path


@pytest.mark.parametrize(
    "kind", ["parquet", pytest.param("jsonl", marks=pytest.mark.full), pytest.param("txt", marks=pytest.mark.full)]
)
def test_text_of_an_evaluation_set_is_cut_out_and_a_document_that_is_mostly_that_is_dropped(
    home: Home, tmp_path: Path, kind: str
) -> None:
    questions = [prose(8_000 + number, 40).replace("\n", " ") for number in range(3)]
    named = evaluation_file(tmp_path, kind, questions)
    files = {
        **texts(8),
        "quoting.txt": f"{prose(100, 200)}\n\n{questions[0]}\n\n{prose(101, 200)}",
        "mostly.txt": f"A quiz.\n\n{questions[1]}\n\n{questions[2]}\n\nThe end.",
    }
    ran = ingest(home, write(tmp_path / "in", files), f"curate.evaluation_sets={named}")
    assert ran.codes() == {"mostly.txt": "evaluation_set"}
    (cut,) = ran.cut_parts()
    assert (cut[0], cut[2]) == ("quoting.txt", "evaluation_set")
    assert cut[1].strip(" .\n") == questions[0].strip(" .\n")
    refined = ran.texts()["quoting.txt"]
    assert questions[0][:60] not in refined
    assert prose(100, 200) in refined
    assert prose(101, 200) in refined


@pytest.mark.full
def test_several_evaluation_sets_and_folders_of_them_are_taken(home: Home, tmp_path: Path) -> None:
    questions = [prose(8_000 + number, 40).replace("\n", " ") for number in range(2)]
    (tmp_path / "sets" / "deep").mkdir(parents=True)
    evaluation_file(tmp_path / "sets" / "deep", "parquet", questions[:1])
    alone = evaluation_file(tmp_path, "txt", questions[1:])
    files = {
        **texts(6),
        **{f"q{n}.txt": f"{prose(100 + n, 200)}\n\n{question}" for n, question in enumerate(questions)},
    }
    ran = ingest(home, write(tmp_path / "in", files), f"curate.evaluation_sets={tmp_path / 'sets'}\n{alone}")
    assert sorted(path for path, _, _ in ran.cut_parts()) == ["q0.txt", "q1.txt"]


@pytest.mark.full
def test_an_evaluation_set_costs_no_measure_and_a_moved_one_nothing_at_all(home: Home, tmp_path: Path) -> None:
    question = prose(8_000, 40).replace("\n", " ")
    source = write(tmp_path / "in", {**texts(8), "quoting.txt": f"{prose(100, 200)}\n\n{question}"})
    ingest(home, source)
    named = evaluation_file(tmp_path, "txt", [question])
    assert ingest(home, source, f"curate.evaluation_sets={named}").computed() == {
        "evaluation_sets": 1,
        "curate": 1,
        "refine": 9,
    }
    moved = named.rename(tmp_path / "elsewhere.txt")
    again = ingest(home, source, f"curate.evaluation_sets={moved}")
    assert not {"evaluation_sets", "measure", "refine"} & again.computed().keys()
    named = evaluation_file(tmp_path, "txt", [prose(8_001, 40)])
    assert "evaluation_sets" in ingest(home, source, f"curate.evaluation_sets={named}").computed()


@pytest.mark.full
def test_an_evaluation_set_that_does_not_exist_is_named(home: Home, tmp_path: Path) -> None:
    source = write(tmp_path / "in", texts(2))
    with pytest.raises(UserError, match=r"evaluation_sets names .*absent\.jsonl, which does not exist"):
        ingest(home, source, f"curate.evaluation_sets={tmp_path / 'absent.jsonl'}")


@pytest.mark.full
def test_a_question_that_is_typed_otherwise_is_found_all_the_same(home: Home, tmp_path: Path) -> None:
    """Case, line breaks, marks and ligatures differ; the words do not."""
    words = f"the efficient office of the flock {prose(8_000, 40)}".replace("\n", " ")
    named = evaluation_file(tmp_path, "jsonl", [words.upper()])
    quoted = words.replace("ffi", "\ufb03").replace(" of ", "\nof ").replace(",", ";")
    ran = ingest(
        home, write(tmp_path / "in", {**texts(6), "q.txt": f"{prose(1_00, 200)}\n\n{quoted}"}),
        f"curate.evaluation_sets={named}",
    )  # fmt: skip
    assert [path for path, _, _ in ran.cut_parts()] == ["q.txt"]


# paragraphs


def with_paragraphs(seed: int, *shared: str) -> str:
    return "\n\n".join([prose(seed, 60), *shared, prose(seed + 500, 60)])


def test_paragraphs_that_a_better_document_has_are_cut_when_that_is_asked_for(home: Home, tmp_path: Path) -> None:
    notice = prose(7_000, 30)
    files = {
        **texts(6),
        "long.txt": with_paragraphs(1_000, notice, prose(3_000)),
        "short.txt": with_paragraphs(2_000, notice),
    }
    source = write(tmp_path / "in", files)
    settings = ("curate.max_containment=0.9",)
    assert ingest(home, source, *settings).cut_parts() == []
    ran = ingest(home, source, *settings, "curate.paragraphs=cut")
    assert ran.cut_parts() == [("short.txt", notice, "duplicate_paragraph")]
    assert notice in ran.texts()["long.txt"]
    assert notice not in ran.texts()["short.txt"]
    assert ran.texts()["short.txt"] == "\n\n".join([prose(2_000, 60), prose(2_500, 60)])
    assert {"measure", "dedup"}.isdisjoint(ran.computed())


@pytest.mark.full
def test_a_paragraph_of_a_dropped_document_is_cut_out_of_no_other(home: Home, tmp_path: Path) -> None:
    notice = prose(7_000, 30)
    files = {
        **texts(6),
        "long.txt": with_paragraphs(1_000, notice, prose(3_000)),
        "short.txt": with_paragraphs(2_000, notice),
    }
    most = len(files["long.txt"].split()) - 1
    ran = ingest(home, write(tmp_path / "in", files), "curate.paragraphs=cut", f"policy.max_words={most}")
    assert ran.codes() == {"long.txt": "many_words"}
    assert ran.cut_parts() == []


@pytest.mark.full
def test_a_document_of_nothing_but_paragraphs_of_others_does_not_become_an_empty_text(
    home: Home, tmp_path: Path
) -> None:
    """Nothing would be left to train on, and nothing to measure on."""
    parts = [prose(7_000 + number, 40) for number in range(3)]
    files = {
        **texts(6),
        **{f"p{n}.txt": with_paragraphs(1_000 + n, part, prose(3_000 + n)) for n, part in enumerate(parts)},
    }
    files["collage.txt"] = "\n\n".join(parts)
    ran = ingest(
        home, write(tmp_path / "in", files), "curate.paragraphs=cut", "curate.max_containment=1", "curate.salt=x"
    )
    kept = ran.sides().keys()
    assert [path for path, text in ran.texts().items() if path in kept and not text.strip()] == []


# the split as a whole


@pytest.mark.full
def test_growth_moves_no_document_from_training_into_validation(home: Home, tmp_path: Path) -> None:
    source = tmp_path / "in"
    before: dict[str, str] = {}
    for step in range(4):
        more = {f"{step}-{number}.txt": prose(100 * step + number) for number in range(8)}
        more |= {f"{step}-near-{number}.txt": edited(prose(100 * step + number), number, 1) for number in range(3)}
        after = ingest(home, write(source, more)).sides()
        assert not [
            path for path in before.keys() & after.keys() if (before[path], after[path]) == ("train", "validation")
        ]
        before = after


@pytest.mark.full
def test_the_whole_selection_is_the_same_in_any_order_of_growth(home: Home, tmp_path: Path) -> None:
    files: dict[str, Any] = {**texts(12), **{f"near-{n}.txt": edited(prose(n), n, 1) for n in range(4)}}
    names = list(files)
    found = []
    for order in (names, names[::-1]):
        source, place = tmp_path / f"in-{len(found)}", home_at(tmp_path / f"home-{len(found)}")
        for name in order[:3]:
            ingest(place, write(source, {name: files[name]}))
        ran = ingest(place, write(source, files))
        found.append((ran.sides(), ran.codes(), ran.ingested.curated.digest))
    assert found[0] == found[1]
