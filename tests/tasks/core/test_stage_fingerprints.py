"""Fingerprints follow a stage's code through its imports, and no change of it goes unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fingerprints
import pytest
from fingerprints import PLUMBING, Entries, _read, _source_of, code_of, complaints, fingerprint, modules_of

from flows.stages import all_stages

SHOP = {
    "__init__.py": '"""A shop."""\n',
    "stage.py": '''"""The stage."""

from typing import TYPE_CHECKING

from . import prices
from shop.lazy import give_change
from shop.deep.tax import rate as tax_rate

if TYPE_CHECKING:
    from shop.kinds import Kind


class Till:
    """A till."""

    open = True


def total(items: "list[Kind]") -> float:
    """The total."""
    # the tax comes last
    return sum(prices.of(item) for item in items) * (1 + tax_rate())
''',
    "prices.py": '''def of(item: str) -> float:
    """A price."""
    import shop.late

    return shop.late.PRICES[item]
''',
    "late.py": "PRICES = {'apple': 1.0}\n",
    "kinds.py": "Kind = str\n",
    "lazy/__init__.py": """import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .change import give_change
    from .receipts import print_receipt


def __getattr__(name: str) -> object:
    return getattr(importlib.import_module(".change", __name__), name)
""",
    "lazy/change.py": "def give_change(paid: float, total: float) -> float:\n    return paid - total\n",
    "lazy/receipts.py": "def print_receipt() -> None:\n    print(1)\n",
    "deep/__init__.py": "",
    "deep/tax.py": "from ..rates import RATE\n\n\ndef rate() -> float:\n    return RATE\n",
    "rates.py": "RATE = 0.19\n",
    "unused.py": "RATE = 0.19\n",
}
TELL = (
    "import fingerprints as f; f.FIRST_PARTY = ('shop',); "
    "print(f.fingerprint('shop.stage'), *f.modules_of('shop.stage'))"
)


def fingerprint_of(folder: Path, changes: Sequence[tuple[str, str, str]] = ()) -> tuple[str, list[str]]:
    """Fingerprint and modules of the shop's stage after replacing texts (file, old, new) in its files."""
    texts = dict(SHOP)
    for name, old, new in changes:
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new, 1)
    for name, text in texts.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(fingerprints.__file__).parent}"}
    command = [sys.executable, "-c", TELL]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return told[0], told[1:]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fingerprint_of(tmp_path_factory.mktemp("shop"))[0]


def test_the_modules_of_a_stage_are_those_it_executes_directly_late_relatively_lazily_and_through_others(
    tmp_path: Path,
) -> None:
    _, modules = fingerprint_of(tmp_path)
    names = ["", "deep.tax", "late", "lazy", "lazy.change", "prices", "rates", "stage"]
    assert modules == [f"shop.{name}".rstrip(".") for name in names]


def test_comments_docstrings_layout_and_modules_that_are_not_imported_do_not_count(
    tmp_path: Path, original: str
) -> None:
    changes = [
        ("stage.py", "# the tax comes last", "# the tax comes first"),
        ("stage.py", '"""The stage."""', '"""Another text."""'),
        ("stage.py", '    """A till."""\n\n', ""),
        ("stage.py", '"""The total."""', '"""The total.\n\n    Raises:\n        KeyError: sometimes.\n    """'),
        ("stage.py", "sum(prices.of(item) for item in items)", "sum(\n    prices.of(item) for item in items\n    )"),
        ("stage.py", "import Kind", "import Kind as Sort"),
        ("late.py", "{'apple': 1.0}", '{"apple": 1.0}  # a price'),
        ("deep/tax.py", "    return RATE", '    """The rate."""\n\n    return RATE'),
        ("unused.py", "0.19", "0.2"),
        ("kinds.py", "str", "bytes"),
        ("lazy/receipts.py", "1", "2"),
    ]
    assert fingerprint_of(tmp_path, changes)[0] == original


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage.py", "1 + tax_rate", "1 - tax_rate"),
        ("stage.py", "open = True", "open = 1"),
        ("prices.py", "PRICES[item]", "PRICES[item.lower()]"),
        ("late.py", "1.0", "1.5"),
        ("late.py", "'apple'", "b'apple'"),
        ("rates.py", "0.19", "0.2"),
        ("rates.py", "RATE = 0.19", "RATE = 0.19\nRATES = []"),
        ("lazy/change.py", "paid - total", "total - paid"),
    ],
)
def test_a_change_of_code_counts_in_whichever_imported_module_it_lies(
    tmp_path: Path, original: str, file: str, old: str, new: str
) -> None:
    assert fingerprint_of(tmp_path, [(file, old, new)])[0] != original


