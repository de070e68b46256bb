"""The wiring of corpora that are documents already (`documents:SOURCE`): their rows, without extraction.

What is imported stands beside what is extracted: segments, contents of a listing, normalised texts. One run may have
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from storage.manifest import ArtifactRef
from tasks.corpora.importing import (
    SUFFIX,
    ImportSettings,
    cut_imports,
    import_index,
    import_segment,
)
from tasks.corpora.parts import LINES, Part, parts_of
from tasks.ingest.journal import Content
from tasks.ingest.snapshot import ListedFile
from tasks.ingest.sources.documents import is_corpus
from tasks.session import Call, Pending, Session
from tasks.settings import Settings

Maybe = ArtifactRef | Pending


@dataclass(frozen=True)
class Imported:
    """Segments of imported documents; the lists have one entry for each.

    Attributes:
        segments: What was imported, both as extracted and as normalised.
        keys: Of the segments.
        contents: The sha256 of the live files in each.
        places: For each content, the segments that it lies in.
    """

    segments: list[Maybe]
    keys: list[str]
    contents: list[set[str]]
    places: list[tuple[Content, str]]


def corpora_of(files: Iterable[ListedFile]) -> tuple[list[ListedFile], list[ListedFile]]:
    """The files of a listing that are corpora, and the others.

    Where a corpus lies among the others too, under the same bytes, it is read as a corpus there as well: one content
    has one reading.
    """
    listed = list(files)
    wanted = {file.sha256 for file in listed if is_corpus(file.source) and file.sha256 is not None}
    corpora = [file for file in listed if is_corpus(file.source) or file.sha256 in wanted]
    return corpora, [file for file in listed if not (is_corpus(file.source) or file.sha256 in wanted)]


def import_files(
    session: Session, files: Sequence[ListedFile], locations: Mapping[str, str], settings: Settings
) -> Imported:
    """Import what is new of some listed files.

    Args:
        files: All of them corpora.
        locations: Where each content lies; for the stage they have to be in the session's resources, too.
    """
    if not files:
        return Imported([], [], [], [])
    chosen = ImportSettings(settings.documents, settings.normalise.repair_mojibake, ())
    contents = dict.fromkeys(file.sha256 for file in files if file.sha256 is not None)
    pending = [Part(sha256, LINES) for sha256 in contents if sha256 not in locations]  # in a plan: not fetched yet
    there = (sha256 for sha256 in contents if sha256 in locations)
    parts = pending + [part for sha256 in there for part in parts_of(locations[sha256], sha256, session.home.cache)]
    if session.resources is not None:
        session.resources.paths |= locations
    located = {} if import_segment.name in session.refresh else import_index(session.store, chosen)
    located = {part: located[part] for part in parts if part in located}
    sizes = {file.sha256: file.size for file in files if file.sha256 is not None}
    calls = [
        Call(replace(chosen, parts=cut), {}, len(cut))
        for cut in cut_imports((part for part in parts if part not in located), sizes)
    ]
    made = session.run_each(import_segment, calls)
    session.count_reused(import_segment, len(located))
    segments: dict[str, Maybe] = {ref.key: ref for ref in located.values()}
    places = [(_content(part), ref.key) for part, ref in located.items()]
    for call, ref in zip(calls, made, strict=True):
        key = import_segment.key(call.settings, {})
        segments[key] = ref
        places += [(_content(part), key) for part in call.settings.parts]
    keys = sorted(segments)  # in an order that does not depend on which of them were there
    held: dict[str, set[str]] = {key: set() for key in keys}
    for content, key in places:
        held[key].add(content.sha256)
    return Imported([segments[key] for key in keys], keys, [held[key] for key in keys], places)


def _content(part: Part) -> Content:
    return Content(part.sha256, SUFFIX)
