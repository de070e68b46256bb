"""The home folder: one place for the store, the embedded databases and the memo of file hashes.

`SHEEPFOLD_HOME` names it (default `.sheepfold` in the current folder); everything below is absolute, because MLflow
and Prefect write addresses into databases that outlive the current folder.
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

# the beginning of a query, an escaped byte, and a byte that is not UTF-8
_NOT_IN_ADDRESSES = re.compile(r"[?]|%[0-9A-Fa-f]{2}|[\ud800-\udfff]")
_PASSWORD = re.compile(r"(://[^/?#:@]*:)[^/?#]*@")

LONGEST_CORPUS_NAME = 50  # characters
_CORPUS_NAME = re.compile(rf"\w([\w .-]{{0,{LONGEST_CORPUS_NAME - 2}}}\w)?")

TEAM_TRACKING = "team/tracking.json"  # address of a team's MLflow server, and the variables that log in to it


def check_corpus_name(corpus: str) -> str:
    """Return the name of a corpus if files can bear it.

    Raises:
        UserError: if they cannot.
    """
    if not _CORPUS_NAME.fullmatch(corpus):
        shown = corpus if len(corpus) <= 60 else f"{corpus[:60]}..."
        raise UserError(
            f"{shown!r} is no name for a corpus: give 1 to {LONGEST_CORPUS_NAME} letters, digits, spaces, dots, "
            "hyphens and underscores, the first and the last of them a letter, a digit or an underscore"
        )
    return corpus


@dataclass(frozen=True)
class Home:
    """Absolute addresses of everything in one home.

    Attributes:
        path: the home folder, absolute.
        store: address of the artefact store: a folder, or an `s3://` address.
        tracking_uri: MLflow's tracking and registry address.
        artifacts: where a new tracking database lets MLflow put its artefacts; empty for the usual place.
    """

    path: Path
    store: str
    tracking_uri: str
    artifacts: str = ""

    @classmethod
    def from_environment(cls, path: str | Path | None = None) -> Home:
        """Return the home at `path`, else at `SHEEPFOLD_HOME`, else `.sheepfold` in the current folder.

        `SHEEPFOLD_STORE` and `MLFLOW_TRACKING_URI` replace the store and the tracking database inside of it (so does
        the server of a team whose database lies elsewhere), `SHEEPFOLD_ARTIFACTS` the place of MLflow's artefacts.

        Raises:
            UserError: if its path cannot stand in the address of a database, or an address holds a password that
                belongs elsewhere.
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
        """MLflow's address without the password of a database, to be shown and recorded."""
        return without_password(self.tracking_uri)

    @property
    def has_tracking(self) -> bool:
        """True if there is an MLflow database or a server; connecting to a SQLite database creates it."""
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
        """Return the variables with the login of the tracking server of the home's team, if it needs one."""
        known = _team_tracking(self.path)
        return dict(known.get("variables", {})) if known.get("uri") == self.tracking_uri else {}

    def password_key(self) -> bytes:
        """Return the key with which passwords are hashed; random, created at first use, readable by the owner only.

        Raises:
            UserError: if it cannot be read or made.
        """
        path = self.path / "password.key"
        try:
            if not path.exists():
                write_file(path, secrets.token_bytes(32), mode=0o600)
            return path.read_bytes()
        except OSError as error:
            raise UserError(f"the key {path} cannot be used ({error.strerror}): mend its permissions") from error

    def create(self) -> Home:
        """Create the folder; harmless if it exists.

        Raises:
            UserError: if it cannot be created or written.
        """
        advice = "name a folder of yours by --home or SHEEPFOLD_HOME"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the home {self.path} cannot be made ({error.strerror}): {advice}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"the home {self.path} cannot be written: {advice}")
        return self


def _team_tracking(root: Path) -> dict[str, Any]:
    """Return the MLflow server recorded in a team's home; empty if the database lies in the home itself."""
    try:
        found = json.loads((root / TEAM_TRACKING).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{root / TEAM_TRACKING} cannot be read ({error}): `sheepfold up` writes it anew") from None
    return found if isinstance(found, dict) else {}


def without_password(address: str) -> str:
    """Return an address with `***` in place of a password."""
    return _PASSWORD.sub(r"\1***@", address)


def _refuse_password(variable: str, address: str, instead: str) -> None:
    """Raise UserError if an address holds a password: addresses are shown, and recorded in manifests and databases."""
    parts = urlsplit(address)
    if "@" in parts.netloc or "secret" in parts.query:
        place = parts.netloc.rpartition("@")[2]
        raise UserError(
            f"{variable} ({parts.scheme}://...{place}) holds a password, which would be shown and kept wherever the "
            f"address is: give it by {instead}"
        )


def _check_address(root: Path) -> None:
    """Raise UserError for a home whose path has another meaning in the database addresses of MLflow and Prefect.

    Releases of SQLAlchemy differ in what a "%" stands for, and MLflow creates the folder that the address names.
    """
    found = _NOT_IN_ADDRESSES.search(str(root))
    if found:
        raise UserError(
            f"the home {str(root)!r} holds {found[0]!r}, which means something else in the address of a database: "
            "choose another folder by --home or SHEEPFOLD_HOME"
        )


@contextmanager
def kept_variables(*names: str) -> Iterator[None]:
    """Restore environment variables at the end, set or not."""
    saved = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
