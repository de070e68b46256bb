"""The stage `refine`: texts as models see them, after cuts and redactions; also of documents that are not selected.

Per segment again: a segment in which nothing is cut anew is not refined anew, whatever the rest of the corpus does.
Personal data gives way to neutral stand-ins, addresses and numbers set aside for documentation and fiction, so that a
model still learns what such text looks like, and a second look at the result finds nothing to redact. Stretches of a
text are cut out without a trace.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, MEASURES_FILE, REFINED
from storage.store import StoreError
from storage.tables import stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import Work, stage

Span = tuple[int, int]
Cuts = dict[str, list[Span]]

STAND_INS = {
    "email": "email@example.com",  # RFC 2606
    "ip": "192.0.2.1",  # RFC 5737
    "ipv6": "2001:db8::1",  # RFC 3849
    "phone": "+1 202-555-0143",  # 555-0100 to 555-0199 are kept for fiction
    "iban": "[IBAN]",
    "card": "[CARD]",
    "secret": "[SECRET]",
}


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
    tables={DOCUMENTS_FILE: REFINED},
    unkeyed=("cuts",),
)
def refine(
    work: Work, settings: RefineStageSettings, *, documents: ArtifactRef, measures: ArtifactRef, cuts: Cuts
) -> str:
    """Cut and redact the texts of one segment."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(
        refine_segment,
        unpacked_size(source),
        documents=source,
        measures=work.folder(measures) / MEASURES_FILE,
        cuts=cuts,
        redact_kinds=settings.redact,
        out=work.out / DOCUMENTS_FILE,
    )
    work.counts.update(made["counts"])
    return str(made["digest"])


def refine_segment(
    documents: Path,
    measures: Path,
    cuts: Cuts,
    redact_kinds: tuple[str, ...],
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the refined documents of a segment; returns counts and a digest."""
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
            spans = cuts.get(row["doc_id"], [])
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
    redacted = redact(text, spans)
    return (cut(redacted, _moved(text, spans, cuts)) if cuts else redacted), len(spans)


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


def redact(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replace personal data.

    Args:
        spans: `kind`, `start` and `length` in characters of the text, as the column `pii` of the measures has them.

    Raises:
        ValueError: for spans that overlap or lie outside the text: they belong to another text.
    """
    parts, done = [], 0
    for span in sorted(spans, key=lambda span: int(span["start"])):
        kind, start, end = str(span["kind"]), int(span["start"]), int(span["start"]) + int(span["length"])
        if start < done or end > len(text):
            raise ValueError(
                f"a span of kind {kind} at {start} to {end} overlaps another or the end of a text of {len(text)} "
                "characters; spans must be those of this very text"
            )
        parts += [text[done:start], stand_in(kind, text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def stand_in(kind: str, found: str) -> str:
    """Return what takes the place of personal data of a kind."""
    return STAND_INS["ipv6" if kind == "ip" and ":" in found else kind]


def cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Remove stretches of a text and tidy the seams.

    A line that loses all its words goes altogether, one that loses some keeps single spaces between the rest, and no
    seam leaves more than one empty line, or spaces at the end of a line. Text that no stretch touches stays as it is.

    Args:
        spans: start and length in characters; they may overlap and reach beyond the text.
    """
    parts, done = list[str](), 0
    for start, end in _merged(spans, len(text)):
        parts.append(text[done:start])
        done = end
    parts.append(text[done:])
    if len(parts) == 1:
        return text
    kept = _seamed(parts)
    return kept if parts[-1].strip() else kept.rstrip()


def _merged(spans: Iterable[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Stretches in order, those that touch or overlap joined, within the text."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(spans):
        first, last = max(0, start), min(end, start + length)
        if first >= last:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


_SPACE = " \t\n\u00a0"


def _seamed(parts: list[str]) -> str:
    """Join the text between cuts, with one seam for each run of cuts that have only space between them.

    The text before a seam and the space at its end are held apart, and that space is measured once, so that no cut
    looks again at what came long before it.
    """
    done = [parts[0].rstrip(_SPACE)]
    ahead = parts[0][len(done[0]) :]
    width = _width(ahead)
    for part in parts[1:]:
        right = part.lstrip(_SPACE)
        behind = part[: len(part) - len(right)]
        if not right:  # more may follow behind the next cut, with the wider of the two spaces between
            if _width(behind) > width:
                ahead, width = behind, _width(behind)
            continue
        done += [_seam(ahead, behind) if done[-1] else _indentation(behind), right.rstrip(_SPACE)]
        ahead = right[len(done[-1]) :]
        width = _width(ahead)
    return "".join([*done, ahead])


def _width(space: str) -> tuple[int, int]:
    """Line feeds first, then characters."""
    return space.count("\n"), len(space)


def _seam(ahead: str, behind: str) -> str:
    """Return the replacement of a cut and of the space on its sides."""
    if "\n" not in ahead and "\n" not in behind:
        return " " if ahead or behind else ""
    # a paragraph's end on either side is one still, a lost line leaves no empty one
    return "\n" * min(2, max(ahead.count("\n"), behind.count("\n"))) + _indentation(behind)


def _indentation(behind: str) -> str:
    """Return the indentation of the line that follows a cut, if the line begins there."""
    return behind.rpartition("\n")[2] if "\n" in behind else ""
