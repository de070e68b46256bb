"""Running heads: what repeats at the edges of pages goes, what a page says stays."""

from __future__ import annotations

import random

import pytest

from tasks.text.cleaning import NormaliseSettings, document_text, strip_running_heads

WORDS = ["sheep", "fold", "gate", "wool", "field", "stone", "river", "cloud", "grass", "shepherd", "winter", "lamb"]


def body(number: int, n_lines: int = 8) -> list[str]:
    generator = random.Random(number)
    return [" ".join(generator.choices(WORDS, k=9)) for _ in range(n_lines)]


def page(number: int, head: list[str] = [], foot: list[str] = [], n_lines: int = 8) -> str:  # noqa: B006
    return "\n".join([*head, *body(number, n_lines), *foot])


def bodies(n: int, n_lines: int = 8) -> list[str]:
    return [page(number, n_lines=n_lines) for number in range(1, n + 1)]


@pytest.mark.parametrize(
    ("head", "foot"),
    [
        ("A Manual of Folds", "Page {}"),
        ("A Manual of Folds, {} of 2024", "- {} -"),
        ("{}", "Draft of 3 May 2024"),
        ("Folds   {}", "{} / 90"),
    ],
)
def test_heads_and_feet_go(head, foot):
    texts = [page(n, [head.format(n)], [foot.format(n)]) for n in range(1, 9)]
    assert strip_running_heads(texts) == bodies(8)


def test_left_and_right_pages_have_heads_of_their_own():
    texts = [page(n, ["The Shepherd's Book" if n % 2 else "Chapter Four"]) for n in range(1, 11)]
    assert strip_running_heads(texts) == bodies(10)


def test_page_numbers_alone_go_in_whatever_numerals():
    romans = ["i", "ii", "iii", "iv", "v", "vi"]
    texts = [page(n, foot=[romans[n - 1] if n <= 6 else str(n - 6)]) for n in range(1, 15)]
    assert strip_running_heads(texts) == bodies(14)


def test_heads_that_change_with_the_chapter_go_by_their_page_number():
    chapters = ["Wool", "Gates", "Winter", "Lambs"]
    texts = [page(n, [f"{n + 8} {chapters[n // 5]}" if n % 2 else f"Chapter {n // 5}: {n + 8}"]) for n in range(1, 20)]
    assert strip_running_heads(texts) == bodies(19)


def test_numbered_lines_of_a_listing_stay():
    texts = [page(n, [f"{n * 31} \\def\\name{n * 7}"], n_lines=6) for n in range(1, 20)]
    shifted = [text.replace("name", "abcdefghijklmnopqrst"[n]) for n, text in enumerate(texts)]
    assert strip_running_heads(shifted) == shifted


def test_numbers_that_do_not_count_pages_stay():
    texts = [page(n, foot=[str(n * n * 7)]) for n in range(1, 11)]
    assert strip_running_heads(texts) == texts


def test_a_line_on_fewer_pages_than_most_stays():
    texts = [page(n, ["Sometimes here"] if n % 5 in (0, 1) else []) for n in range(1, 11)]
    assert strip_running_heads(texts) == texts


def test_three_pages_prove_nothing():
    texts = [page(n, ["A Manual of Folds"]) for n in range(1, 4)]
    assert strip_running_heads(texts) == texts


def test_three_lines_go_but_a_form_that_repeats_stays_whole():
    three, four = ["One head", "two heads", "three heads"], ["Name", "Address", "Town", "Country"]
    assert strip_running_heads([page(n, three) for n in range(1, 6)]) == bodies(5)
    form = [page(n, four) for n in range(1, 6)]
    assert strip_running_heads(form) == form


def test_what_repeats_in_the_middle_of_a_page_stays():
    texts = ["\n".join([*body(n), "the same line", *body(-n)]) for n in range(1, 9)]
    assert strip_running_heads(texts) == texts


def test_pages_of_a_single_line_are_never_emptied():
    texts = ["the same words"] * 10
    assert strip_running_heads(texts) == texts


def test_a_head_behind_an_unknown_line_stays():
    texts = [page(n, ["A head"]) for n in range(1, 9)]
    texts[3] = f"a stamp of that page\n{texts[3]}"
    assert strip_running_heads(texts)[3] == texts[3]


def test_pages_that_are_missing_do_not_put_the_numbers_out_of_step():
    numbers = [1, 2, 4, 5, 7, 9, 10]
    texts = [page(n, foot=[str(n)]) for n in numbers]
    assert strip_running_heads(texts, numbers) == [page(n) for n in numbers]


@pytest.mark.full
@pytest.mark.timeout(20)
def test_many_pages_and_a_long_line_take_linear_time():
    texts = [page(n, ["x" * 200 + str(n)], [str(n)]) for n in range(1, 20_001)]
    texts[7] = "1 " * 1_000_000
    assert strip_running_heads(texts)[0].count("\n") == 8


@pytest.mark.parametrize(("strip", "kind", "heads"), [(True, "pdf", 0), (False, "pdf", 6), (True, "text", 6)])
def test_the_setting_decides_and_only_for_print(strip, kind, heads):
    pages = [{"page": n, "text": page(n, ["A Manual"]), "method": "text"} for n in range(1, 7)]
    text = document_text(pages, kind, NormaliseSettings(strip_running_heads=strip))
    assert text.count("A Manual") == heads
