"""The stage `snapshot`: the table of live paths, with their status and the segments of their rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.catalog import quoted
from storage.digest import list_digest, sha256_json, sorted_rows_digest
from storage.errors import UserError
from storage.manifest import RefSet
from storage.schemas import EXTRACTS, EXTRACTS_FILE, FILES, FILES_FILE, PAGES, PAGES_FILE
from storage.tables import unpacked_size, write_batches
from storage.tombstones import FORGOTTEN
from storage.tombstones import REASON as FORGOTTEN_REASON
from tasks.core.stage import Work, stage
from tasks.curate.corpus import ROWS_AT_ONCE, Corpus, parquet
from tasks.ingest.journal import Content
from tasks.readers.decode import LONGEST_TITLE, one_line
from tasks.readers.records import CONTAINERS
from tasks.sources.address import DATE
from tasks.sources.folder import ListedFile
from tasks.text.licences import detect_licence, is_licence_file

LISTED_FILE = "listed.parquet"
CONTENTS_FILE = "contents.parquet"

_FIELDS_OF_FILE = attrgetter(*(item.name for item in fields(ListedFile)))
_LISTED = pa.schema([(item.name, pa.int64() if item.name == "size" else pa.string()) for item in fields(ListedFile)])
_METADATA = pa.schema([("path", pa.string()), ("date", pa.string()), ("title", pa.string())])
_CONTENTS = pa.schema(
    [("file_sha256", pa.string()), ("suffix", pa.string()), ("attempt", pa.int32()), ("segment", pa.string())]
)


Stated = tuple[str | None, str | None]  # date and title


@dataclass(frozen=True)
class SnapshotSettings:
    """Settings of the stage: digests of a listing, which is itself an unkeyed argument.

    Attributes:
        listing: Digest of all paths with the sha256 of their contents.
        contents: Digest of the extraction of each content, with its segment.
        metadata: Digest of the dates and titles of a table; "" without any.
        date_pattern: Regular expression whose first group is the date in a path; "" for none.
    """

    listing: str
    contents: str
    metadata: str
    date_pattern: str


@dataclass(frozen=True)
class Listing:
    """A listing: paths in order, for each content its extraction and segment, and by path what a table states.

    The segments are in a snapshot's key, but not in its digest: other cuts give a new snapshot, after which no stage is
    computed again.
    """

    files: Sequence[ListedFile]
    contents: Sequence[tuple[Content, str]]
    metadata: Mapping[str, Stated]
    date_pattern: str

    def settings(self) -> SnapshotSettings:
        """Return the settings, which are part of the snapshot's key."""
        contents = (((item.sha256, item.suffix, item.attempt), key) for item, key in self.contents)
        return SnapshotSettings(
            list_digest(map(_FIELDS_OF_FILE, self.files)),
            list_digest(contents),
            sha256_json(self.metadata) if self.metadata else "",
            self.date_pattern,
        )


# A row for each path, and for each member of a container at its first path. In the order of `spot`, the first record of
# a content is that of the file; members follow in the order of their file. Only contents with a document can be
# duplicates: a refused file is refused at each of its paths.
_FOUND = """
create macro folder_of(path) as regexp_replace(path, '/?[^/]*$', '');
create table listed as
select path, source, label, size, sha256, status, reason, place as number, case
        when reason = '{forgotten_reason}' then '{forgotten}' when status = 'skipped' then 'not_walked'
        when status = 'rejected' then 'too_large' when status = 'failed' then 'unreadable' else '' end as reason_code
from {listed};
create table extracted as
select extracts.*, segment, kind in {containers} as is_container,
    struct_pack(is_member := locator <> '', part := part, place := place) as spot
from {extracts} as extracts join segments using (part)
semi join {contents} as contents using (file_sha256, suffix, attempt, segment);
create table found as
with
    contents as (
        select file_sha256 as sha256, min(spot) as own, bool_or(status = 'ok') as holds
        from extracted group by file_sha256
    ),
    first as (select sha256, arg_min(path, number) as path from listed group by sha256),
    joined as (
        select number, spot, source, label, listed.path as outer_path, spot <> own as is_member,
            first.path as first_path,
            coalesce(holds and listed.path <> first.path, false) as is_copy,
            if(is_member, listed.path || '/' || locator, listed.path) as path,
            if(is_member, extracted.size, listed.size) as size,
            if(is_member, extracted.sha256, listed.sha256) as sha256,
            media_type, title as own_title, coalesce(extracted.status, listed.status) as status,
            coalesce(extracted.reason, listed.reason) as reason,
            coalesce(extracted.reason_code, listed.reason_code) as reason_code, is_container, doc_id, segment
        from listed left join first using (sha256) left join contents using (sha256)
        left join extracted on file_sha256 = listed.sha256
    )
select number, spot, path, folder_of(path) as folder, source, label, if(is_member, outer_path, null) as container, size,
    sha256, media_type, if(is_copy, 'duplicate', status) as status,
    if(is_copy, 'same bytes as ' || first_path, reason) as reason,
    if(is_copy, 'duplicate_bytes', reason_code) as reason_code,
    own_title, if(is_container, null, doc_id) as doc_id, if(is_container, null, segment) as segment
from joined where not (is_copy and is_member)
"""

