"""One PostgreSQL database for both servers: a schema for each, because both note migrations in a table of one name."""

from __future__ import annotations

import asyncio
import importlib.util
from urllib.parse import quote, urlsplit, urlunsplit

from storage.errors import UserError

PREFECT_SCHEMA = "sheepfold_prefect"
MLFLOW_SCHEMA = "sheepfold_mlflow"
CONNECT_SECONDS = 10.0


def prefect_address(address: str) -> str:
    """The address as Prefect takes it; its schema is a setting beside it."""
    return _with_driver(address, "postgresql+asyncpg")


def mlflow_address(address: str) -> str:
    """The address as MLflow takes it."""
    option = f"options={quote(f'-csearch_path={MLFLOW_SCHEMA}')}"
    parts = urlsplit(_with_driver(address, "postgresql+psycopg2"))
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, option)))))


def _with_driver(address: str, scheme: str) -> str:
    return f"{scheme}://{address.partition('://')[2]}"


def shown(address: str) -> str:
    """The address without its password."""
    parts = urlsplit(address)
    if parts.password is None:
        return address
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{place}"))


def prepare(address: str) -> None:
    """Make both schemas; harmless when they exist.

    Raises:
        UserError: if a driver is missing, or the database cannot be reached or refuses.
    """
    if importlib.util.find_spec("psycopg2") is None:
        raise UserError(
            "MLflow reaches PostgreSQL through psycopg2, which is not installed: pip install sheepfold[team]"
        )
    asyncio.run(_prepare(address))


async def _prepare(address: str) -> None:
    import asyncpg

    try:
        connection = await asyncpg.connect(_with_driver(address, "postgresql"), timeout=CONNECT_SECONDS)
        try:
            for schema in (PREFECT_SCHEMA, MLFLOW_SCHEMA):
                await connection.execute(f"create schema if not exists {schema}")
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(
            f"PostgreSQL at {shown(address)} cannot be used ({reason}): see that it runs, that the database is there "
            "and that the user may make schemas in it"
        ) from None
