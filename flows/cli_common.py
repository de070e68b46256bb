"""The application, options that commands share, and the printing of results and errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from storage.home import Home
    from storage.store import Store

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


class Commands(TyperGroup):
    """Commands of flows; the others are imported when one of them is asked for, or all are listed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        if cmd_name not in self.commands:
            self.list_commands(ctx)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        for module in ("cli_lookup", "cli_keep", "cli_team"):
            import_module(f"flows.{module}")
        self.commands.update(get_group(others).commands)
        return super().list_commands(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed; errors that the person can correct are printed as one sentence."""
        with plain_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turns a folder of documents into a language model, and keeps that model up to date.",
)
others = typer.Typer()  # commands that run no flow


def checked_corpus(name: str) -> str:
    """Return the name of a corpus, refused before anything runs if it cannot be one."""
    from storage.home import check_corpus_name

    return check_corpus_name(name)


Assign = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.name=value; may be repeated.")]
Model = Annotated[str, typer.Option(help="Alias, version, models:/ address, run id or folder.")]
Corpus = Annotated[str, typer.Option(help="Name of the corpus.", callback=checked_corpus)]
HomeFolder = Annotated[str, typer.Option(help="Home folder (default: SHEEPFOLD_HOME, else .sheepfold).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def say(text: str) -> None:
    """Print a remark on standard error."""
    print(text, file=sys.stderr)


def answer(document: Any, as_json: bool, show: Callable[[Any], object] | None = None) -> None:
    """Print a result for machines, or for people."""
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=1))
        return
    from flows.show import print_document

    (show or print_document)(document)


def open_home(home: str) -> tuple[Home, Store]:
    """Return a home and its store; neither is made."""
    from storage.home import Home
    from storage.store import open_store

    place = Home.from_environment(home or None)
    return place, open_store(place.store, place.cache)


def model_folder(home: str, model: str, corpus: str = "default") -> Path:
    """Return the folder of a model that is named by alias, version, `models:/` address, run id or folder.

    Raises:
        UserError: if the name leads to no model.
    """
    from storage.registry import find_version, registered_versions

    place, store = open_home(home)
    version = find_version(registered_versions(store), model, corpus)
    found = version and store.find(version.checkpoint.stage, version.checkpoint.key)
    if version and found and found.digest == version.checkpoint.digest:
        return store.folder(version.checkpoint)  # a prompt needs nothing else
    from tasks.core.run import Run
    from tasks.registry.models import checkpoint_of

    run = Run(place.create(), corpus=corpus)
    return run.store.folder(checkpoint_of(run, model))


def absolute(path: str) -> Path:
    """Return a path as it was typed, absolute."""
    return Path(path).expanduser().resolve()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print errors that the person can correct in one sentence; other errors keep their traceback."""
    from storage.errors import UserError, lasting_fault

    try:
        yield
    except KeyboardInterrupt:
        print(flush=True)  # the shell's prompt begins a line
        say("stopped; what is finished stays")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        told = error if isinstance(error, UserError) else lasting_fault(error) or _refused(error)
        if told is None:
            raise
        say(f"sheepfold: {told}")
        raise typer.Exit(1) from None


def _refused(error: Exception) -> str | None:
    """Return a sentence on a file or folder without permission, or a path that is no folder; else None."""
    if not isinstance(error, PermissionError | NotADirectoryError) or error.filename is None:
        return None
    place = Path(os.fsdecode(error.filename)).absolute()
    return (
        f"{place}: {error.strerror}. Let this account write there, or work in another folder (--home or SHEEPFOLD_HOME "
        "names the one where everything is kept)"
    )
