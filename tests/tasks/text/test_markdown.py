"""A document's blocks as Markdown: headings, running heads and paragraphs over pages are judged by the whole."""

from __future__ import annotations

from tasks.readers.records import LINE_BREAK, Block
from tasks.text.markdown import document_markdown

LINE = "The cost of a run follows the change and not the size of the corpus."


def paragraph(text: str = LINE, size: float = 10, bold: bool = False, top: float = 400) -> Block:
    return Block("paragraph", text, 72, top - 12, 500, top, size, bold)


def markdown(*pages: list[Block]) -> str:
    return document_markdown(list(enumerate(pages, 1)))[0]


def roles(*pages: list[Block]) -> list[tuple[int, int, str, int]]:
    return [tuple(role.values()) for role in document_markdown(list(enumerate(pages, 1)))[1]]


def test_larger_lines_are_headings_by_their_size():
    page = [
        paragraph("Sheepfold", 24), paragraph(), paragraph("1 Ingestion", 14), paragraph(), paragraph("1.1 Pages", 12),
        *[paragraph() for _ in range(5)],
    ]  # fmt: skip
    heads = [line for line in markdown(page).split("\n") if line.startswith("#")]
    assert heads == ["# Sheepfold", "## 1 Ingestion", "### 1.1 Pages"]


def test_bold_lines_are_headings_below_the_larger_ones():
    page = [paragraph("Sheepfold", 18), paragraph("Pages", bold=True), *[paragraph() for _ in range(5)]]
    assert markdown(page).startswith("# Sheepfold\n\n## Pages\n\nThe cost")


def test_a_larger_line_may_be_a_question_or_end_in_a_colon_and_a_bold_sentence_is_none():
    page = [paragraph("Why wool?", 18), paragraph("Steps:", 14), paragraph("It is warm.", bold=True)]
    found = markdown([*page, *[paragraph() for _ in range(5)]])
    assert found.startswith("# Why wool?\n\n## Steps:\n\nIt is warm.\n\n")


def test_a_document_of_one_style_has_no_headings():
    assert "#" not in markdown([paragraph("Pages", 10), *[paragraph() for _ in range(5)]])
    assert "#" not in markdown([paragraph("Pages", 10, bold=True) for _ in range(5)])


def test_a_long_text_in_large_type_is_no_heading():
    assert "#" not in markdown([paragraph(LINE * 5, 14), *[paragraph() for _ in range(20)]])


def test_lines_of_a_paragraph_are_joined_and_divided_words_mended():
    assert markdown([paragraph("The cost of a run fol-\nlows the\nchange.")]) == "The cost of a run follows the change."


def test_a_paragraph_goes_on_on_the_next_page():
    found = markdown([paragraph("The cost of a run,")], [paragraph("which follows the change.")])
    assert found == "The cost of a run, which follows the change."


def test_a_paragraph_goes_on_after_the_footnotes_and_captions_of_its_page():
    page = [
        paragraph(LINE, top=700),
        paragraph("The cost of a run,", top=600),
        paragraph("Figure 2: Wool", top=200),
        paragraph("1 Measured in hours.", 8, top=90),
        paragraph("As is usual.", 8, top=70),
    ]
    second = [paragraph("which follows the change.", top=700), paragraph("2 See above.", 8, top=90)]
    assert roles(page, second) == [
        (1, 3, "caption", 0), (1, 4, "footnote", 0), (1, 5, "footnote", 0), (2, 2, "footnote", 0)
    ]  # fmt: skip
    assert markdown(page, second) == (
        f"{LINE}\n\nThe cost of a run, which follows the change.\n\nFigure 2: Wool\n\n1 Measured in hours.\n\n"
        "As is usual.\n\n2 See above."
    )


def test_a_footnote_goes_on_on_the_next_page():
    note = paragraph("1 Smith, on sheep and", 8, top=90)
    found = markdown([paragraph(top=700), note], [paragraph("their wool.", 8, top=760), paragraph(top=700)])
    assert "1 Smith, on sheep and their wool." in found


def test_small_text_above_other_text_is_no_footnote():
    page = [paragraph("1 Measured in hours.", 8, top=500), paragraph(LINE, top=400), paragraph(LINE, top=300)]
    assert roles(page) == []


def test_a_sentence_about_a_figure_is_no_caption():
    assert roles([paragraph("Figure 2 shows the wool."), paragraph("Table 3.14 differs.")]) == []
    assert roles([paragraph("Fig. 2. Wool"), paragraph("Table IV"), paragraph()]) == [
        (1, 1, "caption", 0), (1, 2, "caption", 0)
    ]  # fmt: skip


def test_the_level_of_a_heading_and_the_running_heads_are_told():
    pages = [
        [paragraph("A book of wool", top=800), paragraph(f"{number} Sheep", 14, top=700), paragraph(), paragraph()]
        for number in range(1, 7)
    ]
    assert roles(*pages)[:2] == [(1, 1, "running_head", 0), (1, 2, "heading", 1)]


def test_lines_below_each_other_that_begin_small_are_not_one_paragraph():
    assert markdown([paragraph("abbot, 12", top=400), paragraph("acre, 14", top=380)]) == "abbot, 12\n\nacre, 14"


def test_a_fence_in_code_is_inside_a_longer_one():
    assert markdown([Block("code", "```\nx\n```")]) == "````\n```\nx\n```\n````"


def test_a_sentence_on_the_next_page_is_a_paragraph_of_its_own():
    assert markdown([paragraph()], [paragraph()]) == f"{LINE}\n\n{LINE}"


def test_running_heads_and_page_numbers_are_left_out():
    bodies = [f"Page {page} begins here and ends there." for page in range(1, 9)]
    pages = [
        [paragraph("The manual", top=780), paragraph(body), paragraph(str(page), top=40)]
        for page, body in enumerate(bodies, 1)
    ]
    assert markdown(*pages) == "\n\n".join(bodies)


def test_items_follow_each_other_and_bullets_are_dashes():
    items = [Block("item", "\u2022 read\nthe files"), Block("item", "\u2022 train"), Block("item", "3. judge")]
    assert markdown([paragraph(), *items, paragraph()]) == f"{LINE}\n\n- read the files\n- train\n3. judge\n\n{LINE}"


def test_lines_of_a_script_without_spaces_are_joined_without_one():
    assert markdown([paragraph("羊は小屋に\nいる。")]) == "羊は小屋にいる。"


def test_lines_that_were_meant_to_end_end():
    assert markdown([paragraph(f"in the\nfold,{LINE_BREAK}in the cold")]) == "in the fold,\nin the cold"


def test_code_and_tables_keep_their_lines():
    code, table = Block("code", "if a-\nb:\n    pass"), Block("table", "| a |\n|---|\n| b |")
    assert markdown([code, table]) == "```\nif a-\nb:\n    pass\n```\n\n| a |\n|---|\n| b |"


def test_a_page_of_unknown_layout_keeps_its_lines():
    assert markdown([paragraph()], [Block("lines", "first\nsec-\nond")]) == f"{LINE}\n\nfirst\nsecond"
