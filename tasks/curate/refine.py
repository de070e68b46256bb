"""Refining: the text that models see, after cuts and redactions.

Per segment again: a segment in which nothing is cut anew is not refined anew, whatever the rest of the corpus does.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import CUTS_FILE, DOCUMENTS_FILE, MEASURES_FILE, REFINED
from storage.store import StoreError
from storage.tables import stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import Work, stage
from tasks.curate.curate import curate
from tasks.curate.redaction import cut, redact, stand_in

if TYPE_CHECKING:
    from tasks.core.run import Run

Span = tuple[int, int]
Cuts = dict[str, list[Span]]


@dataclass(frozen=True)
class RefineStageSettings:
    """Changes to the texts of one segment.

    Attributes:
        redact: kinds of personal data that give way to stand-ins.
        cuts: digest of what is cut out of the segment's documents.
    """

    redact: tuple[str, ...]
    cuts: str

    @classmethod
    def of(cls, kinds: tuple[str, ...], cuts: Cuts) -> RefineStageSettings:
        """The settings for some cuts."""
        return cls(kinds, sha256_json(sorted(cuts.items())))


@stage(
    "refine",
    version=1,
    unit="document",
    modules=("tasks.curate.curate",),
    tables={DOCUMENTS_FILE: REFINED},
    unkeyed=("cuts",),
)
def refine(
    work: Work, settings: RefineStageSettings, *, documents: ArtifactRef, measures: ArtifactRef, cuts: Cuts
) -> str:
    """Cut and redact the texts of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    listed = work.scratch / "cuts.json"  # may be long
    listed.write_text(json.dumps(cuts), encoding="utf-8")
    made = work.in_subprocess(
        refine_segment,
        unpacked_size(source),
        documents=source,
        measures=work.folder(measures) / MEASURES_FILE,
        cuts=listed,
        redact_kinds=settings.redact,
        out=work.out / DOCUMENTS_FILE,
    )
    work.counts.update(made["counts"])
    return str(made["digest"])


def refine_segment(
    documents: Path,
    measures: Path,
    cuts: Path,
    redact_kinds: tuple[str, ...],
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the refined documents of a segment; returns counts and a digest."""
    cut_out: Cuts = json.loads(cuts.read_text(encoding="utf-8"))
    counts = {"redactions": 0, "cut_chars": 0}

    def rows() -> Iterator[dict[str, Any]]:
        found = zip(
            stream_rows(documents, ["doc_id", "kind", "text"]),
            stream_rows(measures, ["doc_id", "pii"]),  # row for row the same documents
            strict=True,
        )
        for row, measured in found:
            if row["doc_id"] != measured["doc_id"]:
                raise StoreError(f"{measures} does not hold the measures of {documents}: --refresh measure")
            spans = [(start, length) for start, length in cut_out.get(row["doc_id"], [])]
            text, n_redacted = refine_text(row["text"], measured["pii"], redact_kinds, spans)
            n_cut = sum(length for _, length in spans)
            counts["redactions"] += n_redacted
            counts["cut_chars"] += n_cut
            encoded = text.encode()
            yield {
                "doc_id": row["doc_id"],
                "kind": row["kind"],
                "text": text,
                "n_bytes": len(encoded),
                "redactions": n_redacted,
                "cut_chars": n_cut,
                "digest": sha256_json([row["kind"], hashlib.sha256(encoded).hexdigest(), n_redacted, n_cut]),
            }

    n_rows = write_table(out, REFINED, rows())
    progress(n_rows, n_rows)
    return {"counts": {**counts, "rows": n_rows, "units": n_rows}, "digest": union_digest([out])}


def refine_text(
    text: str, pii: Sequence[Mapping[str, Any]], kinds: Sequence[str], cuts: Sequence[Span]
) -> tuple[str, int]:
    """A text without what is cut out of it, and with stand-ins for what is private.

    Args:
        pii: spans with `kind`, `start` and `length`.
        kinds: those that are replaced.
        cuts: starts and lengths; like the spans in characters of this text.

    Returns:
        The text, and how many spans were replaced.
    """
    wanted = [span for span in pii if span["kind"] in kinds]
    hit = _touched(wanted, cuts)
    spans = [span for span, gone in zip(wanted, hit, strict=True) if not gone]
    # a span that a cut touches goes with it: half an address is private still
    cuts = [*cuts, *((span["start"], span["length"]) for span, gone in zip(wanted, hit, strict=True) if gone)]
    if not spans:
        return (cut(text, cuts) if cuts else text), 0
    redacted, counts = redact(text, spans, kinds)
    return (cut(redacted, _moved(text, spans, cuts)) if cuts else redacted), sum(counts.values())


def _touched(spans: Sequence[Mapping[str, Any]], cuts: Sequence[Span]) -> list[bool]:
    """Return for each span whether a cut touches it."""
    ordered = sorted(cuts)
    ends = list(accumulate((start + length for start, length in ordered), max))
    # the first cut that ends behind a span's beginning: no later one begins before it
    first = [bisect_right(ends, span["start"]) for span in spans]
    return [
        at < len(ordered) and ordered[at][0] < span["start"] + span["length"]
        for at, span in zip(first, spans, strict=True)
    ]


def _moved(text: str, spans: Sequence[Mapping[str, Any]], cuts: Sequence[Span]) -> list[Span]:
    """Cuts in the characters of the redacted text."""
    ordered = sorted(spans, key=lambda span: int(span["start"]))
    starts = [int(span["start"]) for span in ordered]
    found = [text[start : start + span["length"]] for start, span in zip(starts, ordered, strict=True)]
    grown = [len(stand_in(span["kind"], old)) - len(old) for span, old in zip(ordered, found, strict=True)]
    shifts = [0, *accumulate(grown)]
    return [(start + shifts[bisect_right(starts, start)], length) for start, length in cuts]


def cuts_of(run: Run, curated: ArtifactRef, live: Sequence[Collection[str]]) -> list[Cuts]:
    """Return the cuts of each segment; a plan that does not know them yet takes those of the last selection.

    Args:
        live: Live documents of each segment.
    """
    manifests = () if curated.made else run.store.manifests(curate.name)
    known = [found for found in manifests if found.version == curate.version]
    chosen = max(known, key=lambda found: found.created).ref if known else curated
    if not chosen.made:
        return [{} for _ in live]
    cuts: Cuts = {}
    for row in stream_rows(run.store.folder(chosen) / CUTS_FILE, ["doc_id", "start", "length"]):
        cuts.setdefault(row["doc_id"], []).append((row["start"], row["length"]))
    return [{doc_id: spans for doc_id, spans in cuts.items() if doc_id in own} if cuts else {} for own in live]
