"""The language of a text: as py3langid says, only faster; and undetermined where nobody could say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tasks.text.measures import language, measure_documents
from tasks.text.measures.language import EXCERPT_CHARS, Automaton, automaton, excerpt, identify, look_in

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

# hard to tell from its neighbours, and known to the classifier in two scripts
SERBIAN = "Ovce su ujutru otišle na brdo i vratile se kada je počela kiša, a čobanin ih je čekao kod kuće."


def test_each_text_is_of_its_language() -> None:
    answers = identify(list(TEXTS.values()))
    assert [language for language, _ in answers] == list(TEXTS)
    assert all(confidence > 0.5 for _, confidence in answers)


def test_the_answers_are_those_of_the_classifier_itself() -> None:
    """Texts of one stride, which the automaton walks as the classifier does."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    texts = [text.encode()[:250].decode(errors="ignore") for text in (*TEXTS.values(), SERBIAN)]
    for text, (found, confidence) in zip(texts, identify(texts), strict=True):
        expected, probability = model.classify(text)
        assert found == (expected if probability >= 0.5 else "und"), text
        assert confidence == pytest.approx(probability, abs=0.002), text


def test_the_answer_does_not_depend_on_the_company() -> None:
    texts = [text * n for n in (1, 9, 40) for text in TEXTS.values()]
    assert identify(texts) == [identify([text])[0] for text in texts]


@pytest.mark.parametrize("text", ["", "Sheep", "12345 " * 100, "... --- ...\n" * 50, "🐑" * 200])
def test_what_is_too_short_or_no_language_is_undetermined(text: str) -> None:
    assert identify([text]) == [("und", 0.0)]


def test_a_long_text_is_judged_by_its_beginning_and_its_middle() -> None:
    text = "a" * 10_000 + "b" * 10_000
    assert len(excerpt(text)) == 2 * EXCERPT_CHARS + 1
    assert set(excerpt(text)) == {"a", "b", "\n"}
    assert excerpt("short") == "short"


def test_code_has_no_language() -> None:
    rows = [
        {"doc_id": kind, "kind": kind, "title": None, "programming_language": None, "text": TEXTS["en"]}
        for kind in ("code", "pdf", "code", "text")
    ]
    assert [row["language"] for row in measure_documents(rows)] == ["und", "en", "und", "en"]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that keeps the model; what this process has read before is read anew."""
    monkeypatch.setattr(language, "_folders", [])
    monkeypatch.setattr(language, "_keeping", [])
    automaton.cache_clear()
    look_in(tmp_path, keep=True)
    yield tmp_path
    automaton.cache_clear()


def assert_equal(found: Automaton, expected: Automaton) -> None:
    for (name, value), other in zip(asdict(found).items(), asdict(expected).values(), strict=True):
        assert np.array_equal(value, other), name
        assert getattr(value, "dtype", None) == getattr(other, "dtype", None), name


def test_a_kept_model_is_the_one_of_the_wheel(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = automaton()
    automaton.cache_clear()
    monkeypatch.setattr(language, "_unpacked", lambda: pytest.fail("it was unpacked again"))
    assert_equal(automaton(), unpacked)


def test_a_damaged_model_is_replaced(kept: Path) -> None:
    unpacked = automaton()
    (moves,) = kept.rglob("moves.npy")
    moves.write_bytes(moves.read_bytes()[:1000])
    automaton.cache_clear()
    assert_equal(automaton(), unpacked)
    automaton.cache_clear()
    assert_equal(language._mapped(moves.parent), unpacked)
    assert [path.name for path in kept.iterdir()] == [moves.parent.name]


def test_a_folder_that_cannot_be_written_costs_no_answer(kept: Path) -> None:
    (kept / "file").write_text("no folder")
    look_in(kept / "file", keep=True)
    assert identify(["Der Mond ist aufgegangen, die goldnen Sternlein prangen"])[0][0] == "de"
