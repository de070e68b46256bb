"""Misread text: found without the truth, cut or refused, and not mistaken for text of another kind."""

from __future__ import annotations

import random
import re
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from ingest_run import Ingestion, ingest, plan, write
from pdf_samples import page_pdf, text_lines
from PIL import Image

from storage.home import Home
from tasks.curate.legibility import PASSAGE, Characters, believed, page_places, room

# English prose of 500 kB that every Python has
PROSE = [re.sub(r"[^\x20-\x7e\n]", "", text) for _, text in sorted(topics.items()) if len(text) > 3_000]
MISREAD = str.maketrans({"e": "c", "n": "u", "h": "li", "t": "!", "m": "rn", "o": "0", "s": "5"})


def damaged(text: str, rate: float, seed: int = 0) -> str:
    """Text with a share of its letters replaced by others of it."""
    source = random.Random(seed)
    letters = [letter for letter in text if letter.isalpha()]
    return "".join(source.choice(letters) if c.isalpha() and source.random() < rate else c for c in text)


def misread(text: str, seed: int = 0) -> str:
    """Text as bad OCR gives it: letters confused, words torn."""
    source = random.Random(seed)
    torn = "".join(" " if source.random() < 0.1 else letter for letter in text)
    return "".join(letter.translate(MISREAD) if source.random() < 0.7 else letter for letter in torn)


def lines_of(texts: list[str]) -> list[str]:
    """Lines of prose with at least 40 characters, which may stand in a string of a PDF."""
    lines = (line.strip() for text in texts for line in text.split("\n"))
    return [line for line in lines if re.fullmatch(r"[\w ,.;:'-]{40,}", line)]


def scan(lines: list[str]) -> bytes:
    """A PDF of a picture with the text that an earlier OCR left: invisible."""
    return page_pdf(text_lines(lines, mode=3), Image.new("L", (850, 1100), 255))


def read(home: Home, source: Path, *assignments: str, **options: Any) -> Ingestion:
    """Ingest with the texts that earlier OCR left, however bad they are."""
    return ingest(home, source, "extract.ocr=false", *assignments, **options)


