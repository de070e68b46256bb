"""Patterns in the syntax of `.gitignore`: which paths they name.

In: the lines of a pattern file or of a setting. Out: for a path, whether the last line that matches it takes it, takes
it back ("!"), or none matches.

A `.gitignore` comes from whoever wrote the tree, so that a line like `*a*a*a*a*a*b` is to be expected. Regular
expressions that backtrack need time without end for it, those of pathspec too. Here each `*` but the last is an
atomic group: where what follows it first occurs is where it stays, which finds the same matches in linear time. All
lines become one expression, tried from the last line to the first, so that a path costs one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.sources.opening import open_regular

# A path costs time in proportion to the lines; those in use have a few hundred.
MAX_PATTERN_BYTES = 128 * 1024
MAX_PATTERN_LINES = 2000

_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class _NeverMatchesError(ValueError):
    """A pattern that is malformed: git lets it match nothing."""


class _Matcher:
    """Several expressions as one; says which of those that match comes last in the list."""

    def __init__(self, expressions: list[tuple[int, str]]) -> None:
        self._numbers = [number for number, _ in reversed(expressions)]
        self._regex = re.compile("|".join(f"({expression})" for _, expression in reversed(expressions)), re.DOTALL)

    def last(self, subject: str) -> int:
        """Line number of the last expression that matches; -1 for none."""
        found = self._regex.match(subject)
        return self._numbers[found.lastindex - 1] if found and found.lastindex else -1


class Patterns:
    """The lines of one pattern file.

    Args:
        lines: As in a `.gitignore`: `#` begins a comment, `!` takes back, `/` at the beginning or in the middle ties
            a pattern to the top folder, `/` at the end means folders only, `**` stands for any number of folders.
            Malformed lines match nothing, as with git.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        names: list[tuple[int, str]] = []
        paths: list[tuple[int, str]] = []
        self._takes: list[bool] = []
        for line in lines:
            pattern, taken = _strip_line(line)
            try:
                compiled = _translate(pattern)
            except _NeverMatchesError:
                continue
            (paths if compiled.tied else names).append((len(self._takes), compiled.expression))
            self._takes.append(taken)
        self._names = _Matcher(names) if names else None
        self._paths = _Matcher(paths) if paths else None

    def __bool__(self) -> bool:
        return bool(self._takes)

    def verdict(self, path: str, *, is_folder: bool = False) -> bool | None:
        """What the last matching line says of a path.

        Args:
            path: Relative to where the patterns apply, with "/". Folders above it are not looked at: who walks asks
                for each of them on the way.
            is_folder: Whether it is a folder.

        Returns:
            True: the line takes it; False: the line takes it back; None: no line matches.
        """
        end = "/" if is_folder else ""
        last = -1
        if self._names is not None:
            last = self._names.last(path.rpartition("/")[2] + end)
        if self._paths is not None:
            last = max(last, self._paths.last(path + end))
        return self._takes[last] if last >= 0 else None


