"""What the pages of a watched segment are to others, and what failures and suspension do to it while it waits."""

import msgspec
import pytest

from loopwright.control.config import ControlConfig
from loopwright.control.policies import PolicyName
from loopwright.core.calls import Sampling
from loopwright.core.ids import CallId
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .reference import NaiveContext
from .rig import Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
POLICIES: list[PolicyName] = ["adaptive", "eager", "k-only", "t-only"]


def alone(tokens: list[int], num_tokens: int) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, num_tokens)


def text(number: int, length: int = 10) -> list[int]:
    return [(number * 7 + place * (number + 3)) % 64 for place in range(length)]


def watch(run: RigRun, tokens: list[int], window: int = 3, max_tokens: int = 12) -> CallId:
    call = generate(tokens, sampling=SAMPLING, max_tokens=max_tokens)
    return run.submit(msgspec.structs.replace(call, watch=Watch(window)))


def accept_all(rig: Rig, run: RigRun, call: CallId) -> None:
    """Acknowledges whatever comes, until the segment is over."""
    for _ in range(100):
        rig.drain()
        if run.final(call) is not None:
            return
        rig.clock.advance(1)
        num_tokens = max((part.first + len(part.tokens) for part in run.parts.get(call, [])), default=0)
        assert run.now(Acknowledge(handle=int(call), num_tokens=num_tokens)).error is None
    raise AssertionError("the segment never ended")


