"""The home folder: the store, the databases of Prefect and MLflow, reports and caches.

Set by `SHEEPFOLD_HOME` (default `.sheepfold` in the current folder). All paths are absolute, because MLflow and Prefect
write them into databases that are used from other folders later.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage.atomic import write_file
from storage.errors import UserError

# the start of a query, an escaped byte, and a byte that is not UTF-8
_NOT_IN_ADDRESSES = re.compile(r"[?]|%[0-9A-Fa-f]{2}|[\ud800-\udfff]")
_PASSWORD = re.compile(r"(://[^/?#:@]*:)[^/?#]*@")

LONGEST_CORPUS_NAME = 50  # characters
_CORPUS_NAME = re.compile(rf"\w([\w .-]{{0,{LONGEST_CORPUS_NAME - 2}}}\w)?")

TEAM_TRACKING = "team/tracking.json"  # address of a team's MLflow server, and the variables that log in to it


def check_corpus_name(corpus: str) -> str:
    """Return the name of a corpus, checked: it becomes part of file names.

    Raises:
        UserError: if it is not allowed.
    """
    if not _CORPUS_NAME.fullmatch(corpus):
        shown = corpus if len(corpus) <= 60 else f"{corpus[:60]}..."
        raise UserError(
            f"{shown!r} is not a valid name of a corpus: give 1 to {LONGEST_CORPUS_NAME} letters, digits, spaces, "
            "dots, hyphens and underscores, with a letter, a digit or an underscore first and last"
        )
    return corpus


@dataclass(frozen=True)
class Home:
    """Absolute addresses of a home's parts.

    Attributes:
        path: the home folder.
        store: address of the artefact store: a folder, or an `s3://` address.
        tracking_uri: address of MLflow's tracking server and registry.
        artifacts: address for MLflow's artefacts, used when its database is created; empty for MLflow's default.
    """

    path: Path
    store: str
    tracking_uri: str
    artifacts: str = ""

    @classmethod
    def from_environment(cls, path: str | Path | None = None) -> Home:
        """Return the home at `path`, else at `SHEEPFOLD_HOME`, else `.sheepfold` in the current folder.

        `SHEEPFOLD_STORE`, `MLFLOW_TRACKING_URI` and `SHEEPFOLD_ARTIFACTS` replace the store, the tracking database and
        the folder of MLflow's artefacts inside the home; a team's MLflow server also replaces the tracking database.

        Raises:
            UserError: if the path has a character that addresses of databases cannot hold, or an address has a
                password.
        """
        chosen = path or os.environ.get("SHEEPFOLD_HOME") or ".sheepfold"
        root = Path(chosen).expanduser().resolve()
        _check_address(root)
        store = os.environ.get("SHEEPFOLD_STORE") or str(root / "store")
        if "://" not in store:
            store = str(Path(store).expanduser().resolve())
        else:
            _refuse_password("SHEEPFOLD_STORE", store, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
        tracking = (
            os.environ.get("MLFLOW_TRACKING_URI")
            or _team_tracking(root).get("uri")
            or f"sqlite:///{root / 'mlflow.db'}"
        )
        if tracking.startswith(("http:", "https:")):
            wanted = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            _refuse_password("MLFLOW_TRACKING_URI", tracking, wanted)
        return cls(root, store, tracking, os.environ.get("SHEEPFOLD_ARTIFACTS", ""))

    @property
    def shown_tracking_uri(self) -> str:
        """MLflow's address without a password, for messages and records."""
        return without_password(self.tracking_uri)

    @property
    def has_tracking(self) -> bool:
        """True if the MLflow database exists or a server is set; a connection would create a SQLite database."""
        kind, _, place = self.tracking_uri.partition(":///")
        return kind != "sqlite" or Path(place.partition("?")[0]).exists()

    @property
    def mlflow_artifacts(self) -> Path:
        """Folder of MLflow's own artefacts (model bundles, plots)."""
        return self.path / "mlflow-artifacts"

    @property
    def prefect(self) -> Path:
        """PREFECT_HOME of the embedded Prefect server."""
        return self.path / "prefect"

    @property
    def hash_memo(self) -> Path:
        """SQLite file with the sha256 of unchanged files."""
        return self.path / "hashes.db"

    @property
    def cache(self) -> Path:
        """Folder of local copies of remote sources and stores."""
        return self.path / "cache"

    @property
    def reports(self) -> Path:
        """Folder of the reports."""
        return self.path / "reports"

    def reports_of(self, corpus: str) -> Path:
        """Folder of the reports of one corpus."""
        return self.reports / corpus

    def login(self) -> dict[str, str]:
        """Return environment variables with the login to the team's tracking server; empty if there is none."""
        known = _team_tracking(self.path)
        return dict(known.get("variables", {})) if known.get("uri") == self.tracking_uri else {}

    def password_key(self) -> bytes:
        """Return the key for hashing passwords: random, created at first use, readable by its owner only.

        Raises:
            UserError: if it cannot be read or created.
        """
        path = self.path / "password.key"
        try:
            if not path.exists():
                write_file(path, secrets.token_bytes(32), mode=0o600)
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"the key {path} cannot be used ({error.strerror}): correct its permissions") from error

    def create(self) -> Home:
        """Create the folder unless it exists.

        Raises:
            UserError: if it cannot be created or written.
        """
        advice = "give a folder that you may write by --home or SHEEPFOLD_HOME"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the home {self.path} cannot be created ({error.strerror}): {advice}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"the home {self.path} cannot be written: {advice}")
        return self


def _team_tracking(root: Path) -> dict[str, Any]:
    """Return the MLflow server recorded in a team's home; empty if the database is in the home itself."""
    try:
        found = json.loads((root / TEAM_TRACKING).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{root / TEAM_TRACKING} cannot be read ({error}): `sheepfold up` writes it again") from None
    return found if isinstance(found, dict) else {}


def without_password(address: str) -> str:
    """Return an address with `***` in place of a password."""
    return _PASSWORD.sub(r"\1***@", address)


def _refuse_password(variable: str, address: str, instead: str) -> None:
    """Raise UserError if an address has a password: addresses are shown, and recorded in manifests and databases."""
    parts = urlsplit(address)
    if "@" in parts.netloc or "secret" in parts.query:
        place = parts.netloc.rpartition("@")[2]
        raise UserError(
            f"{variable} ({parts.scheme}://...{place}) holds a password, which would be shown and recorded with the "
            f"address: set {instead} instead"
        )


def _check_address(root: Path) -> None:
    """Raise UserError for a path with characters that have a meaning in addresses of databases.

    Releases of SQLAlchemy decode "%" differently, and MLflow creates the folder that the address names.
    """
    found = _NOT_IN_ADDRESSES.search(str(root))
    if found:
        raise UserError(
            f"the path of the home {str(root)!r} has {found[0]!r}, which addresses of databases cannot hold: choose "
            "another folder by --home or SHEEPFOLD_HOME"
        )


@contextmanager
def kept_variables(*names: str) -> Iterator[None]:
    """Restore environment variables when the context ends; those that were not set are removed."""
    saved = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
