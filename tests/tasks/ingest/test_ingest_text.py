"""Decoding: the right characters from any encoding, and a result that always encodes to UTF-8."""

from __future__ import annotations

import random
import time

import pytest

from tasks.ingest.text import clean, decode

GERMAN = "Größe, Maß und Überfluß: Die Straße führt über den Fluß; Äpfel fallen. "
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. "


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("french-cp1252.txt", "un court texte en français : l'été dernier, à Besançon"),
        ("german-latin1.txt", "Größe, Maß und Überfluß: Die Straße führt über den Fluß"),
        ("russian-koi8r.txt", "Все счастливые семьи похожи друг на друга"),
        ("russian-cp1251.txt", "Все счастливые семьи похожи друг на друга"),
        ("japanese-shift_jis.txt", "吾輩は猫である。名前はまだ無い。"),
        ("japanese-euc_jp.txt", "吾輩は猫である。名前はまだ無い。"),
        ("chinese-gb18030.txt", "天地玄黄，宇宙洪荒。"),
        ("utf16le-no-bom.txt", "un court texte en français : l'été dernier, à Besançon"),
        ("utf16-bom.txt", "un court texte en français : l'été dernier, à Besançon"),
        ("utf8-bom.txt", "Größe, Maß und Überfluß"),
        ("special-tokens.txt", "<|endoftext|>"),
        ("mojibake.txt", "GrÃ¶ÃŸe"),
    ],
)
def test_the_right_characters_appear(corpus, name, expected):
    decoded = decode((corpus / "text" / name).read_bytes())
    assert expected in decoded.text
    assert "\ufffd" not in decoded.text and "\ufeff" not in decoded.text
    assert 0 < decoded.confidence <= 1


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "iso8859-15"]
)
def test_german_survives(encoding):
    assert decode((GERMAN * 3).encode(encoding)).text == GERMAN * 3


@pytest.mark.parametrize(
    "encoding", ["utf-16-le", "utf-16-be", "koi8-r", "cp1251", "iso8859-5", "cp866", "mac-cyrillic"]
)
def test_russian_survives(encoding):
    assert decode((RUSSIAN * 3).encode(encoding)).text == RUSSIAN * 3


def test_seven_bit_japanese_is_not_taken_for_ascii():
    decoded = decode(("吾輩は猫である。名前はまだ無い。" * 5).encode("iso2022_jp"))
    assert decoded.text.startswith("吾輩は猫である。")


def test_a_broken_character_does_not_make_utf8_something_else():
    decoded = decode((GERMAN * 20).encode()[:-40] + b"\xc3")
    assert decoded.encoding == "utf-8" and decoded.text.startswith("Größe")
    assert decoded.replaced == 1 and decoded.confidence < 1


def test_an_odd_byte_after_a_long_ascii_beginning_is_found():
    text = "plain words " * 20_000 + GERMAN * 20
    assert decode(text.encode("cp1252")).text == text


def test_controls_are_removed_and_counted_and_line_ends_unified():
    decoded = decode(b"a\x00b\r\nc\rd\te\x0cf\x1b\n")
    assert decoded.text == "ab\nc\nd\te\x0cf\n"
    assert decoded.controls_removed == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\ud83d\ude00", "\U0001f600"), ("a\ud83db", "a\ufffdb"), ("\ude00\ud83d", "\ufffd\ufffd"), ("\ud83d", "\ufffd")],
)
def test_surrogates_are_joined_or_replaced(text, expected):
    assert clean(text) == expected


def test_whatever_comes_in_encodes_to_utf8():
    generator = random.Random(7)
    for _ in range(300):
        decode(generator.randbytes(generator.randrange(200))).text.encode("utf-8")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "koi8-r", "utf-16-le"])
def test_a_long_line_takes_linear_time(encoding):
    word = "Größe " if encoding in ("cp1252", "utf-16-le") else "word "
    word = "слово " if encoding == "koi8-r" else word
    data = (word * (2_000_000 // len(word))).encode(encoding)
    start = time.perf_counter()
    assert decode(data).text.startswith(word * 10)
    assert time.perf_counter() - start < 3  # Milliseconds in fact; anything quadratic would take hours.


def test_nothing_is_nothing():
    assert decode(b"").text == ""
