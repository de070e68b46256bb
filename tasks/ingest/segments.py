"""Segments: which contents are extracted already, and how the others are cut into batches, each one artefact.

Extraction of a file is addressed by its bytes, its suffix and the options, never by its path. A run looks up which
contents are in no segment yet, sorts them by digest, and cuts them into segments; the cut depends on what stands in
the segment alone, so after a kill the same segments come out.
"""

from __future__ import annotations

import hmac
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from storage.digest import plain
from storage.home import Home
from storage.manifest import ArtifactRef, Manifest
from storage.store import Store
from storage.tables import read_columns, read_rows
from tasks.ingest.extract import extract
from tasks.ingest.journal import Content, is_doubtful
from tasks.readers.records import ExtractOptions

SEGMENT_BYTES = 32 * 2**20
SEGMENT_FILES = 4096


class Cuttable(Protocol):
    """What a segment may consist of."""

    @property
    def sha256(self) -> str:
        """Of the file."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether it comes first."""


Item = TypeVar("Item", bound=Cuttable)


def cut_segments(
    contents: Iterable[Item], sizes: Mapping[str, int], alone: Callable[[Item], bool] | None = None
) -> list[tuple[Item, ...]]:
    """Cut contents, sorted by digest, into segments.

    A segment ends with the file that fills it, so the cuts before and after a finished segment do not depend on it.

    Args:
        sizes: bytes of each content, by sha256.
        alone: whether a content is a segment by itself.
    """
    segments: list[tuple[Item, ...]] = []
    current: list[Item] = []
    size = 0
    for content in sorted(contents):
        if alone is not None and alone(content):
            segments.append((content,))
            continue
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
    """A content that lies in a segment.

    Attributes:
        reason_codes: why its extraction failed, in part or in whole, over the file and its members; empty if it did
            not.
        tried: what is noted of the passwords of each attempt (see `passwords_digest`); empty if it needs none.
        last_attempt: number of the latest attempt, which need not be the one that is used.
    """

    content: Content
    segment: ArtifactRef
    reason_codes: frozenset[str] = frozenset()
    tried: tuple[str, ...] = ()
    last_attempt: int = 0


def passwords_digest(passwords: Iterable[str], home: Home) -> str:
    """What is noted of passwords that were tried: for each a keyed digest, which means nothing without the home."""
    words = sorted(set(passwords))
    if not words:
        return ""
    key = home.password_key()
    digests = (hmac.digest(key, word.encode("utf-8", "surrogatepass"), "sha256").hex() for word in words)
    return ",".join(sorted(digests))


def segment_index(store: Store, options: ExtractOptions) -> dict[tuple[str, str], Located]:
    """Where each content lies that was extracted under these options.

    Of several extractions of one content the one with more text counts: a retry on a bad day takes nothing away. Among
    equals it is the latest attempt, then the newest.
    """
    wanted = plain(options)
    found = sorted(store.manifests(extract.name), key=lambda manifest: (manifest.created, manifest.key))
    segments = present_segments(
        item for item in found if item.version == extract.version and item.settings["options"] == wanted
    )
    chosen: dict[tuple[str, str], tuple[Content, int]] = {}
    rivals: dict[tuple[str, str], list[tuple[Content, int]]] = {}  # of contents that were extracted more than once
    for number, manifest in enumerate(segments):
        for entry in manifest.settings["contents"]:
            content = Content(**entry)
            known = chosen.setdefault(content.identity, (content, number))
            if known[1] != number:
                rivals.setdefault(content.identity, [known]).append((content, number))
    numbers = sorted({number for attempts in rivals.values() for _, number in attempts})
    worths = {number: _worths(store, segments[number].ref) for number in numbers}
    for identity, attempts in rivals.items():
        sha256, _ = identity
        chosen[identity] = max(attempts, key=lambda item: (worths[item[1]][sha256], item[0].attempt, item[1]))
    doubtful = {number: _doubtful(store, item.ref) for number, item in enumerate(segments) if item.counts["doubtful"]}
    index = {}
    for identity, (content, number) in chosen.items():
        codes = doubtful[number].get(content.sha256, frozenset()) if number in doubtful else frozenset()
        attempts = rivals.get(identity) or [(content, number)]
        tried = {segments[place].tools["passwords"] for _, place in attempts} if "encrypted" in codes else ()
        last = max(attempt.attempt for attempt, _ in attempts)
        index[identity] = Located(content, segments[number].ref, codes, tuple(sorted(tried)), last)
    return index


def present_segments(segments: Iterable[Manifest]) -> list[Manifest]:
    """Segments without those that another one among them replaces (see `tasks.upkeep.compact`)."""
    listed = list(segments)
    replaced = {ref.key for item in listed for ref in item.input_refs()}
    return [item for item in listed if item.key not in replaced]


def _worths(store: Store, ref: ArtifactRef) -> dict[str, tuple[int, int]]:
    """How much came of each file of a segment: documents that are ok, then pages without an error."""
    folder = store.folder(ref)
    pages = read_columns(folder / "pages.parquet", ["doc_id", "error"])
    sound = Counter(doc_id for doc_id, error in zip(pages["doc_id"], pages["error"], strict=True) if error is None)
    worths: dict[str, tuple[int, int]] = {}
    for row in read_rows(folder / "extracts.parquet", ["doc_id", "file_sha256", "status"]):
        n_ok, n_pages = worths.get(row["file_sha256"], (0, 0))
        worths[row["file_sha256"]] = (n_ok + (row["status"] == "ok"), n_pages + sound[row["doc_id"]])
    return worths


def _doubtful(store: Store, ref: ArtifactRef) -> dict[str, frozenset[str]]:
    """The reason codes of a segment's files, and of the members in them, that may be worth another attempt."""
    codes: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(store.folder(ref) / "extracts.parquet", ["file_sha256", "status", "reason_code"]):
        if is_doubtful(row["status"], row["reason_code"]):
            codes[row["file_sha256"]].add(row["reason_code"])
    return {sha256: frozenset(found) for sha256, found in codes.items()}


def wants_retry(located: Located, retry_failed: bool, ocr_ready: bool, passwords: str) -> bool:
    """Whether an extraction that failed, in part or in whole, is to be tried again.

    On request; by itself when the engine, language or password it lacked is there now, and when what failed was the
    path at that moment, which says nothing about the content.

    Args:
        located: the content.
        retry_failed: whether it was asked for.
        ocr_ready: whether the OCR engine and its languages are there.
        passwords: the `passwords_digest` of those given now.
    """
    return any(_may_change(code, located, retry_failed, ocr_ready, passwords) for code in located.reason_codes)


def _may_change(code: str, located: Located, retry_failed: bool, ocr_ready: bool, passwords: str) -> bool:
    """Whether another attempt may go differently where this was the trouble."""
    if code == "no_ocr_engine":
        return ocr_ready
    if code == "encrypted":
        # one attempt with all of them, not each in some attempt: members of one archive may need different ones
        return not any(_words(passwords) <= _words(tried) for tried in located.tried)
    return code in ("changed", "unreadable") or retry_failed


def _words(digests: str) -> set[str]:
    return set(digests.split(",")) - {""}
