"""The language of a text by fastText's model; undetermined where the text is no prose. Nothing is downloaded."""

from __future__ import annotations

import socket

import pytest

from tasks.curate import measure
from tasks.curate.measure import identify_language, measure_documents

TEXTS = {
    "en": "The sheep went up the hill in the morning and came down again when the rain had begun to fall.",
    "de": "Die Schafe gingen am Morgen auf den Hügel und kamen wieder herunter, als der Regen anfing.",
    "fr": "Les moutons sont montés sur la colline le matin et sont redescendus quand la pluie a commencé.",
    "es": "Las ovejas subieron a la colina por la mañana y bajaron cuando empezó a llover con fuerza.",
    "ru": "Овцы поднялись утром на холм и спустились вниз, когда начался сильный дождь и подул ветер.",
    "zh": "羊群早上上山吃草,下雨的时候又回来了。牧羊人和他的狗在山脚下等着它们回家。",
    "ja": "羊たちは朝に丘へ登り、雨が降り始めるとまた下りてきた。羊飼いは犬と一緒に待っていた。",
    "ar": "صعدت الخراف إلى التل في الصباح ثم نزلت عندما بدأ المطر يهطل بغزارة على المرعى الأخضر",
}

# shares its probability with the languages next to it
CROATIAN = "Ovce su ujutro otišle na brdo i vratile se kada je počela kiša, a pastir ih je čekao kod kuće."


@pytest.mark.parametrize(("expected", "text"), TEXTS.items())
def test_each_text_is_of_its_language(expected: str, text: str) -> None:
    for written in (text, text.upper(), f"{text}\n" * 100):
        found, confidence = identify_language(written)
        assert (found, confidence > 0.5) == (expected, True)


def test_neighbours_of_a_language_leave_it_determined() -> None:
    found, confidence = identify_language(CROATIAN)
    assert found in ("hr", "bs", "sr", "sh")
    assert 0.3 <= confidence <= 1


@pytest.mark.parametrize("text", ["", "Sheep", "12345 " * 100, "... --- ...\n" * 50, "🐑" * 200])
def test_what_is_too_short_or_no_language_is_undetermined(text: str) -> None:
    assert identify_language(text) == ("und", 0.0)


def test_letters_without_words_are_undetermined_with_a_confidence() -> None:
    found, confidence = identify_language("OA OB OC u OA OB OC u OA OB OC u OA OB OC u")
    assert found == "und"
    assert 0 < confidence < 0.3


def test_a_long_text_is_judged_by_its_beginning_and_its_middle() -> None:
    german, russian = TEXTS["de"] + "\n", TEXTS["ru"] + "\n"
    assert identify_language(german * 30 + russian * 300 + german * 10)[0] == "ru"
    assert identify_language(german * 300 + russian * 10)[0] == "de"


def test_code_has_no_language() -> None:
    rows = [
        {"doc_id": kind, "kind": kind, "title": None, "programming_language": None, "text": TEXTS["en"]}
        for kind in ("code", "pdf", "code", "text")
    ]
    assert [row["language"] for row in measure_documents(rows)] == ["und", "en", "und", "en"]


def test_the_model_is_loaded_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("a connection was asked for"))
    measure._detector.cache_clear()
    assert identify_language(TEXTS["fr"])[0] == "fr"
