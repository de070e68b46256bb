"""Garbled text layers are told from every kind of text that only looks odd."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tasks.readers.text_layer import is_legible

ENGLISH = "Nothing is lost and nothing is silent. Kill it anywhere and run it again, and the result is the same.\n"
LEGIBLE = {
    "english": ENGLISH * 5,
    "polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.\n" * 5,
    "turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler.\n" * 5,
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.\n" * 5,
    "finnish": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.\n" * 5,
    "welsh": "Genir pawb yn rhydd ac yn gydradd â'i gilydd mewn urddas a hawliau.\n" * 5,
    "russian": "Все люди рождаются свободными и равными в своем достоинстве и правах.\n" * 5,
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.\n" * 5,
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.\n" * 5,
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।\n" * 5,
    "chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。\n" * 5,
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。\n" * 5,
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ\n" * 5,
    "code": "for (int i = 0; i < n_rows; ++i) { p[i] = (x >> 3) & 0xff; *q++ ^= mask[i % 7]; }\n" * 5,
    "contents": "1.2 Reading order . . . . . . . . . . . . . . . . . . . . . . . 17\n" * 20,
    "table": "| 12.5 | 3.75 | -0.25 | 1e-9 |\n+------+------+-------+------+\n" * 20,
    "formulae": "∑ᵢ xᵢ² ≤ ∫ f(x) dμ, ∀ε > 0 ∃δ: |x − y| < δ ⇒ |f(x) − f(y)| < ε; Δx ≈ 3 μm\n" * 5,
    "mixed": "Слово TensorFlow рядом с кириллицей и словом PyTorch ничего не портит.\n" * 5,
    "short": "17",
    "empty": "",
}
GARBLED = {
    "shifted": "".join(chr(ord(c) + 3) if c.isalpha() else c for c in ENGLISH.lower()) * 5,
    "glyph numbers": "".join(chr(ord(c) - 29) for c in ENGLISH.strip()) * 5,
    "private use": "".join(chr(0xE000 + ord(c)) if c.isalpha() else c for c in ENGLISH) * 5,
    "replacement": "\ufffd" * 200,
    "cyrillic as latin": ("Все люди рождаются свободными и равными " * 5).encode("cp1251").decode("latin-1"),
    "chinese as latin": ("人人生而自由在尊严和权利上一律平等 " * 8).encode("gb2312").decode("latin-1"),
    "two scripts in a word": "nотhіng іsлоst аnднотhіng sілеnт кіllіt аnywнеrе " * 8,
    "symbols": "".join(chr(33 + (7 * k) % 15) for k in range(300)),
}


@pytest.mark.parametrize("kind", LEGIBLE)
def test_real_text_is_legible(kind):
    assert is_legible(LEGIBLE[kind])


@pytest.mark.parametrize("kind", GARBLED)
def test_garbage_is_not(kind):
    assert not is_legible(GARBLED[kind])


def test_digests_and_encoded_bytes_on_a_page_of_prose_do_no_harm():
    digests = "".join(hashlib.sha256(bytes([k])).hexdigest() + "\n" for k in range(3))
    encoded = base64.b64encode(hashlib.sha512(b"x").digest()).decode()
    assert is_legible(ENGLISH * 10 + digests + encoded)


def test_a_page_is_judged_by_its_lines():
    shifted = GARBLED["shifted"].splitlines(keepends=True)[0]
    assert is_legible(ENGLISH * 9 + shifted)
    assert not is_legible(ENGLISH * 2 + shifted * 3)


@pytest.mark.parametrize("piece", ["a", "aб", "ж", "\ue000", "!", "é", "a "])
def test_a_line_of_half_a_million_characters_is_no_trouble(piece):
    assert isinstance(is_legible(piece * (500_000 // len(piece))), bool)
