"""The Typer application, commands built from option models, shared options, and the printing of results.

Printed text may come from documents and file names, so markup and control characters in it are not interpreted.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from flows.options import MODEL_NAMES, REPEATED, take_parameters
from storage.errors import UserError, lasting_fault
from storage.home import Home, check_corpus_name
from tasks.core.settings import limits_of, parse_assignments, storable

if TYPE_CHECKING:
    from storage.store import Store

INTERRUPTED = 130  # exit code after Ctrl-C
SHOWN = 40  # printed entries of a list
COLUMNS = 10  # most columns of a printed table; rows with more are printed as lists
WIDTH = 1000  # characters per line of a table in a file or a pipe
PLAIN = ("pid", "seed")  # numbers printed without separators
SIZES = ("size", "garbage_size")  # numbers of bytes


class Commands(TyperGroup):
    """The command group; prints an error that the user can correct as a message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the command line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print(flush=True)  # so that the shell's prompt begins a line
            say("stopped; finished work is kept")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            shown = error if isinstance(error, UserError) else lasting_fault(error) or _permission_message(error)
            if shown is None:
                raise
            say(f"sheepfold: {shown}")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turns a folder of documents into a language model, and keeps that model up to date.",
    epilog="To begin: sheepfold sample documents, then sheepfold run documents --minutes 3",
)


Assign = Annotated[list[str] | None, typer.Option("--set", help="A setting, section.name=value; may be repeated.")]
Model = Annotated[str, typer.Option(help=MODEL_NAMES)]
Corpus = Annotated[str, typer.Option(help="Name of the corpus.", callback=check_corpus_name)]
HomeFolder = Annotated[str, typer.Option(help="Home folder (default: SHEEPFOLD_HOME, else .sheepfold).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def command(
    options: type[BaseModel], leave_out: tuple[str, ...] = (), keeps_last: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function of an option model: same name, with the model's fields as arguments.

    Args:
        leave_out: Fields without an option.
        keeps_last: Missing options keep their last value, so none is required and no default is shown.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            item.replace(kind=item.KEYWORD_ONLY, annotation=hints[item.name])
            for item in list(inspect.signature(function).parameters.values())[1:]
        ]

        def typed(**given: Any) -> None:
            rest = {item.name: given.pop(item.name) for item in own}
            function(_options_from_line(options, given), **rest)

        fields = {name: field for name, field in options.model_fields.items() if name not in leave_out}
        take_parameters(typed, [*(_parameter(name, field, keeps_last) for name, field in fields.items()), *own])
        typed.__name__, typed.__doc__ = function.__name__, function.__doc__
        app.command()(typed)
        return function

    return decorate


def _parameter(name: str, field: FieldInfo, keeps_last: bool) -> inspect.Parameter:
    """Return the command's parameter for a field of an option model."""
    extra: Mapping[str, Any] = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    kind: Any = get_args(field.annotation)[0] if isinstance(field.annotation, UnionType) else field.annotation
    required, repeated = field.is_required(), name in REPEATED or kind == list[str]
    default = inspect.Parameter.empty if required else None if keeps_last else field.default
    kind = list[str] if repeated else kind
    kind = kind | None if default is None else kind
    text, is_argument = str(extra.get("typed") or field.description), extra.get("argument", required)
    if repeated and not is_argument:
        text = f"{text.removesuffix('.')}; may be repeated."
    hint: Any
    if is_argument:
        hint = Annotated[kind, typer.Argument(help=text)]
    else:
        limits = limits_of(field)
        flag = extra.get("flag", f"--{name.replace('_', '-')}")
        least, most = limits.get("ge"), limits.get("le")
        hint = Annotated[kind, typer.Option(flag, help=text, min=least, max=most, envvar=extra.get("variable"))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _options_from_line(options: type[BaseModel], given: dict[str, Any]) -> Any:
    """Return the option model of a command line, with absolute sources and checked names of settings."""
    asked = {name: value for name, value in given.items() if value is not None and value != []}
    if "source" in asked:
        from tasks.sources.address import resolve_sources

        asked["source"] = "\n".join(map(str, resolve_sources(asked["source"])))
    if "settings" in asked:
        asked["settings"] = storable(parse_assignments(asked["settings"]))
    if "refresh" in asked:
        asked["refresh"] = ",".join(asked["refresh"])
    try:
        return options(**asked)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a combination of options is invalid
            raise UserError(str(first["ctx"]["error"])) from error
        raise UserError(f"--{str(first['loc'][0]).replace('_', '-')} is {first['input']!r}: {first['msg']}") from error


def say(text: str) -> None:
    """Print a message on standard error."""
    print(text, file=sys.stderr)


def answer(document: Any, as_json: bool, show: Callable[[Any], object] | None = None) -> None:
    """Print a result as JSON, or as text by `show`."""
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=1))
        return
    (show or print_document)(document)


