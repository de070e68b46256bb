"""Terms of docs/glossary.md in prose, messages and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
AVOIDED = [
    phrase
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
    if line.startswith("|")
    for phrase in re.findall(r'"([^"]+)"', line.rsplit("|", 2)[1])
]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OPENINGS = re.compile(r"(What|Whether|Who|Whoever|Whatever|How|That)\b")


def modules(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of all prose: pages, templates, docstrings and messages."""
    pages = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "tasks" / "report" / "templates").rglob("*.*")]
    for path in pages:
        if path.is_file() and path != GLOSSARY:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path, tree in modules("flows", "tasks", "model", "storage"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(ROOT)), node.value


def test_avoided_phrases_of_the_glossary_occur_nowhere() -> None:
    assert len(AVOIDED) > 5
    avoided = re.compile("|".join(rf"\b{re.escape(phrase)}\b".replace(r"\ ", r"\s+") for phrase in AVOIDED), re.I)
    found = [
        f"{place}: {hit[0]}"
        for place, text in texts()
        for hit in avoided.finditer(re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL))
    ]
    assert not found


def test_no_docstring_opens_with_an_indirect_question() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in modules("flows", "tasks", "storage", "benchmarks", "tests")
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and OPENINGS.match(text := ast.get_docstring(node) or "")
    ]
    assert not found
