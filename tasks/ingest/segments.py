"""List the files of a corpus, extract or import the new ones, and find the segments of the others.

Extraction is addressed by the bytes, the suffix and the options, never by the path. A run sorts the contents that are
in no segment yet by digest and cuts them into segments; each cut depends only on the contents of its segment, so a
resumed run makes the same segments.
"""

from __future__ import annotations

import hmac
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from storage.digest import plain
from storage.home import Home
from storage.lineage import manifest_of
from storage.manifest import ArtifactRef, Manifest, RefSet
from storage.schemas import EXTRACTS_FILE, PAGES_FILE
from storage.store import Store
from storage.tables import read_columns, read_rows
from storage.tombstones import read_tombstones
from tasks.core.executor import show_cached
from tasks.core.run import Run
from tasks.core.settings import Settings
from tasks.core.stage import Call, Stage
from tasks.ingest.extract import SegmentSettings, SourceFiles, extract, extract_tools
from tasks.ingest.importing import SUFFIX, ImportSettings, Part, import_index, import_segment, parts_of
from tasks.ingest.journal import Content, is_doubtful
from tasks.readers.ocr import ocr_ready
from tasks.readers.records import CONTAINERS, ExtractOptions
from tasks.readers.rows import LINES
from tasks.sources.address import is_corpus, resolve_sources
from tasks.sources.folder import ListedFile
from tasks.sources.listing import HashMemo, list_sources

SEGMENT_BYTES = 32 * 2**20
SEGMENT_FILES = 4096

Placed = tuple[Content, ArtifactRef]  # a content with its segment
Item = TypeVar("Item", bound=Any)  # a `Content`, or a `Part` of a file to import
_KEY = attrgetter("key")  # an order of segments that does not depend on which were cached


@dataclass(frozen=True)
class Segments:
    """The live files of a corpus; the lists have one entry for each segment.

    Attributes:
        refs: Segments, extracted or imported.
        contents: sha256 of the live files in each.
        live: Ids of the live documents in each; empty if they are not known yet, in a plan.
    """

    refs: list[ArtifactRef]
    contents: list[set[str]]
    live: list[set[str]]

    @property
    def sizes(self) -> list[int]:
        """Return the number of live documents of each segment, or of live files if documents are not known yet."""
        return [len(live) or len(contents) for live, contents in zip(self.live, self.contents, strict=True)]

    def map(
        self, run: Run, stage: Stage, settings: Any, after: tuple[ArtifactRef, ...] = (), **inputs: Any
    ) -> list[ArtifactRef]:
        """Call a stage for each segment.

        Args:
            settings: Settings of the stage; a list has one item for each segment.
            inputs: Inputs and unkeyed arguments of the stage; a list has one item for each segment.
        """

        def of(value: Any, place: int) -> Any:
            return value[place] if isinstance(value, list) else value

        calls = [
            Call(of(settings, place), {name: of(value, place) for name, value in inputs.items()}, size, after)
            for place, size in enumerate(self.sizes)
        ]
        return stage.map(run, calls)

    def union(self, run: Run, made: Sequence[ArtifactRef], table: str) -> RefSet:
        """Return the artefacts of all segments as one table of live documents, which may be empty."""
        keys = [ref.key for ref in self.refs]
        return run.union(made, table, self.live[: len(made)], segments=keys[: len(made)])


def list_files(run: Run, source: str, settings: Settings) -> tuple[list[ListedFile], SourceFiles]:
    """List sources and hash changed files; return the files, with the path of each content.

    Args:
        source: Sources, one per line.
    """
    run.home.create()
    forgotten = read_tombstones(run.store)
    run.forgotten = frozenset(forgotten.documents)
    found = list_sources(
        resolve_sources([source]),
        settings.sources,
        settings.extract.max_file_bytes,
        run.home.cache,
        HashMemo(run.home.hash_memo),
        exclude=[run.home.path, Path(run.home.store)],
        forgotten=forgotten.contents,
        fetch=not run.plan,
    )
    if found.n_ignored:
        run.note(f"{found.n_ignored} files or folders were excluded by patterns or .gitignore")
    if found.n_pending:
        run.note(
            f"{found.n_pending} objects are not in the cache: the plan counts them as new, and a run downloads them"
        )
    sizes = {file.sha256: file.size for file in found.files if file.sha256 is not None}
    passwords = settings.passwords.read()
    return found.files, SourceFiles(found.locations, sizes, passwords, passwords_digest(passwords, run.home))


