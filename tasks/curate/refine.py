"""The stage `refine`: cut, redact and mend the texts of a segment, including documents that are not selected.

A segment is refined again only if its own cuts, or the legibility of its scans, change. Personal data is replaced by
addresses and numbers reserved for documentation and fiction, so that a model still learns what such text looks like,
and redacting again finds nothing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.digest import sha256_json
from storage.manifest import ArtifactRef, RefSet
from storage.schemas import DOCUMENTS_FILE, LEGIBILITY_FILE, MEASURES_FILE, REFINED
from storage.store import StoreError
from storage.tables import stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import Work, stage
from tasks.text.mending import Mend

Span = tuple[int, int]
Edit = tuple[int, int, str | None]  # start, end, replacement; None cuts
Cuts = dict[str, list[Span]]

REPLACEMENTS = {
    "email": "email@example.com",  # RFC 2606
    "ip": "192.0.2.1",  # RFC 5737
    "ipv6": "2001:db8::1",  # RFC 3849
    "phone": "+1 202-555-0143",  # 555-0100 to 555-0199 are reserved for fiction
    "iban": "[IBAN]",
    "card": "[CARD]",
    "secret": "[SECRET]",
}


@dataclass(frozen=True)
class RefineStageSettings:
    """Changes to the texts of one segment."""

    redact: tuple[str, ...]  # kinds of personal data to replace
    cuts: str  # digest of the cuts of the segment's documents

    @classmethod
    def of(cls, kinds: tuple[str, ...], cuts: Cuts) -> RefineStageSettings:
        """Return the settings for some cuts."""
        return cls(kinds, sha256_json(sorted(cuts.items())))


@stage("refine", version=2, unit="document", tables={DOCUMENTS_FILE: REFINED}, unkeyed=("cuts",))
def refine(
    work: Work,
    settings: RefineStageSettings,
    *,
    documents: ArtifactRef,
    measures: ArtifactRef,
    legibility: RefSet,
    cuts: Cuts,
) -> str:
    """Cut, redact and mend the texts of one segment; `legibility` is empty where nothing is mended."""
    source = work.folder(documents) / DOCUMENTS_FILE
    made = work.in_subprocess(
        refine_segment,
        unpacked_size(source),
        documents=source,
        measures=work.folder(measures) / MEASURES_FILE,
        legibility=[work.folder(ref) / LEGIBILITY_FILE for ref in legibility.refs],
        cuts=cuts,
        redact_kinds=settings.redact,
        out=work.out / DOCUMENTS_FILE,
    )
    work.counts.update(made["counts"])
    return str(made["digest"])


def refine_segment(
    documents: Path,
    measures: Path,
    legibility: Sequence[Path],
    cuts: Cuts,
    redact_kinds: tuple[str, ...],
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the refined documents of a segment; return counts and a digest."""
    counts = {"redactions": 0, "cut_chars": 0, "mends": 0}
    misread = {
        row["doc_id"]: [(mend["start"], mend["start"] + mend["length"], mend["text"]) for mend in row["mends"]]
        for table in legibility
        for row in stream_rows(table, ["doc_id", "mends"])
        if row["mends"]
    }

    def rows() -> Iterator[dict[str, Any]]:
        found = zip(
            stream_rows(documents, ["doc_id", "kind", "text"]),
            stream_rows(measures, ["doc_id", "pii"]),  # the same documents in the same order
            strict=True,
        )
        for row, measured in found:
            if row["doc_id"] != measured["doc_id"]:
                raise StoreError(f"{measures} has the measures of other documents than {documents}: --refresh measure")
            spans = cuts.get(row["doc_id"], [])
            mends = misread.get(row["doc_id"], ())
            text, n_redacted, n_mended = refine_text(row["text"], measured["pii"], redact_kinds, spans, mends)
            n_cut = sum(length for _, length in spans)
            counts["redactions"] += n_redacted
            counts["cut_chars"] += n_cut
            counts["mends"] += n_mended
            encoded = text.encode()
            yield {
                "doc_id": row["doc_id"],
                "kind": row["kind"],
                "text": text,
                "n_bytes": len(encoded),
                "redactions": n_redacted,
                "cut_chars": n_cut,
                "mends": n_mended,
                "digest": sha256_json([row["kind"], hashlib.sha256(encoded).hexdigest(), n_redacted, n_cut, n_mended]),
            }

    n_rows = write_table(out, REFINED, rows())
    progress(n_rows, n_rows)
    return {"counts": {**counts, "rows": n_rows, "units": n_rows}, "digest": union_digest([out])}


