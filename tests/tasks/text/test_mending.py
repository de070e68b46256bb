"""Words that OCR misread are mended only where clean text shows what stands there."""

from __future__ import annotations

import re

import pytest

from tasks.text.mending import mends, word_counts

SENTENCE = (
    "the same house stands beside the river and most of its windows are closed in the first days of the season so that "
    "those who pass see nothing of the information inside because several strangers have seen it "
)
CLEAN = SENTENCE * 30 + "a fee was found for sound, away a a a a a away "
KNOWN = word_counts([CLEAN])


def mended(text: str) -> str:
    for start, end, new in reversed(mends(text, KNOWN)):
        text = text[:start] + new + text[end:]
    return text


def old_print(text: str, long_s: str = "f") -> str:
    """Text in which every s but the last letter of a word is read as another letter."""
    return re.sub(r"s(?=[^\W\d_])", long_s, text)


@pytest.mark.parametrize("long_s", ["f", "\u017f"])
def test_a_long_s_is_mended_in_a_text_that_is_full_of_them(long_s: str) -> None:
    assert old_print(SENTENCE, long_s) != SENTENCE
    assert mended(old_print(SENTENCE, long_s)) == SENTENCE


def test_a_few_words_with_f_are_no_old_print() -> None:
    modern = CLEAN + " it was the fame of the feafon "
    assert mended(modern) == modern


@pytest.mark.parametrize("word", ["fee", "found", "sound", "Some", "of", "if", "fooled"])
def test_a_word_that_may_be_meant_stays(word: str) -> None:
    page = f"{old_print(SENTENCE)} {word} "
    assert mended(page).endswith(f" {'see' if word == 'fee' else word} ")


@pytest.mark.parametrize(
    ("read", "meant"),
    [
        ("all infor mation is", "all information is"),
        ("all infor\nmation is", "all information is"),
        ("beca use Sev eral", "because Several"),
        ("the first days of a", "the first days of a"),  # two words each
        ("infor, mation", "infor, mation"),
        ("Infor Mation", "Infor Mation"),  # two names
        ("zweit ausend", "zweit ausend"),  # unknown either way
        ("the a way of it", "the a way of it"),  # a part is more frequent than the whole
        ("to info@infor mation.org", "to info@infor mation.org"),
    ],
)
def test_a_word_read_as_two_is_joined_if_a_part_is_no_word(read: str, meant: str) -> None:
    assert mended(read) == meant


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        ("A tale.\nDigitized by Go ogle\nThe end.", "A tale.\n\nThe end."),
        ("Digitized by the Internet Archive\nin 2010 with funding\nOnce", "\nin 2010 with funding\nOnce"),
        ("Scanned with CamScanner", ""),
        ("The plans were digitized by the Dutch archive.", "The plans were digitized by the Dutch archive."),
        ("The plans were\ndigitized by the Dutch", "The plans were\ndigitized by the Dutch"),
        ("Scanned by the guard, he went.", "Scanned by the guard, he went."),
        ("infor\nmation\nScanned by X", "information\n"),
    ],
)
def test_the_stamp_of_a_scanner_is_cut(page: str, kept: str) -> None:
    assert mended(page) == kept


@pytest.mark.parametrize("text", ["", "f", "fffffffff " * 20, "\u017f" * 40, "a b " * 100, "\U0001f600 \U0001f600"])
def test_odd_texts_stay(text: str) -> None:
    assert mended(text) == text