def split_by_reader(files: Iterable[ListedFile]) -> tuple[list[ListedFile], list[ListedFile]]:
    """Return the files of a listing to import (`documents:SOURCE`), and those to extract.

    A content is read in one way only: if it is in a `documents:` source, it is imported at its other paths, too.
    """
    listed = list(files)
    wanted = {file.sha256 for file in listed if is_corpus(file.source) and file.sha256 is not None}
    corpora = [file for file in listed if is_corpus(file.source) or file.sha256 in wanted]
    return corpora, [file for file in listed if not (is_corpus(file.source) or file.sha256 in wanted)]


def extract_files(run: Run, files: Iterable[ListedFile], sources: SourceFiles, settings: Settings) -> list[Placed]:
    """Extract new contents; return each content that is used, with its segment.

    An index of all segments, and not the stage's key, shows which contents are extracted already. If a new attempt at a
    failed file yields less than an earlier one, the earlier one is used.
    """
    chosen = choose_contents(run, settings, files, sources.passwords_noted)
    cuts = cut_segments((content for content, segment in chosen.items() if segment is None), sources.sizes)
    calls = [
        Call(SegmentSettings(settings.extract, contents), {"files": sources.of(contents)}, len(contents))
        for contents in cuts
    ]
    in_store = sorted({segment for segment in chosen.values() if segment is not None})
    if run.plan and in_store:
        tools = extract_tools()
        for ref in in_store:
            run.compare_tools(extract, manifest_of(run.store, ref), tools)
    made = extract.map(run, calls)
    show_cached(run, extract, in_store)
    new = set(made)
    placed = {content: segment for content, segment in chosen.items() if segment is not None}
    for contents, segment in zip(cuts, made, strict=True):
        placed |= dict.fromkeys(contents, segment)
    retried = [content for content in placed if content.attempt and placed[content] in new and placed[content].made]
    if retried and extract.name not in run.refresh:
        index = segment_index(run.store, settings.extract)
        for content in retried:
            best = index[content.sha256, content.suffix]
            if best.content != content:  # an earlier attempt gave more text
                del placed[content]
                placed[best.content] = best.segment
    return _report(run, extract, list(placed.items()), sum(segment not in new for segment in placed.values()))


def choose_contents(
    run: Run, settings: Settings, listed: Iterable[ListedFile], passwords: str
) -> dict[Content, ArtifactRef | None]:
    """Return the extraction to use for every listed content, with its segment; None if it has to be extracted.

    Args:
        passwords: The `passwords_digest` of the current passwords.
    """
    suffixes: dict[str, str] = {}
    for item in listed:
        if item.sha256 is not None:
            # one content is one document: of several suffixes the first in order is used
            suffixes[item.sha256] = min(suffixes.get(item.sha256, item.suffix), item.suffix)
    index = segment_index(run.store, settings.extract)
    refresh = extract.name in run.refresh
    can_read_images = cache(partial(ocr_ready, settings.extract.ocr_languages))
    chosen: dict[Content, ArtifactRef | None] = {}
    for identity in suffixes.items():
        known = index.get(identity)
        if known is None:
            chosen[Content(*identity)] = None
        elif wants_retry(known, run.retry_failed, can_read_images, passwords):
            chosen[Content(*identity, known.last_attempt + 1)] = None
        else:
            # a refresh repeats the same attempt, which would lose to a later one by its number otherwise
            chosen[known.content] = None if refresh else known.segment
    return chosen