@pytest.mark.parametrize(("length", "num_cached"), [(10, 8), (9, 8), (8, 4)])
def test_the_prompt_of_a_segment_that_is_watched_serves_others_at_once(length: int, num_cached: int) -> None:
    """But for the page of its last token, which may have to run again."""
    rig = Rig()
    run, other = rig.open("a"), rig.open("other")
    prompt = text(1, length)
    call = watch(run, prompt)
    rig.drain()
    same = other.submit(generate([*prompt, 5], sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert other.segment(same).cached_tokens == num_cached
    assert list(other.segment(same).tokens) == alone([*prompt, 5], 3)
    accept_all(rig, run, call)
    assert list(run.segment(call).tokens) == alone(prompt, 12)


def test_what_a_watched_segment_came_to_serves_others_when_it_is_over() -> None:
    rig = Rig()
    run, other, prompt = rig.open("a"), rig.open("other"), text(1)
    call = watch(run, prompt, max_tokens=7)
    accept_all(rig, run, call)
    whole = [*prompt, *run.segment(call).tokens]
    after = other.submit(generate([*whole, 5], sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert other.segment(after).cached_tokens == 16
    assert list(other.segment(after).tokens) == alone([*whole, 5], 3)


def test_a_run_that_watched_a_segment_gives_up_its_pages_as_any_other() -> None:
    rig = Rig(num_blocks=6)
    run, other, prompt = rig.open("a"), rig.open("other"), text(1)
    call = watch(run, prompt, max_tokens=7)
    accept_all(rig, run, call)
    whole = [*prompt, *run.segment(call).tokens[:-1]]
    rig.clock.advance(1)
    large = other.submit(generate(text(2, 24), sampling=SAMPLING, max_tokens=1))
    rig.drain()
    assert list(other.segment(large).tokens) == alone(text(2, 24), 1)
    other.session.close()
    after = run.submit(generate([5], pages=range(100, 104), kv_len=16, grow_from=200, sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert list(run.segment(after).tokens) == alone([*whole, 5], 3)


def ahead_and_failed(rig: Rig, vetoes: int | None = None) -> tuple[RigRun, CallId]:
    """A watched segment that has two tokens when the engine fails as a whole; perhaps one is vetoed meanwhile."""
    run = rig.open("a")
    call = watch(run, text(1))
    rig.step()
    rig.step()
    batch = rig.controller.schedule()
    assert batch is not None
    if vetoes is not None:
        assert run.now(Veto(handle=int(call), index=vetoes, ban=False)).error is None
    rig.controller.fail_step(RuntimeError("device lost"))
    rig.controller.check_integrity()
    return run, call


def test_a_step_that_failed_ahead_of_the_program_counts_only_when_all_before_it_is_acknowledged() -> None:
    rig = Rig()
    run, call = ahead_and_failed(rig)
    rig.drain()
    assert run.final(call) is None
    run.now(Acknowledge(handle=int(call), num_tokens=1))
    assert run.final(call) is None
    run.now(Acknowledge(handle=int(call), num_tokens=2))
    assert run.error_type(call) == "InternalError"
    run.session.close()
    rig.assert_all_free()


def test_a_veto_takes_back_a_failed_step_too() -> None:
    rig = Rig()
    run, call = ahead_and_failed(rig)
    assert run.now(Veto(handle=int(call), index=1, ban=False)).error is None
    accept_all(rig, run, call)
    assert list(run.segment(call).tokens) == alone(text(1), 12)


@pytest.mark.parametrize("index", [0, 1])
def test_a_step_that_fails_after_a_veto_fails_nothing_that_stands(index: int) -> None:
    rig = Rig()
    run, call = ahead_and_failed(rig, vetoes=index)
    accept_all(rig, run, call)
    assert list(run.segment(call).tokens) == alone(text(1), 12)


def test_an_interrupt_wins_over_the_failure_of_the_step_that_ran() -> None:
    rig = Rig()
    run = rig.open("a")
    call = watch(run, text(1))
    rig.step()
    rig.step()
    run.now(Acknowledge(handle=int(call), num_tokens=1))
    assert rig.controller.schedule() is not None
    run.session.interrupt(call)
    rig.controller.fail_step(RuntimeError("device lost"))
    assert (run.segment(call).reason, len(run.segment(call).tokens)) == ("interrupted", 1)


def test_the_first_token_vetoed_and_the_block_left_leaves_the_prompt_as_it_ran() -> None:
    rig = Rig()
    run, prompt = rig.open("a"), text(1)
    call = watch(run, prompt)
    rig.drain()
    assert run.now(Veto(handle=int(call), index=0)).error is None
    run.session.interrupt(call)
    segment = run.segment(call)
    assert (segment.tokens, segment.kv_len, segment.num_pages) == ((), 10, 3)
    after = run.submit(generate([5], pages=range(100, 103), kv_len=10, grow_from=200, sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert list(run.segment(after).tokens) == alone([*prompt, 5], 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_suspended_run_keeps_its_paused_segments_and_goes_on_with_them(policy: PolicyName) -> None:
    rig = Rig(config=ControlConfig(policy=policy))
    run = rig.open("a")
    call = watch(run, text(1))
    in_time(rig)
    scheduler = rig.controller._scheduler
    scheduler.suspend(run.session.run_id)
    assert [one.call_id for one in scheduler.suspended[run.session.run_id]] == [call]
    run.now(Acknowledge(handle=int(call), num_tokens=2))
    assert run.session.open_calls[call] not in scheduler.waiting()
    assert not scheduler.form(rig.clock.now_s() + 1).calls
    scheduler.resume(run.session.run_id)
    accept_all(rig, run, call)
    assert list(run.segment(call).tokens) == alone(text(1), 12)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_paused_segment_does_not_count_as_one_that_waits_for_pages(policy: PolicyName) -> None:
    """So nobody is suspended for its sake."""
    rig = Rig(num_blocks=6, config=ControlConfig(policy=policy, policy_calls=1, max_idle_s=2))
    run, other = rig.open("a"), rig.open("other")
    call = watch(run, text(1), window=2)  # three pages, and the least service of all
    in_time(rig)
    assert rig.controller._scheduler.waiting() == []
    large = other.submit(generate(text(2, 11), sampling=SAMPLING, max_tokens=20))
    in_time(rig)
    (waiting,) = rig.controller._scheduler.waiting()
    assert (waiting.run_id, waiting.call_id) == (other.session.run_id, large)
    assert rig.controller._resources.num_held_blocks()[other.session.run_id] == 3
    run.session.interrupt(call)
    run.session.close()
    in_time(rig)
    rig.clock.advance(1)
    in_time(rig)
    assert len(rig.executor.batches) > 3


def in_time(rig: Rig) -> None:
    for _ in range(40):
        rig.drain()
        rig.clock.advance(0.01)
