"""Patterns in the syntax of `.gitignore`, matched in linear time.

Whoever wrote a tree wrote its `.gitignore`, so a line like `*a*a*a*a*a*b` is to be expected: an expression engine that
backtracks needs exponential time for it. RE2 does not backtrack. Like git, patterns compare bytes. Libraries that
translate patterns (pathspec) reject or misread lines that git accepts, such as `[[:digit:]]` and `[z-a]`.
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
    """A pattern that git lets match nothing."""


class Patterns:
    """The lines of one pattern file.

    Args:
        lines: As in a `.gitignore`: `#` begins a comment, `!` takes back, `/` at the beginning or in the middle ties
            a pattern to the top folder, `/` at the end means folders only, `**` stands for any number of folders.
            Malformed lines match nothing, as with git.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.dot_nl = options.never_capture = True
        options.log_errors = False
        options.max_mem = 64 << 20
        self._expressions = re2.Set.FullMatchSet(options)
        self._takes: list[bool] = []
        for line in lines:
            pattern, taken = _strip_line(os.fsencode(line).decode("latin-1"))
            try:
                expression = _translate(pattern)
            except _MalformedError:
                continue
            self._expressions.Add(expression.encode("latin-1"))
            self._takes.append(taken)
        if self._takes:
            self._expressions.Compile()

    def __bool__(self) -> bool:
        return bool(self._takes)

    def verdict(self, path: str, *, is_folder: bool = False) -> bool | None:
        """Return what the last matching line says of a path.

        Args:
            path: Relative to where the patterns apply, with "/". Folders above it are not looked at: who walks asks
                for each of them on the way.
            is_folder: Whether it is a folder.

        Returns:
            True: the line takes it; False: the line takes it back; None: no line matches.
        """
        if not self._takes:
            return None
        found = self._expressions.Match(os.fsencode(path + "/" if is_folder else path))
        return self._takes[max(found)] if found else None


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
    return stripped.removeprefix("!"), not stripped.startswith("!")


def _translate(pattern: str) -> str:
    """An expression for whole paths, in which a folder ends in "/"."""
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
            codes.update({low}, range(low, high + 1))  # a range backwards is its first character
    listed = "".join(f"\\x{code:02x}" for code in sorted(codes | {ord("/")} if negated else codes - {ord("/")}))
    if negated:
        return f"[^{listed}]"
    return f"[{listed}]" if listed else r"[^\x00-\xff]"  # which matches nothing
