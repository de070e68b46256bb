"""Hygiene of whole texts: divided words, soft hyphens, pages, and a form that a second pass leaves alone."""

from __future__ import annotations

import random
import unicodedata

import pytest

from tasks.text.cleaning import NormaliseSettings, document_text, join_hyphenation, normalise_text

KINDS = ["pdf", "image", "text", "code"]
# whatever may become something else by what is done to its neighbours
PARTS = [
    *[
        "-\n",
        "- \n",
        "\r\n",
        "\r",
        "\n",
        "\n\n\n",
        "\f",
        "\x85",
        "\u2010\n",
        "\u00ad\n",
        "\u00ad \n",
        "\u00ad",
        "\ufeff",
    ],
    *["a", "b", "e", "E", "1", "-", "x-y ", "und ", "and ", " or z-", "http://", "www.", " ", "\t", "\u00a0", "\u3000"],
    *[
        "Ã",
        "¶",
        "Â",
        "â€™",
        "â",
        "€",
        "Ð",
        "Ñ",
        "Ì",
        "ƒ",
        "©",
        "»",
        "à",
        "é",
        "РџС",
        "Рё",
        "√",
        "√©",
        "‚Ä",
        "ô",
        "×",
        "²",
    ],
    *["\x00", "\x1b", "\x80", "\x92", "\x93", "\x9f", "\ud83d", "\ude00", "😀", "\ufffd", "\ufffe", "\uffff"],
    *["\u0301", "\u0303", "\u0327", "\u030a", "\u0338", "\u1100", "\u1161", "\u2126", "Å", "ﬁ", "<|endoftext|>"],
]


def document(*texts: str, kind: str = "pdf") -> str:
    pages = [{"page": n, "text": text, "method": "text"} for n, text in enumerate(texts, 1)]
    return document_text(pages, kind, NormaliseSettings())


@pytest.mark.parametrize("kind", KINDS)
def test_normalising_twice_changes_nothing(kind):
    for seed in range(2_000):
        generator = random.Random(seed)
        once = normalise_text("".join(generator.choices(PARTS, k=generator.randrange(1, 40))), kind)
        assert normalise_text(once, kind) == once
        assert unicodedata.is_normalized("NFC", once)
        once.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_normalising_any_code_points_twice_changes_nothing(kind):
    for seed in range(300):
        generator = random.Random(seed)
        once = normalise_text("".join(chr(generator.randrange(0x11_0000)) for _ in range(200)), kind)
        assert normalise_text(once, kind) == once


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("the exam-\nple", "the example"),
        ("the exam\u2010\nple", "the example"),
        ("die Über-\nführung, das Wörter-\nbuch", "die Überführung, das Wörterbuch"),
        ("несчаст-\nливая", "несчастливая"),
        ("a-\nb-\nc", "a-b-c"),
        ("1990-\n2000", "1990-\n2000"),
        ("Baden-\nWürttemberg", "Baden-\nWürttemberg"),
        ("an e-\nmail, the x-\naxis", "an e-mail, the x-axis"),
        ("a dash—\nnext, a dash –\nnext, two--\nnext", "a dash—\nnext, a dash –\nnext, two--\nnext"),
        ("Haupt-\nund Nebensatz", "Haupt- und Nebensatz"),
        ("pre-\nand post-war", "pre- and post-war"),
        ("thous-\nand sheep", "thousand sheep"),
        ("a self-contained one and a self-\ncontained one", "a self-contained one and a self-contained one"),
        ("see https://example.org/a-\nb-\nc now", "see https://example.org/a-b-c now"),
        ("see www.example-\nsite.org now", "see www.example-site.org now"),
        ("log(-\nexpm1(x))\n-\nmetadata", "log(-\nexpm1(x))\n-\nmetadata"),
        ("\\tl_-\nuse:N", "\\tl_-\nuse:N"),
    ],
)
def test_words_divided_at_line_ends(printed, expected):
    assert join_hyphenation(printed) == expected
    assert normalise_text(printed, "pdf") == expected


@pytest.mark.parametrize("kind", ["pdf", "image", "text"])
def test_a_soft_hyphen_at_a_line_end_divides_a_word_and_elsewhere_is_nothing(kind):
    assert normalise_text("exam\u00ad \n ple off\u00adice\u00ad\n\nnew", kind) == "example office\n\nnew"


def test_a_word_divided_between_two_pages_is_whole():
    assert document("the exam-", "ple goes on") == "the example goes on"
    assert document("the exam-", "ple goes on", kind="text") == "the exam-\n\nple goes on"


def test_pages_that_end_in_a_list_or_a_number_stay_apart():
    assert document("1990-", "2000", "Baden-", "Baden") == "1990-\n\n2000\n\nBaden-\n\nBaden"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", ["<|endoftext|>", "<bos>", "<pad>", "[UNK]", "</s>", "<|im_start|>"])
def test_the_names_of_special_tokens_are_text(kind, token):
    text = f"{token} quoted: “{token}”, {token}{token}"
    assert document(text, kind=kind) == text


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "filling",
    [
        "ab-\n",
        "a-b",
        "-\na",
        "http://a-\n",
        "e\u0301",
        "\u00ad \n",
        "\u00ad",
        " \u00ad\n a",
        "x" * 300 + "-\ny",
        "und-\nund ",
    ],
)
def test_long_texts_take_linear_time(filling):
    """A quadratic step would take hours for these."""
    text = "a" + filling * (500_000 // len(filling)) + "b"
    assert normalise_text(text, "pdf")[:1] == "a"
