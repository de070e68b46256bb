"""The commands of README.md and docs/ that need nothing but a laptop, run one after the other as they are shown.

What a page only names (a person's folder, a file of questions, an id) is put there first. Trainings are made short.
All run in one home and, but for those that need a shell, in this process: imports would take longer than most of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import answer, environment, invoke

from tests.documented import arguments_of, shown

pytestmark = [pytest.mark.full, pytest.mark.prefect, pytest.mark.timeout(900)]

GERMAN = """Die Schafe stehen am Abend in der Hürde, und der Hirte zählt sie, ehe es dunkel wird.
Wenn eines fehlt, geht er noch einmal hinaus und sucht es am Bach, wo das Gras auch im Sommer grün bleibt.
Der Hund läuft voraus und wartet am Tor, bis alle anderen wieder ruhig geworden sind.
Im Winter bleibt die Herde im Stall, und das Heu vom letzten Jahr muss bis zum ersten warmen Tag reichen.
Wer früh genug mäht, hat im März noch Vorrat; wer zu lange wartet, kauft beim Nachbarn teuer ein.
Die Wolle wird im Mai geschoren, gewaschen und nach Farben getrennt in die Stadt gebracht.
"""
PAGES = ("README.md", "docs/guide.md", "docs/papers.md", "docs/guides/keeping.md")
TEAM = {"up", "down"}  # proved with real servers by tests of their own
TRAINS = {"run", "train"}
BUDGET = re.compile(r"--(minutes|max-steps|max-tokens) \S+")
LINES = [
    pytest.param(line, id=f"{page}-{block.line + number}")
    for page in PAGES
    for block in shown()
    if block.page == page
    for number, line in enumerate(block.lines)
    if any(arguments and arguments[0] not in TEAM for arguments in arguments_of("sheepfold", line))
]


@dataclass(frozen=True)
class Person:
    """Somebody who reads the pages, in a working folder of documents with a home in it."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / ".sheepfold"

    def with_ids(self, line: str) -> str:
        """The line with an id of this home for each that the pages show."""
        if line.endswith(" 3f9c/0"):
            line = line.replace("3f9c/0", answer(self.home, "sql", "select id from completions limit 1")[0]["id"])
        if line.endswith(" 3f9c0b12"):
            line = line.replace("3f9c0b12", next((self.home / "store" / "dataset").iterdir()).name[:8])
        return line

    def type(self, line: str) -> None:
        """Run a line of shell; it must succeed."""
        line = self.with_ids(line)
        (arguments,) = arguments_of("sheepfold", line)
        if arguments[0] in TRAINS:
            line = BUDGET.sub("", line) + " --max-steps 5"
            (arguments,) = arguments_of("sheepfold", line)
        if "$" in line:
            programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            variables = {**environment(self.home), "PATH": programs}
            done = subprocess.run(["bash", "-c", line], env=variables, capture_output=True, text=True, check=False)
            code, said = done.returncode, done.stdout[-1500:] + done.stderr[-3000:]
        else:
            ran = invoke(self.home, *(re.sub("^~(?=/)", str(self.folder), one) for one in arguments))
            code, said = ran.exit_code, ran.output[-3000:]
        assert code == 0, f"{line}\n{said}"


def write_files(folder: Path, sample_folder: Path) -> None:
    """Write the files that the pages name."""
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


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path, prefect_server: str) -> Iterator[Person]:
    """The person who reads all pages; files are as the lines before left them, and there are two models."""
    made = Person(tmp_path_factory.mktemp("person"))
    write_files(made.folder, sample_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.folder)
        patch.setenv("HOME", str(made.folder))
        for steps in (5, 60):
            answer(made.home, "run", "documents", "--preset", "tiny", "--max-steps", str(steps))
        answer(made.home, "export", "champion", "gpt2")
        yield made


@pytest.mark.parametrize("line", LINES)
def test_a_shown_command_does_what_it_says(person: Person, line: str) -> None:
    person.type(line)