# Of several licences in a folder the first in alphabetical order is used, for reproducibility.
_LICENCES = """
create table licence_files as
select doc_id, source, folder_of(file) as folder from (
    select extracted.*, source, concat_ws('/', path, nullif(locator, '')) as file
    from listed join extracted on file_sha256 = listed.sha256
) where status = 'ok' and not is_container and is_licence_file(split_part(file, '/', -1));
create table given as
with stated as (
    select doc_id, detect_licence(text) as licence from {pages}
    where page = 1 and doc_id in (select doc_id from licence_files)
)
select source, folder, min(licence) as licence from licence_files join stated using (doc_id)
group by source, folder having min(licence) is not null;
create table licences as
with
    folders as (select distinct source, folder, string_split(folder, '/') as names from found),
    above as (
        select source, folder, unnest(list_transform(
            range(len(names) + 1), lambda n: array_to_string(names[:n], '/')
        )) as upper from folders
    )
select above.source, above.folder, arg_max(licence, length(upper)) as licence
from above join given on given.source = above.source and given.folder = upper group by all
"""


# The date that a table states for the path or its container, else that of the path; the title that it states, else that
# of the document.
_DESCRIBED = """
create table described as
select found.*, dated.date, if(dated.date is null, null, if(stated is null, 'path', 'table')) as date_from,
    coalesce(own.title, own_title) as title,
    case when own.title is not null then 'table' when own_title is not null then 'document' end as title_from
from found left join metadata as own using (path) left join metadata as holding on holding.path = found.container,
    lateral (select coalesce(own.date, holding.date) as stated),
    lateral (select coalesce(stated, {in_path}) as told),
    lateral (select if(regexp_full_match(told, {form}), told, null) as date) as dated
"""


@stage("snapshot", version=6, tables={FILES_FILE: FILES}, unkeyed=("listing",))
def snapshot(work: Work, settings: SnapshotSettings, *, segments: RefSet, listing: Listing) -> str:
    """Write the status of every path, with its document, segment, licence, date and title."""
    _write(work.scratch / LISTED_FILE, _LISTED, map(_FIELDS_OF_FILE, listing.files))
    places = ((item.sha256, item.suffix, item.attempt, key) for item, key in listing.contents)
    _write(work.scratch / CONTENTS_FILE, _CONTENTS, places)
    folders = [str(work.folder(ref)) for ref in segments.refs]
    made = work.in_subprocess(
        write_snapshot,
        sum(unpacked_size(Path(folder) / EXTRACTS_FILE) for folder in folders),
        keys=[ref.key for ref in segments.refs],
        folders=folders,
        metadata=dict(listing.metadata),
        date_pattern=settings.date_pattern,
        out=work.out,
        spill=work.scratch,
        memory_bytes=work.machine.query_bytes,
    )
    work.counts.update(made["counts"])
    # the digest depends on paths only through the licences of their folders, and their dates
    return sha256_json([segments.digest, made["given"]])


