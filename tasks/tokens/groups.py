"""Groups of training documents, by what a mix is made of: a column of the view `documents`, or an expression over it.

The expression is people's SQL. It says of each document, by what is known of that document alone, which group it is in,
so it may hold no subquery and nothing that differs from one time to the next, and it reads no files. It runs in a
process of its own, with a deadline and a limit of memory (`tasks.tokens.grouping`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.digest import rows_digest
from storage.errors import UserError
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, GROUPS, GROUPS_FILE
from tasks.core.child import MessageReader, write_message
from tasks.core.stage import Work, stage
from tasks.curate.view import kept_by_segment, paths_of, segment_tables
from tasks.tokens.mix import ADVICE, MixError, MixSettings, shown

if TYPE_CHECKING:
    from tasks.core.run import Run

MOST_GROUPS = 10_000
START_SECONDS = 60.0  # importing takes half a second; a machine that swaps may take a hundred times as long
CHECK_SECONDS = 60.0  # on no documents
SEGMENT_SECONDS = 600.0
_PATHS = {"path", "source"}


@dataclass(frozen=True)
class GroupsSettings:
    """What makes a group.

    Attributes:
        by: An SQL expression over the columns of the view `documents`.
        listing: Digest of all paths with their contents where the expression reads them: paths are no content, so they
            are in no digest of a snapshot.
    """

    by: str
    listing: str = ""


@stage("groups", version=1, modules=("tasks.tokens.grouping",), tables={GROUPS_FILE: GROUPS})
def groups(
    work: Work,
    settings: GroupsSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    measures: RefSet,
    scores: RefSet,
    texts: RefSet,
) -> str:
    """Say of every training document in which group it is."""
    kept = kept_by_segment(work.store, curated, texts, DOCUMENTS_FILE, split="train")
    paths = paths_of(work.folder(snapshot)) if settings.listing else None
    tables = segment_tables(work.store, measures, texts, scores)
    columns = sorted(check_expression(settings.by))
    found = [GROUPS.empty_table()]
    names: set[str] = set()
    with tempfile.TemporaryDirectory(dir=work.scratch) as folder:
        request = {
            "by": settings.by,
            "columns": columns,
            "segments": [[None if path is None else str(path) for path in vars(item).values()] for item in tables],
            "kept": [_handed(Path(folder, f"kept-{number}.parquet"), rows) for number, rows in enumerate(kept)],
            "paths": None if paths is None else _handed(Path(folder, "paths.parquet"), paths),
            "folder": folder,
        }
        for part in _grouped(settings.by, request):
            found.append(part)
            names.update(pc.unique(part.column("group")).to_pylist())
            _check_number(settings.by, names)
            work.progress.update(len(found) - 1, len(kept), "segments")
        table = pa.concat_tables(found).sort_by("doc_id").combine_chunks()
    pq.write_table(table, work.out / GROUPS_FILE, compression="zstd")
    work.counts.update(rows=table.num_rows, groups=len(names))
    return _digest(table)


def _handed(path: Path, table: pa.Table) -> str:
    """Write a table for the other process."""
    pq.write_table(table, path)
    return str(path)


def _grouped(by: str, request: Mapping[str, Any]) -> Iterator[pa.Table]:
    """The group of every kept document, segment by segment."""
    with _child(by) as child:
        child.send(request)
        while "table" in (answer := child.answer(SEGMENT_SECONDS, "on the documents of one segment")):
            yield pq.read_table(answer["table"])


def _check_number(by: str, names: Collection[str]) -> None:
    """Refuse more groups than any mix has."""
    if len(names) > MOST_GROUPS:
        examples = " and ".join(shown(name) for name in sorted(names)[:2])
        raise MixError(
            f"mix.by is {shown(by)}: that makes more than {MOST_GROUPS:,} groups, such as {examples}; expected {ADVICE}"
        )


def _digest(table: pa.Table) -> str:
    """Digest of the rows, which are sorted by document."""
    digest = hashlib.sha256()
    for name in ("doc_id", "group"):
        values = table.column(name).to_pylist()
        # lengths, so that no two columns join to the same text
        digest.update(",".join(str(len(value)) for value in values).encode() + b";")
        digest.update("".join(values).encode())
    return digest.hexdigest()


def group_documents(
    run: Run,
    mix: MixSettings,
    *,
    snapshot: ArtifactRef,
    curated: ArtifactRef,
    measures: RefSet,
    texts: RefSet,
    scored: Sequence[ArtifactRef],
) -> RefSet:
    """Return the groups that a mix asks for, as the dataset takes them: empty without a mix, else one artefact.

    Args:
        measures, texts: Of each segment.
        scored: Of each segment; empty where there is no classifier.

    Raises:
        UserError: The expression cannot be used.
    """
    if not mix.by.strip():
        return RefSet((), rows_digest(()))
    needed = check_expression(mix.by)
    known = [ref for ref in scored if ref.made] if "classifier_score" in needed else []
    listing = ""
    if needed & _PATHS:
        listing = run.read(snapshot, lambda ref: str(manifest_of(run.store, ref).settings["listing"]), "")
    made = groups(
        run,
        GroupsSettings(mix.by.strip(), listing),
        snapshot=snapshot,
        curated=curated,
        measures=measures,
        scores=RefSet.of(known),
        texts=texts,
    )
    return RefSet((made,), made.digest)


@lru_cache(maxsize=8)
def check_expression(by: str) -> frozenset[str]:
    """The columns of the view `documents` that an expression reads.

    Raises:
        UserError: DuckDB cannot read it, it is not of one document alone and the same each time, or it takes more time
            or memory than it may, without any document.
    """
    with _child(by) as child:
        child.send({"by": by})
        return frozenset(child.answer(CHECK_SECONDS, "without any document")["columns"])


@contextmanager
def _child(by: str) -> Iterator[_Child]:
    """A process that runs an expression; it is killed at the end."""
    child = _Child(by)
    try:
        yield child
    finally:
        child.kill()


class _Child:
    """A process that runs an expression."""

    def __init__(self, by: str) -> None:
        self._by = by
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            # the current folder is never searched (-P): a folder of documents may hold a json.py
            [sys.executable, "-P", "-m", "tasks.tokens.grouping"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
                "MALLOC_ARENA_MAX": "2",  # each arena reserves address space, which the limit of memory counts
            },
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._reader = MessageReader(self._answers.fileno())
        self._waiting: deque[dict[str, Any]] = deque()
        self._next(START_SECONDS, "before it began")

    def send(self, request: Mapping[str, Any]) -> None:
        """Ask it something."""
        with contextlib.suppress(BrokenPipeError):  # a dead process is noticed where its answer is read
            write_message(self._requests.fileno(), dict(request))

    def answer(self, seconds: float, where: str) -> dict[str, Any]:
        """What it says next.

        Args:
            where: What it is on, for messages.

        Raises:
            UserError: It refuses the expression, is overdue, or died of it.
            RuntimeError: It failed for a reason of its own.
        """
        message = self._next(seconds, where)
        if "refused" in message:
            raise UserError(message["refused"])
        if "failed" in message:
            raise RuntimeError(f"the process that runs mix.by failed:\n{message['failed']}")
        return message

    def _next(self, seconds: float, where: str) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not self._waiting:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise self._refusal(f"it takes more than {seconds:g} s {where}")
            messages = self._reader.read_available()
            if messages is None:
                status = self._process.wait()
                raise self._refusal(f"the process that ran it died {where} (status {status}); was its memory short?")
            self._waiting += messages
        return self._waiting.popleft()

    def _refusal(self, what: str) -> UserError:
        return UserError(f"mix.by is {shown(self._by)}: {what}; expected {ADVICE}")

    def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._answers.close()