def read_patterns(path: Path) -> Patterns | None:
    """The patterns of a file.

    Returns:
        None where it cannot be read, is no regular file, or is longer than `MAX_PATTERN_BYTES` or `MAX_PATTERN_LINES`:
        the files below are walked then, which loses nothing.
    """
    try:
        with open_regular(path) as file:
            data = b""
            while len(data) <= MAX_PATTERN_BYTES and (block := file.read(MAX_PATTERN_BYTES + 1 - len(data))):
                data += block
    except OSError:
        return None
    if len(data) > MAX_PATTERN_BYTES or data.count(b"\n") > MAX_PATTERN_LINES:
        return None
    # as file names are decoded, so that a pattern matches a name that is not UTF-8
    return Patterns(data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n"))


def split_patterns(text: str) -> list[str]:
    """Patterns of a setting: one per line, or several on a line with commas between them."""
    return [part.strip() for line in text.splitlines() for part in line.split(",") if part.strip()]


@dataclass(frozen=True)
class _Compiled:
    """One pattern as an expression.

    Attributes:
        expression: Matches a whole subject, in which a folder ends in "/".
        tied: It matches against the whole path, not the name alone.
    """

    expression: str
    tied: bool


def _strip_line(line: str) -> tuple[str, bool]:
    """The pattern of a line, empty where it holds none, and whether it takes or takes back."""
    line = line.rstrip("\r\n")
    if line.startswith("#"):
        return "", True
    stripped = line.rstrip(" ")
    # a space after a backslash belongs to the name; an even number of backslashes are themselves
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    if backslashes % 2 and len(stripped) < len(line):
        stripped += " "
    taken = not stripped.startswith("!")
    return stripped.removeprefix("!"), taken


def _translate(pattern: str) -> _Compiled:
    """A pattern as a regular expression that needs linear time.

    Raises:
        _NeverMatchesError: It is malformed or empty.
    """
    end = r"/\Z" if pattern.endswith("/") else r"/?\Z"
    body = pattern.removesuffix("/")
    if not body:
        raise _NeverMatchesError
    tied = "/" in body
    segments = body.removeprefix("/").split("/")
    if not tied:
        return _Compiled(_segment(segments[0]) + end, tied=False)
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(_segment(segment))
    first, middle, last = runs[0], [run for run in runs[1:-1] if run], runs[-1]
    if len(runs) == 1:
        return _Compiled("/".join(first) + end, tied=True)
    expression = "".join(segment + "/" for segment in first)
    for run in middle:
        # the first place where these folders follow each other is as good as any later one
        expression += f"(?>(?:[^/]+/)*?{'/'.join(run)}/)"
    if last:
        return _Compiled(f"{expression}(?:[^/]+/)*?{'/'.join(last)}{end}", tied=True)
    return _Compiled(expression + (r"(?:[^/]+/)+\Z" if pattern.endswith("/") else ".+"), tied=True)


def _segment(segment: str) -> str:
    pieces = [""]
    position = 0
    while position < len(segment):
        character = segment[position]
        if character == "*":
            pieces.append("")
            while segment[position + 1 : position + 2] == "*":
                position += 1
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[":
            expression, position = _character_class(segment, position)
            pieces[-1] += expression
        elif character == "\\":
            position += 1
            if position == len(segment):
                raise _NeverMatchesError
            pieces[-1] += re.escape(segment[position])
        else:
            pieces[-1] += re.escape(character)
        position += 1
    if not any(pieces):
        return "[^/]+" if len(pieces) > 1 else ""
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1])
    return f"{pieces[0]}{middle}[^/]*{pieces[-1]}(?=/|\\Z)"


def _character_class(segment: str, start: int) -> tuple[str, int]:
    """A class such as `[a-z]` as an expression, and the position of its closing bracket."""
    position = start + 1
    negated = segment[position : position + 1] in ("!", "^")
    position += negated
    members = ""
    first = True
    while first or segment[position : position + 1] != "]":
        first = False
        if position >= len(segment):
            raise _NeverMatchesError
        if segment.startswith("[:", position):
            name, closed, _ = segment[position + 2 :].partition(":]")
            if not closed or name not in _POSIX_CLASSES:
                raise _NeverMatchesError
            members += _POSIX_CLASSES[name]
            position += len(name) + 4
            continue
        low, position = _class_member(segment, position)
        if segment[position : position + 1] == "-" and segment[position + 1 : position + 2] not in ("]", ""):
            high, position = _class_member(segment, position + 1)
            if low < high:
                members += f"{re.escape(low)}-{re.escape(high)}"
        members += re.escape(low)  # a range backwards is its first character
    if not members:
        return ("[^/]" if negated else r"(?!)"), position
    return f"(?!/)[{'^' if negated else ''}{members}]", position


def _class_member(segment: str, position: int) -> tuple[str, int]:
    """One character of a class, escaped or not, and the position behind it."""
    if segment[position] == "\\":
        position += 1
    if position >= len(segment):
        raise _NeverMatchesError
    return segment[position], position + 1
