"""Blocks of a page: paragraphs, items, tables and code, each with its place."""

from __future__ import annotations

import pytest
from pdf_samples import page_pdf, ruled, text_lines

from tasks.readers.pdf import extract_pdf
from tasks.readers.records import LINE_BREAK, Block, ExtractOptions

OPTIONS = ExtractOptions(ocr=False)
PROSE = [
    "The cost of a run follows the change and not the size of the corpus, so that one",
    "more document in a large folder takes a moment and not a night, and nothing that",
    "was computed before is computed again.",
]
CELLS = [["City", "Country", "People"], ["Graz", "Austria", "300,000"], ["Lyon", "France", "520,000"]]


def blocks_of(content: str, options: ExtractOptions = OPTIONS) -> list[Block]:
    (page,) = extract_pdf(page_pdf(content), options)
    return [Block(**block) for block in page.blocks]


def cells(rows: list[list[str]], lefts: list[float], top: float = 600, leading: float = 20) -> str:
    return "".join(
        text_lines([cell], left=left, top=top - leading * number)
        for number, row in enumerate(rows)
        for cell, left in zip(row, lefts, strict=True)
        if cell
    )


def test_lines_of_a_paragraph_are_one_block():
    (block,) = blocks_of(text_lines(PROSE))
    assert (block.kind, block.text, block.size, block.bold) == ("paragraph", "\n".join(PROSE), 12.0, False)


def test_a_block_has_its_box_in_points():
    (block,) = blocks_of(text_lines(PROSE[:2], left=72, top=700))
    assert block.x0 == pytest.approx(72, abs=1)
    assert block.y0 == pytest.approx(700 - 14, abs=4)
    assert block.y1 == pytest.approx(712, abs=4)
    assert 480 < block.x1 < 540


def test_more_space_begins_a_paragraph():
    found = blocks_of(text_lines(PROSE, top=700) + text_lines(PROSE, top=640))
    assert [block.text for block in found] == ["\n".join(PROSE)] * 2


def test_an_indented_line_begins_a_paragraph():
    last = "was computed before is computed again, whatever the folder of documents has."
    content = text_lines([*PROSE[:2], last], top=700) + text_lines(PROSE[:1], left=96, top=658)
    content += text_lines(PROSE[1:], top=644)
    assert [block.text.count("\n") for block in blocks_of(content)] == [2, 2]


def test_a_short_line_that_ends_a_sentence_ends_its_paragraph():
    content = text_lines([*PROSE, *PROSE])
    assert [block.text for block in blocks_of(content)] == ["\n".join(PROSE)] * 2


def test_lines_of_verse_end_where_they_end():
    verse = ["The sheep are in the fold,", "The night is dark and cold,", "Nothing of it was told"]
    (block,) = blocks_of(text_lines(PROSE, top=700) + text_lines(verse, top=640))[1:]
    assert block.text == LINE_BREAK.join(verse)


def test_entries_whose_lines_hang_are_blocks_of_their_own():
    content = "".join(
        text_lines(PROSE[:1], left=72, top=top) + text_lines(["short"], left=96, top=top - 14)
        for top in (700, 672, 644)
    )
    assert [block.text for block in blocks_of(content)] == [f"{PROSE[0]}\nshort"] * 3


def test_a_raised_number_does_not_divide_a_paragraph():
    content = text_lines(PROSE[:1], top=700) + text_lines(["1"], left=72, top=690, size=7)
    assert len(blocks_of(content + text_lines(PROSE[1:2], left=77, top=686))) == 1


def test_larger_and_bold_lines_are_apart_from_the_text_below():
    content = text_lines(["1 The change"], top=720, size=18) + text_lines(["1.1 Its cost"], top=702, font="F2")
    found = blocks_of(content + text_lines(PROSE, top=688))
    assert [(block.size, block.bold) for block in found] == [(18, False), (12, True), (12, False)]


@pytest.mark.parametrize("marks", [["\\267"] * 3, ["1.", "2.", "3."], ["(a)", "(b)", "(c)"]])
def test_each_item_of_a_list_is_a_block(marks):
    lines = [f"{mark} {line}" for mark, line in zip(marks, PROSE, strict=True)]
    found = blocks_of(text_lines(lines))
    assert [block.kind for block in found] == ["item"] * 3


def test_text_after_a_list_is_not_part_of_its_last_item():
    content = text_lines(["1. Read the files", "2. Train the model"], left=90, top=700) + text_lines(PROSE, top=672)
    assert [block.kind for block in blocks_of(content)] == ["item", "item", "paragraph"]


