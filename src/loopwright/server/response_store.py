"""Keeps responses for those who go on from them or ask for them again: in memory, bounded, each for its tenant alone.

Never makes one. Beyond a limit the oldest of the tenant that has most goes first. Used by the routes of Responses.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from loopwright.core.clock import Clock
from loopwright.core.errors import NotFound
from loopwright.core.ids import TenantId
from loopwright.core.metrics import RESPONSES_KEPT, RESPONSES_KEPT_BYTES, Series
from loopwright.server.answers import Answer
from loopwright.server.json_text import encode_json
from loopwright.server.response_limits import ResponsesConfig
from loopwright.server.response_request import ResponseRequest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begun:
    """The run of a response, and the request that it answers."""

    answer: Answer
    request: ResponseRequest

    @property
    def response_id(self) -> str:
        return f"resp_{self.answer.run_id}"


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response. `items` are all that was said up to its end, what it went on from included; `inputs` are those of its
    own request. `begun` is there of one in the background."""

    response: Json
    inputs: tuple[Json, ...]
    items: tuple[Json, ...]
    begun: Begun | None = None

    @property
    def is_being_made(self) -> bool:
        return bool(self.response["status"] == "in_progress")

    @property
    def num_bytes(self) -> int:
        """A request that is kept with it has the same once as it was sent, once as items and once as messages."""
        return len(encode_json([self.response, self.items])) * (1 if self.begun is None else 4)


@dataclass(frozen=True, slots=True)
class _Entry:
    kept: KeptResponse
    num_bytes: int
    until_s: float


@dataclass(slots=True)
class _Shelf:
    """What one tenant has, the oldest first."""

    entries: "OrderedDict[str, _Entry]" = field(default_factory=OrderedDict)
    num_bytes: int = 0


class ResponseStore:
    """Responses by tenant and id."""

    def __init__(self, clock: Clock, config: ResponsesConfig) -> None:
        self._clock = clock
        self._config = config
        self._shelves: dict[TenantId, _Shelf] = {}

    def put(self, tenant: TenantId, kept: KeptResponse) -> None:
        """Keeps one, and lets go of what there is no room for: at last of itself, if it is larger than all may be."""
        self._forget_old()
        entry = _Entry(kept, kept.num_bytes, self._clock.now_s() + self._config.ttl_s)
        shelf = self._shelves.setdefault(tenant, _Shelf())
        if (former := shelf.entries.pop(kept.response["id"], None)) is not None:
            shelf.num_bytes -= former.num_bytes
        shelf.entries[kept.response["id"]] = entry
        shelf.num_bytes += entry.num_bytes
        while self.num_responses > self._config.max_responses or self.num_bytes > self._config.max_bytes:
            fullest = max(self._shelves, key=lambda one: self._shelves[one].num_bytes)
            self._drop(fullest, next(iter(self._shelves[fullest].entries)))

    def get(self, tenant: TenantId, response_id: str, field: str = "response_id") -> KeptResponse:
        """Raises NotFound, naming that field of the request."""
        self._forget_old()
        shelf = self._shelves.get(tenant)
        if shelf is None or response_id not in shelf.entries:
            raise NotFound(
                f"{field}: there is no response {response_id[:100]!r}",
                hint="one is kept for a while, unless `store` is false",
                field=field,
            )
        return shelf.entries[response_id].kept

    def delete(self, tenant: TenantId, response_id: str) -> None:
        """Raises NotFound."""
        self.get(tenant, response_id)
        self._drop(tenant, response_id)

    @property
    def max_responses(self) -> int:
        return self._config.max_responses

    @property
    def num_responses(self) -> int:
        return sum(len(shelf.entries) for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        return sum(shelf.num_bytes for shelf in self._shelves.values())

    def series(self) -> tuple[Series, ...]:
        """What is to be measured of it."""
        return (
            Series(RESPONSES_KEPT.name, (), self.num_responses),
            Series(RESPONSES_KEPT_BYTES.name, (), self.num_bytes),
        )

    def check_integrity(self) -> None:
        for shelf in self._shelves.values():
            assert shelf.entries, "a tenant that has nothing has no shelf"
            assert shelf.num_bytes == sum(entry.kept.num_bytes for entry in shelf.entries.values())
            ends = [entry.until_s for entry in shelf.entries.values()]
            assert ends == sorted(ends), "the oldest stands first"
        assert self.num_responses <= self._config.max_responses
        assert self.num_bytes <= self._config.max_bytes

    def _forget_old(self) -> None:
        now_s = self._clock.now_s()
        for tenant, shelf in list(self._shelves.items()):
            for response_id, entry in list(shelf.entries.items()):
                if entry.until_s > now_s:
                    break
                self._drop(tenant, response_id)

    def _drop(self, tenant: TenantId, response_id: str) -> None:
        shelf = self._shelves[tenant]
        shelf.num_bytes -= shelf.entries.pop(response_id).num_bytes
        if not shelf.entries:
            del self._shelves[tenant]
