"""Secrets are planted wherever one may be given, and then looked for wherever something may be kept or told."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import environment

from tests.tasks.ingest_samples import encrypted_pdf
from tests.tasks.tiny_run import SETTINGS, write_texts

pytestmark = [pytest.mark.full, pytest.mark.prefect, pytest.mark.timeout(900)]

PDF_PASSWORD = "planted-pdf-password-5d1c"
SECRETS = {
    "AWS_ACCESS_KEY_ID": "PLANTEDKEYID7Q2M",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+access/key/9f3b",
    "AWS_SESSION_TOKEN": "planted-session-token-2a7e",
    "PREFECT_API_KEY": "planted-prefect-key-c41d",
    "PREFECT_API_AUTH_STRING": "admin:planted-auth-string-77aa",
    "PREFECT_SERVER_API_AUTH_STRING": "admin:planted-auth-string-77aa",
    "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg://prefect:planted-database-18ce@127.0.0.1:9/prefect",
    "MLFLOW_TRACKING_USERNAME": "shepherd",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-password-e09b",
    "MLFLOW_TRACKING_TOKEN": "planted-mlflow-token-64f0",
}
WORDS = "the shorn ewe of the planted page"
# what must stand nowhere: the values, and of those with a name in front the password alone
LOOKED_FOR = [
    PDF_PASSWORD,
    "planted-database-18ce",
    "planted-auth-string-77aa",
    *(value for name, value in SECRETS.items() if value.lower().startswith("planted")),
]


@dataclass(frozen=True)
class Home:
    """A home in which a run came to its end, and all that it said."""

    path: Path
    said: str
    result: dict[str, object]


def call(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that is given all the secrets."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        env={**environment(home), **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("secrets")
    source = write_texts(folder / "texts")
    (source / "locked.pdf").write_bytes(encrypted_pdf(WORDS, PDF_PASSWORD, "AES-256"))
    passwords = folder / "passwords.txt"
    passwords.write_text(PDF_PASSWORD)
    settings = [f"--set={item}" for item in (*SETTINGS, f"passwords.file={passwords}")]
    done = call(folder / "home", "run", str(source), *settings, "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    others = [call(folder / "home", *arguments) for arguments in (["status"], ["why", "champion"], ["verify"])]
    said = "".join(one.stdout + one.stderr for one in (done, *others))
    return Home(folder / "home", said, json.loads(done.stdout))


def contents(home: Path) -> Iterator[tuple[Path, bytes]]:
    """Everything that lies in a home; tables unpacked."""
    for path in sorted(home.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
        if path.suffix == ".parquet":
            yield path, json.dumps(pq.read_table(path).to_pylist(), default=str, ensure_ascii=False).encode()


def test_the_password_did_open_the_document(ran: Home) -> None:
    query = "select status from files where path like '%locked.pdf'"
    done = call(ran.path, "sql", query, "--json")
    assert json.loads(done.stdout) == [{"status": "ok"}]
    pages = call(ran.path, "sql", f"select count(*) as n from pages where text like '%{WORDS}%'", "--json")
    assert json.loads(pages.stdout) == [{"n": 1}]


def test_no_file_of_the_home_holds_a_secret(ran: Home) -> None:
    """Manifests, tables, models, the databases of Prefect and MLflow, reports."""
    found = [
        (str(path.relative_to(ran.path)), secret)
        for path, data in contents(ran.path)
        for secret in LOOKED_FOR
        if secret.encode() in data
    ]
    assert found == []
    names = {path.name for path, _ in contents(ran.path)}
    assert {"prefect.db", "mlflow.db", "manifest.json", "report.md"} <= names


def test_prefects_database_holds_no_words_of_documents_or_prompts(ran: Home) -> None:
    (table,) = (ran.path / "store").glob("generate/*/completions.parquet")
    begun = [" ".join(row["prompt"].split()[:4]) for row in pq.read_table(table).to_pylist()]
    with closing(sqlite3.connect(ran.path / "prefect" / "prefect.db")) as database:
        kept = "\n".join(database.iterdump())
    assert "Report of corpus default" in kept and "The report with the completions: " in kept
    assert [words for words in (WORDS, *begun) if words in kept] == []
    report = (ran.path / "reports" / "default" / "report.md").read_text()
    assert begun and begun[0] in report


def test_nothing_that_was_said_holds_a_secret(ran: Home) -> None:
    assert [secret for secret in LOOKED_FOR if secret in ran.said] == []
    assert "mlflow" in ran.said


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        (["status"], "MLFLOW_TRACKING_URI", "http://shepherd:planted-in-address-1b2c@127.0.0.1:9"),
        (
            ["gc", "--dry-run"],
            "MLFLOW_TRACKING_URI",
            "postgresql://shepherd:planted-in-address-1b2c@127.0.0.1:9/mlflow",
        ),
        (["status"], "SHEEPFOLD_STORE", "s3://key:planted-in-address-1b2c@bucket/store"),
    ],
    ids=["http", "postgresql", "s3"],
)
def test_a_password_in_an_address_is_not_told_where_nothing_answers_there(
    tmp_path: Path, command: list[str], name: str, value: str
) -> None:
    variables = {**environment(tmp_path / "home"), name: value, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *command], env=variables, capture_output=True, text=True, check=False
    )
    assert "planted" not in done.stdout + done.stderr
    assert [path for path, data in contents(tmp_path) if b"planted" in data] == []


@pytest.mark.parametrize(("command", "scheme"), [("plan", "https"), ("run", "git+https"), ("up", "s3"), ("run", "ftp")])
def test_a_password_in_the_address_of_a_source_is_neither_told_nor_kept(
    tmp_path: Path, command: str, scheme: str
) -> None:
    source = f"{scheme}://shepherd:planted-in-source-8d4e@host.invalid/project.git"
    done = call(tmp_path / "home", command, source)
    assert done.returncode == 1 and "holds credentials" in done.stderr
    assert "planted" not in done.stdout + done.stderr
    assert [path for path, data in contents(tmp_path) if b"planted" in data] == []