def test_code_keeps_its_indents():
    lines = [("def cost(change):", 90), ("if not change:", 118.8), ("return 0", 147.6), ("return 1", 118.8)]
    content = "".join(
        text_lines([line], left=left, top=600 - 14 * row, font="F3") for row, (line, left) in enumerate(lines)
    )
    (block,) = blocks_of(content)
    assert block.kind == "code"
    assert block.text == "def cost(change):\n    if not change:\n        return 0\n    return 1"


def test_a_word_of_code_in_a_line_is_part_of_its_paragraph():
    word = text_lines(["train.max_steps"], left=72, top=686, font="F3") + text_lines(["ends it."], left=190, top=686)
    (block,) = blocks_of(text_lines(PROSE[:1], top=700) + word)
    assert block.text == f"{PROSE[0]}\ntrain.max_steps ends it."


TABLE = """\
| City | Country | People |
|---|---|---|
| Graz | Austria | 300,000 |
| Lyon | France | 520,000 |"""


def test_a_table_without_rules_is_found_by_its_columns():
    content = text_lines(PROSE, top=660) + cells(CELLS, [72, 180, 300]) + text_lines(PROSE, top=500)
    assert [(block.kind, block.text) for block in blocks_of(content)][1] == ("table", TABLE)


def test_a_ruled_table_is_found_by_its_lines_however_narrow_its_columns():
    grid = ruled([70, 100, 145, 200], [555, 575, 595, 615])
    (block,) = blocks_of(cells(CELLS, [72, 102, 147]) + grid)
    assert (block.kind, block.text) == ("table", TABLE)


def test_lines_of_a_cell_are_one_cell():
    rows = [["City", "Remark"], ["Graz", "on the Mur,"], ["", "in the south"], ["Lyon", "on the Rhone"]]
    grid = ruled([70, 140, 260], [530, 555, 595, 615])
    (block,) = blocks_of(cells(rows, [72, 145]) + grid)
    assert block.text.split("\n")[2:] == ["| Graz | on the Mur, in the south |", "| Lyon | on the Rhone |"]


def test_a_line_below_a_table_does_not_join_its_columns():
    content = cells(CELLS, [72, 120, 300]) + text_lines(["From the census of the year before"], top=530)
    assert blocks_of(content)[0].text == TABLE


def test_a_bar_in_a_cell_is_escaped():
    grid = ruled([70, 140, 260], [575, 595, 615])
    (block,) = blocks_of(cells([["a|b", "c"], ["d", "e"]], [72, 145]) + grid)
    assert block.text.startswith("| a\\|b | c |")


def test_a_table_of_contents_is_no_table():
    rows = [[f"Chapter {row}", ". " * 20, f"{row}7"] for row in range(1, 7)]
    found = blocks_of(cells(rows, [72, 180, 420]))
    assert [block.kind for block in found] == ["paragraph"] * len(found)
    assert sum(block.text.count("Chapter") for block in found) == 6


def test_wide_spaces_in_a_paragraph_make_no_table():
    left, right = text_lines([line[:20] for line in PROSE[:2]] * 3, top=686), [line[20:] for line in PROSE[:2]] * 3
    content = text_lines(PROSE[:2], top=714) + left + text_lines(right, left=225, top=686) + text_lines(PROSE, top=602)
    assert {block.kind for block in blocks_of(content)} == {"paragraph"}


def test_a_page_of_upright_text_has_no_blocks_and_keeps_its_text():
    content = "BT /F1 12 Tf 0 1 -1 0 100 100 Tm (Along the side of the page) Tj ET\n"
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    assert page.blocks == []
    assert "Along the side" in page.text


def test_all_text_of_a_page_is_in_its_blocks():
    content = text_lines(PROSE, top=720) + cells(CELLS, [72, 180, 300]) + text_lines(["x = 1"], top=500, font="F3")
    (page,) = extract_pdf(page_pdf(content), OPTIONS)
    words = [word for block in page.blocks for word in block["text"].replace("|", " ").split() if "---" not in word]
    assert words == page.text.split()


def test_blocks_are_not_looked_for_if_switched_off():
    assert blocks_of(text_lines(PROSE), ExtractOptions(ocr=False, markdown=False)) == []


def test_a_line_that_begins_with_a_raised_number_belongs_to_the_next() -> None:
    raised = "BT /F1 7 Tf 1 0 0 1 72 123.5 Tm (1) Tj /F1 10 Tf 1 0 0 1 76 120 Tm (The leading dot in this file) Tj ET\n"
    note = blocks_of(text_lines(PROSE) + raised + text_lines(["name makes it invisible."], top=108, size=10))[-1]
    assert (
        note.text.replace(LINE_BREAK, " ").replace("\n", " ")
        == "1The leading dot in this file name makes it invisible."
    )
    assert note.y1 - note.y0 > 20  # both lines
