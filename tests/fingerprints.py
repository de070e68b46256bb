"""The acknowledged code of every stage: `tasks/core/fingerprints.json`.

    python -m tests.fingerprints      (or `make fingerprints`) acknowledges the code as it is now

A stage whose code changes either gives other results than before, and then its version has to be raised, or it does
not, and then somebody has to say so. A test compares; this module knows how to.

The code of a stage is its module and every first-party module it imports, without comments and docstrings. Imports that
only type checkers read do not count. What a stage loads by name is declared at it (`@stage(modules=...)`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from storage.digest import sha256_json
from tasks.core import stage as stage_module
from tasks.core.stage import Stage

FILE = Path(stage_module.__file__).with_name(stage_module.FINGERPRINTS_FILE)
COMMAND = "make fingerprints"
FIRST_PARTY = ("flows", "tasks", "model", "storage")
# Modules that carry every stage and shape no result: what they pass to a stage is in its key or noted in its manifest.
PLUMBING = {
    "storage.registry",
    "storage.store",
    "storage.tracking",
    "tasks.core.executor",
    "tasks.core.machine",
    "tasks.core.progress",
    "tasks.core.run",
    "tasks.core.settings",
    "tasks.core.stage",
}
# Of a module: the digest of its code, the names that it imports, and the modules of names that a package loads lazily.
_Found = tuple[str, list[str], dict[str, str]]


class Entry(TypedDict):
    """Version and code of one stage."""

    version: int
    fingerprint: str


Entries = dict[str, Entry]


def current() -> Entries:
    """Every stage of the pipeline as it is now."""
    from flows.stages import all_stages

    return {name: {"version": stage.version, "fingerprint": code_of(stage)} for name, stage in all_stages().items()}


def code_of(stage: Stage) -> str:
    """Fingerprint of a stage's modules."""
    return sha256_json([fingerprint(module) for module in stage.modules])


def recorded() -> Entries:
    """Every stage as it was acknowledged."""
    entries: Entries = json.loads(FILE.read_text(encoding="utf-8"))
    return entries


def write(entries: Entries) -> None:
    """Acknowledge."""
    FILE.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def complaints(known: Entries, now: Entries) -> list[str]:
    """Return a message for each stage whose code changed without a new version or an acknowledgement."""
    found = []
    for name in sorted(known.keys() | now.keys()):
        if name not in known:
            found.append(f"stage {name} is new: record it with `{COMMAND}`")
        elif name not in now:
            found.append(f"stage {name} is gone: if that is meant, forget it with `{COMMAND}`")
        elif now[name]["version"] < known[name]["version"]:
            found.append(
                f"the version of stage {name} went back from {known[name]['version']} to {now[name]['version']}: "
                "artefacts made before would be taken for those of this code; raise it instead"
            )
        elif now[name]["version"] > known[name]["version"]:
            found.append(
                f"the version of stage {name} was raised from {known[name]['version']} to {now[name]['version']}: "
                f"record that with `{COMMAND}`, so that the next change of its code is seen"
            )
        elif now[name]["fingerprint"] != known[name]["fingerprint"]:
            found.append(
                f"the code of stage {name}, or of a module that it imports, changed: if the same inputs and settings "
                f"now give another result, raise the version ({now[name]['version']}) in its @stage decorator, so that "
                f"nothing old is taken for it; then, or if results stay the same, acknowledge it with `{COMMAND}`"
            )
    return found


def modules_of(module: str) -> list[str]:
    """Return the module and all modules of first-party packages that it needs, sorted, without plumbing."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen and name not in PLUMBING:
            seen.add(name)
            waiting.extend(_needed_by(name))
    return sorted(seen)


def fingerprint(module: str) -> str:
    """Return the sha256 over the code of `modules_of(module)`."""
    lines = [f"{name}={_read(name)[0]}\n" for name in modules_of(module)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _needed_by(module: str) -> Iterator[str]:
    for name in _read(module)[1]:
        package, _, attribute = name.rpartition(".")
        if _source_of(name) is not None:
            yield name
        elif package and (lazy := _read(package)[2].get(attribute)):
            yield lazy


@cache
def _read(module: str) -> _Found:
    origin = _source_of(module)
    if origin is None:
        raise ModuleNotFoundError(f"no module {module}: its source is needed for the fingerprint")
    beside = origin.with_suffix(".toml")  # its tables
    tables = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    is_package = origin.name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    tree = ast.parse(origin.read_text(encoding="utf-8"))
    blocks = [node for node in ast.walk(tree) if _is_for_type_checkers(node)] if is_package else []
    lazy = {name.rpartition(".")[2]: name.rpartition(".")[0] for block in blocks for name in _imports(block, package)}
    executed = _Executed().visit(tree)
    names = sorted({name for name in _imports(executed, package) if name.split(".")[0] in FIRST_PARTY})
    return hashlib.sha256((_dump(executed) + tables).encode()).hexdigest(), names, lazy


@cache
def _source_of(module: str) -> Path | None:
    """Find a first-party module without importing it: importing `model` would load torch."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    bases = [Path(folder, *rest) for folder in spec.submodule_search_locations]
    candidates = [path for base in bases for path in (base / "__init__.py", base.with_name(f"{base.name}.py"))]
    return next((path for path in candidates if path.is_file()), None)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


class _Executed(ast.NodeTransformer):
    """Drop docstrings, and blocks that only type checkers read."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.If) and _is_for_type_checkers(node):
            return [self.visit(child) for child in node.orelse]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Names of the modules that are imported, and of what is imported from them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _dump(node: object) -> str:
    """A tree as text, without empty fields: unlike `ast.dump` it reads the same under every version of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


if __name__ == "__main__":
    before = recorded() if FILE.is_file() else {}
    after = current()
    for sentence in complaints(before, after):
        print(sentence.partition(":")[0])
    write(after)
