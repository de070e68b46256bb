"""Imports between the packages run one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "flows": {"flows", "tasks", "model", "storage"},
    "tasks": {"tasks", "model", "storage"},
    "model": {"model"},
    "storage": {"storage"},
}
ELSEWHERE = {"benchmarks", "docs", "examples", "tests"}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    others = (ALLOWED.keys() | ELSEWHERE) - ALLOWED[package]
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.partition(".")[0] in others]
    assert not found