def import_files(run: Run, files: Sequence[ListedFile], sources: SourceFiles, settings: Settings) -> list[Placed]:
    """Import new files of `documents:` sources; return each content, with its segment."""
    if not files:
        return []
    asked = ImportSettings(settings.documents, settings.normalise.repair_mojibake, ())
    contents = dict.fromkeys(file.sha256 for file in files if file.sha256 is not None)
    paths = sources.paths
    parts = [Part(sha256, LINES) for sha256 in contents if sha256 not in paths]  # pending objects, in a plan
    parts += [
        part for sha256 in contents if sha256 in paths for part in parts_of(paths[sha256], sha256, run.home.cache)
    ]
    index = {} if import_segment.name in run.refresh else import_index(run.store, asked)
    placed = [(part, index[part]) for part in parts if part in index]
    new = [part for part in parts if part not in index]
    # a part of a large file is a segment; small files share segments
    alone = [(part,) for part in new if not part.whole]
    cuts = [*alone, *cut_segments((part for part in new if part.whole), sources.sizes)]
    calls = [
        Call(replace(asked, parts=cut), {"locations": [paths.get(part.sha256, "") for part in cut]}, len(cut))
        for cut in cuts
    ]
    made = import_segment.map(run, calls)
    show_cached(run, import_segment, sorted({ref for _, ref in placed}))
    reused = len(placed)
    placed += [(part, ref) for cut, ref in zip(cuts, made, strict=True) for part in cut]
    return _report(run, import_segment, [(Content(part.sha256, SUFFIX), ref) for part, ref in placed], reused)


def _report(run: Run, stage: Stage, placed: list[Placed], reused: int) -> list[Placed]:
    line = run.line(stage)
    line.add(reused=reused, rows=reused)
    line.key = RefSet.of(sorted({ref for _, ref in placed}, key=_KEY)).digest or line.key
    return placed


def segments_of(run: Run, placed: Iterable[Placed]) -> Segments:
    """Return the segments of some contents, ordered by stage and key, with their live documents."""
    contents: dict[ArtifactRef, set[str]] = defaultdict(set)
    for content, ref in placed:
        contents[ref].add(content.sha256)
    refs = sorted(contents, key=attrgetter("stage", "key"))
    live = [_live_documents(run, ref, contents[ref]) for ref in refs]
    return Segments(refs, [contents[ref] for ref in refs], live)


def _live_documents(run: Run, segment: ArtifactRef, contents: Collection[str]) -> set[str]:
    """Return the ids of the documents of a segment that are in live files; empty for one that is only planned."""
    if not segment.made:
        return set()
    wanted = ["doc_id", "file_sha256", "status", "kind"]
    rows = zip(*read_columns(run.store.folder(segment) / EXTRACTS_FILE, wanted).values(), strict=True)
    return {
        doc_id
        for doc_id, sha256, status, kind in rows
        if sha256 in contents and status == "ok" and kind not in CONTAINERS
    }


def places_in_order(placed: Iterable[Placed]) -> list[tuple[Content, str]]:
    """Return sorted pairs (content, key of its segment)."""
    places = [(content, ref.key) for content, ref in placed]
    # the same order as without a key, and several times faster for hundreds of thousands
    return sorted(places, key=lambda place: (place[0].sha256, place[0].suffix, place[0].attempt, place[1]))


# the index of extracted contents


def cut_segments(contents: Iterable[Item], sizes: Mapping[str, int]) -> list[tuple[Item, ...]]:
    """Cut contents, sorted by digest, into segments.

    A segment ends with the file that fills it, so a resumed run without the finished segments makes the same cuts.

    Args:
        sizes: Bytes of each content, by sha256.
    """
    segments: list[tuple[Item, ...]] = []
    current: list[Item] = []
    size = 0
    for content in sorted(contents):
        current.append(content)
        size += sizes[content.sha256]
        if size >= SEGMENT_BYTES or len(current) >= SEGMENT_FILES:
            segments.append(tuple(current))
            current, size = [], 0
    if current:
        segments.append(tuple(current))
    return segments


@dataclass(frozen=True, slots=True)
class Located:
    """A content with its segment.

    Attributes:
        reason_codes: Reason codes of the file and its members for which another attempt may give more text.
        tried: The `passwords_digest` of each attempt; empty if the content is not encrypted.
        last_attempt: Number of the latest attempt, which need not be the one that is used.
    """

    content: Content
    segment: ArtifactRef
    reason_codes: frozenset[str] = frozenset()
    tried: tuple[str, ...] = ()
    last_attempt: int = 0


def passwords_digest(passwords: Iterable[str], home: Home) -> str:
    """Return the sorted digests of the passwords, keyed by the home, joined by commas; "" for none."""
    words = sorted(set(passwords))
    if not words:
        return ""
    key = home.password_key()
    digests = (hmac.digest(key, word.encode("utf-8", "surrogatepass"), "sha256").hex() for word in words)
    return ",".join(sorted(digests))


