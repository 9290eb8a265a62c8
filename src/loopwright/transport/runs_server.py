"""Serves a core.runs.Runs to server processes over a socket. Never decides anything. Run by compose, runtime worker.

Every request and every event stream is a task. A stream sends as many events as its reader has granted, so a slow
reader holds up its own stream alone; what comes meanwhile stays with the run. When a server process dies, what it
started and has not seen the end of is cancelled: whoever wanted it was connected to that process.
"""

import asyncio
import logging
from contextlib import suppress
from typing import assert_never

import msgspec

from loopwright.core.errors import InternalError, LoopwrightError, NotFound
from loopwright.core.events import Finished
from loopwright.core.ids import RunId
from loopwright.core.runs import Runs, open_events
from loopwright.transport import runs_messages as messages
from loopwright.transport.link import LinkServer, Peer

log = logging.getLogger(__name__)

MAX_CREDIT = 1 << 16  # of one grant


class RunsServer(LinkServer["_Client"]):
    """One listening address; any number of clients."""

    def __init__(self, runs: Runs, address: str) -> None:
        super().__init__(address, _Client)
        self._runs = runs
        self._ending: set[asyncio.Task[None]] = set()

    def _take(self, peer: Peer, payload: bytes) -> None:
        try:
            message = messages.decode_to_runs(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            log.warning("dropped a malformed message of a server process: %s", error)
            return
        client = self._client(peer)
        match message:
            case messages.Hello(name):
                client.name = name
                self._send(peer, messages.Welcome(self._runs.models()))
            case messages.OpenStream(stream_id):
                credit = asyncio.Semaphore(min(message.credit, MAX_CREDIT))
                task = self._tasks.create_task(self._carry_events(peer, client, message, credit))
                client.streams[stream_id] = _Stream(task, credit)
                task.add_done_callback(lambda _: client.streams.pop(stream_id, None))
            case messages.GrantCredit(stream_id, num_events):
                if (stream := client.streams.get(stream_id)) is not None:
                    stream.grant(min(num_events, MAX_CREDIT))
            case messages.CloseStream(stream_id):
                if (stream := client.streams.pop(stream_id, None)) is not None:
                    stream.task.cancel()
            case messages.Goodbye():
                self._dismiss(peer)
            case _:
                self._tasks.create_task(self._answer(peer, message))

    async def _carry_events(
        self, peer: Peer, client: "_Client", message: messages.OpenStream, credit: asyncio.Semaphore
    ) -> None:
        try:
            async with open_events(self._runs, message.run, message.after) as events:
                async for event in events:
                    await credit.acquire()
                    await self._link.drained(peer)
                    self._send(peer, messages.StreamEvent(message.stream, event))
                    if isinstance(event, Finished):
                        client.started.discard(message.run)
                        return
            raise InternalError(f"the events of run {message.run} ended without a final one")
        except LoopwrightError as error:
            self._send(peer, messages.StreamFailed(message.stream, error.info()))
        except Exception as error:  # a fault in one stream must not end the service of the others
            log.exception("the events of run %s failed", message.run)
            self._send(peer, messages.StreamFailed(message.stream, InternalError(repr(error)).info()))

    async def _answer(self, peer: Peer, request: messages.Request) -> None:
        try:
            answer = await self._carry_out(request)
        except LoopwrightError as error:
            self._send(peer, messages.RequestFailed(request.request, error.info()))
        except Exception as error:  # a fault over one request must not end the service of the others
            log.exception("the request %s failed", type(request).__name__)
            self._send(peer, messages.RequestFailed(request.request, InternalError(repr(error)).info()))
        else:
            if isinstance(answer, messages.RunStarted):
                if (client := self._clients.get(peer)) is None:  # it has gone meanwhile
                    await self._cancel_unclaimed(answer.run)
                else:
                    client.started.add(answer.run)
            elif isinstance(request, messages.CancelRun) and (client := self._clients.get(peer)) is not None:
                client.started.discard(request.run)  # who leaves a run does not read its end
            self._send(peer, answer)

    async def _carry_out(self, request: messages.Request) -> messages.Answer:
        number = request.request
        match request:
            case messages.DeployProgram():
                program = await self._runs.deploy(request.name, request.source, request.filename, request.tenant)
                return messages.ProgramDeployed(number, program)
            case messages.RemoveProgram():
                await self._runs.undeploy(request.name, request.tenant)
                return messages.ProgramRemoved(number)
            case messages.AskPrograms():
                return messages.ProgramsAnswer(number, await self._runs.programs())
            case messages.StartRun():
                return messages.RunStarted(number, await self._runs.start(request.spec))
            case messages.CancelRun():
                await self._runs.cancel(request.run)
                return messages.RunCancelled(number)
            case messages.SendInput():
                await self._runs.send(request.run, request.sent)
                return messages.InputTaken(number)
            case messages.AskRuns():
                return messages.RunsAnswer(number, await self._runs.runs())
            case messages.AskStats():
                return messages.StatsAnswer(number, await self._runs.stats())
            case messages.AskMetrics():
                return messages.MetricsAnswer(number, await self._runs.metrics())
            case _:
                assert_never(request)

    def _release(self, peer: Peer) -> None:
        client = self._clients.get(peer)
        super()._release(peer)
        for run_id in () if client is None else client.started:
            task = asyncio.create_task(self._cancel_unclaimed(run_id))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _cancel_unclaimed(self, run_id: RunId) -> None:
        """A run whose client has gone: nobody will ever read it."""
        with suppress(NotFound):
            await self._runs.cancel(run_id)

    def _send(self, peer: Peer, message: messages.FromRuns) -> None:
        self._link.send(peer, messages.encode(message))


class _Stream:
    """The task that carries a run's events, and what its reader has granted."""

    def __init__(self, task: asyncio.Task[None], credit: asyncio.Semaphore) -> None:
        self.task = task
        self._credit = credit

    def grant(self, num_events: int) -> None:
        for _ in range(num_events):
            self._credit.release()


class _Client:
    """A connected server process."""

    def __init__(self) -> None:
        self.name = ""
        self.streams: dict[int, _Stream] = {}
        self.started: set[RunId] = set()  # by it, and it has not been sent their end

    def leave(self) -> None:
        for stream in list(self.streams.values()):
            stream.task.cancel()
