"""Runs that only talk: a `Runs` without a model, whose runs write so many texts, as fast as they are taken or in steps.

Used by the serving suite, which measures what a server does with events and nothing of where they come from.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from loopwright.core.control import ControlStats
from loopwright.core.errors import InternalError
from loopwright.core.events import Event, Finished, Started, Text
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import NOTHING_MEASURED, Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, RunSpec

TALK = ModelInfo(
    name="talk", architecture="none", traits=(), vocab_size=1, max_context=1, page_size=1, num_pages=1, eos_ids=(),
    bos_id=None, has_chat_template=True, quantization="none", weights_sha256="",
)  # fmt: skip


class TalkingRuns:
    """With a `step_s` all runs write at the same times, as those of one batch do, and say when."""

    def __init__(self, num_texts: int, step_s: float | None = None) -> None:
        self._num_texts = num_texts
        self._step_s = step_s
        self._num_runs = 0

    def models(self) -> tuple[ModelInfo, ...]:
        return (TALK,)

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return ()

    async def start(self, spec: RunSpec) -> RunId:
        self._num_runs += 1
        return RunId(f"{self._num_runs:016x}")

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        yield Started(run=run_id, seq=0, time_s=0.0, program="chat", sandbox="native", model="talk", seed=0)
        for seq in range(1, self._num_texts + 1):
            text = await self._next_text()
            yield Text(run=run_id, seq=seq, time_s=0.0, text=text)
        yield Finished(run=run_id, seq=self._num_texts + 1, time_s=0.0, code="ok", result={})

    async def _next_text(self) -> str:
        if self._step_s is None:
            await asyncio.sleep(0)  # the one before is on its way by now, so each becomes a chunk
            return " token"
        now_s = time.monotonic()
        await asyncio.sleep(self._step_s - now_s % self._step_s)
        return f"@{time.monotonic_ns()} "

    async def cancel(self, run_id: RunId) -> None: ...

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        raise InternalError("these runs only talk")

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        raise InternalError("these runs only talk")

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        raise InternalError("these runs only talk")

    async def runs(self) -> tuple[RunInfo, ...]:
        return ()

    async def metrics(self) -> Measured:
        return NOTHING_MEASURED

    async def stats(self) -> ControlStats:
        return ControlStats()
