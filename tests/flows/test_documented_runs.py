"""The commands of README.md and docs/ that need nothing but a laptop, run one after the other as they are shown.

What a page only names (a person's folder, a file of questions, an id) is put there first. Trainings are made short.
The guides share one home; first-hour.md begins in an empty folder. All but the lines that need a shell run in this
process: imports would take longer than most of them.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pypdf
import pytest
from runs import answer, environment, invoke

from tests.documented import arguments_of, shown
from tests.open_models import open_model

pytestmark = [pytest.mark.full, pytest.mark.prefect, pytest.mark.timeout(900)]

GERMAN = """Die Schafe stehen am Abend in der Hürde, und der Hirte zählt sie, ehe es dunkel wird.
Wenn eines fehlt, geht er noch einmal hinaus und sucht es am Bach, wo das Gras auch im Sommer grün bleibt.
Der Hund läuft voraus und wartet am Tor, bis alle anderen wieder ruhig geworden sind.
Im Winter bleibt die Herde im Stall, und das Heu vom letzten Jahr muss bis zum ersten warmen Tag reichen.
Wer früh genug mäht, hat im März noch Vorrat; wer zu lange wartet, kauft beim Nachbarn teuer ein.
Die Wolle wird im Mai geschoren, gewaschen und nach Farben getrennt in die Stadt gebracht.
"""
NAMES = ("documents", "tokens", "training", "network", "evaluation", "generation", "keeping", "open-model")
PAGES = ("README.md", *(f"docs/guides/{name}.md" for name in NAMES), "docs/papers.md")
FIRST_HOUR = "docs/first-hour.md"
TEAM = {"up", "down"}  # proved with real servers by tests of their own
ELSEWHERE = ("make ", "pip ", "sheepfold up", "sheepfold down", "prefect ", ". ")  # installs, or needs servers
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
PROGRAMS = [
    pytest.param(block.text, id=f"{block.page}-{block.line}")
    for page in PAGES
    for block in shown("python")
    if block.page == page
]
FIRST_LINES = [
    pytest.param(line, id=f"{block.page}-{block.line + number}")
    for block in shown()
    if block.page == FIRST_HOUR
    for number, line in enumerate(block.lines)
    if not line.startswith(ELSEWHERE)
]


@dataclass(frozen=True)
class Person:
    """Somebody who reads the pages, in a working folder with a home in it."""

    folder: Path

    @property
    def home(self) -> Path:
        return Path.cwd() / ".sheepfold"

    def with_ids(self, line: str) -> str:
        """The line with an id of this home for each that the pages show."""
        if line.endswith(" 3f9c/0"):
            line = line.replace("3f9c/0", answer(self.home, "sql", "select id from completions limit 1")[0]["id"])
        if found := re.search(r"[0-9a-f]{12}/[0-9a-f]{12}$", line):
            (generation,) = (self.home / "store" / "generate").iterdir()
            completion = answer(self.home, "sql", "select id from completions limit 1")[0]["id"]
            line = line.replace(found[0], f"{generation.name}/{completion}")
        if line.endswith(" 3f9c0b12"):
            line = line.replace("3f9c0b12", next((self.home / "store" / "dataset").iterdir()).name[:8])
        return line

    def type(self, line: str) -> None:
        """Run a line of shell; it must succeed."""
        line = self.with_ids(line)
        calls = list(arguments_of("sheepfold", line))
        if calls and calls[0][0] in TRAINS:
            line = BUDGET.sub("", line) + " --max-steps 5"
            calls = list(arguments_of("sheepfold", line))
        if line.startswith("cd "):
            os.chdir(Path(line.removeprefix("cd ")).expanduser())
        elif "$" in line or " < " in line or not calls:
            self.run(["bash", "-c", line])
        else:
            ran = invoke(self.home, *(re.sub("^~(?=/)", str(self.folder), one) for one in calls[0]))
            assert ran.exit_code == 0, f"{line}\n{ran.output[-3000:]}"

    def run(self, command: list[str]) -> None:
        """Run a program; it must succeed."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**environment(self.home), "PATH": programs}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"


