"""Chooses the worker of each run and remembers it. Never looks into a run. Called by the server as core.runs.Runs.

A new run goes to the worker with the fewest live runs, and stays there. A worker that died is left out: what it ran
ends with the final event that its client makes, and stays readable; the rest goes on. Who starts workers admits others.
"""

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from loopwright.core.control import ControlStats
from loopwright.core.errors import BadRequest, NotFound, Overloaded, PermissionDenied, Unavailable
from loopwright.core.events import Event
from loopwright.core.ids import ONE_TENANT, RunId, TenantId
from loopwright.core.metrics import NOTHING_MEASURED, Measured
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, Runs, RunSpec, open_events
from loopwright.router.followed_run import FollowedRun

MAX_REMEMBERED = 100_000  # runs whose worker is known without asking
MAX_ENDED_RUNS = 1000  # whose events are kept here; the worker, while it lives, may keep more
MAX_ENDED_BYTES = 256 << 20
NUM_STARTS_BETWEEN_COUNTS = 256  # then the workers are asked: runs that nobody reads end unseen

AnswerT = TypeVar("AnswerT")

_Deployed: TypeAlias = tuple[str, str, TenantId]
"""Source, filename and whose it is."""


class Worker(Runs, Protocol):
    """A runtime worker as the router sees it."""

    @property
    def is_alive(self) -> bool:
        """False once its process is gone; it does not come back."""
        ...


