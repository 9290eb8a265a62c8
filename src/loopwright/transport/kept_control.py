"""Control in another process that is started again when it dies, seen as one core.control.Control. Never starts it.

While none is there every session and request is refused as Unavailable, and nothing waits; what was under way ends with
the connection that it had. Made by compose, in runtime workers.
"""

import asyncio
import logging

from loopwright.core.control import ControlLimits, ControlStats
from loopwright.core.errors import Unavailable
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import Measured
from loopwright.core.model_info import ModelInfo
from loopwright.transport.control_client import ControlClient, RemoteSession

log = logging.getLogger(__name__)

RECONNECT_S = 60.0  # how long one attempt waits for a model worker, before there is another


class KeptControl:
    """Connections to the model workers that come after one another at an address; `connect` makes it."""

    def __init__(self, client: ControlClient, address: str, name: str) -> None:
        self._client = client
        self._address = address
        self._name = name
        self._models = client.models()
        self._has_changed = False
        self._keeping = asyncio.create_task(self._keep())

    @classmethod
    async def connect(cls, address: str, *, name: str, timeout_s: float = 60.0) -> "KeptControl":
        """As ControlClient.connect, for the first time."""
        return cls(await ControlClient.connect(address, name=name, timeout_s=timeout_s), address, name)

    def models(self) -> tuple[ModelInfo, ...]:
        return self._models

    def open(
        self, run_id: RunId, limits: ControlLimits, tenant: TenantId = ONE_TENANT, program: str = ""
    ) -> RemoteSession:
        """Raises Unavailable while no model worker is there."""
        self._check()
        return self._client.open(run_id, limits, tenant, program)

    def expect(self, num_launches: int) -> None:
        """Nothing: with runtime workers of their own, programs start side by side."""

    async def stats(self) -> ControlStats:
        self._check()
        return await self._client.stats()

    async def metrics(self) -> Measured:
        self._check()
        return await self._client.metrics()

    async def close(self) -> None:
        """Ends the connection and all its sessions, and looks for no other."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._client.close()

    def _check(self) -> None:
        if self._has_changed:
            raise Unavailable("the model's file has changed since the server started", hint="restart the server")

    async def _keep(self) -> None:
        while True:
            await self._client.lost()
            client = await self._next_client()
            if client.models() != self._models:  # the tokenizer here, and the programs that run, belong to the other
                client.close()
                self._has_changed = True
                return
            self._client = client
            log.warning("%s is connected to the model worker again", self._name)

    async def _next_client(self) -> ControlClient:
        while True:
            try:
                return await ControlClient.connect(self._address, name=self._name, timeout_s=RECONNECT_S)
            except Unavailable:
                continue  # none came, or it died at once: the next one may stay
