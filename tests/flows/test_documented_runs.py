"""The commands of README.md and docs/ that need nothing but a laptop, run one after the other as they are shown.

What a page only names (a person's folder, a file of questions, an id) is put there first. Trainings are made short.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import answer, environment

from tests.documented import arguments_of, shown

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

GERMAN = """Die Schafe stehen am Abend in der Hürde, und der Hirte zählt sie, ehe es dunkel wird.
Wenn eines fehlt, geht er noch einmal hinaus und sucht es am Bach, wo das Gras auch im Sommer grün bleibt.
Der Hund läuft voraus und wartet am Tor, bis alle anderen wieder ruhig geworden sind.
Im Winter bleibt die Herde im Stall, und das Heu vom letzten Jahr muss bis zum ersten warmen Tag reichen.
Wer früh genug mäht, hat im März noch Vorrat; wer zu lange wartet, kauft beim Nachbarn teuer ein.
Die Wolle wird im Mai geschoren, gewaschen und nach Farben getrennt in die Stadt gebracht.
"""
PAGES = ("README.md", "docs/guide.md", "docs/keeping.md")
TEAM = {"up", "down"}  # proved with real servers by tests of their own
TRAINS = {"run", "train"}
BUDGET = re.compile(r"--(minutes|max-steps|max-tokens) \S+")
LINES = [
    pytest.param(page, line, id=f"{page}-{block.line + number}")
    for page in PAGES
    for block in shown()
    if block.page == page
    for number, line in enumerate(block.lines)
    if any(arguments and arguments[0] not in TEAM for arguments in arguments_of("sheepfold", line))
]


@dataclass(frozen=True)
class Person:
    """Somebody who reads the pages: a home folder with documents, a working folder, and two models."""

    folder: Path
    variables: dict[str, str]
    known: dict[str, str]

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell."""
        for shown_id, real in self.known.items():
            line = re.sub(rf"(?<= ){re.escape(shown_id)}(?= |$)", real, line)
        (command, *_), *_ = arguments_of("sheepfold", line)
        if command in TRAINS:
            line = BUDGET.sub("", line) + " --max-steps 5"
        return subprocess.run(
            ["bash", "-c", line], env=self.variables, cwd=self.folder, capture_output=True, text=True, check=False
        )


def write_files(folder: Path, sample_folder: Path) -> None:
    """What the pages name."""
    documents = folder / "documents"
    for kind, count in (("text", 25), ("code", 15)):
        (documents / kind).mkdir(parents=True)
        for path in sorted((sample_folder / kind).iterdir())[:count]:
            shutil.copyfile(path, documents / kind / path.name)
    prose = sorted((sample_folder / "text").iterdir())[25:]
    (documents / "notes").mkdir()
    (documents / "mails").mkdir()
    shutil.copyfile(prose[0], documents / "notes" / "letter.txt")
    shutil.copyfile(prose[1], documents / "mails" / "one.eml")
    (documents / "notes" / "brief.txt").write_text(GERMAN)
    (folder / "notes").mkdir()
    for path in prose[2:12]:
        shutil.copyfile(path, folder / "notes" / path.name)
    (folder / "letters").mkdir()
    shutil.copyfile(prose[12], folder / "letters" / prose[12].name)
    questions = {
        "questions.csv": "question\nWhat is a sheepfold?\n",
        "eval.jsonl": '{"text": "A text that is only measured, never trained on, and long enough to be looked at."}\n',
    }
    for name, text in questions.items():
        (folder / name).write_text(text)
    pq.write_table(pa.table({"body": [path.read_text() for path in prose[2:12]]}), folder / "corpus.parquet")


def person_at(folder: Path, sample_folder: Path) -> Person:
    """A person at the beginning of a page."""
    write_files(folder, sample_folder)
    home = folder / ".sheepfold"
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = Person(folder, {**environment(home), "HOME": str(folder), "PATH": programs}, {})
    for steps in (5, 60):
        done = subprocess.run(
            ["sheepfold", "run", "documents", "--preset", "tiny", "--max-steps", str(steps)],
            env=made.variables,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    made.known["3f9c/0"] = answer(home, "sql", "select id from completions limit 1")[0]["id"]
    made.known["3f9c0b12"] = next((home / "store" / "dataset").iterdir()).name[:8]
    exported = made.type("sheepfold export champion gpt2")
    assert exported.returncode == 0, exported.stderr[-3000:]
    return made


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path) -> Callable[[str], Person]:
    """The person who reads a page: one for all its lines, whose files are as the lines before left them."""
    return cache(lambda page: person_at(tmp_path_factory.mktemp(Path(page).stem), sample_folder))


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_shown_command_does_what_it_says(people: Callable[[str], Person], page: str, line: str) -> None:
    done = people(page).type(line)
    assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
