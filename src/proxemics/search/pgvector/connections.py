"""Connections to PostgreSQL: one for each call that runs at the moment, kept for the next."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from proxemics.core.errors import SearchError
from proxemics.search.pgvector.address import PgAddress

if TYPE_CHECKING:
    import psycopg


class Connections:
    """A pool that grows with the number of threads that call at the same time.

    Args:
        address: where PostgreSQL is.
        read_only: let the server refuse every change.

    A connection that the server closed, because it was restarted for one, is noticed before it is used again.
    """

    def __init__(self, address: PgAddress, *, read_only: bool) -> None:
        self._address = address
        self._read_only = read_only
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in autocommit mode, and turn what PostgreSQL reports into one sentence.

        Raises:
            SearchError: the server is not there, does not let the user in, or refuses the statement.
        """
        with spoken(self._address.shown, self._address.name):
            connection = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.close()

    def _take(self) -> psycopg.Connection[Any]:
        while True:
            with self._lock:
                if self._closed:
                    raise SearchError("The index was closed; open it again.")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if not connection.closed and not _speaks(connection):
                return connection
            connection.close()

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg.pq import TransactionStatus

        usable = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if usable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from pgvector.psycopg import register_vector

        settings = {"connect_timeout": "10", "application_name": "proxemics", **self._address.settings}
        connection = psycopg.connect(psycopg.conninfo.make_conninfo("", **settings), autocommit=True)
        try:
            if self._read_only:
                connection.execute("SET default_transaction_read_only = on")
            if psycopg.types.TypeInfo.fetch(connection, "vector") is not None:
                register_vector(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _speaks(connection: psycopg.Connection[Any]) -> bool:
    """Say whether something waits to be read on an idle connection: only its end, or a last word, can."""
    try:
        return bool(select.select([connection.fileno()], [], [], 0)[0])
    except (OSError, ValueError):
        return True


@contextmanager
def spoken(place: str, name: str) -> Iterator[None]:
    """Turn the errors of psycopg into sentences; none of them holds the password."""
    import psycopg
    from psycopg import errors

    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise SearchError(
            f"PostgreSQL does not let the user do this at {place}: {_line(error)}. "
            "The page 'Indexes on servers' lists the rights that are needed."
        ) from error
    except errors.ReadOnlySqlTransaction as error:
        raise SearchError(f"PostgreSQL at {place} takes no changes: {_line(error)}.") from error
    except (errors.UndefinedTable, errors.UndefinedObject) as error:
        raise SearchError(f"The index {name} at {place} is not whole, or gone: {_line(error)}.") from error
    except psycopg.OperationalError as error:
        raise SearchError(
            f"PostgreSQL at {place} does not answer: {_line(error)}. What earlier calls returned from is kept; the "
            "next call connects again."
        ) from error
    except psycopg.Error as error:
        raise SearchError(f"PostgreSQL at {place} refuses: {_line(error)}.") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split("\n")[0].split())
    return (text or type(error).__name__).rstrip(".")
