"""Redaction: personal data gives way to neutral stand-ins, and stretches of a text are cut out without a trace.

The stand-ins are addresses and numbers set aside for documentation and fiction, so that a model still learns what such
text looks like, and a second look at the result finds nothing to redact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

STAND_INS = {
    "email": "email@example.com",  # RFC 2606
    "ip": "192.0.2.1",  # RFC 5737
    "ipv6": "2001:db8::1",  # RFC 3849
    "phone": "+1 202-555-0143",  # 555-0100 to 555-0199 are kept for fiction
    "iban": "[IBAN]",
    "card": "[CARD]",
    "secret": "[SECRET]",
}


def redact(text: str, spans: Sequence[Mapping[str, Any]], kinds: Collection[str]) -> tuple[str, dict[str, int]]:
    """Replace personal data.

    Args:
        spans: `kind`, `start` and `length` in characters of the text, as the column `pii` of the measures has them.
        kinds: the kinds to replace; others stay as they are.

    Returns:
        The text, and how many spans of each kind were replaced; kinds without any are left out.

    Raises:
        ValueError: for spans that overlap or lie outside the text: they belong to another text.
    """
    parts, counts, done = [], dict[str, int](), 0
    for span in sorted(spans, key=lambda span: int(span["start"])):
        kind, start, end = str(span["kind"]), int(span["start"]), int(span["start"]) + int(span["length"])
        if kind not in kinds:
            continue
        if start < done or end > len(text):
            raise ValueError(
                f"a span of kind {kind} at {start} to {end} overlaps another or the end of a text of {len(text)} "
                "characters; spans must be those of this very text"
            )
        parts += [text[done:start], stand_in(kind, text[start:end])]
        counts[kind] = counts.get(kind, 0) + 1
        done = end
    return "".join([*parts, text[done:]]), dict(sorted(counts.items()))


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
