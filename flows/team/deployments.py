"""The deployments of a team: what `flows/prefect.yaml` says, with this team's folders in it.

One file says what is deployed, whoever deploys it. `up` writes a copy with absolute addresses into the home; on a
Prefect server of one's own people write theirs. Each deployment's version is the digest of what it was made from, so
that making them again sees that nothing has changed, and an upgrade that something has.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from flows.team.automations import HEARTBEAT_SECONDS
from flows.team.settings import TeamSettings
from storage.digest import sha256_json
from storage.errors import UserError
from storage.home import Home

FILE = Path(__file__).parent.parent / "prefect.yaml"
FLOWS = Path(__file__).parent.parent
VERSION_LENGTH = 16
ADDRESSES = ("source", "prompts")  # parameters that `up` is told
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
_VARIABLE = re.compile(r"\{\{\s*\$(\w+)\s*\}\}")  # how Prefect writes one in such a file


def team_deployments(home: Home, settings: TeamSettings) -> list[dict[str, Any]]:
    """The deployments with addresses that mean the same from every folder, each with its version."""
    found = _load(FILE)
    for deployment in found:
        variables = deployment["work_pool"]["job_variables"]
        variables["env"]["SHEEPFOLD_HOME"] = str(home.path)
        # told what to run, a worker runs it; else it starts one more process, which fetches code and then starts this
        variables["command"] = shlex.join([sys.executable, "-m", "prefect.engine"])
        deployment["pull"] = [{"flows.team.workplace.enter": {"directory": str(home.path.parent)}}]
        for name in ADDRESSES:
            if name in deployment["parameters"]:
                deployment["parameters"][name] = getattr(settings, name)
    return _with_versions(found)


def read_deployments(path: Path) -> list[dict[str, Any]]:
    """The deployments of a file, variables of the environment filled in, each with its version.

    Raises:
        UserError: if it cannot be read, or names a variable that is not set.
    """
    found = _filled(_load(path), path)
    for deployment in found:
        variables = deployment["work_pool"].setdefault("job_variables", {})
        # with the run, not the worker: that may be anybody's, and whoever writes variables of their own forgets this
        variables["env"] = {**variables.get("env", {}), HEARTBEAT: str(HEARTBEAT_SECONDS)}
    return _with_versions(found)


def _load(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a copy of {FILE}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML ({error}): mend it, or begin with a copy of {FILE}") from None
    if not isinstance(document, dict) or not isinstance(document.get("deployments"), list):
        raise UserError(f"{path} has no list of `deployments`: begin with a copy of {FILE}")
    deployments: list[dict[str, Any]] = document["deployments"]
    return deployments


def _filled(value: Any, path: Path) -> Any:
    """The value with what the environment has in the place of variables."""
    if isinstance(value, dict):
        return {name: _filled(item, path) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, path) for item in value]
    if not isinstance(value, str):
        return value
    missing = [name for name in _VARIABLE.findall(value) if not os.environ.get(name)]
    if missing:
        raise UserError(
            f"{path} takes ${missing[0]} from the environment, where it is not set: export it, or write it out"
        )
    return _VARIABLE.sub(lambda found: os.environ[found[1]], value)


def _with_versions(deployments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    code = _code_digest()
    for deployment in deployments:
        meant = {name: value for name, value in deployment.items() if name != "version"}
        deployment["version"] = sha256_json({"deployment": meant, "code": code})[:VERSION_LENGTH]
    return deployments


def _code_digest() -> str:
    """Digest of the flows' code: a parameter that came or went has to reach the forms."""
    return sha256_json({path.name: path.read_text(encoding="utf-8") for path in sorted(FLOWS.glob("*.py"))})


def full_name(deployment: dict[str, Any]) -> str:
    """`flow/deployment`; a flow is called as its function."""
    return f"{deployment['entrypoint'].rpartition('.')[2]}/{deployment['name']}"


def trigger_names(deployment: dict[str, Any]) -> list[str]:
    """The automations that start runs of it."""
    return [trigger.get("name", f"sheepfold: {deployment['name']}") for trigger in deployment.get("triggers", [])]


def write_file(path: Path, deployments: list[dict[str, Any]]) -> None:
    """The file that `flows.team.register` reads."""
    import yaml

    path.write_text(
        "# Written by `sheepfold up`: what it deployed.\n"
        + yaml.safe_dump({"name": "sheepfold", "deployments": deployments}, sort_keys=False, width=120),
        encoding="utf-8",
    )