class Router:
    """Runs over N workers. `deploy` and `undeploy` reach all of them; lists are merged."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = list(workers)
        self._live: defaultdict[Worker, set[RunId]] = defaultdict(set)
        self._num_starting: Counter[Worker] = Counter()
        self._worker_of: OrderedDict[RunId, Worker] = OrderedDict()  # the oldest first
        self._num_starts = 0
        self._followed: dict[RunId, FollowedRun] = {}
        self._ended: OrderedDict[RunId, FollowedRun] = OrderedDict()  # those of them that are over, the oldest first
        self._num_ended_bytes = 0
        self._following: set[asyncio.Task[None]] = set()
        self._deployed: dict[str, _Deployed | None] = {}  # by name; None is one that was removed
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of names that are being changed

    async def close(self) -> None:
        """Reads no more. The runs go on."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def admit(self, worker: Worker) -> None:
        """Takes in a worker that has just started, in the place of those that died; tells it what was deployed and
        removed since the router began, also while it is told."""
        told: dict[str, _Deployed | None] = {}
        while news := {name: one for name, one in self._deployed.items() if name not in told or told[name] != one}:
            for name, deployed in news.items():
                await _tell(worker, name, deployed)
            told |= news
        for dead in [one for one in self._workers if not one.is_alive]:
            self._workers.remove(dead)
            self._live.pop(dead, None)
        self._workers.append(worker)

    def models(self) -> tuple[ModelInfo, ...]:
        return self._workers[0].models()

    async def deploy(self, name: str, source: str, filename: str, tenant: TenantId = ONE_TENANT) -> ProgramInfo:
        told = await self._change(
            name, lambda worker: worker.deploy(name, source, filename, tenant), (source, filename, tenant)
        )
        return next(iter(told.values()))

    async def undeploy(self, name: str, tenant: TenantId = ONE_TENANT) -> None:
        await self._change(name, lambda worker: worker.undeploy(name, tenant), None)

    async def programs(self) -> tuple[ProgramInfo, ...]:
        return await self._alive()[0].programs()

    async def start(self, spec: RunSpec) -> RunId:
        """As Runs.start. A worker that is full or dies meanwhile is passed over; Overloaded only when all are full."""
        self._num_starts += 1
        if self._num_starts % NUM_STARTS_BETWEEN_COUNTS == 0:
            await self.runs()
        refusal: Overloaded | None = None
        for worker in sorted(self._alive(), key=self._load):
            try:
                return await self._start_on(worker, spec)
            except Overloaded as error:
                refusal = error
            except Unavailable:
                if worker.is_alive:
                    raise
        raise refusal or _none_left()

    async def events(self, run_id: RunId, after: int = -1) -> AsyncIterator[Event]:
        if (followed := self._followed.get(run_id)) is not None:
            async for event in followed.feed.follow(after):
                yield event
            return
        async with open_events(await self._find(run_id), run_id, after) as events:
            async for event in events:
                yield event

    async def cancel(self, run_id: RunId) -> None:
        if run_id not in self._ended:
            worker = await self._find(run_id)
            if worker.is_alive:
                await worker.cancel(run_id)

    async def send(self, run_id: RunId, sent: ClientInput) -> None:
        if run_id in self._ended:
            raise BadRequest(f"the run {run_id} is over", field="run")
        await (await self._find(run_id)).send(run_id, sent)

    async def runs(self) -> tuple[RunInfo, ...]:
        """Those of all live workers, and those that ended with a worker or before it died, by start."""
        lists = await self._ask_all(lambda worker: worker.runs())
        known = {info.run: info for infos in lists.values() for info in infos}
        for worker, infos in lists.items():
            self._live[worker] = {info.run for info in infos if info.state == "running"}
            for info in infos:
                self._remember(info.run, worker)
        left = [run.info() for run in self._ended.values() if run.run_id not in known]
        return tuple(sorted((*known.values(), *left), key=lambda info: info.started_s))

    async def stats(self) -> ControlStats:
        """Any worker's: they share one control layer, and each reports the whole of it."""
        return await self._alive()[0].stats()

    async def metrics(self) -> Measured:
        """Of all workers that live; what they share is in each one's answer, and counts once."""
        with suppress(Unavailable):
            answers = await self._ask_all(lambda worker: worker.metrics())
            return reduce(or_, answers.values())
        return NOTHING_MEASURED

    async def _change(
        self, name: str, ask: Callable[[Worker], Awaitable[AnswerT]], deployed: _Deployed | None
    ) -> dict[Worker, AnswerT]:
        """As `_ask_all`, of a program: all workers hear of its changes in the same order."""
        async with self._turns.setdefault(name, asyncio.Lock()):
            answers = await self._ask_all(ask)
            self._deployed[name] = deployed
            for worker in [one for one in self._workers if one.is_alive and one not in answers]:  # admitted meanwhile
                with suppress(Unavailable):
                    await _tell(worker, name, deployed)
            return answers

    async def _ask_all(self, ask: Callable[[Worker], Awaitable[AnswerT]]) -> dict[Worker, AnswerT]:
        """The answer of each worker that lives to give it. Raises what one raises; Unavailable if none is left."""
        workers = self._alive()
        answers = await asyncio.gather(*(ask(worker) for worker in workers), return_exceptions=True)
        answered: dict[Worker, AnswerT] = {}
        for worker, answer in zip(workers, answers, strict=True):
            if not isinstance(answer, BaseException):
                answered[worker] = answer
            elif worker.is_alive or not isinstance(answer, Unavailable):
                raise answer
        if not answered:
            raise _none_left()
        return answered

    async def _start_on(self, worker: Worker, spec: RunSpec) -> RunId:
        self._num_starting[worker] += 1
        try:
            run_id = await worker.start(spec)
        finally:
            self._num_starting[worker] -= 1
        self._live[worker].add(run_id)
        self._remember(run_id, worker)
        self._follow(worker, run_id, spec)
        return run_id

    def _follow(self, worker: Worker, run_id: RunId, spec: RunSpec) -> None:
        run = FollowedRun(run_id, spec, lambda run: self._end(run, worker))
        self._followed[run_id] = run
        task = asyncio.create_task(run.follow(worker))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    def _end(self, run: FollowedRun, worker: Worker) -> None:
        self._live[worker].discard(run.run_id)
        self._ended[run.run_id] = run
        self._num_ended_bytes += run.num_bytes
        while len(self._ended) > MAX_ENDED_RUNS or self._num_ended_bytes > MAX_ENDED_BYTES:
            run_id, oldest = self._ended.popitem(last=False)
            self._num_ended_bytes -= oldest.num_bytes
            del self._followed[run_id]

    async def _find(self, run_id: RunId) -> Worker:
        if run_id not in self._worker_of:
            await self.runs()  # another server process may have started it
        worker = self._worker_of.get(run_id)
        if worker is None or (not worker.is_alive and run_id not in self._followed):
            raise NotFound(f"there is no run {run_id}", field="run")
        return worker

    def _remember(self, run_id: RunId, worker: Worker) -> None:
        self._worker_of[run_id] = worker
        if len(self._worker_of) > MAX_REMEMBERED:
            self._worker_of.popitem(last=False)

    def _alive(self) -> list[Worker]:
        alive = [worker for worker in self._workers if worker.is_alive]
        if not alive:
            raise _none_left()
        return alive

    def _load(self, worker: Worker) -> int:
        return len(self._live[worker]) + self._num_starting[worker]


async def _tell(worker: Worker, name: str, deployed: _Deployed | None) -> None:
    """Of a program as it is now. What the worker has may be an older one, of a tenant who removed it meanwhile."""
    if deployed is not None:
        with suppress(PermissionDenied):
            await worker.deploy(name, *deployed)
            return
    with suppress(NotFound):
        await worker.undeploy(name)
    if deployed is not None:
        await worker.deploy(name, *deployed)


def _none_left() -> Unavailable:
    return Unavailable("no runtime worker is up", hint="one is being started; try again")
