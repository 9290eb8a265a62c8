"""Forms steps of groups that a policy made, first come, first served. Never decides what a group is: the policy does.

Stands in for the scheduler under every policy but `adaptive`, which needs no groups: there the engine's turn decides.
It exists to compare policies, so it is simple and not fast.
"""

import math
from collections import deque
from typing import TypeAlias

from loopwright.control.config import ControlConfig
from loopwright.control.decoding import DecodeGroup
from loopwright.control.ordering import OpenCall
from loopwright.control.pace import Pace
from loopwright.control.policies import Adaptive, Policy, make_policy
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.scheduler import Scheduler
from loopwright.control.step import Step
from loopwright.core.executor import EngineShape
from loopwright.core.ids import RunId

AnyScheduler: TypeAlias = "Scheduler | GroupingScheduler"


def make_scheduler(config: ControlConfig, resources: ResourceManager, pace: Pace) -> AnyScheduler:
    """The scheduler for the configured policy. `pace` is for that which forms a step when the engine is idle."""
    policy = make_policy(
        config.policy, num_calls=config.policy_calls, wait_s=config.policy_wait_s, max_wait_s=config.policy_max_wait_s
    )
    return (
        Scheduler(config, resources, pace)
        if isinstance(policy, Adaptive)
        else GroupingScheduler(policy, config, resources)
    )


def goes_ahead(config: ControlConfig, shape: EngineShape) -> bool:
    """Whether steps are formed while others run. Raises ValueError if that is asked for and cannot be."""
    is_usual = shape.steps_ahead == "usual" and config.policy == "adaptive"
    if config.steps_ahead != "on":
        return is_usual and config.steps_ahead == "auto"
    if shape.steps_ahead == "never":
        raise ValueError("steps_ahead is on, and this engine takes one step at a time")
    if config.policy != "adaptive":
        raise ValueError(f"steps_ahead is on, and under policy {config.policy} a step begins when the engine is idle")
    return True


class GroupingScheduler:
    """Has the methods of `Scheduler`. A group that does not fit one step, or waits for blocks, keeps its place, and
    those behind it go ahead only if none of it can run. A call with more to run than one row is ready anew after it."""

    def __init__(self, policy: Policy, config: ControlConfig, resources: ResourceManager) -> None:
        self._policy = policy
        self._config = config
        self._resources = resources
        self._ready: list[tuple[float, OpenCall]] = []  # of no group yet, by the time when they became ready
        self._groups: deque[list[OpenCall]] = deque()
        self._ran: list[OpenCall] = []  # in the step that was formed last
        self.suspended: dict[RunId, list[OpenCall]] = {}
        self.is_blocked = False

    def add(self, call: OpenCall, now_s: float) -> None:
        """Takes a call that waits for nobody any more."""
        if call.run_id in self.suspended:
            self.suspended[call.run_id].append(call)
            return
        self._settle_groups(now_s)
        self._ready.append((max(now_s, self._ready[-1][0]) if self._ready else now_s, call))

    def add_again(self, call: OpenCall) -> None:
        """Nobody is kept here."""
        raise AssertionError("a call goes on under a policy of groups")

    @property
    def is_decoding(self) -> bool:
        """Always, as far as others are concerned: when a group runs is the policy's to say."""
        return True

    @property
    def has_segments(self) -> bool:
        """As `is_decoding`."""
        return True

    def reorder(self) -> None:
        """Nothing: each step of a group puts its calls in order anew."""

    def restored(self, call: OpenCall) -> None:
        """Nothing: the call ran, so it is ready anew."""

    def rest(self, call: OpenCall, token_s: float) -> None:
        """Nothing: likewise."""

    def suspend(self, run_id: RunId) -> None:
        """Leaves the run's calls out of all steps from now on."""
        grouped = [call for group in self._groups for call in group]
        ready = [call for _, call in self._ready]
        self.suspended[run_id] = [call for call in grouped + ready if call.run_id == run_id and not call.is_over]
        self._ready = [one for one in self._ready if one[1].run_id != run_id]
        groups = ([call for call in group if call.run_id != run_id] for group in self._groups)
        self._groups = deque(group for group in groups if group)

    def resume(self, run_id: RunId) -> None:
        """Ends what `suspend` began. The run's calls are a group, the last one."""
        if calls := [call for call in self.suspended.pop(run_id, ()) if not call.is_over]:
            self._groups.append(calls)

    def form(self, now_s: float) -> Step:
        """What the next step runs: calls of one group; no call if none can, or if no group is due."""
        self.is_blocked = False
        for call in self._ran:
            if not call.is_over:
                self.add(call, now_s)
        self._ran = []
        self._settle_groups(now_s)
        if self._ready and math.isinf(self.due_s()):  # not due by themselves, but the engine is idle now
            waiting = [*(call for group in self._groups for call in group), *(call for _, call in self._ready)]
            self._groups, self._ready = deque([waiting]), []
        for group in self._groups:
            step = self._form_of(group, now_s)
            if not step.is_empty or step.refused or step.settled:
                return step
        return Step(self._resources.shape.block_size, DecodeGroup(self._resources.shape.block_size))

    def form_ahead(self, now_s: float, running: Step) -> None:
        """Nothing: a step is formed when the engine is idle."""

    def waiting(self) -> list[OpenCall]:
        """The calls that wait for blocks, after a form that took none; nobody is stuck while a group is to come."""
        if self._ready:
            return []
        return [call for group in self._groups for call in group if not call.is_over and not call.is_paused]

    def due_s(self) -> float:
        """When the next group is settled if nothing else happens."""
        self._ready = [one for one in self._ready if not one[1].is_over]
        return self._policy.next_group([one_s for one_s, _ in self._ready]).due_s if self._ready else math.inf

    def _settle_groups(self, now_s: float) -> None:
        while self.due_s() <= now_s:
            num_calls = self._policy.next_group([one_s for one_s, _ in self._ready]).num_calls
            self._groups.append([call for _, call in self._ready[:num_calls]])
            del self._ready[:num_calls]

    def _form_of(self, group: list[OpenCall], now_s: float) -> Step:
        """A step of what can run of the group, which keeps the rest."""
        one_group = Scheduler(self._config, self._resources)
        for call in group:
            if not call.is_over:
                one_group.put(call)
        step = one_group.form(now_s)
        self.is_blocked = self.is_blocked or one_group.is_blocked
        ran = [*step.decoding.calls, *step.calls]
        gone = {id(call) for call in (*ran, *step.settled, *(call for call, _ in step.refused))}
        group[:] = [call for call in group if not call.is_over and id(call) not in gone]
        if ran:
            self._ran = ran
            self._groups = deque(one for one in self._groups if one)
        return step
