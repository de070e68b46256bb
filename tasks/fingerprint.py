"""Fingerprint of a stage's code: its module and every first-party module that it imports, comments and docstrings out.

The fingerprint is recorded in manifests and guarded by a test; it is not part of a key. So a change of code is seen
by `plan` and by the tests, but never recomputes an archive behind the user's back. Parsing a hundred modules takes half
a second, so what was found in a source is noted, by its digest, in a file that may be deleted at any time.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PARSE_ATTEMPTS = 5
MEMO_ENTRIES = 2000  # a few versions of every module
_PARSING = threading.Lock()
FIRST_PARTY = ("flows", "tasks", "model", "storage")
# Plumbing that carries every stage and shapes no result: a change here says nothing about a stage's output.
PLUMBING = {
    "tasks.stage",
    "tasks.executor",
    "tasks.machine",
    "tasks.run",
    "tasks.fingerprint",
    "tasks.progress",
    "storage.tracking",
    "storage.registry",
}


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@cache
def _spec_origin(module: str) -> Path | None:
    """Source file of a first-party module, found without importing it (importing `model` would load torch)."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not spec.submodule_search_locations:  # a single file, such as a script with a stage of its own
        return Path(spec.origin) if spec.origin and spec.has_location and not rest else None
    for folder in spec.submodule_search_locations:
        base = Path(folder, *rest)
        for candidate in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if candidate.is_file():
                return candidate
    return None


class Memo:
    """What was found in sources, kept in a file for later processes.

    Args:
        path: of the file; one that is not there or damaged counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._is_new = False
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            entries = {}
        self._entries: dict[str, Any] = entries if isinstance(entries, dict) else {}

    def get(self, key: str) -> tuple[str, list[str]] | None:
        """Digest of the code and names of first-party imports noted under a source's digest."""
        match self._entries.get(key):
            case [str(code), list(names)]:
                return code, names
        return None

    def put(self, key: str, code: str, names: list[str]) -> None:
        """Note them."""
        with self._lock:
            self._entries[key] = [code, names]
            self._is_new = True

    def save(self) -> None:
        """Write what is new; where that fails, a later process parses again."""
        with self._lock, contextlib.suppress(OSError):
            if not self._is_new:
                return
            newest = dict(list(self._entries.items())[-MEMO_ENTRIES:])
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(newest), encoding="utf-8")
            unfinished.replace(self.path)
            self._is_new = False


_memos: list[Memo] = []


def remember_in(path: Path) -> None:
    """Note from now on in this file what is found in sources."""
    if [memo.path for memo in _memos] != [path]:
        _memos[:] = [Memo(path)]


@cache
def _parsed(module: str, packages: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A module's code digest and the first-party modules it imports."""
    origin = _spec_origin(module)
    if origin is None:
        raise ModuleNotFoundError(f"no module {module}: its source is needed for the fingerprint")
    source = origin.read_text(encoding="utf-8")
    is_package = origin.name == "__init__.py"
    key = hashlib.sha256(f"{module} {is_package} {packages}\n{source}".encode()).hexdigest()
    memo = next(iter(_memos), None)
    found = memo.get(key) if memo else None
    if found is None:
        tree = _parse(source)
        names = sorted(set(_imports(tree, module, is_package, packages)))
        found = hashlib.sha256(_dump(_without_docstrings(tree)).encode()).hexdigest(), names
        if memo:
            memo.put(key, *found)
    code, names = found
    return code, tuple(name for name in names if _spec_origin(name) is not None)


def _parse(source: str) -> ast.Module:
    """Parse a module, in one thread at a time.

    Python 3.11 counts the depth of a parse for all threads together, and raises SystemError where two of them meet;
    other libraries parse as well, so once is not enough.
    """
    for _ in range(PARSE_ATTEMPTS - 1):
        with _PARSING, contextlib.suppress(SystemError):
            return ast.parse(source)
    with _PARSING:
        return ast.parse(source)


def _dump(node: object) -> str:
    """A tree as text, without empty fields: unlike `ast.dump` it reads the same under every version of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def _imports(tree: ast.Module, module: str, is_package: bool, packages: tuple[str, ...]) -> Iterator[str]:
    """Names of first-party packages that are imported, of modules and of what is in them."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.split(".")[0] in packages:
                yield name


def modules_of(module: str, packages: tuple[str, ...] = FIRST_PARTY) -> list[str]:
    """The module and all modules of first-party packages that it needs, sorted; plumbing left out."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name in PLUMBING:
            continue
        seen.add(name)
        waiting.extend(_parsed(name, packages)[1])
    return sorted(seen)


def fingerprint(module: str, packages: tuple[str, ...] = FIRST_PARTY) -> str:
    """sha256 over the code of `modules_of(module, packages)`."""
    digest = hashlib.sha256()
    for name in modules_of(module, packages):
        digest.update(f"{name}={_parsed(name, packages)[0]}\n".encode())
    for memo in _memos:
        memo.save()
    return digest.hexdigest()
