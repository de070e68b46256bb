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
    """Changes to the texts of one segment."""

    redact: tuple[str, ...]  # kinds of personal data that give way to stand-ins
    cuts: str  # digest of what is cut out of the segment's documents

    @classmethod
    def of(cls, kinds: tuple[str, ...], cuts: Cuts) -> RefineStageSettings:
        """Return the settings for some cuts."""
        return cls(kinds, sha256_json(sorted(cuts.items())))


@stage("refine", version=1, unit="document", tables={DOCUMENTS_FILE: REFINED}, unkeyed=("cuts",))
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

    Raises:
        ValueError: for spans that overlap or lie outside the text: they belong to another text.
    """
    stretches = _merged(cuts, len(text))
    ends = [end for _, end in stretches]
    gone = list(cuts)
    stand_ins: list[tuple[int, int, str]] = []
    for span in pii:
        if span["kind"] in kinds:
            start, end = span["start"], span["start"] + span["length"]
            first = bisect_right(ends, start)  # the first stretch that ends behind the span's beginning
            if first < len(stretches) and stretches[first][0] < end:
                # a span that a cut touches goes with it: half an address is private still
                gone.append((start, end - start))
            else:
                stand_ins.append((start, end, _stand_in(span["kind"], text[start:end])))
    edits = [*stand_ins, *((start, end, None) for start, end in _merged(gone, len(text)))]
    return _edited(text, edits), len(stand_ins)


def cut(text: str, spans: Sequence[Span]) -> str:
    """Remove stretches of a text and tidy the seams.

    A line that loses all its words goes altogether, one that loses some keeps single spaces between the rest, and no
    seam leaves more than one empty line, or spaces at the end of a line. Text that no stretch touches stays as it is.

    Args:
        spans: start and length in characters; they may overlap and reach beyond the text.
    """
    return refine_text(text, (), (), spans)[0]


def _stand_in(kind: str, found: str) -> str:
    return STAND_INS["ipv6" if kind == "ip" and ":" in found else kind]


def _edited(text: str, edits: Sequence[tuple[int, int, str | None]]) -> str:
    """A text in which stretches, given by start and end, are replaced, or cut out where there is no replacement."""
    parts: list[list[str]] = [[]]  # the text between cuts, in pieces
    done = 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[0]):
        if start < done or end > len(text):
            raise ValueError(
                f"a span at {start} to {end} overlaps another or the end of a text of {len(text)} characters; spans "
                "must be those of this very text"
            )
        parts[-1].append(text[done:start])
        if replacement is None:
            parts.append([])
        else:
            parts[-1].append(replacement)
        done = end
    parts[-1].append(text[done:])
    joined = ["".join(part) for part in parts]
    kept = _seamed(joined)
    return kept if len(joined) == 1 or joined[-1].strip() else kept.rstrip()


def _merged(spans: Iterable[Span], end: int) -> list[tuple[int, int]]:
    """Start and end of stretches in order, those that touch or overlap joined, within the text."""
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
