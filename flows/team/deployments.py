"""The deployments of a team: the file that `prefect deploy` reads, with this team's folders in it.

One file says what is deployed, `flows/prefect.yaml`, whoever deploys it. `up` writes a copy with absolute addresses
into the home. Each deployment's version is the digest of what it was made from, so that a second `up` sees that nothing
has changed, and an upgrade that something has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.team.settings import TeamSettings
from storage.digest import sha256_json
from storage.home import Home

FILE = Path(__file__).parent.parent / "prefect.yaml"
FLOWS = Path(__file__).parent.parent
VERSION_LENGTH = 16


def team_deployments(home: Home, settings: TeamSettings) -> list[dict[str, Any]]:
    """The deployments with addresses that mean the same from every folder, each with its version."""
    import yaml

    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    code = _code_digest()
    for deployment in found:
        deployment["work_pool"]["job_variables"]["env"]["SHEEPFOLD_HOME"] = str(home.path)
        for name, value in (("source", settings.source), ("prompts", settings.prompts)):
            if name in deployment["parameters"]:
                deployment["parameters"][name] = value
        deployment["version"] = sha256_json({"deployment": deployment, "code": code})[:VERSION_LENGTH]
    return found


def _code_digest() -> str:
    """Digest of the flows' code: a parameter that came or went has to reach the forms."""
    return sha256_json({path.name: path.read_text(encoding="utf-8") for path in sorted(FLOWS.glob("*.py"))})


def full_name(deployment: dict[str, Any]) -> str:
    """`flow/deployment`; a flow is called as its function."""
    return f"{deployment['entrypoint'].rpartition('.')[2]}/{deployment['name']}"


def write_file(path: Path, deployments: list[dict[str, Any]]) -> None:
    """The file for `prefect deploy --prefect-file`."""
    import yaml

    path.write_text(
        "# Written by `sheepfold up`: what it deployed.\n"
        + yaml.safe_dump({"name": "sheepfold", "deployments": deployments}, sort_keys=False, width=120),
        encoding="utf-8",
    )
