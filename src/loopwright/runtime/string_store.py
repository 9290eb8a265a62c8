"""Keeps strings by tenant, store and key: in memory, or in an SQLite file that outlives the server. Never on whose say.

Used by the exchange for named stores and by the runtime for those that end with their run. On one thread at a time.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, assert_never

from loopwright.core.errors import LimitExceeded, Unavailable
from loopwright.core.ids import TenantId
from loopwright.core.raise_hint import raise_hint
from loopwright.core.results import Done
from loopwright.core.store_calls import (
    StoreCall,
    StoreCompareAndSet,
    StoreDelete,
    StoreExists,
    StoreGet,
    StoreKeys,
    StoreSet,
)

ENTRY_OVERHEAD_BYTES = 64  # what an entry counts for beside its key and value
MAX_TENANT_BYTES = 1 << 30  # of all stores of a tenant together
MAX_KEYS_BYTES = 8 << 20  # of one answer
LOCKED_S = 5.0  # how long another server may hold the file

Payload: TypeAlias = dict[str, Any] | Done
_Place: TypeAlias = tuple[TenantId, str]

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    tenant TEXT, store TEXT, key BLOB, value BLOB, PRIMARY KEY (tenant, store, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sizes (
    tenant TEXT, store TEXT, num_bytes INTEGER, PRIMARY KEY (tenant, store)
) WITHOUT ROWID;
"""


class StringStore:
    """Every call is one transaction. Without a file, what it holds ends with the process.

    Text is kept as its UTF-8 bytes: SQLite's own text ends at a zero."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None  # opened when it is used: most servers keep nothing

    def answer(self, call: StoreCall, tenant: TenantId, max_bytes: int) -> Payload:
        """The call's payload. Raises LimitExceeded when the store would hold more than `max_bytes`; Unavailable when
        the disk fails."""
        place = (tenant, call.store)
        with self._transaction(is_writing=not isinstance(call, StoreGet | StoreExists | StoreKeys)) as connection:
            match call:
                case StoreGet():
                    return {"value": _get(connection, place, call.key)}
                case StoreExists():
                    return {"exists": _get(connection, place, call.key) is not None}
                case StoreKeys():
                    return {"keys": _keys(connection, place, call.prefix)}
                case StoreSet():
                    _put(connection, place, call.key, call.value, max_bytes)
                    return Done()
                case StoreDelete():
                    existed = _get(connection, place, call.key) is not None
                    _put(connection, place, call.key, None, max_bytes)
                    return {"existed": existed}
                case StoreCompareAndSet():
                    is_as_expected = _get(connection, place, call.key) == call.expected
                    if is_as_expected:
                        _put(connection, place, call.key, call.value, max_bytes)
                    return {"is_set": is_as_expected}
                case _:
                    assert_never(call)

    def forget(self, tenant: TenantId, store: str) -> None:
        """Deletes a whole store."""
        if self._connection is not None:  # else nobody wrote
            with self._transaction(is_writing=True) as connection:
                connection.execute("DELETE FROM entries WHERE (tenant, store) = (?, ?)", (tenant, store))
                connection.execute("DELETE FROM sizes WHERE (tenant, store) = (?, ?)", (tenant, store))

    def check_integrity(self) -> None:
        """The sizes that are kept are those of the entries."""
        if self._connection is None:
            return
        counted = self._connection.execute(
            "SELECT tenant, store, sum(length(key) + length(value) + ?) FROM entries GROUP BY tenant, store",
            (ENTRY_OVERHEAD_BYTES,),
        ).fetchall()
        assert sorted(counted) == sorted(self._connection.execute("SELECT * FROM sizes"))

    @property
    def num_stores(self) -> int:
        """Stores that hold anything."""
        if self._connection is None:
            return 0
        (number,) = self._connection.execute("SELECT count(*) FROM sizes").fetchone()
        assert isinstance(number, int)
        return number

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self, *, is_writing: bool) -> Iterator[sqlite3.Connection]:
        try:
            if self._connection is None:
                self._connection = _open(self._file)
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE" if is_writing else "BEGIN")
                yield self._connection
        except sqlite3.Error as error:
            raise Unavailable(f"the store in {self._file or 'memory'} cannot be used: {error}") from None


def _open(file: Path | None) -> sqlite3.Connection:
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"cannot keep stores in {file.parent}: {error.strerror or error}") from None
    connection = sqlite3.connect(file or ":memory:", timeout=LOCKED_S, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _TABLES)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _get(connection: sqlite3.Connection, place: _Place, key: str) -> str | None:
    row = connection.execute(
        "SELECT value FROM entries WHERE (tenant, store, key) = (?, ?, ?)", (*place, key.encode())
    ).fetchone()
    return None if row is None else bytes(row[0]).decode()


def _keys(connection: sqlite3.Connection, place: _Place, prefix: str) -> list[str]:
    wanted = prefix.encode()
    rows = connection.execute(
        "SELECT key FROM entries WHERE (tenant, store) = (?, ?) AND coalesce(substr(key, 1, ?), x'') = ? ORDER BY key",
        (*place, len(wanted), wanted),
    )
    keys = [bytes(key) for (key,) in rows]
    if (num_bytes := sum(map(len, keys))) > MAX_KEYS_BYTES:
        raise LimitExceeded(
            f"{len(keys)} keys have {num_bytes} bytes; one answer has at most {MAX_KEYS_BYTES}",
            hint="ask for those with a longer prefix",
            field="prefix",
        )
    return [key.decode() for key in keys]


def _put(connection: sqlite3.Connection, place: _Place, key: str, value: str | None, max_bytes: int) -> None:
    """Sets or, with None, deletes."""
    old = _get(connection, place, key)
    (store_bytes,) = connection.execute(
        "SELECT coalesce(sum(num_bytes), 0) FROM sizes WHERE (tenant, store) = (?, ?)", place
    ).fetchone()
    (tenant_bytes,) = connection.execute(
        "SELECT coalesce(sum(num_bytes), 0) FROM sizes WHERE tenant = ?", place[:1]
    ).fetchone()
    more = _entry_bytes(key, value) - _entry_bytes(key, old)
    if more > 0:
        _check_size(place[1], store_bytes + more, max_bytes, tenant_bytes + more)
    at = (*place, key.encode())
    if value is None:
        connection.execute("DELETE FROM entries WHERE (tenant, store, key) = (?, ?, ?)", at)
    else:
        connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (*at, value.encode()))
    if store_bytes + more:
        connection.execute("INSERT OR REPLACE INTO sizes VALUES (?, ?, ?)", (*place, store_bytes + more))
    else:
        connection.execute("DELETE FROM sizes WHERE (tenant, store) = (?, ?)", place)


def _entry_bytes(key: str, value: str | None) -> int:
    return 0 if value is None else len(key.encode()) + len(value.encode()) + ENTRY_OVERHEAD_BYTES


def _check_size(store: str, store_bytes: int, max_bytes: int, tenant_bytes: int) -> None:
    name = f"the store {store!r}" if store else "the run's own store"
    if store_bytes > max_bytes:
        raise LimitExceeded(
            f"{name} would hold {store_bytes} bytes; the run's limit is {max_bytes}",
            hint=raise_hint("max_state_bytes", max_bytes, "keep less"),
            field="max_state_bytes",
        )
    if tenant_bytes > MAX_TENANT_BYTES:
        raise LimitExceeded(
            f"all stores together would hold {tenant_bytes} bytes; the limit is {MAX_TENANT_BYTES}",
            hint="delete keys that nobody needs",
        )
