"""The snapshot: which paths are live, what became of each, and where its rows lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage.digest import sha256_json
from storage.manifest import RefSet
from storage.schemas import FILES
from storage.tables import read_rows, write_table
from tasks.ingest.segments import Member
from tasks.ingest.walk import WalkedFile, encode_path
from tasks.stage import Work, stage


@dataclass(frozen=True)
class ListedFile:
    """One path of the walk.

    Attributes:
        sha256: of its bytes; None where it was not or could not be read.
        status: set where the walk itself decided (`skipped`, `failed`), else empty.
    """

    path: str
    source: str
    size: int
    sha256: str | None
    suffix: str
    status: str
    reason: str


@dataclass(frozen=True)
class SnapshotSettings:
    """Identity of a listing; the listing itself comes as a resource.

    Attributes:
        listing: digest of all paths with their contents.
        members: digest of which extraction is used for each content, and in which segment it lies.
    """

    listing: str
    members: str


@dataclass(frozen=True)
class Listing:
    """A walk with the contents found: paths in order, and for each content the extraction and the segment it lies in.

    Where rows lie is in a snapshot's key, but not in its digest: segments cut anew give a new snapshot, and nothing
    behind it is computed again.
    """

    files: tuple[ListedFile, ...]
    members: tuple[tuple[Member, str], ...]

    def settings(self) -> SnapshotSettings:
        """What of it goes into the snapshot's key."""
        return SnapshotSettings(sha256_json(self.files), sha256_json(self.members))


def list_files(walked: Iterable[WalkedFile], hashes: dict[Any, Any]) -> tuple[ListedFile, ...]:
    """Join a walk with the hashes of its files."""
    listed = []
    for entry in walked:
        digest = hashes.get(entry.absolute)
        status, reason = entry.status, entry.reason
        if not status and not isinstance(digest, str):
            status, reason = "failed", f"cannot be read: {digest}"
        listed.append(
            ListedFile(
                path=entry.path,
                source=entry.source,
                size=entry.size,
                sha256=digest if isinstance(digest, str) and not status else None,
                suffix=encode_path(entry.absolute.suffix.lower()),
                status=status,
                reason=reason,
            )
        )
    return tuple(listed)


def file_row(listed: ListedFile, extracted: dict[str, Any] | None, first: str | None) -> dict[str, Any]:
    """Row of `files` for one path.

    Args:
        extracted: the extraction record of the path's content, with its segment; None where there is none.
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
        "reason_code": "not_walked" if listed.status == "skipped" else "unreadable" if listed.status else "",
        "doc_id": None,
        "segment": None,
    }
    if extracted is not None:
        taken = ("media_type", "status", "reason", "reason_code", "doc_id", "segment")
        row |= {name: extracted[name] for name in taken}
        if first is not None:
            row |= {"status": "duplicate", "reason": f"same bytes as {first}", "reason_code": "duplicate_bytes"}
    return row


@stage("snapshot", version=1)
def snapshot(work: Work, settings: SnapshotSettings, *, segments: RefSet) -> str:
    """Say for every path what became of it."""
    listing: Listing = work.resources.listing
    chosen = {member.sha256: (member, segment) for member, segment in listing.members}
    extracted: dict[str, dict[str, Any]] = {}
    columns = ["sha256", "suffix", "attempt", "doc_id", "media_type", "status", "reason", "reason_code"]
    for ref in segments.refs:
        for row in read_rows(work.folder(ref) / "extracts.parquet", columns):
            if chosen.get(row["sha256"]) == (Member(row["sha256"], row["suffix"], row["attempt"]), ref.key):
                extracted[row["sha256"]] = {**row, "segment": ref.key}
    rows = []
    first: dict[str, str] = {}
    for listed in listing.files:
        known = extracted[listed.sha256] if listed.sha256 is not None else None
        seen = first.setdefault(listed.sha256, listed.path) if listed.sha256 is not None else listed.path
        # only a document can be there twice; a file that was refused is refused at each of its paths
        twice = seen != listed.path and known is not None and known["status"] == "ok"
        rows.append(file_row(listed, known, seen if twice else None))
        if not rows[-1]["status"]:
            raise ValueError(f"{listed.path}: nothing says what became of it")
    work.counts["rows"] = write_table(work.out / "files.parquet", FILES, rows)
    work.counts |= {f"status_{status}": count for status, count in Counter(row["status"] for row in rows).items()}
    return segments.digest
