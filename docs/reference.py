"""The pages of docs/reference, made from the code.

python -m docs.reference      (or `make reference`) writes them
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_origin

import pyarrow as pa
import typer.main

from docs.columns import TABLES, VIEWS, column_meaning, view_meaning
from docs.stage_graph import wiring
from flows.cli import app
from flows.stages import all_stages
from model.presets import PRESETS
from storage import schemas
from storage.catalog import Catalog, corpus_ref
from storage.store import Store
from tasks.core.option import MAX_SEED
from tasks.core.settings import SECTIONS, kind_of, range_of, section_class, settings_of

FOLDER = Path(__file__).with_name("reference")
MADE = "<!-- made by `make reference`: change the code, not this page -->"
COMMANDS = {
    "From documents to a model": ("run", "plan", "ingest", "prepare", "suggest", "train", "evaluate", "promote"),
    "Generation": ("generate", "chat", "serve"),
    "Comparison": ("compare", "ablate", "lm-eval"),
    "Look-ups": ("sql", "why", "layout", "inspect", "status"),
    "Calculations": ("count", "optimizer"),
    "Keeping a home": ("verify", "forget", "gc", "compact", "rollback", "rebuild-tracking"),
    "Exchange": ("export", "import", "export-corpus", "sample"),
    "Servers": ("up", "down"),
}
COMMON = ("--home", "--corpus", "--config", "--set", "--refresh", "--json")
_WITH_MEASURES = ("documents", "measures")  # views that have nearly all columns of the table `measures`
_DEFAULT = re.compile(r" \(default: (.*)\)\.?$")
_KINDS = {str: "text", int: "a whole number", float: "a number"}


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    return {"settings.md": settings_page(), "commands.md": commands_page(), "tables.md": tables_page()}


def settings_page() -> str:
    """Return the page of all settings."""
    lines = [
        "# Settings",
        "",
        MADE,
        "",
        "Values come from, in rising precedence: the defaults below, a configuration file (`--config`, TOML or JSON,",
        "one table per section), the environment (`SHEEPFOLD_TRAIN__LR=0.001`), `--set train.lr=0.001` (or the flow",
        "parameter `settings`), and the command's own options. Unknown names are refused. A training has one budget:",
        "`minutes`, `max_steps` or `max_tokens`; one given in a source replaces that of the sources below it. A",
        "setting without a default is worked out from others, such as the preset. A preset that is a document's recipe",
        "([papers.md](../papers.md)) replaces defaults, and gives way to all else.",
    ]
    for section in SECTIONS:
        lines += ["", f"## {section}", "", (section_class(section).__doc__ or "").split("\n\n")[0], ""]
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for name, info in settings_of(section).items():
            default = "" if info.default is None else f"`{json.dumps(info.default)}`"
            values = range_of(info) or kind_of(info)
            lines.append(_row(f"`{section}.{name}`", default, values, info.description or ""))
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the page of all commands.

    Raises:
        ValueError: if a command is in no group of `COMMANDS`, or in one and not there.
    """
    known: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    grouped = [name for names in COMMANDS.values() for name in names]
    if sorted(grouped) != sorted(known):
        raise ValueError(f"docs/reference.py groups other commands than there are: {set(grouped) ^ set(known)}")
    lines = [
        "# Commands",
        "",
        MADE,
        "",
        "Every command exits with 0 only on success. Results go to standard output, progress and remarks to standard",
        "error. Settings that have no option of their own are given by `--set`; see [settings.md](settings.md).",
        "",
        "## Common options",
        "",
        "Each command takes those that its usage names.",
        "",
        *_head("option", "default", "values", "meaning"),
    ]
    common = {option.opts[0]: option for name in ("run", "plan") for option in known[name].params}
    lines += [_option(common[flag]) for flag in COMMON]
    lines += ["", f"Presets of `--preset`: {', '.join(f'`{name}`' for name in PRESETS)}."]
    for group, names in COMMANDS.items():
        lines += ["", f"## {group}"]
        for name in names:
            lines += ["", f"### {name}", "", *_command(name, known[name])]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and "--help" not in item.opts]
    own = [item for item in options if item.opts[0] not in COMMON]
    shared = [item.opts[0] for flag in COMMON for item in options if item.opts[0] == flag]
    words = [_placed(item) for item in arguments]
    words += [f"{item.opts[0]} {item.name.upper()}" for item in own if item.required]
    words += ["[OPTIONS]"] if any(not item.required for item in own) else []
    words += [f"[{flag}]" for flag in shared]
    yield from (" ".join(str(command.help).split()), "", "```text", " ".join(["sheepfold", name, *words]), "```")
    if arguments:
        yield from ("", *_head("argument", "default", "meaning"))
        yield from (_row(f"`{item.name.upper()}`", _shown(item.default), item.help) for item in arguments)
    if own:
        yield from ("", *_head("option", "default", "values", "meaning"), *map(_option, own))