def test_a_change_of_the_tables_beside_a_module_counts(tmp_path: Path, original: str) -> None:
    tables = tmp_path / "shop" / "prices.toml"
    tables.parent.mkdir()
    tables.write_text("a = 1\n")
    first = fingerprint_of(tmp_path)[0]
    tables.write_text("a = 2\n")
    assert len({original, first, fingerprint_of(tmp_path)[0]}) == 3


def test_a_module_without_source_is_refused_by_name() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"no module tasks\.nowhere"):
        fingerprint("tasks.nowhere")


def test_the_training_stage_covers_the_network_but_not_the_plumbing() -> None:
    modules = set(modules_of("tasks.training.train"))
    assert {"tasks.training.train", "model.trainer", "model.transformer", "storage.tables"} <= modules
    assert not modules & PLUMBING


def covered_by(stage: str) -> set[str]:
    return {name for module in all_stages()[stage].modules for name in modules_of(module)}


def test_generation_covers_the_network_that_a_bundle_loads_by_name() -> None:
    needed = {"model.checkpoint", "model.generation", "model.sampling", "model.transformer"}
    assert needed <= covered_by("complete")


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "changed", "unchanged"),
    [("model.sampling", ["complete"], ["curate"]), ("tasks.evaluation.split", ["split"], ["train", "complete"])],
)
def test_a_change_of_a_module_changes_the_code_of_the_stages_that_execute_it(
    monkeypatch: pytest.MonkeyPatch, module: str, changed: list[str], unchanged: list[str]
) -> None:
    before = {name: code_of(all_stages()[name]) for name in (*changed, *unchanged)}
    path, read = _source_of(module), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **how: read(self, **how) + "\n\nADDED = 1\n" * (self == path))
    _read.cache_clear()
    after = {name: code_of(all_stages()[name]) for name in before}
    _read.cache_clear()
    assert [name for name in before if after[name] != before[name]] == changed


def test_reading_a_table_does_not_count_as_the_code_that_makes_it() -> None:
    assert [name for name in ("train", "dedup", "evaluate") if "tasks.curate.normalise" in covered_by(name)] == []


def test_the_extraction_stage_covers_the_code_of_its_child_processes() -> None:
    assert {
        "tasks.ingest.worker",
        "tasks.readers.pdf",
        "tasks.readers.decode",
        "tasks.readers.image",
    } <= covered_by("extract")


def entries(**stages: tuple[int, str]) -> Entries:
    return {name: {"version": version, "fingerprint": code} for name, (version, code) in stages.items()}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (entries(train=(2, "a")), []),
        (entries(train=(2, "b")), ["raise the version (2) in its @stage decorator", "`make fingerprints`"]),
        (entries(train=(3, "b")), ["raised from 2 to 3", "`make fingerprints`"]),
        (entries(train=(1, "b")), ["went back from 2 to 1"]),
        (entries(train=(2, "a"), extra=(1, "c")), ["stage extra is new", "`make fingerprints`"]),
        (entries(), ["stage train is gone"]),
    ],
)
def test_every_difference_to_the_record_is_named_with_what_to_do(now: Any, expected: list[str]) -> None:
    found = complaints(entries(train=(2, "a")), now)
    assert len(found) == bool(expected)
    assert all(part in found[0] for part in expected)


def test_no_stage_has_code_that_was_neither_given_a_new_version_nor_acknowledged() -> None:
    found = complaints(fingerprints.recorded(), fingerprints.current())
    assert not found, "\n".join(["", *found])
