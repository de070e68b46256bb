"""Fingerprint of a stage's code: its module and every first-party module it imports, without comments and docstrings.

Imports that only type checkers read do not count. What a stage loads by name is declared at it (`@stage(modules=...)`).
Manifests record it and a test guards it, but it is no part of a key: `plan` and the tests report a change of code, and
nothing is recomputed because of it. Parsing a hundred modules takes half a second, so digests are remembered by source
in a file that may be deleted at any time.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from storage.atomic import write_file

PARSE_ATTEMPTS = 5
MEMO_ENTRIES = 2000  # a few versions of every module
FIRST_PARTY = ("flows", "tasks", "model", "storage")
# Modules that carry every stage and shape no result: what they pass to a stage is in its key or noted in its manifest.
PLUMBING = {
    "storage.registry",
    "storage.store",
    "storage.tracking",
    "tasks.core.executor",
    "tasks.core.fingerprint",
    "tasks.core.machine",
    "tasks.core.progress",
    "tasks.core.run",
    "tasks.core.settings",
    "tasks.core.stage",
}
# Of a module: the digest of its code, the names that it imports, and the modules of names that a package loads lazily.
_Found = tuple[str, list[str], dict[str, str]]
_lock = threading.Lock()
_memo: dict[str, _Found] = {}
_memo_file: Path | None = None


def remember_in(path: Path) -> None:
    """Keep digests in this file from now on; one that is not there or damaged counts as empty."""
    global _memo_file
    with _lock:
        if path == _memo_file:
            return
        _memo_file = path
        _memo.clear()
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            entries = json.loads(path.read_text(encoding="utf-8"))
            _memo.update({key: (str(code), list(names), dict(lazy)) for key, (code, names, lazy) in entries.items()})


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
    n_known = len(_memo)
    lines = [f"{name}={_read(name)[0]}\n" for name in modules_of(module)]
    with _lock, contextlib.suppress(OSError):  # a later process parses again
        if _memo_file is not None and len(_memo) > n_known:
            _memo_file.parent.mkdir(parents=True, exist_ok=True)
            write_file(_memo_file, json.dumps(dict(list(_memo.items())[-MEMO_ENTRIES:])).encode())
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
    source = origin.read_text(encoding="utf-8")
    beside = origin.with_suffix(".toml")  # its tables
    tables = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    is_package = origin.name == "__init__.py"
    key = hashlib.sha256(f"{module} {is_package} {FIRST_PARTY}\n{source}{tables}".encode()).hexdigest()
    found = _memo.get(key)
    if found is None:
        tree = _parse(source)
        package = module if is_package else module.rpartition(".")[0]
        blocks = [node for node in ast.walk(tree) if _is_for_type_checkers(node)] if is_package else []
        lazy = {
            name.rpartition(".")[2]: name.rpartition(".")[0] for block in blocks for name in _imports(block, package)
        }
        executed = _Executed().visit(tree)
        names = sorted({name for name in _imports(executed, package) if name.split(".")[0] in FIRST_PARTY})
        found = hashlib.sha256((_dump(executed) + tables).encode()).hexdigest(), names, lazy
        with _lock:
            _memo[key] = found
    return found


@cache
def _source_of(module: str) -> Path | None:
    """Find a first-party module without importing it: importing `model` would load torch."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not spec.submodule_search_locations:  # a single file, such as a script with a stage of its own
        return Path(spec.origin) if spec.origin and spec.has_location and not rest else None
    bases = [Path(folder, *rest) for folder in spec.submodule_search_locations]
    candidates = [path for base in bases for path in (base / "__init__.py", base.with_name(f"{base.name}.py"))]
    return next((path for path in candidates if path.is_file()), None)


def _parse(source: str) -> ast.Module:
    """Parse in one thread at a time, and again after a SystemError.

    Python 3.11 counts the depth of a parse for all threads together and raises SystemError where two of them meet;
    other libraries parse as well.
    """
    for _ in range(PARSE_ATTEMPTS - 1):
        with _lock, contextlib.suppress(SystemError):
            return ast.parse(source)
    with _lock:
        return ast.parse(source)


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