def segment_index(store: Store, options: ExtractOptions) -> dict[tuple[str, str], Located]:
    """Return the extraction of each content under these options, by (sha256, suffix).

    Of several extractions of one content the best one by documents and pages is used, so that a worse retry loses
    nothing; among equals the latest attempt, then the newest.
    """
    wanted, standard = plain(options), plain(ExtractOptions())  # a missing, newer option had its default value
    made = sorted(store.manifests(extract.name), key=lambda manifest: (manifest.created, manifest.key))
    segments = present_segments(
        item for item in made if item.version == extract.version and standard | item.settings["options"] == wanted
    )
    attempts: dict[tuple[str, str], list[tuple[Content, int]]] = defaultdict(list)  # nearly always one
    for number, manifest in enumerate(segments):
        for entry in manifest.settings["contents"]:
            content = Content(**entry)
            attempts[content.sha256, content.suffix].append((content, number))
    several = {number for found in attempts.values() if len(found) > 1 for _, number in found}
    worths = {number: _worths(store, segments[number].ref) for number in sorted(several)}
    doubtful = {number: _doubtful(store, item.ref) for number, item in enumerate(segments) if item.counts["doubtful"]}
    index = {}
    for identity, found in attempts.items():
        content, number = found[0]
        if len(found) > 1:
            content, number = max(found, key=lambda item: (worths[item[1]][item[0].sha256], item[0].attempt, item[1]))
        codes = doubtful[number].get(content.sha256, frozenset()) if number in doubtful else frozenset()
        tried = {segments[place].tools["passwords"] for _, place in found} if "encrypted" in codes else ()
        last = max(attempt.attempt for attempt, _ in found)
        index[identity] = Located(content, segments[number].ref, codes, tuple(sorted(tried)), last)
    return index


def present_segments(segments: Iterable[Manifest]) -> list[Manifest]:
    """Return the segments that no other one replaces by compaction (see `tasks.upkeep.compact`)."""
    listed = list(segments)
    replaced = {ref.key for item in listed for ref in item.input_refs()}
    return [item for item in listed if item.key not in replaced]


def _worths(store: Store, ref: ArtifactRef) -> dict[str, tuple[int, int]]:
    """Count per file of a segment the documents that are ok and the pages without an error."""
    folder = store.folder(ref)
    pages = read_columns(folder / PAGES_FILE, ["doc_id", "error"])
    sound = Counter(doc_id for doc_id, error in zip(pages["doc_id"], pages["error"], strict=True) if error is None)
    worths: dict[str, tuple[int, int]] = {}
    for row in read_rows(folder / EXTRACTS_FILE, ["doc_id", "file_sha256", "status"]):
        n_ok, n_pages = worths.get(row["file_sha256"], (0, 0))
        worths[row["file_sha256"]] = (n_ok + (row["status"] == "ok"), n_pages + sound[row["doc_id"]])
    return worths


def _doubtful(store: Store, ref: ArtifactRef) -> dict[str, frozenset[str]]:
    """Return the reason codes of a segment's files and members for which another attempt may give more text."""
    codes: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(store.folder(ref) / EXTRACTS_FILE, ["file_sha256", "status", "reason_code"]):
        if is_doubtful(row["status"], row["reason_code"]):
            codes[row["file_sha256"]].add(row["reason_code"])
    return {sha256: frozenset(found) for sha256, found in codes.items()}


def wants_retry(located: Located, retry_failed: bool, can_read_images: Callable[[], bool], passwords: str) -> bool:
    """Return True if an extraction that failed, in part or in whole, is to be repeated.

    It is repeated on request; if the missing engine, language or password is available now; and if the file could not
    be read or changed, which depends on the path at that time and not on the content.

    Args:
        located: The content.
        retry_failed: Whether the user requested it.
        can_read_images: Returns whether the OCR engine and its languages are installed.
        passwords: The `passwords_digest` of the current passwords.
    """
    given = set(filter(None, passwords.split(",")))

    def may_change(code: str) -> bool:
        if code == "no_ocr_engine":
            return can_read_images()
        if code == "encrypted":
            # all in one attempt, because members of one archive may need different ones
            return not any(given <= set(tried.split(",")) for tried in located.tried)
        return code in ("changed", "unreadable") or retry_failed

    return any(map(may_change, located.reason_codes))
