"""Words and paragraphs as hashes: the words that plain Python finds, at their places, the same in any company."""

from __future__ import annotations

import numpy as np
import pytest
from dedup_samples import plain_runs, plain_words, prose

from tasks.text.words import BATCH_CHARS, Batch, Hashes, joined, read_batches, word_hashes, word_runs

PINNED_WORDS = ["0x48c07d5a8e0e72fa", "0x8bb5d581b6daf0cd"]
PINNED_RUN = "0x6d219ab5f228acc0"
PINNED_PARAGRAPH = "0x5f0b6b9f814fce2a"
TEXTS = [
    "",
    " \n\n ",
    "one",
    "One, two; two_three 4five!",
    "Größe naïve ÀÉ",
    "他们在学校 and 学校",
    "ひらがなカタカナ々 word漢字word",
    "한국어 문장 입니다",
    "emoji 😀 between 𐐀𐐨",
    "lone \ud800 surrogate",
    "-- ... !!",
    "tab\tand\u00a0no-break\u3000wide",
]


def whole(texts: list[str]) -> Hashes:
    return joined([batch.words for batch in read_batches(texts)])


def paragraphs_of(text: str) -> Batch:
    (batch,) = read_batches([text], with_paragraphs=True)
    return batch


@pytest.mark.parametrize("text", [*TEXTS, prose(500, seed=1)])
def test_words_stand_where_plain_python_finds_them(text: str) -> None:
    _, starts, ends = word_hashes(text)
    found = [text[start:end].lower() for start, end in zip(starts, ends, strict=True)]
    assert found == plain_words(text)


def test_case_and_the_place_of_a_sigma_make_no_difference() -> None:
    assert len(set(word_hashes("ΟΔΟΣ οδος οδοσ Οδός".replace("ό", "ο"))[0].tolist())) == 1


def test_hashes_are_the_same_for_ever() -> None:
    assert [hex(value) for value in word_hashes("Sheepfold, 羊")[0].tolist()] == PINNED_WORDS
    assert hex(int(word_runs(whole(["a b c d e"]), 5).values[0])) == PINNED_RUN
    assert hex(int(paragraphs_of("a b " * 30).paragraphs.values[0])) == PINNED_PARAGRAPH


def test_a_document_hashes_the_same_in_any_company() -> None:
    texts = [*TEXTS, *(prose(900, seed) for seed in range(60))]
    together = whole(texts)
    for place, text in enumerate(texts):
        assert np.array_equal(together.take([place]).values, word_hashes(text)[0])


@pytest.mark.parametrize("n", [2, 5, 13])
def test_runs_are_those_of_plain_python(n: int) -> None:
    texts = [*TEXTS, *(prose(length, seed=7) for length in range(1, 30)), "a a a a a a a a a a a a a a a a a a"]
    runs = word_runs(whole(texts), n)
    pairs = set()
    for place, text in enumerate(texts):
        expected = plain_runs(text, n)
        assert runs.counts[place] == len(expected)
        pairs.update(zip(expected, runs.take([place]).values.tolist(), strict=True))
    assert len(pairs) == len({run for run, _ in pairs}) == len({value for _, value in pairs})


def test_a_word_longer_than_a_piece_is_cut_the_same_in_any_company() -> None:
    endless = "x" * (3 * BATCH_CHARS)
    assert np.array_equal(whole(["a b", endless, "c"]).take([1]).values, word_hashes(endless)[0])
    assert len(word_hashes(endless)[0]) == 3


def test_paragraphs_are_blocks_between_empty_lines() -> None:
    first, second = prose(30, seed=1).replace("\n", "\n  "), prose(30, seed=2)
    text = f"\n\n{first}\n \t\nToo short.\n\n\n{second}\n"
    found = paragraphs_of(text)
    stretches = [text[start : start + length] for start, length in zip(found.starts, found.lengths, strict=True)]
    assert stretches == [first.strip(), second.strip()]


def test_paragraphs_differ_by_their_words_and_not_by_their_white_space() -> None:
    text = prose(40, seed=1)
    folded = " ".join(text.split())
    same, case = paragraphs_of(text), paragraphs_of(folded)
    assert same.paragraphs.values.tolist() == case.paragraphs.values.tolist()
    assert paragraphs_of(folded.title()).paragraphs.values.tolist() != same.paragraphs.values.tolist()
    assert paragraphs_of(folded.replace(",", ";")).paragraphs.values.tolist() != same.paragraphs.values.tolist()


def test_a_paragraph_needs_eighty_characters_after_folding() -> None:
    assert len(paragraphs_of("x" * 39 + "   \n   " + "y" * 40).starts) == 1
    assert len(paragraphs_of("x" * 39 + "   \n   " + "y" * 39).starts) == 0


@pytest.mark.parametrize("unit", ["\n", " \n", "a", "\n\na", "漢", "\t", "a\u0301"])
def test_monotonous_text_takes_linear_time(unit: str) -> None:
    values, starts, ends = word_hashes(unit * 1_000_000)
    assert len(values) == len(starts) == len(ends)