def write_files(folder: Path, sample_folder: Path) -> None:
    """Write the files that the pages name."""
    documents = folder / "documents"
    for kind, count in (("text", 25), ("code", 15)):
        (documents / kind).mkdir(parents=True)
        for path in sorted((sample_folder / kind).iterdir())[:count]:
            shutil.copyfile(path, documents / kind / path.name)
    shutil.copytree(documents, folder / "sample-corpus")
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
    shutil.copyfile(prose[12], folder / "letters" / "first.txt")
    questions = {
        "questions.csv": "question\nWhat is a sheepfold?\n",
        "questions.txt": "Who watches pen 3?\n/bye\n",
        "eval.jsonl": '{"text": "A text that is only measured, never trained on, and long enough to be looked at."}\n',
    }
    questions["passwords.txt"] = "a password\n"
    questions["letters.csv"] = "path,date,title\nfirst.txt,1899,A letter\n"
    for name, text in questions.items():
        (folder / name).write_text(text)
    manual = pypdf.PdfWriter()
    for _ in range(2):
        manual.add_blank_page(595, 842)
    manual.write(folder / "manual.pdf")
    (folder / "book.txt").write_text("\n\n".join(path.read_text() for path in prose))
    with closing(sqlite3.connect(folder / "mails.sqlite")) as mails, mails:
        mails.execute("create table mails (body text)")
        mails.executemany("insert into mails values (?)", [(path.read_text(),) for path in prose[2:6]])
    write_archive(folder / "archive", prose)
    open_model(folder / "models" / "base", "llama", context=128)
    write_exam(folder / "exam")
    write_repository(folder / "project", prose[13])
    pq.write_table(pa.table({"body": [path.read_text() for path in prose[2:12]]}), folder / "corpus.parquet")


def write_archive(folder: Path, prose: list[Path]) -> None:
    """General text, and notes with questions and answers."""
    (folder / "general").mkdir(parents=True)
    (folder / "notes").mkdir()
    for number in range(40):
        (folder / "notes" / f"pen-{number}.txt").write_text(
            f"Q: Who watches pen {number}?\nA: The dog of pen {number} does.\n\nQ: At {number}?\nA: Yes.\n"
        )
    for path in prose[:20]:
        shutil.copyfile(path, folder / "general" / path.name)


def write_exam(folder: Path) -> None:
    """The task that evaluation.md shows, and its one question."""
    folder.mkdir()
    (page,) = [block for block in shown("yaml") if block.page == "docs/guides/evaluation.md"]
    (folder / "flock.yaml").write_text(page.text)
    (folder / "flock.jsonl").write_text('{"prompt": "The sky is", "choices": ["blue", "green"], "answer": 0}\n')


def write_repository(folder: Path, text: Path) -> None:
    """A git repository of one document, at a tag."""
    folder.mkdir()
    shutil.copyfile(text, folder / text.name)
    author = ["-c", "user.name=Shepherd", "-c", "user.email=shepherd@flock.example"]
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "A text"], ["tag", "v1.2"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path, prefect_server: str) -> Iterator[Person]:
    """The person who reads all pages; files are as the lines before left them, and there are two models."""
    made = Person(tmp_path_factory.mktemp("person"))
    write_files(made.folder, sample_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.folder)
        patch.setenv("HOME", str(made.folder))
        for preset, steps in (("tiny", 5), ("modern-200k", 60)):  # the second has rotary positions
            answer(made.home, "run", "documents", "--preset", preset, "--max-steps", str(steps))
        answer(made.home, "export", "champion", "gpt2")
        yield made


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, sample_folder: Path, prefect_server: str) -> Iterator[Person]:
    """The person who reads first-hour.md, in an empty folder."""
    made = Person(tmp_path_factory.mktemp("newcomer"))
    write_files(made.folder, sample_folder)
    with pytest.MonkeyPatch.context() as patch:
        (made.folder / "empty").mkdir()
        patch.chdir(made.folder / "empty")
        patch.setenv("HOME", str(made.folder))
        yield made


@pytest.mark.parametrize("line", LINES)
def test_a_shown_command_does_what_it_says(person: Person, line: str) -> None:
    if "lm-eval" in line:
        pytest.importorskip("lm_eval")
    person.type(line)


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_shown_program_runs(person: Person, text: str) -> None:
    person.run([sys.executable, "-c", text.replace("/absolute/path/.sheepfold", str(person.home))])


@pytest.mark.parametrize("line", FIRST_LINES)
def test_the_first_hour_goes_as_it_is_told(newcomer: Person, line: str) -> None:
    newcomer.type(line)
