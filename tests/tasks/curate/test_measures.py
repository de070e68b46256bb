"""Measures: the fast ones mean what the slow ones say, whatever the text and whatever the batch."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from slow_measures import slow_measures

from tasks.curate.measure import MEASURED_CHARS, measure_documents

PROSE = """The first lines of a text are its head. They say what it is about, and for whom.

- one thing, that is short
- another thing ...
• a third one…
-5 degrees is no bullet, and *this* is none

He said: "All is well." (So it was.)
The first lines of a text are its head. They say what it is about, and for whom.
The first lines of a   text are its head.

#1 #2 and so on... the end of it, that we have with us to be and to be and to be
"""
TEXTS = {
    "prose": PROSE,
    "prose many times": PROSE * 20,
    "empty": "",
    "one word": "word",
    "one letter": "a",
    "only spaces": " \t \u3000 ",
    "only line feeds": "\n\n\n",
    "spaces around": "  \n a b \n\n",
    "chinese": "我们的羊群在山上吃草。今天天气很好！\n我们的羊群在山上吃草。今天天气很好！\n" * 3,
    "japanese": "羊はやまのうえで草を食べている。「はい。」\nカタカナ",
    "arabic": "ذهب الراعي إلى الجبل؟ نعم.\nثم عاد",
    "hindi": "भेड़ पहाड़ पर घास खाती है।",
    "emoji": "🐑 🐑 🐑 🐑 🐑 🐑\n🐑 🐑 🐑 🐑 🐑 🐑",
    "one word over and over": "buy " * 500,
    "one phrase over and over": "buy it now or never at all my friend " * 60,
    "no repetition": " ".join(map(str, range(400))),
    "a long line": "word " * 20_000,
    "a long word": "x" * 100_000,
    "many empty lines": "a\n" + "\n" * 1_000 + "b",
    "numbers": "1 2 3 4 5\n1 2 3 4 5\n1 2 3 4 5",
    "odd spaces": "a\x1cb\u2028c\u00a0d\x85e",
    "a lone surrogate": "good \ud800 text",
    "dots": ". . . . ... …",
}


def row(text: str, kind: str = "text", language: str | None = None) -> dict[str, Any]:
    return {"doc_id": "d", "kind": kind, "title": None, "programming_language": language, "text": text}


def measure(text: str, kind: str = "text", language: str | None = None) -> dict[str, Any]:
    return measure_documents([row(text, kind, language)])[0]


def random_text(seed: int) -> str:
    """Words from a small stock, so that phrases and lines recur, with all kinds of white space and marks."""
    source = random.Random(seed)
    stock = ["the", "a", "Bb", "sheep.", "wool", "羊", "1", "-", "…", '"so"', "#", "be", "and", "ö"][
        : source.randint(2, 14)
    ]
    gaps = [" ", " ", " ", " ", "  ", "\n", "\n", "\n\n", "\t", " \n "]
    return "".join(source.choice(stock) + source.choice(gaps) for _ in range(source.randint(0, 400)))


def check(text: str, measured: dict[str, Any]) -> None:
    expected = slow_measures(text)
    found = {name: measured[name] for name in expected}
    assert found == pytest.approx(expected, abs=0.006), {
        name: (found[name], expected[name])
        for name in expected
        if found[name] != pytest.approx(expected[name], abs=0.006)
    }
    shares = [name for name in expected if name.endswith("_share")]
    assert {name: found[name] for name in shares} == pytest.approx({name: expected[name] for name in shares}, abs=6e-5)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_measures_are_what_the_slow_ones_say(text: str) -> None:
    check(text, measure(text))


def test_the_measures_of_random_texts_are_what_the_slow_ones_say() -> None:
    texts = [random_text(seed) for seed in range(150)]
    for text, measured in zip(texts, measure_documents([row(text) for text in texts]), strict=True):
        check(text, measured)


def test_a_document_measures_the_same_in_every_company() -> None:
    texts = [*TEXTS.values(), *(random_text(seed) for seed in range(40))]
    rows = [row(text, kind) for text in texts for kind in ("text", "code")]
    alone = [measure_documents([one])[0] for one in rows]
    random.Random(1).shuffle(order := list(range(len(rows))))
    together = measure_documents([rows[number] for number in order])
    assert together == [alone[number] for number in order]


@pytest.mark.full
def test_a_giant_text_is_described_by_its_beginning_but_counted_whole() -> None:
    text = "word and word " * 400_000 + "shepherd@sheep.farm"
    measured = measure(text)
    assert (measured["n_chars"], measured["measured_chars"]) == (len(text), MEASURED_CHARS)
    assert [text[span["start"] : span["start"] + span["length"]] for span in measured["pii"]] == ["shepherd@sheep.farm"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "filling", ["x", " ", "\n", "a ", "a\n", "1 ", "1.", "@", "a@", "羊", "0", "-", "::", "eyJ-", "token="]
)
def test_long_runs_take_no_longer_than_other_text(filling: str) -> None:
    """A quadratic pattern would take hours for these."""
    text = filling * (250_000 // len(filling))
    assert measure(text)["n_chars"] == measure(text, "code", "Python")["n_chars"] == len(text)


@pytest.mark.full
def test_measuring_needs_memory_in_proportion_to_the_text() -> None:
    text = " ".join(str(number % 99_991) for number in range(100_000))
    measure("one " * 200)  # what is loaded once is no part of it
    tracemalloc.start()
    try:
        measure(text)
        assert tracemalloc.get_traced_memory()[1] < 120 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("Lorem ipsum dolor sit amet, lorem ipsum", "lorem_ipsum", 2),
        ("if (a) { b(); } else { c(); }", "curly_brackets", 2),
        ("Please enable JavaScript.", "javascript", 1),
        ("Read our Privacy Policy; this site uses cookies.", "policy_phrases", 2),
        ("#a #b c d", "hash_word_ratio", 0.5),
        ("well... yes… no no", "ellipsis_word_ratio", 0.5),
        ("", "compression_ratio", 1.0),
        ("羊" * 10_000, "compression_ratio", 0.01),
        ("羊羊 ab", "unspaced_share", 0.5),
        ("a-b!", "symbol_share", 0.5),
        ("ab1 ", "alnum_share", 0.75),
    ],
)
def test_marks_and_phrases_are_counted(text: str, name: str, expected: float) -> None:
    assert measure(text)[name] == pytest.approx(expected)
