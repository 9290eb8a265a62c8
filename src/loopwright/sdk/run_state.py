"""What the sdk keeps per run: fresh names and the description of run and model. Used by resources and Context.

Names of queues, pages and embeds are the program's own; a counter per run keeps them apart.
"""

import asyncio
from typing import Any

from loopwright.sdk.port import Port, current_port


class RunState:
    """One run's names and facts."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._next_name = 1
        self._num_contexts = 0
        self.idle_queues: dict[tuple[int, str], list[int]] = {}  # names that closed contexts left
        self._has_taken_context = False
        self._descriptions: dict[str, asyncio.Future[dict[str, Any]]] = {}

    def take_names(self, count: int = 1) -> int:
        """The first of `count` consecutive fresh names."""
        first = self._next_name
        self._next_name += count
        return first

    def take_context_number(self) -> int:
        """0, 1, 2 … in the order in which the program makes contexts."""
        self._num_contexts += 1
        return self._num_contexts - 1

    async def description(self, model: str = "") -> dict[str, Any]:
        """{run, seed, model, tool_format}, asked once of each model; "" is the run's own."""
        found = self._descriptions.get(model)
        if found is None or found.cancelled():
            found = self._descriptions[model] = self._port.issue(
                {"op": "describe", "model": model, "include": ["tool_format"]}
            )
        return await asyncio.shield(found)

    async def take_parent_context(self) -> dict[str, Any] | None:
        """What the run that spawned this one gave it, the first time; then None."""
        if self._has_taken_context:
            return None
        parent = (await self._port.issue({"op": "describe", "include": ["parent"]}))["parent"]
        if self._has_taken_context:
            return None
        self._has_taken_context = True
        found: dict[str, Any] | None = parent and parent["context"]
        return found


def run_state() -> RunState:
    """The state of the run that executes here."""
    port = current_port()
    if port.state is None:
        port.state = RunState(port)
    state: RunState = port.state
    return state
