"""Mojibake: what a wrong decoding broke is mended, and nothing else is touched."""

from __future__ import annotations

import pytest

from tasks.text.cleaning import LONGEST_PIECE, PIECES_REMEMBERED, normalise_text, repair_mojibake

TEXTS = {
    "german": "Größe, Maß und Überfluß: Die Straße führt über den Fluß; Äpfel.",
    "french": "L’été dernier, à Besançon, où le garçon naïf a mangé « un gâteau » près de l'hôtel — cœur.",
    "russian": "Все счастливые семьи похожи, каждая несчастливая семья несчастлива.",
    "japanese": "吾輩は猫である。名前はまだ無い。",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng",
    "polish": "Wszyscy ludzie rodzą się wolni, żółć",
    "english": "It wasn’t “tired” at all – the café’s fox.",
}
CORRECT = [
    "PREÇO: R$ 5 – AÇÃO… «NÃO, SÃO»",
    "XÃ HỘI CHỦ NGHĨA",
    "le café »",
    "À « Ö » à « é »",
    "10 Å–20 Å, 5×², m×³, 20 °C ± 1",
    "x ∈ ℝ, ∑ᵢ xᵢ² ≤ ‖y‖² ± 3 √∂ √π, ∂²u/∂t²",
    "├── src\n│   └── a.py",
    "¿Qué? ¡Sí! «año» ñ, 1ª, 2º",
    "Он сказал: «СССР» и „кавычки“ С» Р»",
    "naïve — “Ångström” … ‘Ğ’ İstanbul Ł",
    "한국어 العربية עברית ไทย हिन्दी",
]


def misread(text: str, times: int, encoding: str) -> str:
    """A text in UTF-8, read as Windows-1252 or 1251; bytes that it leaves out become what browsers make of them."""
    for _ in range(times):
        text = "".join(_character(byte, encoding) for byte in text.encode())
    return text


def _character(byte: int, encoding: str) -> str:
    try:
        return bytes([byte]).decode(encoding)
    except UnicodeDecodeError:
        return chr(byte)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize("language", TEXTS)
def test_utf8_that_was_misread_is_mended(language, encoding, times):
    text = f"A title\n{TEXTS[language]}\nplain words\n{TEXTS[language]}"
    assert normalise_text(misread(text, times, encoding), "text") == text


def test_russian_that_was_misread_in_russia_is_mended():
    assert normalise_text(misread(TEXTS["russian"], 1, "cp1251"), "text") == TEXTS["russian"]


@pytest.mark.parametrize("text", [*TEXTS.values(), *CORRECT])
@pytest.mark.parametrize("kind", ["pdf", "text"])
def test_correct_text_is_not_touched(text, kind):
    assert normalise_text(text, kind) == text
    assert repair_mojibake(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "When UTF-8 is read as Latin-1, é becomes Ã© and ’ becomes â€™.",
        "Mojibake such as GrÃ¶ÃŸe, MaÃŸ und ÃœberfluÃŸ is well known.",
        "Der Zeichensatz war falsch: GrÃ¶ÃŸe.",
        "é is shown as Ã©, ü as Ã¼ and ö, ä, ß, à as something like them.",
    ],
)
def test_texts_about_mojibake_keep_their_quotations(text):
    assert normalise_text(text, "text") == text


def test_a_long_broken_text_may_mention_an_encoding():
    text = "Die Größe der Straße über dem Fluß.\n" * 30
    broken = misread(text, 1, "cp1252") + "UTF-8"
    assert normalise_text(broken, "text") == text + "UTF-8"


def test_one_broken_line_is_mended_in_a_sound_text():
    sound = "Die Straße führt über den Fluß.\n" * 20
    assert normalise_text(sound + misread(TEXTS["german"], 1, "cp1252"), "text") == sound + TEXTS["german"]


def test_a_line_is_mended_as_often_as_it_stands_there():
    lines = [f"Größe {number % 300}" for number in range(3 * PIECES_REMEMBERED)] * 2
    assert normalise_text(misread("\n".join(lines), 1, "cp1252"), "text") == "\n".join(lines)


def test_windows_marks_read_as_latin1_come_back():
    assert normalise_text("it\x92s a \x93test\x94", "text") == "it’s a “test”"


@pytest.mark.parametrize("kind", ["code", "image"])
def test_code_and_what_ocr_read_keep_it(kind):
    assert normalise_text("x = 'GrÃ¶ÃŸe'", kind) == "x = 'GrÃ¶ÃŸe'"


@pytest.mark.parametrize("space", [" ", ""])
def test_a_line_longer_than_a_piece_is_mended(space):
    text = f"Größe{space}" * (LONGEST_PIECE // 4)
    repaired = repair_mojibake(misread(text, 1, "cp1252"))
    assert repaired.count("Größe") > 0.99 * text.count("Größe")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("filling", ["Ã", "Ã¶", "â€", "РЎ", "\x93", "é »", "Ã\xa0", "×²", "‚Ä"])
def test_long_lines_take_linear_time(filling):
    normalise_text("a" + filling * 50_000 + "b", "text")
