"""Executes a run, from its turn to start to its final event. Never admits, counts or forgets one: the launcher does.

Puts a host between the program and the models that it uses, hands both to the sandbox, and holds the run's deadline.
"""

import asyncio
import json
from typing import Any

import msgspec

from loopwright.core.clock import Clock
from loopwright.core.control import ControlLimits
from loopwright.core.errors import Cancelled, DeadlineExceeded, InternalError, LoopwrightError, ProgramError
from loopwright.core.raise_hint import raise_hint
from loopwright.runtime.facts import RunFacts
from loopwright.runtime.host import Host
from loopwright.runtime.launch_queue import LaunchQueue
from loopwright.runtime.model_doors import ModelDoors
from loopwright.runtime.narrowing import DENIED_TO_CHILD
from loopwright.runtime.run import Run
from loopwright.runtime.served_models import ServedModels
from loopwright.runtime.services import Answers, Services
from loopwright.runtime.tracing import RunTrace, TraceSink


class Execution:
    """Over what all runs of one process share. Without `holds_deadline`, who stands at a breakpoint takes his time;
    `trace` takes the traces of all runs."""

    def __init__(
        self,
        models: ServedModels,
        services: Services,
        clock: Clock,
        launches: LaunchQueue,
        trace: TraceSink | None,
        *,
        holds_deadline: bool,
    ) -> None:
        self._models = models
        self._services = services
        self._clock = clock
        self._launches = launches
        self._trace = trace
        self._holds_deadline = holds_deadline

    async def execute(self, run: Run, children: Answers) -> None:
        """From admission to the final event. `children` answers the calls about those."""
        try:
            result = await self._execute_in_time(run, children)
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 (the boundary of a run: it ends, not the server)
            error = _as_error(problem, run)
            run.finish(error.code, error=error.info())
        else:
            run.finish("ok", result=result)

    async def _execute_in_time(self, run: Run, children: Answers) -> Any:  # noqa: ANN401 (JSON)
        deadline = asyncio.timeout(run.limits.seconds if self._holds_deadline else None)
        try:
            async with deadline:
                result = await self._execute_in_sandbox(run, children)
                run.events.check_result(len(result))
                return msgspec.json.decode(result)
        except (TimeoutError, LoopwrightError):
            if not deadline.expired() or run.failure is not None:
                raise
            raise DeadlineExceeded(
                f"the run took longer than its {run.limits.seconds} s",
                hint=raise_hint("seconds", run.limits.seconds),
                field="seconds",
            ) from None

    async def _execute_in_sandbox(self, run: Run, children: Answers) -> str:
        if run.sandbox.is_paced:
            await self._launches.turn(run.tenant)
        run.observation.launches()
        limits = ControlLimits(**{name: getattr(run.limits, name) for name in ControlLimits.__struct_fields__})
        parent = None if run.parent is None else {"run": run.parent.run_id, "context": run.context}
        facts = RunFacts(run.run_id, run.seed, run.arguments, run.model, parent, run.tenant)
        doors = ModelDoors(
            self._models, run.model, run.run_id, run.tenant, limits, run.children.permissions, run.observation.program
        )
        trace = None
        if self._trace is not None:  # of what goes to its own model
            trace = RunTrace(run.run_id, doors.text(""), self._clock, self._trace)
            doors.wrap_default(trace.session)
        try:
            async with (
                self._services.open(
                    facts, run.children.permissions, run.budget, run.mailbox, run.events, run.observation
                ) as answers,
                Host(
                    doors=doors,
                    answers={**answers, **children},
                    events=run.events,
                    limits=run.limits,
                    fail=run.fail,
                    observation=run.observation,
                    denial_hint="" if run.parent is None else DENIED_TO_CHILD,
                ) as host,
            ):
                arguments = json.dumps(run.arguments)
                guest = host if trace is None else trace.guest(host)
                program = run.program
                try:
                    return await run.sandbox.run(
                        program.code, program.filename, arguments, guest, run.limits, run.budget
                    )
                except ProgramError as error:
                    raise host.blamed(error) from None
        finally:
            doors.close()


def _as_error(problem: BaseException, run: Run) -> LoopwrightError:
    """What ended the run, out of the groups that our own task groups wrap it in. If somebody decided that it ends, that
    is it, whatever the program made of being cancelled."""
    if run.failure is not None:
        return run.failure
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    if isinstance(problem, asyncio.CancelledError):
        return Cancelled("the run was cancelled")
    if isinstance(problem, LoopwrightError):
        return problem
    return InternalError(f"{type(problem).__name__}: {problem}")