def _write(path: Path, schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> None:
    rest = iter(rows)
    chunks = iter(lambda: list(islice(rest, ROWS_AT_ONCE)), [])
    columns = (dict(zip(schema.names, zip(*chunk, strict=True), strict=True)) for chunk in chunks)
    write_batches(path, schema, (pa.RecordBatch.from_pydict(part, schema) for part in columns))


def write_snapshot(
    keys: list[str],
    folders: list[str],
    metadata: dict[str, Stated],
    date_pattern: str,
    out: Path,
    spill: Path,
    memory_bytes: int,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the table of files; return counts and a digest of what paths tell of documents: licences and dates.

    Args:
        keys, folders: Keys and folders of the segments.
        metadata: Stated dates and titles by path.
        date_pattern: Regular expression whose first group is the date in a path; "" for none.
        out: Folder for the table.
        spill: Folder for temporary files, with the tables of listed files and of the contents in use.
        memory_bytes: Memory limit of queries.
    """
    parts = pa.table({"part": np.arange(len(keys)), "segment": pa.array(keys, pa.string())})
    with Corpus(memory_bytes, spill) as corpus:
        corpus.connection.create_function("is_licence_file", is_licence_file, ["VARCHAR"], "BOOLEAN")
        corpus.connection.create_function(
            "detect_licence", detect_licence, ["VARCHAR"], "VARCHAR", null_handling="special"
        )
        corpus.insert("segments", parts)
        corpus.sql(
            _FOUND.format(
                listed=corpus.rows_of([str(spill)], LISTED_FILE, _LISTED),
                contents=parquet(spill / CONTENTS_FILE),
                extracts=corpus.rows_of(folders, EXTRACTS_FILE, EXTRACTS),
                containers=CONTAINERS,
                forgotten=FORGOTTEN,
                forgotten_reason=FORGOTTEN_REASON,
            )
        )
        corpus.sql(_LICENCES.format(pages=corpus.rows_of(folders, PAGES_FILE, PAGES)))
        rows = [{"path": path, "date": date, "title": title} for path, (date, title) in metadata.items()]
        corpus.insert("metadata", pa.Table.from_pylist(rows, _METADATA))
        in_path = f"regexp_extract(path, {quoted(date_pattern)}, 1)" if date_pattern else "null"
        corpus.sql(_DESCRIBED.format(form=quoted(DATE), in_path=in_path))
        files = f"select {', '.join(FILES.names)} from described left join licences using (source, folder)"
        counts = {"rows": corpus.write(out / FILES_FILE, FILES, f"{files} order by number, spot")}
        statuses = "select status, count(*), arg_min(path, number) from found group by status order by status"
        for status, n, path in corpus.rows(statuses):
            if not status:
                raise ValueError(f"{path} has no status: neither the listing nor a segment has a record of it")
            counts[f"status_{status}"] = n
        told = (
            "select distinct doc_id, json_array(if(status = 'ok', licence, null), date)::varchar "
            f"from ({files}) where status in ('ok', 'duplicate') and doc_id is not null "
            "and coalesce(licence, date) is not null order by all"
        )
        given = sorted_rows_digest(corpus.rows(told))
    progress(counts["rows"], counts["rows"])
    return {"counts": counts, "given": given}


def read_metadata(table: str) -> dict[str, Stated]:
    """Return date and title of each path in a CSV file with `path`, and `date`, `title` or both; none without a file.

    Raises:
        UserError: It cannot be read, lacks a column, or has a value that is no date.
    """
    found: dict[str, Stated] = {}
    if not table:
        return found
    path = Path(table).expanduser()
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = csv.DictReader(handle)
            columns = set(rows.fieldnames or ())
            if "path" not in columns or not columns & {"date", "title"}:
                raise UserError(f"{path} has the columns {rows.fieldnames}; expected path, and date or title")
            for row in rows:
                date, title = (one_line(row.get(name))[:LONGEST_TITLE] or None for name in ("date", "title"))
                if date and not re.fullmatch(DATE, date):
                    raise UserError(
                        f"{path}, line {rows.line_num}: {date!r} is no date; expected one such as 1898, 1898-05 or "
                        "1898-05-31, or nothing"
                    )
                if date or title:
                    name = row["path"] or ""
                    before = found.get(name, (None, None))
                    found[name] = (date or before[0], title or before[1])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}, the table of sources.metadata, cannot be read: {error}") from error
    return found
