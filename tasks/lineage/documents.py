"""Find documents by an id, a path as `sheepfold sql` shows it, or the absolute path of a file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from storage.catalog import LISTED, quoted, read_state
from storage.errors import UserError
from storage.schemas import EXTRACTS, EXTRACTS_FILE, FILES, FILES_FILE
from storage.store import Store
from storage.tombstones import Tombstone, Tombstones
from tasks.curate.corpus import Corpus
from tasks.ingest.extract import document_id
from tasks.sources.address import DOCUMENTS
from tasks.sources.folder import encode_path
from tasks.sources.git import without_commit

SEGMENT_STAGES = ("extract", "import")  # their artefacts have documents as read
ID_PREFIX = re.compile("[0-9a-f]{8,64}")  # an id or a key, or a prefix of one
# SQL: absolute path of a row of `files`, encoded like its path
_FOLDER, _WITHIN = f"regexp_replace(source, '^{DOCUMENTS}|/$', '', 'g')", "substr(path, length(label) + 1)"
_PLACE = f"concat({_FOLDER}, if(label = '', '/' || path, {_WITHIN}))"


@dataclass(frozen=True)
class Target:
    """A document that a name refers to.

    Attributes:
        sha256: Digest of its bytes.
        path: A path of it in a snapshot; empty if none has it.
    """

    doc_id: str
    sha256: str
    path: str = ""


def _readings(thing: str) -> tuple[str, str]:
    """Return a name as a path of a snapshot, and as an absolute path with links resolved, as in a source's address."""
    place = encode_path(os.path.realpath(os.path.expanduser(thing))) if thing else ""  # noqa: PTH111 - refuses no name
    return thing.removeprefix("./").rstrip("/"), place


def file_condition(thing: str, below: bool = False, patterns: bool = False) -> str:
    """Return SQL for the rows of `files` that match a name: a path, an absolute path, an id or eight digits of one.

    Args:
        below: Also match files in a folder and members of an archive of that name.
        patterns: Interpret `*`, `?` and `[...]`, which also match slashes.
    """
    path, place = _readings(thing)
    conditions = [_matches("path", path, below), _matches(_PLACE, place, below)]
    if patterns:
        conditions += [f"path glob {quoted(path)}", f"{_PLACE} glob {quoted(place)}"]
    if ID_PREFIX.fullmatch(thing):
        conditions.append(f"starts_with(doc_id, {quoted(thing)})")
    return f"({' or '.join(conditions)})"


def _matches(expression: str, name: str, below: bool) -> str:
    if not name:
        return "false"
    return f"starts_with({expression} || '/', {quoted(name + '/')})" if below else f"{expression} = {quoted(name)}"


def find_targets(store: Store, corpus: str, thing: str) -> list[Target]:
    """Return the documents that match a name, sorted by path and id.

    A path matches all documents that any snapshot of the corpus's sources has at it, and the members of an archive or
    the files of a folder.

    Args:
        corpus: Corpus in whose sources paths are looked up; ids are looked up in the whole store.
        thing: An id or at least eight digits of one, a path or folder (as in the snapshot, or absolute), or a prefix of
            paths followed by `*`.

    Raises:
        UserError: It is a path in the snapshot and another path on this machine, with different documents.
    """
    state = read_state(store, corpus)
    current = {ref.key for ref in state.get("snapshot") or state.get(LISTED, [])}
    listings = [found.key for found in store.manifests("snapshot")]
    with Corpus() as session:
        files = _rows_of(session, store, ("snapshot",), FILES_FILE, FILES)
        sources = session.sql(f"select distinct part, source from {files}").fetchall()
        own = {without_commit(source) for part, source in sources if listings[part] in current}
        listed = ", ".join(sorted({quoted(source) for _, source in sources if without_commit(source) in own})) or "null"

        def find(columns: str, condition: str) -> dict[str, Target]:
            query = f"select doc_id, sha256, {columns} where {condition} and sha256 is not null order by part, place"
            # a container has no `doc_id` in the snapshot, but can be forgotten like a document
            found = (
                Target(doc_id or document_id(sha256), sha256, path)
                for doc_id, sha256, path in session.sql(query).fetchall()
            )
            return {target.doc_id: target for target in found}

        def find_files(condition: str) -> dict[str, Target]:
            return find(f"path from {files}", f"{condition} and source in ({listed})")

        path, place = _readings(thing)
        if path.endswith("*"):
            named = find_files(f"starts_with(path, {quoted(path[:-1])})")
        else:
            named = find_files(_matches("path", path, below=True))
            on_disk = find_files(_matches(_PLACE, place, below=True))
            if named and on_disk and named.keys() != on_disk.keys():
                raise UserError(
                    f"{thing!r} is a path of the corpus ({_examples(named)}) and another path on this machine "
                    f"({_examples(on_disk)}): give the absolute path, or a document's id"
                )
            named |= on_disk
        if ID_PREFIX.fullmatch(thing):
            begins = f"starts_with(doc_id, {quoted(thing)})"
            extracts = _rows_of(session, store, SEGMENT_STAGES, EXTRACTS_FILE, EXTRACTS)
            named = {**find(f"'' from {extracts}", begins), **find(f"path from {files}", begins), **named}
    return sorted(named.values(), key=lambda target: (target.path, target.doc_id))


def _examples(found: Mapping[str, Target]) -> str:
    path = min(target.path for target in found.values())
    return path if len(found) == 1 else f"{path} and {len(found) - 1:,} more"


def paths_of(store: Store, targets: Mapping[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Return the paths of documents in all snapshots, as pairs of path and absolute path, by id.

    Args:
        targets: Digest of the documents' bytes, by id.
    """
    found: dict[str, set[tuple[str, str]]] = {doc_id: set() for doc_id in targets}
    with Corpus() as session:
        files = _rows_of(session, store, ("snapshot",), FILES_FILE, FILES)
        session.insert("contents", pa.table({"sha256": pa.array(set(targets.values()), pa.string())}))
        query = f"select distinct doc_id, sha256, path, {_PLACE} from {files} where sha256 in (from contents)"
        for doc_id, sha256, *names in session.sql(query).fetchall():
            if (name := doc_id or document_id(sha256)) in found:
                found[name].add(tuple(names))
    return found


def _rows_of(session: Corpus, store: Store, stages: Sequence[str], name: str, schema: pa.Schema) -> str:
    """Return SQL for the rows of a table in all artefacts of some stages."""
    return session.rows_of([str(store.folder(m.ref)) for stage in stages for m in store.manifests(stage)], name, schema)


# forgotten documents, of which only digests of paths are kept


def place_digests(paths: set[tuple[str, str]]) -> tuple[str, ...]:
    """Return the digests of a document's paths and of their folders in the source, for its tombstone."""
    levels = [(name, path.count("/")) for path, place in paths for name in (path, place)]
    return tuple(sorted({_digest(name.rsplit("/", up)[0]) for name, most in levels for up in range(most + 1)}))


def find_forgotten(known: Tombstones, thing: str) -> list[Tombstone]:
    """Return the tombstones that match an id, at least eight digits of one, or a path."""
    digests = {_digest(name) for name in _readings(thing)}
    return [
        item
        for doc_id, item in sorted(known.documents.items())
        if (ID_PREFIX.fullmatch(thing) and doc_id.startswith(thing)) or digests.intersection(item.places)
    ]


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
