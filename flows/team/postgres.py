"""One PostgreSQL database for both servers: a schema for each, because both note migrations in a table of one name."""

from __future__ import annotations

import asyncio
import importlib.util
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from storage.errors import UserError

PREFECT_SCHEMA = "sheepfold_prefect"
MLFLOW_SCHEMA = "sheepfold_mlflow"
CONNECT_SECONDS = 10.0
# options of an address, and the variables by which every driver of PostgreSQL knows them
TLS = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY"}
PLACE = ("host", "port")  # options too: the folder of a socket has no other place in an address


def check_address(address: str) -> None:
    """Refuse an address that one of the two servers could not use.

    Raises:
        UserError: if so.
    """
    if not address.startswith(("postgresql://", "postgres://")):
        scheme = address.partition("://")[0] if "://" in address else "no scheme"
        raise UserError(f"--postgres has {scheme}; it takes postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    parts = _parts(address)
    if parts is None:
        raise UserError(
            "--postgres is no postgresql://USER:PASSWORD@HOST:PORT/DATABASE: in a name or password, write / "
            "as %2F, # as %23, ? as %3F, @ as %40, [ as %5B and ] as %5D"
        )
    for name, _ in parse_qsl(parts.query):
        if name not in (*TLS, *PLACE):
            raise UserError(
                f"--postgres has the option {name}, which Prefect's server does not take; leave it out (options that "
                f"both servers take: {', '.join((*TLS, *PLACE))})"
            )


def _parts(address: str) -> SplitResult | None:
    """The parts of an address; None where a character of its password may have parted it elsewhere."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return parts if address.count("@") == int("@" in parts.netloc) else None


def prefect_variables(address: str) -> dict[str, str]:
    """What Prefect's server reads: address, schema, and TLS as its driver reads it; of an address it takes no TLS."""
    parts = urlsplit(_with_driver(address, "postgresql+asyncpg"))
    options = parse_qsl(parts.query)
    place = urlencode([(name, value) for name, value in options if name not in TLS])
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": urlunsplit(parts._replace(query=place)),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": PREFECT_SCHEMA,
        **{TLS[name]: value for name, value in options if name in TLS},
    }


def mlflow_address(address: str) -> str:
    """The address as MLflow takes it."""
    option = f"options={quote(f'-csearch_path={MLFLOW_SCHEMA}')}"
    parts = urlsplit(_with_driver(address, "postgresql+psycopg2"))
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, option)))))


def _with_driver(address: str, scheme: str) -> str:
    return f"{scheme}://{address.partition('://')[2]}"


def shown(address: str) -> str:
    """The address without its password; nothing of one that cannot be told from its password."""
    parts = _parts(address)
    if parts is None:
        return "***"
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
