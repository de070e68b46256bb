"""Real ingestions into homes of their own, and what they left, as plain dictionaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_run import home_at

from flows.ingest import Ingested, ingest_documents
from flows.report import publish
from storage.catalog import Catalog
from storage.home import Home
from storage.manifest import ArtifactRef
from storage.store import Store
from storage.tables import read_rows
from tasks.core.run import Run, StageReport
from tasks.core.settings import Settings, load_settings, parse_assignments
from tasks.readers.records import Limits
from tests.tasks.warm import WarmMachine

Rows = list[dict[str, Any]]
PER_SEGMENT = ("extract", "normalise", "measure", "refine")
STAGES = ("extract", "snapshot", "normalise", "measure", "dedup", "evaluation_sets", "curate", "refine")


@dataclass
class Ingestion:
    """Result of one ingestion."""

    reports: dict[str, StageReport]
    ingested: Ingested
    store: Store

    def computed(self) -> dict[str, int]:
        """Units computed by stage; those of nothing left out."""
        return {name: report.computed for name, report in self.reports.items() if report.computed}

    def folder(self, ref: Any) -> Path:
        """Folder of an artefact."""
        return self.store.folder(ref)

    def rows(self, ref: Any, table: str) -> Rows:
        """Rows of a table of one artefact or of several."""
        refs = ref if isinstance(ref, list) else [ref]
        return [row for one in refs for row in read_rows(self.folder(one) / table)]

    def files(self) -> dict[str, dict[str, Any]]:
        """Rows of `files` by path."""
        return {row["path"]: row for row in self.rows(self.ingested.snapshot, "files.parquet")}

    def doc_id(self, path: str) -> str:
        """The document of a path."""
        return str(self.files()[path]["doc_id"])

    def path_of(self) -> dict[str, str]:
        """The path of each live document."""
        return {row["doc_id"]: path for path, row in self.files().items() if row["doc_id"] and row["status"] == "ok"}

    def selection(self) -> dict[str, dict[str, Any]]:
        """Rows of `selection` by path."""
        paths = self.path_of()
        return {paths[row["doc_id"]]: row for row in self.rows(self.ingested.curated, "selection.parquet")}

    def sides(self) -> dict[str, str]:
        """The side of every kept document, by path."""
        return {path: row["split"] for path, row in self.selection().items() if row["kept"]}

    def dropped(self) -> dict[str, tuple[str, str]]:
        """Code and reason of every dropped document, by path."""
        paths = self.path_of()
        rows = self.rows(self.ingested.curated, "dropped.parquet")
        return {paths[row["doc_id"]]: (row["reason_code"], row["reason"]) for row in rows}

    def codes(self) -> dict[str, str]:
        """The code of every dropped document, by path."""
        return {path: code for path, (code, _) in self.dropped().items()}

    def texts(self, stage: str = "refine") -> dict[str, str]:
        """Texts of the live documents by path: what `normalise` or `refine` made of them."""
        paths = self.path_of()
        refs = {"normalise": self.ingested.normalised, "refine": self.ingested.refined}[stage]
        return {
            paths[row["doc_id"]]: row["text"]
            for ref, live in zip(refs, self.ingested.segments.live, strict=True)
            for row in self.rows(ref, "documents.parquet")
            if row["doc_id"] in live and row["doc_id"] in paths
        }

    def cut_parts(self) -> list[tuple[str, str, str]]:
        """Every cut as path, the text that was cut out, and why."""
        texts, paths = self.texts("normalise"), self.path_of()
        return [
            (path, texts[path][row["start"] : row["start"] + row["length"]], row["reason_code"])
            for row in self.rows(self.ingested.curated, "cuts.parquet")
            for path in [paths[row["doc_id"]]]
        ]

    def query(self, sql: str) -> Rows:
        """Rows of a query of the catalogue."""
        return Catalog(self.store, "default").query(sql)


def settings_of(*assignments: str) -> Settings:
    """Settings of an ingestion: a third held out, so that few documents have two sides."""
    return load_settings(None, parse_assignments(["curate.validation_share=0.3", *assignments]))


def ingest(
    home: Home,
    source: Path | str,
    *assignments: str,
    refresh: Collection[str] = (),
    retry_failed: bool = False,
    workers: int = 1,
    limits: Limits | None = None,
    before: Callable[[Run], None] = lambda run: None,
    settings: Settings | None = None,
) -> Ingestion:
    """Ingest, and publish what came of it."""
    with WarmMachine(workers=workers, limits=limits) as machine:
        run = Run(home, machine, refresh=refresh, retry_failed=retry_failed)
        before(run)
        found = ingest_documents(run, str(source), settings or settings_of(*assignments))
        publish(run)
        return Ingestion(run.reports, found, run.store)


def plan(home: Home, source: Path | str, *assignments: str) -> dict[str, StageReport]:
    """Return a plan of an ingestion."""
    run = Run(home, plan=True)
    ingest_documents(run, str(source), settings_of(*assignments))
    return run.reports


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Files by relative path; returns the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


_WORDS = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in ("a", "en", "ilo", "ora", "umster", "yx")]


def prose(seed: int, n_words: int = 120) -> str:
    """A text that shares no run of five words with that of another seed, in lines and sentences."""
    draw = random.Random(f"prose {seed}")
    words = [draw.choice(_WORDS) + draw.choice(["", "", "", "", ","]) for _ in range(n_words)]
    return "\n".join(" ".join(words[at : at + 10]) + "." for at in range(0, n_words, 10))


def edited(text: str, seed: int, n_edits: int) -> str:
    """The text with so many of its words replaced."""
    words = text.split(" ")
    draw = random.Random(f"edited {seed}")
    for place in draw.sample(range(len(words)), n_edits):
        words[place] = f"new{draw.randrange(10**6)}"
    return " ".join(words)


def contents(home: Home) -> dict[str, dict[str, str]]:
    """The sha256 of every data file in a store, by stage and key."""
    import json

    found = {}
    for path in sorted((Path(home.store)).glob("*/*/manifest.json")):
        manifest = json.loads(path.read_text())
        found[f"{manifest['stage']}/{manifest['key']}"] = {
            entry["name"]: entry["sha256"] for entry in manifest["files"]
        }
    return found


__all__ = ["ArtifactRef", "Ingestion", "contents", "edited", "home_at", "ingest", "plan", "prose", "write"]
