"""The calls of string stores: a run's own, and those that the runs of a tenant share. Never executes one.

Part of the union in `host_calls`.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from loopwright.core.call_base import HostCall

StoreName: TypeAlias = Annotated[str, Meta(max_length=128)]
Key: TypeAlias = Annotated[str, Meta(max_length=512)]


class StoreCallBase(HostCall, frozen=True, kw_only=True):
    """Every one of them names a store; "" is the run's own, which ends with it."""

    store: StoreName = ""


class StoreGet(StoreCallBase, frozen=True, kw_only=True, tag="store_get"):
    """What a key holds: {value}, null if it holds nothing."""

    key: Key


class StoreSet(StoreCallBase, frozen=True, kw_only=True, tag="store_set"):
    """Puts a value at a key, whatever it held. Done."""

    key: Key
    value: str


class StoreDelete(StoreCallBase, frozen=True, kw_only=True, tag="store_delete"):
    """Empties a key: {existed}, whether it held anything."""

    key: Key


class StoreExists(StoreCallBase, frozen=True, kw_only=True, tag="store_exists"):
    """Whether a key holds anything: {exists}."""

    key: Key


class StoreKeys(StoreCallBase, frozen=True, kw_only=True, tag="store_keys"):
    """The keys that begin with `prefix`, in order: {keys}."""

    prefix: Key = ""


class StoreCompareAndSet(StoreCallBase, frozen=True, kw_only=True, tag="store_compare_and_set"):
    """Sets a key if it holds what is expected, in one go: {is_set}. null is no value, before and after."""

    key: Key
    expected: str | None
    value: str | None


StoreCall: TypeAlias = StoreGet | StoreSet | StoreDelete | StoreExists | StoreKeys | StoreCompareAndSet
"""Answered by the runtime: the run's own store beside it, a named one by the exchange."""