def refine_text(
    text: str,
    pii: Sequence[Mapping[str, Any]],
    kinds: Sequence[str],
    cuts: Sequence[Span],
    mends: Sequence[Mend] = (),
) -> tuple[str, int, int]:
    """Apply cuts to a text, replace personal data, and mend words that are not touched by either.

    Args:
        pii: Spans with `kind`, `start` and `length`, in characters of this text.
        kinds: Kinds to replace.
        cuts: Starts and lengths, in characters of this text.
        mends: Words that were misread, in order.

    Returns:
        The text, and the numbers of replaced spans and of mended words.

    Raises:
        ValueError: Spans overlap or are outside the text, so they belong to another text.
    """
    stretches = _merged(cuts, len(text))
    ends = [end for _, end in stretches]
    gone = list(cuts)
    replacements: list[Edit] = []
    for span in pii:
        if span["kind"] in kinds:
            start, end = span["start"], span["start"] + span["length"]
            first = bisect_right(ends, start)  # the first cut that ends after the start of the span
            if first < len(stretches) and stretches[first][0] < end:
                # a span that overlaps a cut is cut as well: half an address is still private
                gone.append((start, end - start))
            else:
                replacements.append((start, end, _replacement(span["kind"], text[start:end])))
    edits = [*replacements, *((start, end, None) for start, end in _merged(gone, len(text)))]
    mended = [(start, end, new or None) for start, end, new in _apart(mends, edits)]
    return _edited(text, [*edits, *mended]), len(replacements), len(mended)


def cut(text: str, spans: Sequence[Span]) -> str:
    """Remove spans of a text, with the white space around them.

    A line that loses all its words is removed, one that loses some keeps single spaces between the others, and no cut
    leaves more than one empty line, or spaces at the end of a line. Other text is unchanged.

    Args:
        spans: Start and length in characters; they may overlap and extend beyond the text.
    """
    return refine_text(text, (), (), spans)[0]


def _replacement(kind: str, found: str) -> str:
    return REPLACEMENTS["ipv6" if kind == "ip" and ":" in found else kind]


def _apart(mends: Sequence[Mend], edits: Sequence[Edit]) -> Iterator[Mend]:
    """Yield the mends that no edit touches."""
    spans = _merged([(start, end - start) for start, end, _ in edits], max((end for _, end, _ in edits), default=0))
    ends = [end for _, end in spans]
    for mend in mends:
        after = bisect_right(ends, mend[0])
        if after == len(spans) or spans[after][0] >= mend[1]:
            yield mend


def _edited(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits (start, end, replacement) to a text; None cuts the span."""
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
    """Return sorted (start, end) of spans, clipped to the text, with adjacent and overlapping ones merged."""
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
    """Join the parts between cuts, treating consecutive cuts with only white space between them as one.

    The white space before a cut is kept apart from the text and measured once, which makes this linear.
    """
    done = [parts[0].rstrip(_SPACE)]
    ahead = parts[0][len(done[0]) :]
    width = _width(ahead)
    for part in parts[1:]:
        right = part.lstrip(_SPACE)
        behind = part[: len(part) - len(right)]
        if not right:  # only white space up to the next cut: the wider of the two is kept
            if _width(behind) > width:
                ahead, width = behind, _width(behind)
            continue
        done += [_seam(ahead, behind) if done[-1] else _indentation(behind), right.rstrip(_SPACE)]
        ahead = right[len(done[-1]) :]
        width = _width(ahead)
    return "".join([*done, ahead])


def _width(space: str) -> tuple[int, int]:
    """Return a sort key: number of line feeds, then of characters."""
    return space.count("\n"), len(space)


def _seam(ahead: str, behind: str) -> str:
    """Return the replacement of a cut and of the white space around it."""
    if "\n" not in ahead and "\n" not in behind:
        return " " if ahead or behind else ""
    # keeps a paragraph break on either side; a removed line leaves no empty one
    return "\n" * min(2, max(ahead.count("\n"), behind.count("\n"))) + _indentation(behind)


def _indentation(behind: str) -> str:
    """Return the indentation of the line after a cut, if a line begins there."""
    return behind.rpartition("\n")[2] if "\n" in behind else ""
