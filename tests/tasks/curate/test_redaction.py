"""Redaction and cutting: what stands in for personal data, and what a cut leaves behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tasks.curate.refine import REPLACEMENTS, cut, refine_text
from tasks.text.private_data import find_pii

LETTER = (
    "Jane (jane@sheep.farm, +49 711 1234567) logged in from 93.184.216.34 and 2a00:1450:4001:81b::200e,\n"
    "pays from DE89 3704 0044 0532 0130 00 or with 4111 1111 1111 1111; password = 'hG7$kQ2!mZ9'."
)


def spans(text: str) -> list[dict[str, Any]]:
    return [span._asdict() for span in find_pii(text)]


def redact(text: str, pii: list[dict[str, Any]]) -> str:
    return refine_text(text, pii, list(REPLACEMENTS), [])[0]


def test_each_kind_gives_way_to_its_stand_in() -> None:
    assert redact(LETTER, spans(LETTER)) == (
        "Jane (email@example.com, +1 202-555-0143) logged in from 192.0.2.1 and 2001:db8::1,\n"
        "pays from [IBAN] or with [CARD]; password = '[SECRET]'."
    )


@pytest.mark.parametrize(
    "wrong",
    [
        [{"kind": "email", "start": 0, "length": 5}, {"kind": "ip", "start": 4, "length": 2}],
        [{"kind": "ip", "start": 8, "length": 9}],
    ],
    ids=["overlap", "beyond the end"],
)
def test_spans_of_another_text_are_refused(wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="must be those of this very text"):
        redact("0123456789", wrong)


def cut_out(marked: str) -> str:
    """Cut what stands in double square brackets."""
    stretches, text = [], ""
    for number, part in enumerate(marked.replace("]]", "[[").split("[[")):
        if number % 2:
            stretches.append((len(text), len(part)))
        text += part
    return cut(text, stretches)


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("one [[two]] three", "one three"),
        ("one\n[[two]]\nthree", "one\nthree"),
        ("one\n[[two\n]]three", "one\nthree"),
        ("one [[two\nthree]] four", "one four"),
        ("one[[ two ]]three", "onethree"),
        ("one\n\n[[two]]\n\nthree", "one\n\nthree"),
        ("one\n[[two]]\n\nthree", "one\n\nthree"),
        ("one\n[[two]] three", "one\nthree"),
        ("one [[two]]\nthree", "one\nthree"),
        ("[[one]]\n\n  two", "  two"),
        ("[[one ]]two", "two"),
        ("one\n[[two]]", "one"),
        ("[[one]]", ""),
        ("one [[two]] [[three]] four", "one four"),
        ("one\n[[two]]\n[[three]]\nfour", "one\nfour"),
        ("[[one]] [[two]]\nthree [[four]]\n", "three"),
        ("def a():\n    [[pass]]\n    return 1", "def a():\n    return 1"),
        ("as  it\n\n\n is  [[not]]", "as  it\n\n\n is"),
        ("nothing is cut  here \n", "nothing is cut  here \n"),
    ],
)
def test_a_cut_leaves_no_seam(marked: str, expected: str) -> None:
    assert cut_out(marked) == expected


def naive_cut(text: str, stretches: list[tuple[int, int]]) -> str:
    """The same rules, applied to one cut after the other on a text that is joined anew each time."""
    gone = sorted({place for start, length in stretches for place in range(max(0, start), start + length)})
    gone = [place for place in gone if place < len(text)]
    if not gone:
        return text
    marked = list(text)
    for place in gone:
        marked[place] = "" if place - 1 in gone else "\0"
    first, *parts = "".join(marked).split("\0")
    for after in parts:
        first = naive_join(first, after)
    return first if parts[-1].strip() else first.rstrip()


def naive_join(before: str, after: str) -> str:
    blanks = " \t\n\u00a0"
    left, right = before.rstrip(blanks), after.lstrip(blanks)
    ahead, behind = before[len(left) :], after[: len(after) - len(right)]
    indentation = behind.rpartition("\n")[2] if "\n" in behind else ""
    if not right:
        return left + max(ahead, behind, key=lambda space: (space.count("\n"), len(space)))
    if not left:
        return indentation + right
    if "\n" not in ahead + behind:
        return left + (" " if ahead + behind else "") + right
    return left + "\n" * min(2, max(ahead.count("\n"), behind.count("\n"))) + indentation + right


@pytest.mark.parametrize("alphabet", ["ab \n", "a \t\n\u00a0\u3000", "a     ", "\n\n\n a"])
def test_any_cuts_leave_what_one_cut_after_the_other_leaves(alphabet: str) -> None:
    draw = random.Random(7)
    for _ in range(3_000):
        text = "".join(draw.choices(alphabet, k=draw.randrange(40)))
        stretches = [(draw.randrange(-3, 42), draw.randrange(6)) for _ in range(draw.randrange(8))]
        assert cut(text, stretches) == naive_cut(text, stretches), (text, stretches)


@pytest.mark.parametrize("lead", ["", "long " * 200_000, "word" + " " * 1_000_000], ids=["none", "text", "space"])
@pytest.mark.parametrize("between", ["x ", " "], ids=["words", "space"])
def test_very_many_cuts_cost_what_the_text_is_long(lead: str, between: str) -> None:
    """40,000 cuts behind a million characters, each of which must be looked at but a few times."""
    n = 40_000
    text = lead + ("*" * 40 + between) * n + "end"
    step = 40 + len(between)
    kept = cut(text, [(len(lead) + step * number, 40) for number in range(n)])
    assert kept == f"{lead.strip()} {'x ' * n if between == 'x ' else ''}end".lstrip()
