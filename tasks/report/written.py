"""Pages in the reports of a home; each is drawn only if what it shows has changed.

A report package has a function `write(outcome)` that returns its page, or None where the run made nothing to show. The
page's summary in Markdown lies beside it and ends in a mark of everything that the page was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.atomic import write_file
from storage.catalog import read_state
from storage.digest import sha256_json
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.core.subprocesses import TABLE_BYTES_PER_FILE

if TYPE_CHECKING:
    from tasks.core.run import Run
    from tasks.registry.promote import Promotion
    from tasks.report.evaluation import Measured

VERSION = 2  # raised when pages show the same figures in another way, so that they are drawn anew


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
