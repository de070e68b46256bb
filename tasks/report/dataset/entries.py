"""The sections about single tokens: the vocabulary's entries, and texts cut into tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.dataset.figures import DatasetFigures, Piece, Sample, Token
from tasks.report.dataset.vocabulary import RARE
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, more, scrolled, table
from tasks.report.wording import counted, cut_middle, share

Row = list[Cell | str | float]


def vocabulary_section(figures: DatasetFigures) -> str:
    """The most frequent, the longest and the unused entries."""
    used = figures.vocabulary
    body = "".join(element("p", escape(words)) for words in vocabulary_words(figures))
    body += element("div", _frequent(used.frequent, used.predicted) + _longest(used.longest), class_="split")
    if used.unused:
        listed = "".join(_chip(token) for token in used.unused)
        title = f"Never used: {used.n_unused:,}" + (
            f", of which the first {len(used.unused)}" if used.n_unused > len(used.unused) else ""
        )
        body += f"<h3>{escape(title)}</h3>" + element("ul", listed, class_="entries")
    why = (
        "Spaces are ␣, line ends ⏎, tabs ⇥; bytes that are no character by themselves are \\xNN. Counted over what the "
        "training split predicts."
    )
    return section("vocabulary", "Vocabulary", why, body)


def vocabulary_words(figures: DatasetFigures) -> list[str]:
    """How a vocabulary is used, in sentences."""
    used = figures.vocabulary
    covering = ", ".join(f"the {n:,} most frequent make up {100 * part:.0f} %" for part, n in used.covering)
    words = [
        f"{used.spelled:,} of {used.size:,} ids stand for text. {used.spelled - used.n_unused:,} of these occur in "
        f"training text, {used.rare:,} of them fewer than {RARE} times; {used.n_unused:,} never do."
    ]
    if covering:
        words.append(f"Of all that is predicted, {covering}.")
    return words


def _frequent(tokens: Sequence[Token], predicted: int) -> str:
    top = max((token.count for token in tokens), default=0) or 1
    rows: list[Row] = [
        [
            _entry(token),
            Cell(f"{token.count:,}", share=token.count / top),
            share(token.count, predicted),
            str(token.index),
        ]
        for token in tokens
    ]
    return _listed("Most frequent", ["token", "times", "share", "id"], rows)


def _longest(tokens: Sequence[Token]) -> str:
    rows: list[Row] = [[_entry(token), f"{token.n_bytes:,}", f"{token.count:,}", str(token.index)] for token in tokens]
    return _listed("Longest", ["token", "bytes", "times", "id"], rows)


def _listed(title: str, head: Sequence[str], rows: list[Row]) -> str:
    made = scrolled(table(head, rows, ""), title, tall=True) if rows else element("p", "none", class_="why")
    return element("div", f"<h3>{escape(title)}</h3>{made}")


def _entry(token: Token) -> Cell:
    return Cell(token.text, "token left", hint=token.code or None)


def _chip(token: Token) -> str:
    return element("li", escape(token.text), class_="token", title=f"id {token.index}: {token.code}")


def samples_section(figures: DatasetFigures) -> str:
    """Texts as the model reads them."""
    body = "".join(map(_sample, figures.samples)) or element("p", "There is no training document.")
    why = (
        "The beginning of a training document of each of the largest kinds. Every colour is a token, in the order of "
        "reading; rest on one for its id and bytes. Special ids stand on the strong colour."
    )
    return section("sample", "As the model reads it", why, body)


def _sample(sample: Sample) -> str:
    name = legible(sample.path)
    title = f"{legible(sample.kind)}: {cut_middle(name, 90)}" if name else legible(sample.kind)
    pieces = "".join(map(_piece, sample.pieces))
    rest = sample.tokens - len(sample.pieces)
    if rest:
        pieces += f' <em class="rest">… and {counted(rest, "more token")}</em>'
    ids = " ".join(str(piece.index) for piece in sample.pieces)
    return (
        element("h3", escape(title))
        + element("div", pieces, class_="sample", tabindex="0", role="group", aria_label=title)
        + more("The same as ids", element("code", escape(ids)))
    )


def _piece(piece: Piece) -> str:
    hint = f"id {piece.index}: {'special' if piece.special else piece.code}"
    name = "special" if piece.special else None
    shown = piece.text.replace("⏎", "⏎\n")  # spans keep their line ends
    return element("span", escape(shown), class_=name, title=hint)
