"""The seam between a run and the place where the runs of a server meet: channels and named stores. Never implements it.

Implemented inline by the runtime's exchange, and by a socket client in a runtime worker.
"""

from typing import Any, Protocol, TypeAlias

from loopwright.core.ids import RunId, TenantId
from loopwright.core.message_calls import ChannelCall
from loopwright.core.store_calls import StoreCall

SharedCall: TypeAlias = ChannelCall | StoreCall


class Member(Protocol):
    """One run's door to the exchange. What it holds there is given back by `close`."""

    async def ask(self, call: SharedCall) -> Any:  # noqa: ANN401 (JSON)
        """The call's payload. Raises LoopwrightError. Cancelled, it waits no more; what it was lent stays lent until
        the call `settle`, or the end."""
        ...

    def close(self) -> None:
        """Ends its subscriptions and waits, and puts back what it was lent. Closing twice is allowed."""
        ...


class Exchange(Protocol):
    """Where runs meet. Tenants do not see each other."""

    def join(self, run_id: RunId, tenant: TenantId, max_state_bytes: int) -> Member:
        """A door for a run. A store that it writes may not grow beyond `max_state_bytes`."""
        ...
