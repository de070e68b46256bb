"""The home folder: one place for the store, the embedded databases and the memo of file hashes.

`SHEEPFOLD_HOME` names it (default `.sheepfold` in the current folder); everything below is absolute, because MLflow
and Prefect write addresses into databases that outlive the current folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """Absolute addresses of everything that one home holds.

    Attributes:
        path: the home folder, absolute.
        store: address of the artefact store: a folder, or later an `s3://` address.
        tracking_uri: MLflow's tracking and registry address.
    """

    path: Path
    store: str
    tracking_uri: str

    @classmethod
    def from_environment(cls, path: str | Path | None = None) -> Home:
        """The home named by `path`, else by `SHEEPFOLD_HOME`, else `.sheepfold` here.

        `SHEEPFOLD_STORE` and `MLFLOW_TRACKING_URI` replace the store and the tracking database inside of it.
        """
        chosen = path or os.environ.get("SHEEPFOLD_HOME") or ".sheepfold"
        root = Path(chosen).expanduser().resolve()
        store = os.environ.get("SHEEPFOLD_STORE") or str(root / "store")
        if "://" not in store:
            store = str(Path(store).expanduser().resolve())
        tracking = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
        return cls(path=root, store=store, tracking_uri=tracking)

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
        """SQLite file that remembers which sha256 an unchanged file had."""
        return self.path / "hashes.db"

    @property
    def reports(self) -> Path:
        """Folder of the reports that a person opens after a run."""
        return self.path / "reports"

    def create(self) -> Home:
        """Make the folders; harmless when they exist."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self
