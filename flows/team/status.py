"""What `sheepfold status` says of a team's servers."""

from __future__ import annotations

from typing import Any

from flows.team.api import NoAnswer, answers
from flows.team.box import read_state
from flows.team.postgres import shown
from flows.team.prefect_server import PrefectServer
from flows.team.services import GPU_WORKER, MLFLOW, PREFECT, WORKER, WORKER_NAMES
from flows.team.settings import TeamFolder, TeamSettings
from storage.home import Home


def running_team(home: Home) -> dict[str, str]:
    """Variables that reach the home's servers, if its Prefect server runs; else none."""
    folder = TeamFolder(home)
    process = read_state(folder).get(PREFECT)
    return folder.client_variables(folder.settings()) if process is not None and process.alive else {}


def team_status(home: Home) -> dict[str, Any]:
    """Addresses, processes and whether they answer, deployments; empty where no team was ever brought up."""
    folder = TeamFolder(home)
    if not folder.path.is_dir():
        return {}
    settings = folder.settings()
    state = read_state(folder)
    prefect = PrefectServer.of(folder, settings)
    services = {}
    for name in (PREFECT, MLFLOW, WORKER, GPU_WORKER):
        process = state.get(name)
        alive = process is not None and process.alive
        services[name] = {
            "pid": process.pid if process is not None and alive else None,
            "alive": alive,
            "healthy": alive and _healthy(name, settings, prefect),
            "log": str(folder.logs / f"{name}.log"),
        }
    services[PREFECT]["url"], services[MLFLOW]["url"] = settings.prefect_url, settings.mlflow_url
    try:
        deployments = prefect.deployments() if services[PREFECT]["healthy"] else []
    except NoAnswer:
        deployments = []
    return {
        **({"prefect_api_url": settings.prefect_api} if services[PREFECT]["alive"] else {}),
        **({"mlflow_tracking_uri": settings.mlflow_url} if services[MLFLOW]["alive"] else {}),
        "prefect_file": str(folder.deployments),
        "services": services,
        "database": shown(settings.postgres) if settings.postgres else "SQLite",
        "auth": settings.auth,
        "sources": settings.source.splitlines(),
        "environment_file": str(folder.environment),
        "deployments": deployments,
    }


def _healthy(name: str, settings: TeamSettings, prefect: PrefectServer) -> bool:
    if name == PREFECT:
        return answers(f"{settings.prefect_api}/health")
    if name == MLFLOW:
        return answers(f"{settings.mlflow_url}/health")
    return prefect.worker_online(WORKER_NAMES[name], name)
