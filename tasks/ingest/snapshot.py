"""The snapshot: which paths are live, what became of each, and where its rows lie."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from storage.digest import canonical_json, rows_digest, sha256_json
from storage.manifest import RefSet
from storage.schemas import FILES
from storage.tables import stream_columns, unpacked_size, write_table
from storage.tombstones import FORGOTTEN
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.stage import Work, stage
from tasks.ingest.journal import Content
from tasks.ingest.licences import detect_licence, is_licence_file
from tasks.sources.folder import ListedFile

LINES_AT_ONCE = 1_000  # parsed in one go, in half the time
_FIELDS_OF_FILE = attrgetter(*(item.name for item in fields(ListedFile)))


@dataclass(frozen=True)
class SnapshotSettings:
    """Identity of a listing; the listing itself comes as a resource.

    Attributes:
        listing: digest of all paths with their contents.
        contents: digest of which extraction is used for each content, and in which segment it lies.
    """

    listing: str
    contents: str


@dataclass(frozen=True)
class Listing:
    """A walk with the contents found: paths in order, and for each content the extraction and the segment it lies in.

    Where rows lie is in a snapshot's key, but not in its digest: segments cut anew give a new snapshot, and nothing
    behind it is computed again.
    """

    files: Sequence[ListedFile]
    contents: Sequence[tuple[Content, str]]

    def settings(self) -> SnapshotSettings:
        """Return the part of it that goes into the snapshot's key."""
        contents = (((item.sha256, item.suffix, item.attempt), key) for item, key in self.contents)
        return SnapshotSettings(_stream_digest(map(_FIELDS_OF_FILE, self.files)), _stream_digest(contents))


def _stream_digest(items: Iterable[Any]) -> str:
    """Digest of a long list, an item at a time."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(canonical_json(item).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


class Extracted(NamedTuple):
    """The columns of `extracts` that a snapshot needs: a tuple, because there may be hundreds of thousands."""

    doc_id: str
    locator: str
    sha256: str
    size: int
    kind: str
    media_type: str
    status: str
    reason: str
    reason_code: str
    segment: str


_IDENTITY = ("file_sha256", "suffix", "attempt")  # of a content
_COLUMNS = [*_IDENTITY, *Extracted._fields[:-1]]


def _read_extracted(segments: Mapping[str, Path], contents: Path) -> dict[str, list[Extracted]]:
    """For each content its own record, and after it those of its members.

    Args:
        segments: folder of each segment, by key.
        contents: JSON lines with the extraction that is used of each content, and its segment.
    """
    chosen: dict[str, list[tuple[str, str, int]]] = {key: [] for key in segments}
    for sha256, suffix, attempt, key in _lines(contents):
        chosen[key].append((sha256, suffix, attempt))
    found: dict[str, list[Extracted]] = {}
    shared: dict[str, str] = {}  # a few strings, each in thousands of rows
    for key, folder in segments.items():
        wanted = set(chosen.pop(key))
        for columns in stream_columns(folder / "extracts.parquet", _COLUMNS):
            for name in ("kind", "media_type", "status", "reason", "reason_code"):
                columns[name] = [shared.setdefault(value, value) for value in columns[name]]
            identities = zip(*(columns.pop(name) for name in _IDENTITY), strict=True)
            for identity, values in zip(identities, zip(*columns.values(), strict=True), strict=True):
                if identity in wanted:
                    found.setdefault(identity[0], []).append(Extracted._make((*values, key)))
    for records in found.values():
        if len(records) > 1:
            records.sort(key=lambda record: record.locator != "")  # stable: members stay in the file's order
    return found


CONTAINERS = ("archive", "table")  # kinds that are no documents themselves
_SETTLED_BY_WALK = {"skipped": "not_walked", "rejected": "too_large", "failed": "unreadable"}


def file_rows(listed: ListedFile, extracted: Sequence[Extracted], first: str | None) -> Iterator[dict[str, Any]]:
    """Rows of `files` for one path and for the members of the container that it may be.

    Args:
        extracted: what was extracted from the path's content; empty where nothing was.
        first: the first path with the same bytes, when this is not it.
    """
    row = {
        "path": listed.path,
        "source": listed.source,
        "container": None,
        "size": listed.size,
        "sha256": listed.sha256,
        "media_type": None,
        "status": listed.status,
        "reason": listed.reason,
        "reason_code": FORGOTTEN if listed.reason == FORGOTTEN_REASON else _SETTLED_BY_WALK.get(listed.status, ""),
        "licence": None,
        "doc_id": None,
        "segment": None,
    }
    if not extracted:
        yield row
        return
    own, *members = extracted
    row |= _outcome(own)
    # only what holds a document can be there twice; a file that was refused is refused at each of its paths
    if first is not None and any(record.status == "ok" for record in extracted):
        yield row | {"status": "duplicate", "reason": f"same bytes as {first}", "reason_code": "duplicate_bytes"}
        return
    yield row
    for member in members:
        inside = {"path": f"{listed.path}/{member.locator}", "container": listed.path}
        yield row | inside | {"size": member.size, "sha256": member.sha256} | _outcome(member)


def _outcome(record: Extracted) -> dict[str, Any]:
    """The columns of `files` on the status of a file or member; a container is itself no document."""
    contains = record.kind in CONTAINERS
    return {
        "media_type": record.media_type,
        "status": record.status,
        "reason": record.reason,
        "reason_code": record.reason_code,
        "doc_id": None if contains else record.doc_id,
        "segment": None if contains else record.segment,
    }


def _licence_files(files: Path, extracted: Mapping[str, Sequence[Extracted]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Documents that are called like a licence, each with the source and the folder that it lies in."""
    for file, source, _, sha256, *_ in _lines(files):
        for record in extracted.get(sha256 or "", ()):
            path = f"{file}/{record.locator}" if record.locator else file
            folder, _, name = path.rpartition("/")
            if is_licence_file(name) and record.status == "ok" and record.kind not in CONTAINERS:
                yield record.doc_id, (source, folder)


