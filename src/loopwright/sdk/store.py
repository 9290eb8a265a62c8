"""String stores: a run's own, and named ones that outlive runs. Never caches what it read.

A named store wants a permission: `permissions = { state = ["notes"] }`.
"""

from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.port import current_port


@checked
class Store:
    """Strings by key. `Store()` is the run's own and ends with it; `Store("notes")` is shared by all runs whose
    permissions list it, and kept by the server."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    async def get(self, key: str) -> str | None:
        """What the key holds, or None."""
        value: str | None = (await self._ask("get", key=key))["value"]
        return value

    async def set(self, key: str, value: str) -> None:
        await self._ask("set", key=key, value=value)

    async def delete(self, key: str) -> bool:
        """Whether the key held anything."""
        existed: bool = (await self._ask("delete", key=key))["existed"]
        return existed

    async def exists(self, key: str) -> bool:
        exists: bool = (await self._ask("exists", key=key))["exists"]
        return exists

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, in order."""
        keys: list[str] = (await self._ask("keys", prefix=prefix))["keys"]
        return keys

    async def compare_and_set(self, key: str, expected: str | None, value: str | None) -> bool:
        """Sets the key if it holds what is expected, in one go; whether it did. None is no value: expected None sets
        only a new key, value None deletes."""
        is_set: bool = (await self._ask("compare_and_set", key=key, expected=expected, value=value))["is_set"]
        return is_set

    async def _ask(self, what: str, **fields: Any) -> Any:  # noqa: ANN401 (JSON)
        return await current_port().issue({"op": f"store_{what}", "store": self.name, **fields})
