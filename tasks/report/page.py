"""Report pages and cards: templates of `templates/`, rendered to Markdown or to one HTML file that needs no other file.

Whatever a template prints is escaped for its language, and characters that hide or reorder others are replaced by
signs, unless it is markup already. The head forbids the browser to fetch or run anything; only the page of `inspect`
has a script.

A page of a run is drawn only if what it shows has changed: its summary in Markdown lies beside it and ends in a mark of
everything that the page was drawn from. The module of a page has a function `write(outcome)` that returns it, or None
where the run made nothing to show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from storage.atomic import write_file
from storage.catalog import read_state
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.subprocesses import TABLE_BYTES_PER_FILE
from tasks.report import wording

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

VERSION = 2  # raised when pages show the same figures in another way, so that they are drawn anew

TEMPLATES = Path(__file__).with_name("templates")
FILTERS = (
    wording.amount,
    wording.counted,
    wording.cut,
    wording.cut_middle,
    wording.decimals,
    math.exp,
    wording.integer,
    wording.lines,
    wording.number,
    wording.share,
)


class Notice(NamedTuple):
    """One thing to look at first.

    Attributes:
        level: `lost`: text is missing that can be had; `check`: something looks wrong; `note`: good to know.
        section: id of the section with more.
        title: what it is, with its number.
        advice: what to do.
        weight: orders notices of one level; roughly the number of files.
        path: an example; empty where there is none.
    """

    level: Literal["lost", "check", "note"]
    section: str
    title: str
    advice: str
    weight: int = 1
    path: str = ""


def gravest_first(notices: Iterable[Notice]) -> list[Notice]:
    """Return notices in the order in which they should be read."""
    return sorted(notices, key=lambda item: (("lost", "check", "note").index(item.level), -item.weight, item.title))


def notices_of(template: str, **values: object) -> list[Notice]:
    """Return what a person should look at, the gravest first; empty if there is nothing.

    Args:
        template: file name of the conditions, which call `notice` with the fields of a `Notice` that holds.
    """
    found: list[Notice] = []
    render(template, notice=lambda *fields: found.append(Notice(*fields)), **values)
    return gravest_first(found)


def render(template: str, **values: object) -> str:
    """Return a page or a card as text.

    Args:
        template: file name in `templates/`; a page extends `base.html`, which says what every page has to be given; a
            card ends in `.md`.
        values: names that the template uses; one that is missing is an error.
    """
    return _environment(template.endswith(".md")).get_template(template).render(values)


def draw_page(template: str, notices: Sequence[Notice] = (), **values: object) -> list[str]:
    """Return a page, and its summary in Markdown: its lead, its facts and the first of its notices.

    Args:
        template: file name of a page, which sets `lead` and `facts`.
        notices: the gravest first.
    """
    page = _environment(False).get_template(template).make_module({"notices": notices, **values})
    lead, facts = (vars(page)[name] for name in ("lead", "facts"))
    return [str(page), render("summary.md", lead=Markup(lead).unescape(), facts=facts, notices=notices[:6])]


def macro(template: str, name: str, *values: object, **named: object) -> Markup:
    """Return what a macro of a template makes of some values."""
    return Markup(getattr(_environment(False).get_template(template).module, name)(*values, **named))


@cache
def _environment(is_markdown: bool) -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_markdown if is_markdown else wording.shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters.update({function.__name__: function for function in FILTERS})
    made.filters |= {"plain": _markdown, "cell": lambda text, *length: Markup(wording.cell(text, *length))}
    made.globals["source"] = _source
    return made


def _markdown(value: object, length: int = wording.MAX_WORDS) -> Markup:
    """A value as Markdown shows it; nothing for None."""
    return value if isinstance(value, Markup) else Markup(wording.plain("" if value is None else str(value), length))


def _source(name: str) -> Markup:
    """A style sheet or script of `templates/`, to stand in the page."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


# the pages of a run


@dataclass(frozen=True)
class Page:
    """A page in the reports of a home.

    Attributes:
        topic: short name, such as `training`.
        title: description in words.
        summary: Markdown without words of documents.
        files: the HTML page, then further files.
    """

    topic: str
    title: str
    summary: str
    files: tuple[Path, ...]

    def at_a_glance(self) -> dict[str, Any]:
        """Return the first paragraph of the summary, what it advises, and where the page is, for a terminal."""
        lead, *rest = (line for line in self.summary.splitlines() if line.strip())
        advice = [_unescaped(line[2:]) for line in rest if line.startswith("- ")]
        return {"topic": self.topic, "lead": _unescaped(lead), "advice": advice, "file": str(self.files[0])}


def _unescaped(line: str) -> str:
    """Return the text of a line that `wording.plain` wrote for Markdown."""
    return re.sub(r"\\(.)", r"\1", line)


@dataclass(frozen=True)
class Outcome:
    """Results of a run that have pages.

    Attributes:
        metrics: figures of the evaluation; empty where there was none.
        measured: the model whose evaluation has a page.
        promoted: the model whose gates have a page.
    """

    run: Run
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured: Measured | None = None
    promoted: Promotion | None = None

    @property
    def folder(self) -> Path:
        """Folder of the pages."""
        return self.run.home.reports_of(self.run.corpus)

    def made(self, stage: str) -> ArtifactRef | None:
        """Return the first artefact that the run remembers of a stage."""
        return next(iter(self.run.produced.get(stage, ())), None)

    def draw_once(
        self, name: str, title: str, drawn_from: Any, draw: Callable[[], Sequence[str]], *beside: str
    ) -> Page:
        """Return a page, drawn if a file is missing or it was drawn from something else.

        Args:
            name: of the page and its summary, `name`.html and `name`.md.
            drawn_from: everything that decides what the page shows, as JSON.
            draw: returns the texts of page and summary, then those of further files.
            beside: names of these files.
        """
        kept, files = self.folder / f"{name}.md", tuple(self.folder / item for item in (f"{name}.html", *beside))
        mark = f"\n<!-- {sha256_json([VERSION, drawn_from])} -->\n"
        summary = kept.read_text(encoding="utf-8") if kept.is_file() else ""
        if not summary.endswith(mark) or not all(file.is_file() for file in files):
            html, summary, *texts = draw()
            self.folder.mkdir(parents=True, exist_ok=True)
            for file, text in zip(files, (html, *texts), strict=True):
                write_file(file, text.encode())
            summary = f"{summary.rstrip()}\n{mark}"
            write_file(kept, summary.encode())  # last: its mark says that all files are there
        return Page(name.partition("-")[0], title, summary.removesuffix(mark), files)

    def draw_in_subprocess(self, function: Callable[..., list[str]]) -> list[str]:
        """Call a function over the whole corpus; of a large one in a subprocess, as its catalogue takes hundreds of MB.

        Args:
            function: of a module; takes `store`, `cache` and `corpus`, which lead to the catalogue, and `progress`.
        """
        home, corpus = self.run.home, self.run.corpus
        listed = read_state(self.run.store, corpus).get("snapshot")
        size = manifest_of(self.run.store, listed[0]).counts["rows"] * TABLE_BYTES_PER_FILE if listed else 0
        where = {"store": home.store, "cache": str(home.cache), "corpus": corpus}
        texts: list[str] = self.run.machine.subprocesses.call(function, lambda done, total: None, size, **where)
        return texts
