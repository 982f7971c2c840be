"""Connections to the outbox's database: how they are opened, what is checked first, and their errors as sentences."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

from psycopg import AsyncConnection, Error, InterfaceError, InternalError, OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, Ping

from shared.errors import InvalidSetting, Misconfigured, RetryLater
from starter.extras.outbox.table import OutboxTable

LOST = (OperationalError, InterfaceError, InternalError)
"""What a database raises that restarts, fails over, or is out of reach: a new connection may do better."""

STANDSTILL_SECONDS = 60
"""After this time the database ends a transaction of an outbox that stands still: more than a batch may take."""

_PORTS = re.compile(r"[0-9,]*", re.ASCII)

_DEFAULTS = {
    "application_name": "dormice outbox",
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

# An outbox that stands still must not hold its rows for ever. A table that was empty a moment ago has no statistics
# that would keep the planner from reading all of it for each batch.
_SESSION = f"""\
SET TimeZone = 'UTC';
SET default_transaction_isolation = 'read committed';
SET idle_in_transaction_session_timeout = '{STANDSTILL_SECONDS}s';
SET enable_seqscan = off"""


class FoundTable(NamedTuple):
    """A table as the database knows it."""

    source: str
    """What messages remember of it."""
    oid: str
    """What notifications call it."""


@dataclass(frozen=True, slots=True)
class OutboxConnection:
    """What is needed to connect; shows no password."""

    options: dict[str, Any]
    table: OutboxTable

    @classmethod
    def read(cls, dsn: str, table: OutboxTable) -> Self:
        """Read a connection string; raises InvalidSetting, which quotes nothing of it, for it may hold a password."""
        example = "postgresql://USER@HOST/DATABASE, or host=HOST dbname=DATABASE user=USER"
        wrong = f"outbox_dsn: is no connection string of PostgreSQL; write {example}"
        try:
            given = cast("dict[str, Any]", conninfo_to_dict(dsn))
        except ProgrammingError:  # without its cause, whose text quotes a part of the string
            raise InvalidSetting(wrong) from None
        # where a URL has a password with @, / or : in it, the rest of the password is taken for a host or port
        if "@" in given.get("host", "") or not _PORTS.fullmatch(given.get("port", "")):
            raise InvalidSetting(f"{wrong}; write @, / and : of a password as %40, %2F and %3A")

        return cls({**_DEFAULTS, **given, "client_encoding": "UTF8"}, table)

    @property
    def has_password(self) -> bool:
        """Whether the connection string itself holds a password."""
        return bool(self.options.get("password"))

    def __repr__(self) -> str:
        return f"OutboxConnection({self.table})"

    async def open(self) -> "AsyncConnection[tuple[Any, ...]]":
        """Connect; every statement is a transaction of its own unless one is begun. Raises psycopg's errors."""
        # no prepared statements: poolers between here and there may not know them
        connection = await AsyncConnection.connect(
            make_conninfo(**self.options), autocommit=True, prepare_threshold=None
        )
        try:
            await connection.execute(_SESSION.encode())
        except BaseException:
            # when it is cancelled, too: nobody else has this connection yet to close it; the caller translates the
            # error and connects anew, or ends
            await connection.close()
            raise
        return connection

    async def open_once(self) -> "AsyncConnection[tuple[Any, ...]]":
        """Connect; raises Misconfigured when the server refuses this client, RetryLater when it is out of reach."""
        try:
            return await self.open()
        except Error as exc:
            raise await self._translate(exc) from exc

    @contextlib.contextmanager
    def translate_errors(self) -> Generator[None]:
        """Turn what the database says about the table into Misconfigured, and all else into RetryLater."""
        try:
            yield
        except LOST as exc:
            raise RetryLater(f"table {self.table}: {write_error(exc)}; the same command may succeed later") from exc
        except Error as exc:
            remedy = "'dormice outbox ddl' prints what makes the table, docs/outbox.md says which rights are needed"
            raise Misconfigured(f"table {self.table}: {write_error(exc)}; {remedy}") from exc

    async def check(self) -> FoundTable:
        """Try each statement without a row; raises Misconfigured for what a person must change, else RetryLater."""
        async with await self.open_once() as connection:
            with self.translate_errors():
                ((name, oid),) = await (await connection.execute(self.table.check)).fetchall()
                await connection.execute(self.table.take, {"is_start": True, "bytes_max": 0, "resting": [], "count": 0})
                await connection.execute(self.table.delete, ([],))
                await connection.execute(self.table.fail, ([], []))
        return FoundTable(f"outbox/{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}", oid)

    async def _translate(self, exc: Error) -> Misconfigured | RetryLater:
        """Tell a server that refuses this client from one that is out of reach: errors may be in any language."""
        ping = await asyncio.to_thread(PGconn.ping, make_conninfo(**self.options).encode())
        if ping in (Ping.OK, Ping.NO_ATTEMPT):
            return Misconfigured(f"outbox_dsn: {write_error(exc)}; correct the connection string or the password")
        return RetryLater(f"outbox_dsn: {write_error(exc)}; the same command may succeed later")


def write_error(exc: Error) -> str:
    """Give what the database says, on one line; it never holds a password."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    said = [line.strip() for line in lines if line.strip() and not line.startswith(("LINE ", " "))]
    return "; ".join(said)[:400].rstrip(".;")
