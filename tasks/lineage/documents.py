"""Find documents by what people call them: an id, a path as `sheepfold sql` shows it, or the place of a file."""

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

SEGMENT_STAGES = ("extract", "import")  # whose artefacts hold documents as they were read
_ID = re.compile("[0-9a-f]{8,64}")  # an id, or enough of one
# SQL: where a row of `files` lies, encoded as its path is
_FOLDER, _WITHIN = f"regexp_replace(source, '^{DOCUMENTS}|/$', '', 'g')", "substr(path, length(label) + 1)"
_PLACE = f"concat({_FOLDER}, if(label = '', '/' || path, {_WITHIN}))"


@dataclass(frozen=True)
class Target:
    """A document that is meant.

    Attributes:
        sha256: Sha256 of its bytes.
        path: A path at which it lay; empty where no listing has it.
    """

    doc_id: str
    sha256: str
    path: str = ""


def _readings(thing: str) -> tuple[str, str]:
    """Return a name as a path of a listing, and as the place of a file: absolute, links followed as in a source's."""
    place = encode_path(os.path.realpath(os.path.expanduser(thing))) if thing else ""  # noqa: PTH111 - refuses no name
    return thing.removeprefix("./").rstrip("/"), place


def file_condition(thing: str, below: bool = False, patterns: bool = False) -> str:
    """Return SQL for the rows of `files` that go by a name: a path, a place, an id or eight digits of one.

    Args:
        below: Whether it also stands for what lies in it.
        patterns: Whether `*`, `?` and `[...]` in it stand for any part of a path, slashes too.
    """
    path, place = _readings(thing)
    conditions = [_lies("path", path, below), _lies(_PLACE, place, below)]
    if patterns:
        conditions += [f"path glob {quoted(path)}", f"{_PLACE} glob {quoted(place)}"]
    if _ID.fullmatch(thing):
        conditions.append(f"starts_with(doc_id, {quoted(thing)})")
    return f"({' or '.join(conditions)})"


def _lies(expression: str, name: str, below: bool) -> str:
    if not name:
        return "false"
    return f"starts_with({expression} || '/', {quoted(name + '/')})" if below else f"{expression} = {quoted(name)}"


def find_targets(store: Store, corpus: str, thing: str) -> list[Target]:
    """Return the documents that go by a name, sorted by path and id.

    A path stands for everything that ever lay there as far as the store knows, in all listings of the corpus's sources,
    and for what lies in it: the members of an archive, the files of a folder.

    Args:
        corpus: The corpus in whose sources a path is looked for; ids are of the whole store.
        thing: An id or at least eight digits of one, a path or folder (as the listing has it, or where it lies), or the
            beginning of paths with `*` behind it.

    Raises:
        UserError: If it is a path in the listing and another place on the disk, and different documents lie there.
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
            # a container is no document, but its bytes are found again like those of one
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
            named, elsewhere = find_files(_lies("path", path, below=True)), find_files(_lies(_PLACE, place, below=True))
            if named and elsewhere and named.keys() != elsewhere.keys():
                raise UserError(
                    f"{thing!r} is a path of the corpus ({_examples(named)}) and another place on this machine "
                    f"({_examples(elsewhere)}): give the absolute path, or a document's id"
                )
            named |= elsewhere
        if _ID.fullmatch(thing):
            begins = f"starts_with(doc_id, {quoted(thing)})"
            extracts = _rows_of(session, store, SEGMENT_STAGES, EXTRACTS_FILE, EXTRACTS)
            named = {**find(f"'' from {extracts}", begins), **find(f"path from {files}", begins), **named}
    return sorted(named.values(), key=lambda target: (target.path, target.doc_id))


def _examples(found: Mapping[str, Target]) -> str:
    path = min(target.path for target in found.values())
    return path if len(found) == 1 else f"{path} and {len(found) - 1:,} more"


def paths_of(store: Store, targets: Mapping[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Return the paths at which documents lay in any listing: each in the listing, and as the place of the file.

    Args:
        targets: Sha256 of the documents' bytes, by id.
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


# forgotten documents, of which no path is kept


def place_digests(paths: set[tuple[str, str]]) -> tuple[str, ...]:
    """Return the digests that a tombstone keeps of a document's paths and of the folders above it in its source."""
    levels = [(name, path.count("/")) for path, place in paths for name in (path, place)]
    return tuple(sorted({_digest(name.rsplit("/", up)[0]) for name, most in levels for up in range(most + 1)}))


def find_forgotten(known: Tombstones, thing: str) -> list[Tombstone]:
    """Return the tombstones with an id, with the first eight or more digits of one, or with a path."""
    digests = {_digest(name) for name in _readings(thing)}
    return [
        item
        for doc_id, item in sorted(known.documents.items())
        if (_ID.fullmatch(thing) and doc_id.startswith(thing)) or digests.intersection(item.places)
    ]


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
