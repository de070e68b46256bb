"""Patterns in the syntax of `.gitignore`, matched in linear time.

A `.gitignore` is untrusted input: a backtracking regular expression engine needs exponential time for `*a*a*a*a*a*b`,
RE2 does not. Like git, patterns compare bytes. The library pathspec rejects or misreads lines that git accepts, such
as `[[:digit:]]` and `[z-a]`.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable

import re2

_TOKEN = re.compile(
    r"""(?P<folders> (?:^|(?<=/))\*\*+/ )
      | (?P<below> (?<=/)\*\*+$ )
      | (?P<name> (?:^|(?<=/))\*+(?=/|$) )
      | (?P<stars> \*+ )
      | (?P<one> \? )
      | \[ (?P<negated> [!^]?+ ) (?P<members> (?: \[:[a-z]*:\] | \\. | [^\\] ) (?: \[:[a-z]*:\] | \\. | [^]\\] )* ) \]
      | \\(?P<escaped> . )
      | (?P<literal> [^[\\] )
      | (?P<malformed> . )""",
    re.DOTALL | re.VERBOSE,
)
_WILDCARDS = {"folders": "(?:.*/)?", "below": ".+", "name": "[^/]+", "stars": "[^/]*", "one": "[^/]"}
_MEMBER = re.compile(r"\[:(?P<posix>[a-z]*):\]|\\?(?P<low>.)(?:-\\?(?P<high>.))?", re.DOTALL)
_POSIX_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, range(32))) + "\x7f",
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": string.whitespace,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


class _MalformedError(ValueError):
    """Raised for a pattern that matches nothing in git."""


class Patterns:
    """The lines of one pattern file.

    Args:
        lines: As in a `.gitignore`: `#` begins a comment, `!` negates, `/` at the beginning or in the middle anchors
            a pattern to the top folder, `/` at the end restricts it to folders, `**` stands for any number of
            folders. Malformed lines match nothing, as in git.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.dot_nl = options.never_capture = True
        options.log_errors = False
        options.max_mem = 64 << 20
        self._expressions = re2.Set.FullMatchSet(options)
        self._selects: list[bool] = []
        for line in lines:
            pattern, selects = _strip_line(os.fsencode(line).decode("latin-1"))
            try:
                expression = _translate(pattern)
            except _MalformedError:
                continue
            self._expressions.Add(expression.encode("latin-1"))
            self._selects.append(selects)
        if self._selects:
            self._expressions.Compile()

    def __bool__(self) -> bool:
        return bool(self._selects)

    def verdict(self, path: str, *, is_folder: bool = False) -> bool | None:
        """Match a path against the patterns; the last matching line decides.

        Args:
            path: Relative to the folder of the patterns, with "/". Its parent folders are not matched: the caller
                matches each of them on the way down.
            is_folder: Whether the path is a folder.

        Returns:
            True if that line is a pattern, False if it is a negated one, None if no line matches.
        """
        if not self._selects:
            return None
        found = self._expressions.Match(os.fsencode(path + "/" if is_folder else path))
        return self._selects[max(found)] if found else None


def _strip_line(line: str) -> tuple[str, bool]:
    """Return the pattern of a line, "" for none, and False if it is negated."""
    line = line.rstrip("\r\n")
    if line.startswith("#"):
        return "", True
    stripped = line.rstrip(" ")
    # an escaped trailing space belongs to the name; in an even number of backslashes, each escapes the next
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    if backslashes % 2 and len(stripped) < len(line):
        stripped += " "
    return stripped.removeprefix("!"), not stripped.startswith("!")


def _translate(pattern: str) -> str:
    """Return a regular expression for full paths, in which a folder ends in "/"."""
    body = pattern.removesuffix("/")
    if not body:
        raise _MalformedError
    expression = "" if "/" in body else "(?:.*/)?"
    for token in _TOKEN.finditer(body.removeprefix("/")):
        kind, text = token.lastgroup or "", token[0]
        if kind == "malformed":
            raise _MalformedError
        if kind == "members":
            expression += _character_class(token["members"], negated=bool(token["negated"]))
        else:
            expression += _WILDCARDS.get(kind) or re.escape(token["escaped"] or text)
    return expression + ("/" if pattern.endswith("/") else "/?")


def _character_class(members: str, *, negated: bool) -> str:
    codes: set[int] = set()
    for member in _MEMBER.finditer(members):
        if (name := member["posix"]) is not None:
            if name not in _POSIX_CLASSES:
                raise _MalformedError
            codes.update(map(ord, _POSIX_CLASSES[name]))
        else:
            low, high = ord(member["low"]), ord(member["high"] or member["low"])
            codes.update({low}, range(low, high + 1))  # a reversed range is its first character
    listed = "".join(f"\\x{code:02x}" for code in sorted(codes | {ord("/")} if negated else codes - {ord("/")}))
    if negated:
        return f"[^{listed}]"
    return f"[{listed}]" if listed else r"[^\x00-\xff]"  # which matches nothing
