"""What is asked of MLflow's server while a box is brought up: that its admin has the password that everybody is handed.

MLflow makes its admin at its first start. A password that it is told later it ignores, and says that it is well.
"""

from __future__ import annotations

from pathlib import Path

from flows.team.api import Unauthorised, ask
from flows.team.settings import GIVEN, Secrets
from storage.errors import UserError

ANSWER_SECONDS = 60.0  # its first answers on a busy machine take long


def agree_on_password(server: str, known: Secrets, users: Path) -> None:
    """Let MLflow's admin have the password that is kept, if it has the one before it still.

    Args:
        server: MLflow's address.
        users: file in which it keeps them.

    Raises:
        UserError: if the admin has another password.
        NoAnswer: if MLflow does not answer, or does not take the password.
    """
    api, name = f"{server}/api/2.0/mlflow/users", known.mlflow_user
    try:
        ask(f"{api}/current", user=f"{name}:{known.mlflow_password}", seconds=ANSWER_SECONDS)
        return
    except Unauthorised:
        pass  # it was made with another password
    change = {"username": name, "password": known.mlflow_password, "current_password": known.mlflow_before}
    try:
        ask(f"{api}/update-password", change, "PATCH", f"{name}:{known.mlflow_before}", ANSWER_SECONDS)
    except Unauthorised:
        raise UserError(
            f"MLflow's admin {name} has neither the password that is kept nor the one before it: `sheepfold down`, "
            f"then `up` with the one it has as {GIVEN['mlflow_password']}, or without {users} and all its users"
        ) from None
