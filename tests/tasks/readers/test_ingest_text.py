"""Decoding: the right characters from any encoding, and a result that always encodes to UTF-8."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tasks.readers.decode import SLICE_BYTES, clean, decode

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


def test_seven_bit_japanese_is_not_taken_for_ascii():
    decoded = decode(("吾輩は猫である。名前はまだ無い。" * 5).encode("iso2022_jp"))
    assert decoded.text.startswith("吾輩は猫である。")


def test_a_broken_character_does_not_make_utf8_something_else():
    decoded = decode((GERMAN * 20).encode()[:-40] + b"\xc3")
    assert decoded.encoding == "utf-8" and decoded.text.startswith("Größe")
    assert decoded.text.count("\ufffd") == 1 and decoded.confidence < 1


def test_an_odd_byte_after_a_long_ascii_beginning_is_found():
    text = "plain words " * 20_000 + GERMAN * 20
    assert decode(text.encode("cp1252")).text == text


SAMPLES = {
    "english": "The quick brown fox, it wasn't tired at all; the dog was. ",
    "german": GERMAN,
    "french": "L'été dernier, à Besançon, où le garçon naïf a mangé un gâteau près de l'hôtel. ",
    "russian": RUSSIAN,
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ",
    "polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw, żółć. ",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. ",
    "arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. ",
    "turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. ",
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n",
    "korean": "모든 국민은 법 앞에 평등하다. 누구든지 성별, 종교에 의하여 차별을 받지 아니한다. ",
    "chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。\n",
    "taiwanese": "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。寒來暑往，秋收冬藏。\n",
}
ENCODINGS = {
    "english": "ascii cp500 cp037",
    "german": "latin-1 cp1252 cp850 cp437 mac-roman cp500",
    "french": "latin-1 cp1252 mac-roman",
    "russian": "cp1251 koi8-r cp866 iso8859-5 mac-cyrillic",
    "greek": "cp1253 iso8859-7",
    "polish": "cp1250 iso8859-2",
    "hebrew": "cp1255 iso8859-8",
    "arabic": "cp1256 iso8859-6",
    "turkish": "cp1254 iso8859-9",
    "japanese": "shift_jis euc_jp iso2022_jp",
    "korean": "euc_kr cp949 johab iso2022_kr",
    "chinese": "gb2312 gbk gb18030",
    "taiwanese": "big5 cp950",
}
WIDE = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
CASES = [(language, encoding) for language, names in ENCODINGS.items() for encoding in [*names.split(), *WIDE]]


@pytest.mark.parametrize(("language", "encoding"), CASES)
@pytest.mark.parametrize("times", [3, 200])
def test_each_language_survives_its_encodings(language, encoding, times):
    text = SAMPLES[language] * times
    decoded = decode(text.encode(encoding))
    assert decoded.text == text
    assert decoded.text.count("\ufffd") == 0 and 0 < decoded.confidence <= 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_proves_the_encoding_and_is_no_part_of_the_text(encoding):
    decoded = decode(GERMAN.encode(encoding))
    assert (decoded.confidence, decoded.text) == (1.0, GERMAN)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "shift_jis", "euc_jp", "gb18030", "utf-32"])
def test_a_character_cut_off_at_the_end_costs_only_itself(encoding):
    text = SAMPLES["japanese"] * 20 + "猫"
    decoded = decode(text.encode(encoding)[:-1])
    assert decoded.text.startswith(text[:-1]) and decoded.text.count("\ufffd") <= 1 and len(decoded.text) <= len(text)


def test_two_encodings_in_one_file_lose_no_ascii():
    decoded = decode((GERMAN * 5).encode() + b"\nand then\n" + (GERMAN * 5).encode("cp1252"))
    assert "\nand then\n" in decoded.text and decoded.confidence < 1


def test_a_line_end_of_ebcdic_is_a_line_end():
    text = (SAMPLES["english"] + "\n") * 9
    assert decode(text.replace("\n", "\x85").encode("cp500")).text == text


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "cp1251", "shift_jis"])
def test_slices_leave_no_trace(encoding, shift):
    line = "слово и слово\r\n" if encoding != "shift_jis" else "吾輩は猫である。名前はまだ無い。どこで生れたか\r\n"
    width = len(line.encode(encoding))
    text = line * (SLICE_BYTES // width + 2)
    padding = "a" * ((SLICE_BYTES + shift) % width)  # places the end of the first slice at each part of a line
    assert decode((padding + text).encode(encoding)).text == padding + text.replace("\r\n", "\n")


@pytest.mark.parametrize(("data", "factor"), [(b"word " * 1_000_000, 3.5), (b"\x00" * 5_000_000, 1.0)])
def test_memory_stays_within_a_few_times_the_input(data, factor):
    decode(b"once")  # what is loaded once is no part of it
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[1] < factor * len(data) + 8 * SLICE_BYTES
    finally:
        tracemalloc.stop()


def test_controls_are_removed_and_line_ends_unified():
    decoded = decode(b"a\x00b\r\nc\rd\te\x0cf\x1b\n")
    assert decoded.text == "ab\nc\nd\te\x0cf\n"


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


@pytest.mark.timeout(30)  # milliseconds in fact; anything quadratic would take hours
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "koi8-r", "utf-16-le"])
def test_a_long_line_takes_linear_time(encoding):
    word = "Größe " if encoding in ("cp1252", "utf-16-le") else "word "
    word = "слово " if encoding == "koi8-r" else word
    data = (word * (2_000_000 // len(word))).encode(encoding)
    assert decode(data).text.startswith(word * 10)