def print_document(document: Any, depth: int = 0) -> None:
    """Print nested mappings and lists with indentation, rows as a table; long lists are cut at `SHOWN` entries."""
    indent = "  " * depth
    rows = _rows(document)
    if rows is not None:
        _print_table(rows[:SHOWN], figure, len(indent))
    else:
        named = document.items() if isinstance(document, dict) else (("", item) for item in document[:SHOWN])
        for name, item in named:
            label = _line(name) or "-"
            if isinstance(item, dict | list) and item:
                print(f"{indent}{label}")
                print_document(item, depth + 1)
            else:
                print(f"{indent}{label}{':' if name else ''} {figure(name, item)}")
    if len(document) > SHOWN and (rows is not None or isinstance(document, list)):
        print(f"{indent}and {len(document) - SHOWN:,} more (--json has all)")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print all rows of a query as a table, with unformatted values."""
    if rows:
        _print_table(rows, lambda name, value: "" if value is None else _line(value))
    print(f"{len(rows)} rows" if rows else "no rows", file=sys.stderr)


def figure(name: str, value: Any) -> str:
    """Return a value as text; numbers of bytes and operations, recognised by their names, get a unit."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and name not in PLAIN:
        if "bytes" in name or name in SIZES:
            return f"{value:,}{_scaled(value, 1024, 'KMGTPE', 'iB')}"
        return f"{value:,}{_scaled(value, 1000, 'kMGTPE', 'FLOP') if 'flops' in name else ''}"
    return _line(value)


def _scaled(value: float, step: int, prefixes: str, unit: str) -> str:
    """Return a number with a unit prefix in brackets, such as (474.7 MiB); empty for small numbers."""
    power = 0
    while value >= step and power < len(prefixes):
        value, power = value / step, power + 1
    return f" ({value:,.1f} {prefixes[power - 1]}{unit})" if power else ""


def _line(value: Any) -> str:
    from tasks.report.wording import legible

    return legible(" ".join(str(value).split()))


def _rows(document: Any) -> list[dict[str, Any]] | None:
    """Return the document as table rows: two or more mappings with the same names and plain values; else None."""
    if isinstance(document, dict):
        document = [{"": name, **item} if isinstance(item, dict) else item for name, item in document.items()]
    if len(document) < 2 or not all(isinstance(row, dict) for row in document):
        return None
    names = document[0].keys()
    nested = any(isinstance(item, dict | list) and item for row in document for item in row.values())
    return document if all(row.keys() == names for row in document) and not nested and len(names) <= COLUMNS else None


def _print_table(rows: Sequence[Mapping[str, Any]], shown: Callable[[str, Any], str], indent: int = 0) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in rows[0]:
        numbers = all(isinstance(row[name], int | float | None) for row in rows)
        made.add_column(_line(name), overflow="fold", justify="right" if numbers else "left")
    for row in rows:
        made.add_row(*(shown(name, value) for name, value in row.items()))
    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(Padding.indent(made, indent))


def open_home(home: str) -> tuple[Home, Store]:
    """Return a home and its store, without creating them."""
    from storage.store import open_store

    place = Home.from_environment(home or None)
    return place, open_store(place.store, place.cache)


def model_folder(home: str, model: str, corpus: str = "default") -> Path:
    """Return the folder of a model, given by alias, version, `models:/` address, run id or folder.

    Raises:
        UserError: if there is no such model.
    """
    from storage.registry import find_version, registered_versions

    place, store = open_home(home)
    version = find_version(registered_versions(store), model, corpus)
    found = version and store.find(version.checkpoint.stage, version.checkpoint.key)
    if version and found and found.digest == version.checkpoint.digest:
        return store.folder(version.checkpoint)  # the fast path, without MLflow
    from tasks.core.run import Run
    from tasks.registry.models import checkpoint_of

    run = Run(place.create(), corpus=corpus)
    return run.store.folder(checkpoint_of(run, model))


def absolute(path: str) -> Path:
    """Return a path of the command line as an absolute path."""
    return Path(path).expanduser().resolve()


def _permission_message(error: Exception) -> str | None:
    """Return a message for a missing permission, or a path that is not a folder; else None."""
    if not isinstance(error, PermissionError | NotADirectoryError) or error.filename is None:
        return None
    place = Path(os.fsdecode(error.filename)).absolute()
    return (
        f"{place}: {error.strerror}. Give this account write access, or use another home folder (--home or "
        "SHEEPFOLD_HOME)"
    )
