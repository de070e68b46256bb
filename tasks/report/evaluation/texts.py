"""Documents and completions as the pages about evaluations show them."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.evaluation.figures import Completion, Document, Mark
from tasks.report.inspect.labels import legible
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell
from tasks.report.wording import counted, cut, cut_middle

BEGINNING = 160  # characters of a document's text
PATH = 80
SOURCES = 3  # that are named of one span
CSS = """
.texts { display: grid; gap: 14px 22px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.texts > div { min-width: 0; }
.written { border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; overflow-wrap: anywhere;
  unicode-bidi: isolate; white-space: pre-wrap; max-height: 22rem; overflow-y: auto; margin: 0; max-width: none; }
.written .asked { color: var(--quiet); }
.written mark { background: var(--feed); color: inherit; box-shadow: inset 0 -2px var(--feed-rule);
  border-radius: 3px; padding: 1px 0; }
.told.fault { color: var(--contrary); }
.told { color: var(--quiet); font-size: .86rem; margin: 4px 0 0; overflow-wrap: anywhere; max-width: none; }
td.begins { white-space: normal; text-align: left; min-width: 18em; max-width: 34em; overflow-wrap: anywhere;
  unicode-bidi: isolate; }
.begins small { display: block; color: var(--quiet); }
@media print { .written { max-height: none; overflow: visible; } mark { print-color-adjust: exact; } }
"""


def beginning(text: str, length: int = BEGINNING) -> str:
    """The beginning of a text, on one line."""
    return cut(" ".join(text[: 4 * length].split()), length)


def name_cell(document: Document) -> Cell:
    """A document by its path, or by its id where that is not known."""
    name = legible(document.path or document.doc_id[:12])
    return Cell(cut_middle(name, PATH), "path", hint=name)


def begins_cell(document: Document) -> Cell:
    """The beginning of a document's text."""
    return Cell(legible(beginning(document.begins)) or "(no text)", "begins left")


def written(completion: Completion) -> str:
    """A prompt and what a model wrote after it, with the spans that stand in training text marked."""
    asked = element("span", escape(_lines(completion.prompt)), class_="asked")
    body = element("p", asked + _marked(completion.text, completion.marks or ()), class_="written")
    if completion.error:
        return body + element("p", escape(legible(f"Not continued: {completion.error}.")), class_="told fault")
    if completion.marks is None:
        return body
    return body + element("p", escape(told(completion)), class_="told")


def in_a_line(completion: Completion, length: int) -> str:
    """What a model wrote, or why it did not, on one line."""
    return (
        cut(f"(not continued: {completion.error})", length) if completion.error else beginning(completion.text, length)
    )


def told(completion: Completion) -> str:
    """In a sentence, what of a completion stands in training text."""
    marks = completion.marks or ()
    if not marks:
        return "No span of eight words or more stands in the training text."
    longest = marks[0]
    return legible(
        f"{counted(len(marks), 'span')} from the training text, the longest of {longest.words} words"
        f"{_found_in(longest)}."
    )


def _found_in(mark: Mark) -> str:
    if not mark.sources:
        return ""
    named = ", ".join(cut_middle(source, PATH) for source in mark.sources[:SOURCES])
    return f", in {named}"


def _marked(text: str, marks: Sequence[Mark]) -> str:
    """Text with its spans marked; those that overlap are one."""
    markup, reached = "", 0
    for begin, end, hint in _merged(marks):
        markup += escape(_lines(text[reached:begin]))
        markup += element("mark", escape(_lines(text[begin:end])), title=legible(hint))
        reached = end
    return markup + escape(_lines(text[reached:]))


def _merged(marks: Sequence[Mark]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for mark in sorted(marks, key=lambda one: one.start):
        end, hint = mark.start + mark.length, f"{mark.words} words{_found_in(mark)}"
        if found and mark.start < found[-1][1]:
            begin, before, known = found[-1]
            found[-1] = (begin, max(before, end), known if known == hint else f"{known}; {hint}")
        else:
            found.append((mark.start, end, hint))
    return found


def _lines(text: str) -> str:
    """A text to be read: its lines stay lines."""
    return "\n".join(legible(line) for line in text.split("\n"))
