"""Options that commands share, and the printing of their results and errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from storage.errors import UserError
    from storage.home import Home
    from storage.store import Store

Assign = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.name=value; may be repeated.")]
Model = Annotated[str, typer.Option(help="Alias, version, models:/ address, run id or folder.")]
HomeFolder = Annotated[str, typer.Option(help="Home folder (default: SHEEPFOLD_HOME, else .sheepfold).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def say(text: str) -> None:
    """Print a remark on standard error."""
    print(text, file=sys.stderr)


def print_json(document: Any) -> None:
    """Print a result for machines."""
    print(json.dumps(document, ensure_ascii=False, indent=1))


def answer(document: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """Print a result for machines, or for people."""
    (print_json if as_json else show)(document)


def fail(error: BaseException) -> NoReturn:
    """Print the error and exit with code 1."""
    say(f"sheepfold: {error}")
    raise typer.Exit(1)


def checked_corpus(name: str) -> str:
    """Return the name of a corpus, refused before anything runs if it cannot be one."""
    with plain_errors():
        from storage.home import check_corpus_name

        return check_corpus_name(name)


Corpus = Annotated[str, typer.Option(help="Name of the corpus.", callback=checked_corpus)]


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
    from storage.home import Home
    from tasks.registry.models import checkpoint_of
    from tasks.run import Run

    run = Run(Home.from_environment(home or None).create(), corpus=corpus)
    return run.store.folder(checkpoint_of(run, model))


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print errors that the user can mend in one sentence; other errors keep their traceback."""
    from storage.errors import UserError, lasting_fault

    try:
        yield
    except UserError as error:
        fail(error)
    except Exception as error:
        told = lasting_fault(error) or _refused(error)
        if told is None:
            raise
        fail(told)


def _refused(error: Exception) -> UserError | None:
    """Return an error in words for a file or folder without permission, or a path that is no folder; else None."""
    from storage.errors import UserError

    if not isinstance(error, PermissionError | NotADirectoryError) or error.filename is None:
        return None
    place = Path(os.fsdecode(error.filename)).absolute()
    return UserError(
        f"{place}: {error.strerror}. Let this account write there, or work in another folder (--home or SHEEPFOLD_HOME "
        "names the one where everything is kept)"
    )
