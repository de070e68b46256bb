"""Commands in README.md and docs/: each exists, with the options and settings that it is given."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
import typer.main

from flows.cli import app
from tasks.core.settings import load_settings, parse_assignments
from tests.documented import Shown, arguments_of, pages, shown

GROUP: Any = typer.main.get_command(app)
COMMANDS = [
    pytest.param(block, arguments, id=f"{block.page}-{block.line}-{' '.join(arguments)[:40]}")
    for block in shown()
    for line in block.lines
    for arguments in arguments_of("sheepfold", line)
]


def parsed(arguments: list[str]) -> Any:
    """The context of a command as it is typed; nothing is run."""
    with GROUP.make_context("sheepfold", list(arguments)) as context:
        name, command, rest = GROUP.resolve_command(context, arguments)
        return command.make_context(name, rest, parent=context)


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("block", "arguments"), COMMANDS)
def test_a_shown_command_is_taken_as_it_stands(block: Shown, arguments: list[str]) -> None:
    assert parsed(arguments).command is not None
    load_settings(None, parse_assignments([value for option, value in pairwise(arguments) if option == "--set"]))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_pictures_of_a_page_are_there_and_small(page: Path) -> None:
    for name in re.findall(r"\]\(([^)]+\.svg)\)", page.read_text(encoding="utf-8")):
        ElementTree.parse(page.parent / name)
        assert (page.parent / name).stat().st_size < 300_000
