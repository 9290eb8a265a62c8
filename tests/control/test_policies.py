"""When waiting calls become a batch, by each policy; and that a policy changes when calls run and nothing else."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.control import controller
from loopwright.control.config import ControlConfig
from loopwright.control.grouping import GroupingScheduler
from loopwright.control.policies import Adaptive, Eager, Group, KOnly, Policy, TOnly
from loopwright.core.calls import AllocatePages, FreePages, Sampling
from loopwright.core.ids import PageName

from .reference import NaiveContext
from .rig import QUEUE, Rig, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
NEVER = math.inf


def rig_with(policy: str, **rest) -> Rig:
    return Rig(config=ControlConfig(policy=policy, policy_calls=3, policy_wait_s=1.0, policy_max_wait_s=5.0, **rest))


def one_step(rig: Rig) -> int:
    """How many rows the next step has; 0 if none is formed now."""
    return rig.executor.batches[-1].num_rows if rig.step() else 0


def submit(rig: Rig, num_runs: int, max_tokens: int = 1) -> list:
    runs = [rig.open(f"run {len(rig.controller._sessions)}") for _ in range(num_runs)]
    return [(run, run.submit(generate((5,), sampling=SAMPLING, max_tokens=max_tokens))) for run in runs]


@dataclass(frozen=True)
class Example:
    policy: Policy
    ready_s: tuple[float, ...]
    group: Group


@pytest.mark.parametrize(
    "one",
    [
        Example(Adaptive(), (1.0, 2.0), Group(2, NEVER)),
        Example(Eager(), (1.0, 1.0, 2.0), Group(1, 1.0)),
        Example(KOnly(2, 5.0), (1.0,), Group(1, 6.0)),
        Example(KOnly(2, 5.0), (1.0, 2.0, 2.0), Group(2, 2.0)),
        Example(KOnly(3, 5.0), (1.0, 2.0, 7.0), Group(2, 6.0)),
        Example(TOnly(1.0), (1.0, 1.5, 2.0, 2.1), Group(3, 2.0)),
    ],
    ids=lambda one: f"{type(one.policy).__name__}: {one.ready_s}",
)
def test_the_next_group_is_how_many_of_the_first_and_when(one: Example) -> None:
    assert one.policy.next_group(one.ready_s) == one.group


@given(
    policy=st.sampled_from([Adaptive(), Eager(), KOnly(3, 5.0), TOnly(1.0)]),
    ready_s=st.lists(st.floats(0, 20), min_size=1, max_size=12).map(sorted),
)
def test_a_group_that_is_due_before_later_calls_is_not_changed_by_them(policy: Policy, ready_s: list[float]) -> None:
    for num in range(1, len(ready_s)):
        group = policy.next_group(ready_s[:num])
        if group.due_s < ready_s[num]:
            assert policy.next_group(ready_s) == group
        assert 1 <= group.num_calls <= num


def test_eager_runs_each_call_alone_in_the_order_of_arrival() -> None:
    rig = rig_with("eager")
    calls = submit(rig, 3)
    assert [one_step(rig) for _ in range(4)] == [1, 1, 1, 0]
    assert all(run.segment(call).tokens for run, call in calls)


def test_k_only_waits_for_so_many_calls_and_for_the_last_few_so_long() -> None:
    rig = rig_with("k-only")
    submit(rig, 2)
    assert one_step(rig) == 0
    submit(rig, 2)
    assert [one_step(rig), one_step(rig)] == [3, 0]
    rig.clock.advance(4.9)
    assert one_step(rig) == 0
    rig.clock.advance(0.2)
    assert one_step(rig) == 1


def test_t_only_waits_so_long_after_the_first_call_and_later_ones_wait_anew() -> None:
    rig = rig_with("t-only")
    submit(rig, 2)
    rig.clock.advance(0.6)
    submit(rig, 1)
    assert one_step(rig) == 0
    rig.clock.advance(0.6)
    submit(rig, 2)  # 0.2 s too late for the first batch
    assert [one_step(rig), one_step(rig)] == [3, 0]
    rig.clock.advance(1.0)
    assert one_step(rig) == 2


def test_adaptive_runs_whatever_waits_when_the_engine_is_idle() -> None:
    rig = rig_with("adaptive")
    submit(rig, 2)
    batch = rig.controller.schedule()
    assert batch is not None
    submit(rig, 3)
    rig.controller.complete(rig.executor.run(batch))
    assert [one_step(rig), one_step(rig)] == [3, 0]


def test_batches_that_wait_for_the_engine_keep_the_members_that_they_had_when_they_were_due() -> None:
    rig = rig_with("k-only")
    submit(rig, 3)
    batch = rig.controller.schedule()
    assert batch is not None
    submit(rig, 4)
    submit(rig, 3)
    rig.controller.complete(rig.executor.run(batch))
    assert [one_step(rig) for _ in range(3)] == [3, 3, 0]


@pytest.mark.parametrize("policy", ["eager", "k-only", "t-only", "adaptive"])
def test_every_policy_gives_the_naive_loops_answers(policy: str) -> None:
    rig = rig_with(policy, max_batch_rows=2, max_batch_tokens=6)
    runs = [rig.open(f"run {n}") for n in range(5)]
    calls = [run.submit(generate(range(2, 4 + 3 * n), sampling=SAMPLING, max_tokens=5)) for n, run in enumerate(runs)]
    for _ in range(200):
        rig.step()
        rig.clock.advance(0.5)
    for n, (run, call) in enumerate(zip(runs, calls, strict=True)):
        prompt = range(2, 4 + 3 * n)
        assert list(run.segment(call).tokens) == NaiveContext().generate(prompt, range(len(prompt)), SAMPLING, 5)


@pytest.mark.parametrize("policy", ["eager", "k-only", "t-only"])
def test_a_batch_that_waits_for_pages_lets_those_behind_it_go_first(policy: str) -> None:
    rig = Rig(
        num_blocks=4,
        config=ControlConfig(policy=policy, policy_calls=1, policy_wait_s=0.5, policy_max_wait_s=1.0),
    )
    holder, large, little = rig.hold("holder", [1, 2]), rig.open("large"), rig.open("little")
    first = large.submit(generate(range(2, 14), sampling=SAMPLING, max_tokens=1))
    rig.clock.advance(2)
    second = little.submit(generate(range(2, 4), sampling=SAMPLING, max_tokens=1))
    rig.clock.advance(2)
    rig.drain()
    assert large.final(first) is None
    assert little.segment(second).tokens
    holder.now(FreePages(queue=QUEUE, pages=(PageName(1),)))
    little.session.close()
    rig.drain()
    assert large.segment(first).tokens


def test_a_run_whose_calls_wait_for_a_batch_is_not_stuck() -> None:
    rig = Rig(num_blocks=4, config=ControlConfig(policy="t-only", policy_wait_s=10.0, max_stuck_s=0.1))
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(1),)))
    call = run.submit(generate((5,), max_tokens=2))
    rig.clock.advance(5)
    assert not rig.step()
    assert run.final(call) is None
    rig.clock.advance(6)
    assert rig.step()
    assert not rig.step()  # its second token waits anew
    rig.clock.advance(11)
    rig.step()
    assert len(run.segment(call).tokens) == 2


def test_groups_of_the_adaptive_policy_are_the_plain_schedulers_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rig forms its steps of groups, the other does not."""
    plain = rig_with("adaptive")
    monkeypatch.setattr(
        controller, "make_scheduler", lambda config, resources, _: GroupingScheduler(Adaptive(), config, resources)
    )
    grouped = Rig()
    assert isinstance(grouped.controller._scheduler, GroupingScheduler)
    for rig in (plain, grouped):
        submit(rig, 2, max_tokens=6)
        rig.step()
        submit(rig, 3, max_tokens=4)
        rig.drain()
    assert [batch.num_rows for batch in plain.executor.batches] == [b.num_rows for b in grouped.executor.batches]