@pytest.fixture(scope="module")
def known() -> Characters:
    parts = [text[start : start + 2_000] for text in PROSE[: len(PROSE) // 2] for start in range(0, len(text), 2_000)]
    return Characters.fit(parts, ["en"])


def rate_of(known: Characters, text: str) -> float:
    found = list(known.passages(text))
    return sum(length * rate for _, length, rate in found) / sum(length for _, length, _ in found)


def test_the_estimate_is_near_the_share_of_replaced_letters(known: Characters) -> None:
    unseen = "\n".join(PROSE[len(PROSE) // 2 :])
    for rate in (0.05, 0.1, 0.2, 0.4):
        assert rate_of(known, damaged(unseen, rate)) == pytest.approx(rate, rel=0.5)
    assert rate_of(known, unseen) < 0.03


def test_misread_passages_are_told_from_others(known: Characters) -> None:
    unseen = [passage for text in PROSE[len(PROSE) // 2 :] for passage in re.findall(r"(?s).{400}", text)]
    clean = np.array([rate_of(known, text) for text in unseen])
    bad = np.array([rate_of(known, misread(text)) for text in unseen])
    assert (bad[:, None] > clean).mean() > 0.99  # area under the curve


def test_passages_cover_a_text_in_whole_lines(known: Characters) -> None:
    text = "\n".join(lines_of(PROSE)[:60])
    found = list(known.passages(text))
    assert [start for start, _, _ in found] == [0, *(start + length for start, length, _ in found[:-1])]
    assert found[-1][0] + found[-1][1] == len(text)
    assert all(length >= PASSAGE for _, length, _ in found)
    assert all(text[start - 1] == "\n" for start, _, _ in found[1:])


@pytest.mark.parametrize("text", ["", "x", "\n\n\n", " " * 1_000, "\U0001f600" * 500])
def test_odd_texts_have_finite_estimates(known: Characters, text: str) -> None:
    assert all(0 <= rate <= 1 for _, _, rate in known.passages(text))


def test_pages_are_found_in_the_text_of_their_document() -> None:
    pages = [("7\nThe first page has this line.", 0.9), ("", 0.1), ("The second page follows it here.", 0.5)]
    text = "The first page has this line.\n\nThe second page follows it here."
    assert page_places(text, pages) == [(0, 0.9), (31, 0.5)]


@pytest.mark.parametrize(
    ("method", "engine", "confidence", "most"),
    [
        ("ocr", "tesseract", 0.95, 0.0),
        ("ocr", "tesseract", 0.73, 0.2),
        ("both", "pypdfium2 + tesseract", 0.73, 0.2),
        ("ocr", "tesseract", None, 1.0),
        ("text", "pypdfium2 (invisible layer)", None, 1.0),
        ("text", "pypdfium2", None, 0.0),
    ],
)
def test_a_page_has_no_more_errors_than_its_reader_leaves_room_for(
    known: Characters, method: str, engine: str, confidence: float | None, most: float
) -> None:
    unlike = "\n".join(misread(line) for line in lines_of(PROSE)[:10])
    places = page_places(unlike, [(unlike, room(method, engine, confidence))])
    rates = [rate for *_, rate in believed(known.passages(unlike), places)]
    free = [rate for *_, rate in known.passages(unlike)]
    assert rates == pytest.approx([min(rate, most) for rate in free], abs=1e-4)


# a corpus: prose, and scans with the text of an earlier OCR


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    half = len(PROSE) // 2
    write(folder, {f"prose/{number}.txt": text for number, text in enumerate(PROSE[:half])})
    unseen = lines_of(PROSE[half:])
    good, other, bad = (unseen[first : first + 40] for first in range(0, 120, 40))
    spoilt = [misread(line) for line in other[15:23]]
    write(
        folder,
        {
            "scans/good.pdf": scan(good),
            "scans/partly.pdf": scan(other[:15] + spoilt + other[23:]),
            "scans/bad.pdf": scan(list(map(misread, bad))),
        },
    )
    return folder


@pytest.fixture(scope="module")
def ingested(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Ingestion]:
    home = Home.from_environment(str(tmp_path_factory.mktemp("home"))).create()
    return home, read(home, corpus)


def test_a_misread_document_is_refused_with_its_share(ingested: tuple[Home, Ingestion]) -> None:
    code, reason = ingested[1].dropped()["scans/bad.pdf"]
    assert code == "illegible"
    assert re.fullmatch(r"\d\d\.\d\d% of its characters are misread, by estimate, more than 12.00%", reason)


def test_the_misread_passages_of_a_document_are_cut(ingested: tuple[Home, Ingestion]) -> None:
    text = ingested[1].texts()["scans/partly.pdf"]
    lines = ingested[1].texts("normalise")["scans/partly.pdf"].split("\n")
    assert lines[0] in text and lines[-1] in text
    assert lines[19] not in text
    assert {(path, code) for path, _, code in ingested[1].cut_parts()} == {("scans/partly.pdf", "illegible")}


def test_legible_scans_and_text_that_no_ocr_read_stay(ingested: tuple[Home, Ingestion]) -> None:
    sides = ingested[1].sides()
    assert "scans/good.pdf" in sides and "prose/0.txt" in sides


def test_the_catalogue_has_the_estimates(ingested: tuple[Home, Ingestion]) -> None:
    rows = ingested[1].query("select path, error_rate from measures join files using (doc_id)")
    rates = {row["path"]: row["error_rate"] for row in rows}
    assert rates["scans/bad.pdf"] > 0.12 > rates["scans/good.pdf"]
    assert rates["prose/0.txt"] is None
    worst = ingested[1].query("select path from misread join files using (doc_id) order by error_rate desc limit 1")
    assert worst[0]["path"].startswith("scans/")


def test_a_long_s_is_mended_and_told(home: Home, corpus: Path, tmp_path: Path) -> None:
    lines = [re.sub(r"s(?=[a-z])", "f", line) for line in lines_of(PROSE)[:40]]
    folder = write(tmp_path / "more", {"old.pdf": scan(lines), "text.txt": "\n".join(PROSE)})
    found = read(home, folder, "policy.preset=off")
    before, after = found.texts("normalise")["old.pdf"], found.texts()["old.pdf"]
    assert " prefent" in before and " present" in after
    told = found.query("select start, length, text from mends order by start")
    (row,) = found.query(f"select mends from documents where doc_id = '{found.doc_id('old.pdf')}'")
    assert row["mends"] == len(told) > 50
    first = told[0]
    assert before[first["start"] : first["start"] + first["length"]].replace("f", "s") == first["text"]
    kept = read(home, folder, "policy.preset=off", "refine.mend=false")
    assert kept.texts()["old.pdf"] == before
    assert kept.computed() == {"refine": 2}  # both are in one segment


def test_another_threshold_judges_nothing_again(ingested: tuple[Home, Ingestion], corpus: Path) -> None:
    found = read(ingested[0], corpus, "policy.max_error_rate=0.9")
    assert found.reports["legibility"].computed == 0
    assert "scans/bad.pdf" in found.sides() and not found.cut_parts()


@pytest.mark.full
def test_a_plan_names_the_stages(home: Home, corpus: Path) -> None:
    assert "legibility" not in plan(
        home, corpus, "extract.ocr=false"
    )  # whether there are scans is known only after reading
    read(home, corpus)
    assert plan(home, corpus, "extract.ocr=false")["legibility"].computed == 0


@pytest.mark.full
def test_a_new_document_keeps_the_model_and_the_other_estimates(home: Home, corpus: Path, tmp_path: Path) -> None:
    write(tmp_path / "more", {"first.pdf": (corpus / "scans/bad.pdf").read_bytes(), "text.txt": "\n".join(PROSE)})
    before = read(home, tmp_path / "more")
    write(tmp_path / "more", {"second.pdf": (corpus / "scans/good.pdf").read_bytes()})
    after = read(home, tmp_path / "more")
    assert after.reports["characters"].computed == 0 and after.reports["legibility"].computed == 1
    assert before.dropped()["first.pdf"] == after.dropped()["first.pdf"]


@pytest.mark.full
def test_the_model_is_fitted_again_once_the_text_has_doubled(home: Home, corpus: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "more", {"scan.pdf": (corpus / "scans/good.pdf").read_bytes(), "0.txt": PROSE[0] * 10})
    read(home, folder)
    write(folder, {f"{number}.txt": text for number, text in enumerate(PROSE) if number})
    found = read(home, folder)
    assert found.reports["characters"].computed == 1


@pytest.mark.full
def test_scans_without_other_text_are_kept_and_it_is_said(home: Home, corpus: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    folder = write(tmp_path / "scans", {"a.pdf": (corpus / "scans/bad.pdf").read_bytes(), "b.txt": PROSE[0][:5_000]})
    found = read(home, folder, before=lambda run: setattr(run, "notes", notes))
    assert not found.dropped() and "legibility" not in found.reports
    (note,) = notes
    assert note.startswith("misread text was not looked for in 1 of the 1 documents that OCR read: that takes 50,000")


@pytest.mark.full
def test_another_language_is_judged_once_there_is_enough_of_it(home: Home, corpus: Path, tmp_path: Path) -> None:
    french = [
        "Le chat dort sur le mur du jardin pendant que la pluie tombe sans bruit.",
        "Nous avons marché longtemps dans la forêt avant de trouver la maison grise.",
        "Elle ne savait pas encore que son frère avait quitté la ville la veille.",
        "Les enfants jouent près de la rivière et leurs voix montent vers les toits.",
    ] * 8
    write(tmp_path / "more", {"french.pdf": scan(french), "text.txt": "\n".join(PROSE)})
    found = read(home, tmp_path / "more")
    rates = "select error_rate from measures join files using (doc_id) where path = 'french.pdf'"
    assert found.query(rates) == [{"error_rate": None}]
    write(tmp_path / "more", {"french.txt": "\n".join(f"{number}. {line}" for number, line in enumerate(french * 25))})
    found = read(home, tmp_path / "more")
    assert found.reports["characters"].computed == 1
    assert found.query(rates)[0]["error_rate"] < 0.05
