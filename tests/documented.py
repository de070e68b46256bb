"""The commands that README.md and docs/ show: what stands in their blocks of `bash`, taken apart and made runnable."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CONTROL = {"&&", "||", "|", ";", "&", ">", ">>", "<"}


@dataclass(frozen=True)
class Shown:
    """A block of commands, or of a program, in a page.

    Attributes:
        page: its path, relative to the root of the project.
        line: of the page, at which the commands begin.
        text: the commands, as they stand.
    """

    page: str
    line: int
    text: str

    @property
    def lines(self) -> list[str]:
        """Commands, one each, without comments; a line that ends in a backslash goes on in the next."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [line for line in (_without_comment(one).strip() for one in joined) if line]


def pages() -> list[Path]:
    """Every page with commands for people."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(language: str = "bash") -> list[Shown]:
    """All blocks of a language of all pages, in their order."""
    block_of = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in block_of.finditer(text):
            line = text.count("\n", 0, block.start(1)) + 1
            found.append(Shown(page.relative_to(ROOT).as_posix(), line, block.group(1)))
    return found


def arguments_of(program: str, line: str) -> Iterator[list[str]]:
    """Arguments of each call of a program in a line of shell; variables stand for themselves."""
    calls: list[list[str]] = [[]]
    for word in shlex.split(line.replace("$'", "'")):
        if word in _CONTROL:
            calls.append([])
        else:
            calls[-1].append(word)
    for words in calls:
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words and words[0] == program:
            yield words[1:]


def _without_comment(line: str) -> str:
    quote = ""
    for at, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line