def _placed(argument: Any) -> str:
    shown = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _option(option: Any) -> str:
    text = str(option.help or "")
    stated = _DEFAULT.search(text)
    default = stated[1] if stated else _shown(option.default)
    text = _DEFAULT.sub("", text).removesuffix(".") + "."
    if option.envvar:
        text += f" Environment variable: `{option.envvar}`."
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    return _row(flags, f"`{stated[1]}`" if stated and " " not in stated[1] else default, _values(option), text)


def _values(option: Any) -> str:
    if option.is_flag:
        return ""
    if option.min is not None:
        return (
            f"{option.min:g} or more"
            if option.max is None or option.max == MAX_SEED
            else f"{option.min} to {option.max}"
        )
    kind = option.type_descriptor.annotation
    return _KINDS[get_args(kind)[0] if get_origin(kind) is list else kind]


def _shown(default: Any) -> str:
    return "" if default is None or default is False or default in ("", (), []) else f"`{default}`"


def tables_page() -> str:
    """Return the page of all views and tables."""
    lines = [
        "# Tables",
        "",
        MADE,
        "",
        "`sheepfold sql` queries the views. They show the last completed run of a corpus, and read the Parquet files",
        "of its artefacts in place. The tables below them lie in the artefacts of the stages; the folder of an",
        "artefact is `STORE/STAGE/KEY`. No table holds a time.",
        "",
        "## Views",
    ]
    for view, columns in view_columns().items():
        lines += ["", f"### {view}", "", VIEWS[view][1].table, "", *_head("column", "type", "meaning")]
        inside = {name for name, _ in columns if view in _WITH_MEASURES and name in TABLES["measures"].columns}
        lines += [
            _row(f"`{name}`", f"`{kind}`", view_meaning(view, name)) for name, kind in columns if name not in inside
        ]
        if inside:
            lines.append(_row(f"{len(inside)} others", "", "The columns of the table [measures](#table-measures)."))
    lines += ["", "## Stages", "", "![The stages and the artefacts between them](../images/stages.svg)", ""]
    lines += ["An input that several artefacts of segments make together is read as one table.", ""]
    lines += _head("stage", "flow", "inputs", "tables")
    stages = all_stages()
    for name, here in wiring().items():
        inputs = [f"{given}: {' or '.join(sorted(here.inputs[given]))}" for given in here.inputs]
        tables = [
            f"`{file}` ([{table}](#table-{table}))"
            for file, schema in stages[name].facts.tables.items()
            if (table := _name(schema, file))
        ]
        lines.append(_row(f"`{name}`", here.flow, "; ".join(inputs), ", ".join(tables)))
    lines += ["", "## Parquet schemas"]
    for name, schema in _schemas().items():
        lines += [
            "",
            f"### {name} {{ #table-{name} }}",
            "",
            TABLES[name].table,
            "",
            *_head("column", "type", "null", "meaning"),
        ]
        for item in schema:
            null = "yes" if item.nullable else ""
            lines.append(_row(f"`{item.name}`", f"`{_kind(item.type)}`", null, column_meaning(name, item.name)))
    return "\n".join(lines) + "\n"


def view_columns() -> dict[str, list[tuple[str, str]]]:
    """Return name and type of the columns of each view of the catalogue, in the order of `VIEWS`.

    Raises:
        ValueError: if a view is not described there, or described and not there.
    """
    with TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        store.write_ref(corpus_ref("default"), {"snapshot": []})
        catalog = Catalog(store, "default")
        names = [row["view_name"] for row in catalog.query("select view_name from duckdb_views() where not internal")]
        shown = {name for name in names if not re.match(r"(all|holders|live)_", name)}
        if shown != set(VIEWS):
            raise ValueError(f"docs/columns.py describes other views than there are: {shown ^ set(VIEWS)}")
        described = {name: catalog.query(f"describe {name}") for name in VIEWS}
    return {
        name: [(row["column_name"], _sql_kind(row["column_type"])) for row in rows] for name, rows in described.items()
    }


def _schemas() -> dict[str, pa.Schema]:
    found = {_name(item): item for item in vars(schemas).values() if isinstance(item, pa.Schema)}
    for stage in all_stages().values():
        found |= {_name(schema, file): schema for file, schema in stage.facts.tables.items()}
    return found


def _name(schema: pa.Schema, file: str = "") -> str:
    """Return the name of a table; that of a stage's own schema is the name of its file."""
    return (schema.metadata or {}).get(b"sheepfold.table", Path(file).stem.encode()).decode()


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        return ", ".join(f"{item.name} {_kind(item.type)}" for item in kind)
    return {"large_string": "string", "double": "float64"}.get(str(kind), str(kind))


def _sql_kind(kind: str) -> str:
    return kind.lower()


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _row(*cells: str) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