def folder_licences(
    segments: Iterable[Path], files: Iterable[tuple[str, tuple[str, str]]]
) -> dict[tuple[str, str], str]:
    """The licence that holds in a folder, by (source, folder): found in a licence file that lies in it.

    Args:
        files: documents that are called like a licence, each with its source and folder.
    """
    candidates: dict[str, list[tuple[str, str]]] = {}
    for doc_id, place in files:
        candidates.setdefault(doc_id, []).append(place)
    found: dict[tuple[str, str], str] = {}
    if not candidates:
        return found
    for segment in segments:
        table = pq.read_table(
            segment / "pages.parquet",
            columns=["doc_id", "text"],
            filters=[("doc_id", "in", sorted(candidates)), ("page", "=", 1)],
        )
        for page in table.to_pylist():
            licence = detect_licence(page["text"])
            if licence:
                # where a folder states several, the first in order: which one is as good as any, but the same each time
                for place in candidates[page["doc_id"]]:
                    found[place] = min(found.get(place, licence), licence)
    return found


def licence_of(path: str, source: str, folders: Mapping[tuple[str, str], str]) -> str | None:
    """The licence of the nearest folder above a path that has one."""
    folder = path
    while folder:
        folder = folder.rpartition("/")[0]
        if (source, folder) in folders:
            return folders[source, folder]
    return None


@stage("snapshot", version=3, tables={"files.parquet": FILES}, unkeyed=("listing",))
def snapshot(work: Work, settings: SnapshotSettings, *, segments: RefSet, listing: Listing) -> str:
    """Say for every path what became of it."""
    files, contents = work.scratch / "files.jsonl", work.scratch / "contents.jsonl"
    _write_lines(files, map(_FIELDS_OF_FILE, listing.files))
    _write_lines(contents, ((item.sha256, item.suffix, item.attempt, key) for item, key in listing.contents))
    folders = {ref.key: work.folder(ref) for ref in segments.refs}
    made = work.in_subprocess(
        write_snapshot,
        sum(unpacked_size(folder / "extracts.parquet") for folder in folders.values()),
        files=files,
        contents=contents,
        segments=folders,
        out=work.out / "files.parquet",
    )
    work.counts.update(made["counts"])
    # paths are no content, but the licences that they give are
    return sha256_json([segments.digest, made["licences"]])


def write_snapshot(
    files: Path, contents: Path, segments: dict[str, Path], out: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Write the table of files; return counts and a digest of the licences that folders give.

    Args:
        files: JSON lines with the fields of each `ListedFile`.
        contents: JSON lines with the extraction that is used of each content, and its segment.
        segments: folder of each segment, by key.
        out: where the table goes.
    """
    extracted = _read_extracted(segments, contents)
    given = folder_licences(segments.values(), _licence_files(files, extracted))
    statuses: Counter[str] = Counter()
    licences: list[tuple[str, str]] = []

    def rows() -> Iterator[dict[str, Any]]:
        first: dict[str, str] = {}
        for listed in (ListedFile(*line) for line in _lines(files)):
            records: Sequence[Extracted] = ()
            seen = listed.path
            if listed.sha256 is not None:
                records, seen = extracted[listed.sha256], first.setdefault(listed.sha256, listed.path)
            for row in file_rows(listed, records, None if seen == listed.path else seen):
                if not row["status"]:
                    raise ValueError(f"{row['path']}: nothing says what became of it")
                statuses[row["status"]] += 1
                row["licence"] = licence_of(row["path"], row["source"], given) if given else None
                if row["licence"] and row["status"] == "ok" and row["doc_id"]:
                    licences.append((row["doc_id"], row["licence"]))
                yield row

    count = write_table(out, FILES, rows())
    progress(count, count)
    counts = {"rows": count, **{f"status_{status}": n for status, n in statuses.items()}}
    return {"counts": counts, "licences": rows_digest(licences)}


def _write_lines(path: Path, items: Iterable[Any]) -> None:
    with path.open("w", encoding="ascii") as file:
        file.writelines(json.dumps(item) + "\n" for item in items)


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="ascii") as file:
        while lines := list(islice(file, LINES_AT_ONCE)):
            yield from json.loads(f"[{','.join(lines)}]")
