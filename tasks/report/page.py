"""Report pages and cards: Jinja2 templates rendered to Markdown or to a self-contained HTML file.

Every value is escaped for HTML or Markdown, and invisible or reordering characters are replaced by visible signs. A
Content-Security-Policy forbids pages to fetch or run anything; only the page of `inspect` has a script. A page is
rendered again only if its inputs changed: their digest ends the Markdown summary beside the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from storage.atomic import write_file
from storage.catalog import read_state
from storage.digest import sha256_json
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.subprocesses import TABLE_BYTES_PER_FILE
from tasks.report import wording

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

VERSION = 4  # raise it when templates change, so that existing pages are rendered again

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
    """One finding at the top of a page.

    Attributes:
        level: `lost`: text is missing that could be recovered; `check`: probably wrong; `note`: for information.
        section: id of the section with details.
        title: the finding, with its number.
        advice: what to do about it.
        weight: rank within a level; roughly the number of files concerned.
        path: path of an example; may be empty.
    """

    level: Literal["lost", "check", "note"]
    section: str
    title: str
    advice: str
    weight: int = 1
    path: str = ""


def notices_of(template: str, **values: object) -> list[Notice]:
    """Return the notices of a page, most severe first: by level, weight and title.

    Args:
        template: file name of a template of conditions, which calls `notice` with the fields of a `Notice`.
    """
    found: list[Notice] = []
    render(template, notice=lambda *fields: found.append(Notice(*fields)), **values)
    return sorted(found, key=lambda item: (("lost", "check", "note").index(item.level), -item.weight, item.title))


def render(template: str, **values: object) -> str:
    """Return a page or a card as text.

    Args:
        template: file name in `templates/`; pages extend `base.html`, cards end in `.md`.
        values: variables of the template; a missing one raises `jinja2.UndefinedError`.
    """
    return _environment(template.endswith(".md")).get_template(template).render(values)


def write_page(html: str, path: Path) -> Path:
    """Write a page and return its path.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another file with --out") from error
    return path


def draw_page(template: str, notices: Sequence[Notice] = (), **values: object) -> list[str]:
    """Return a page and its Markdown summary: lead, facts and the first six notices.

    Args:
        template: file name of a page, which sets `lead` and `facts`.
        notices: most severe first.
    """
    page = _environment(False).get_template(template).make_module({"notices": notices, **values})
    lead, facts = (vars(page)[name] for name in ("lead", "facts"))
    return [str(page), render("summary.md", lead=Markup(lead).unescape(), facts=facts, notices=notices[:6])]


def macro(template: str, name: str, *values: object, **named: object) -> Markup:
    """Return the output of a template's macro."""
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
    return value if isinstance(value, Markup) else Markup(wording.plain("" if value is None else str(value), length))


def _source(name: str) -> Markup:
    """Return a style sheet or script of `templates/`, to be inlined."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


# pages of a run


@dataclass(frozen=True)
class Page:
    """A page in the reports of a home.

    Attributes:
        topic: short name, such as `training`.
        title: title for people.
        summary: Markdown without text of documents.
        files: the HTML page, then other files.
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
    """Results of a run to report.

    Attributes:
        metrics: metrics of the evaluation; empty if nothing was evaluated.
        measured: the evaluated model, if any.
        promoted: the result of the promotion, if any.
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
        """Return the first artefact of a stage in this run; None if the stage did not run."""
        return next(iter(self.run.produced.get(stage, ())), None)

    def draw_once(
        self, name: str, title: str, drawn_from: Any, draw: Callable[[], Sequence[str]], *beside: str
    ) -> Page:
        """Return a page; render it if a file is missing or its inputs changed.

        Args:
            name: base name of the files `name`.html and `name`.md (the summary).
            drawn_from: all inputs of the page, as JSON.
            draw: returns the texts of page and summary, then those of `beside`.
            beside: names of other files.
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
            write_file(kept, summary.encode())  # last: its digest marks all files as complete
        return Page(name.partition("-")[0], title, summary.removesuffix(mark), files)

    def draw_in_subprocess(self, function: Callable[..., list[str]]) -> list[str]:
        """Call a function that reads the whole corpus; a large corpus in a subprocess, to return its memory.

        Args:
            function: module-level function of `store`, `cache`, `corpus` (arguments of the catalogue) and `progress`.
        """
        home, corpus = self.run.home, self.run.corpus
        listed = read_state(self.run.store, corpus).get("snapshot")
        size = manifest_of(self.run.store, listed[0]).counts["rows"] * TABLE_BYTES_PER_FILE if listed else 0
        where = {"store": home.store, "cache": str(home.cache), "corpus": corpus}
        texts: list[str] = self.run.machine.subprocesses.call(function, lambda done, total: None, size, **where)
        return texts
