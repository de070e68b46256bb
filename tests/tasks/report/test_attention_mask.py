"""The mask that the inspection shows for a sentence of three words: on the page by its words, and in JSON."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from model import ModelConfig, Transformer
from tasks.report.inspection import Subject, inspect_prompt, to_json
from tasks.report.inspection_page import to_html
from tasks.tokens.tokenizer_kinds import WordTokenizer

WORDS = ["Hi", "Thomas", "Nguyen"]


class MaskTable(HTMLParser):
    """Reads the table with the id `mask`: names of its columns, and of each row its name and its allowed cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside = False
        self.scope = ""
        self.columns: list[str] = []
        self.rows: list[tuple[str, list[bool]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self.inside = given.get("id") == "mask"
        self.scope = (given.get("scope") or "") if tag == "th" else ""
        if self.inside and tag == "td":
            assert given["class"] in ("cell", "off")
            self.rows[-1][1].append(given["class"] == "cell")

    def handle_data(self, data: str) -> None:
        if self.inside and self.scope == "col":
            self.columns.append(data)
        elif self.inside and self.scope == "row" and data.strip():
            self.rows.append((data, []))

    def handle_endtag(self, tag: str) -> None:
        self.inside, self.scope = self.inside and tag != "table", ""

    def seen(self) -> dict[str, list[str]]:
        """The words that each word sees."""
        return {
            row: [column for column, allowed in zip(self.columns, cells, strict=True) if allowed]
            for row, cells in self.rows
        }


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, {"Hi": ["Hi"], "Thomas": ["Hi", "Thomas"], "Nguyen": WORDS}),
        ({"window": 2}, {"Hi": ["Hi"], "Thomas": ["Hi", "Thomas"], "Nguyen": ["Thomas", "Nguyen"]}),
    ],
)
def test_a_word_sees_itself_and_the_words_before_it(settings: dict[str, Any], seen: dict[str, list[str]]) -> None:
    tokenizer = WordTokenizer({"Hi": 4, "Thomas": 8, "Nguyen": 9})
    config = ModelConfig(tokenizer.vocab_size, max_seq_len=8, n_layer=1, n_head=2, d_model=8, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        subject = Subject("words", Transformer(config).eval(), tokenizer, bos=False)
    found = inspect_prompt(subject, " ".join(WORDS))
    assert MaskTable(to_html(found)).seen() == seen
    document = to_json(found)
    names = [token["text"] for token in document["tokens"]]
    cells = zip(names, document["mask"], strict=True)
    assert {name: [names[place] for place, one in enumerate(row) if one] for name, row in cells} == seen
