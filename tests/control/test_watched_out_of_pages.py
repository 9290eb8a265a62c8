"""When pages run out, runs that watch segments give up theirs as all others: what is paused stays paused, and goes on
as if nothing had been, vetoes included."""

import random

import msgspec
import pytest

from loopwright.control import bases
from loopwright.control.config import ControlConfig
from loopwright.control.ordering import is_dropped
from loopwright.control.policies import PolicyName
from loopwright.core.calls import ClearQueue, CreateQueue, Generate, Sampling
from loopwright.core.errors import InternalError
from loopwright.core.ids import CallId, QueueName
from loopwright.core.results import Progress
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .reference import NaiveContext
from .rig import Rig, RigRun, generate
from .step_by_step import step_by_step
from .watcher import Watcher, verdict_of

SAMPLING = Sampling(temperature=1.0, seed=3)


def alone(tokens: list[int], num_tokens: int) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, num_tokens)


def text(number: int, length: int = 10) -> list[int]:
    return [(number * 7 + place * (number + 3)) % 64 for place in range(length)]


def watched(tokens: list[int], window: int, max_tokens: int) -> Generate:
    call = generate(tokens, sampling=SAMPLING, max_tokens=max_tokens)
    return msgspec.structs.replace(call, watch=Watch(window))


def looked_at(call: Generate, veto_share: int, seed: int) -> list[int]:
    return step_by_step(call, verdict_of(seed, veto_share, None, None)).tokens


def drain(rig: Rig) -> None:
    """Steps until nothing can run, however long it waits."""
    for _ in range(40):
        rig.drain()
        rig.clock.advance(0.1)


def held(rig: Rig) -> dict[str, int]:
    return {str(run): num for run, num in rig.controller._resources.num_held_blocks().items()}


def paused(rig: Rig, name: str = "a", window: int = 3, max_tokens: int = 12) -> tuple[RigRun, CallId, list[int]]:
    """A watched segment whose window is full, and the tokens in it."""
    run = rig.open(name)
    call = run.submit(watched(text(1), window, max_tokens))
    rig.drain()
    assert run.final(call) is None
    return run, call, [token for part in run.parts[call] for token in part.tokens]


def everything(rig: Rig) -> None:
    """Another run takes every block for a while, so that nothing of what idle runs had is left."""
    greedy = rig.open("greedy")
    rig.clock.advance(1)
    call = greedy.submit(generate([63] * 4 * rig.executor.shape.num_blocks, max_tokens=1))
    rig.drain()
    assert greedy.error_type(call) is None
    assert greedy.final(call) is not None
    greedy.session.close()
    rig.controller.check_integrity()
    rig.executor.batches.clear()


def accept_all(rig: Rig, run: RigRun, call: CallId, num_vetoes: int = 0) -> None:
    for _ in range(100):
        rig.drain()
        if run.final(call) is not None:
            return
        parts = [part for part in run.parts.get(call, []) if part.num_vetoes == num_vetoes]
        num_tokens = max((part.first + len(part.tokens) for part in parts), default=0)
        assert run.now(Acknowledge(handle=int(call), num_tokens=num_tokens)).error is None
    raise AssertionError("the segment never ended")


@pytest.mark.parametrize("policy", ["adaptive", "eager", "k-only", "t-only"])
def test_eight_watched_segments_hold_every_page_and_a_ninth_run_is_served(policy: PolicyName) -> None:
    """Case G4, with programs that think for long about a token."""
    rig = Rig(num_blocks=32, config=ControlConfig(policy=policy))
    calls = [watched(text(number, 13), 4, 20) for number in range(8)]
    watchers = [
        Watcher(rig.open(f"run {one}"), call, verdict_of(one, 30, None, None)) for one, call in enumerate(calls)
    ]
    drain(rig)
    assert sum(held(rig).values()) == 32
    ninth = rig.open("ninth")
    call = ninth.submit(generate(text(50, 20), sampling=SAMPLING, max_tokens=9))
    drain(rig)
    assert list(ninth.segment(call).tokens) == alone(text(50, 20), 9)
    assert all(watcher.run.final(watcher.call_id) is None for watcher in watchers)
    for _ in range(400):
        for watcher in watchers:
            watcher.look(acknowledges=True)
        drain(rig)
        if all(watcher.run.final(watcher.call_id) is not None for watcher in watchers):
            break
    for number, (watcher, one) in enumerate(zip(watchers, calls, strict=True)):
        segment = watcher.run.segment(watcher.call_id)
        assert list(segment.tokens) == looked_at(one, 30, number)
        assert (segment.kv_len, segment.num_pages) == (13 + 19, 8)
        assert watcher.max_ahead <= 4
        watcher.run.session.close()
    ninth.session.close()
    rig.assert_all_free()


def test_a_paused_segment_gives_up_its_pages_when_others_wait_and_not_before() -> None:
    rig = Rig(num_blocks=6, config=ControlConfig(max_idle_s=0.5))
    run, call, ahead = paused(rig)
    assert held(rig) == {"a": 3}
    rig.clock.advance(1)
    rig.drain()
    assert held(rig) == {"a": 3}  # nobody wants them
    assert run.now(Acknowledge(handle=int(call), num_tokens=0)).error is None  # its program is awake
    other = rig.open("other")
    wants = other.submit(generate(text(2, 24), sampling=SAMPLING, max_tokens=1))
    rig.clock.advance(0.4)
    rig.drain()
    assert held(rig) == {"a": 3}
    rig.clock.advance(0.2)
    rig.drain()
    assert list(other.segment(wants).tokens) == alone(text(2, 24), 1)
    assert run.final(call) is None
    other.session.close()
    accept_all(rig, run, call)
    assert list(run.segment(call).tokens) == alone(text(1), 12)
    assert ahead == alone(text(1), 12)[:3]


@pytest.mark.parametrize("index", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("when", ["dropped", "rebuilt", "while it is rebuilt", "between its steps"])
def test_a_veto_after_the_pages_were_dropped_takes_back_what_was_rebuilt_too(index: int, when: str) -> None:
    config = ControlConfig(max_batch_rows=2, max_batch_tokens=6)
    rig = Rig(num_blocks=8, config=config)
    run, call, _ = paused(rig, window=7, max_tokens=16)
    everything(rig)
    running = None
    if when != "dropped":  # it goes on as soon as its window has room
        run.now(Acknowledge(handle=int(call), num_tokens=1 if index else 0))
        if not index:
            return  # nothing could have it go on, and leave the first token to be vetoed
        if when == "rebuilt":
            rig.drain()
        else:
            running = rig.controller.schedule()
            assert running is not None
        if when == "between its steps":
            rig.controller.complete(rig.executor.run(running))
            running = None
    assert run.now(Veto(handle=int(call), index=index, ban=False)).error is None
    if running is not None:
        rig.controller.complete(rig.executor.run(running))
    rig.controller.check_integrity()
    accept_all(rig, run, call, num_vetoes=1)
    segment = run.segment(call)
    assert list(segment.tokens) == alone(text(1), 16)
    assert (segment.kv_len, segment.num_pages) == (25, 7)
    after = generate(
        [5], pages=range(100, 107), kv_len=25, grow_from=200, sampling=SAMPLING, max_tokens=4
    )  # the KV that is left is right, too
    goes_on = run.submit(after)
    rig.drain()
    assert list(run.segment(goes_on).tokens) == alone([*text(1), *segment.tokens[:-1], 5], 4)
    run.session.close()
    rig.assert_all_free()


def test_a_veto_writes_over_no_page_that_another_run_has_come_to_share() -> None:
    rig = Rig(num_blocks=20)
    run, call, ahead = paused(rig, window=7, max_tokens=16)
    rig.clock.advance(1)
    greedy = rig.open("greedy")
    asks = greedy.submit(generate([63] * 68, sampling=SAMPLING, max_tokens=1))  # drops them; what they held is cached
    rig.drain()
    assert greedy.final(asks) is not None
    greedy.session.close()
    run.now(Acknowledge(handle=int(call), num_tokens=1))
    rig.drain()  # restored, and one token more
    other = rig.open("other")
    same = other.submit(generate([*text(1), *ahead[:6], 9], sampling=SAMPLING, max_tokens=12))
    rig.step()
    assert run.now(Veto(handle=int(call), index=3)).error is None
    rig.drain()
    assert other.segment(same).cached_tokens >= 12
    assert list(other.segment(same).tokens) == alone([*text(1), *ahead[:6], 9], 12)
    accept_all(rig, run, call, num_vetoes=1)
    assert list(run.segment(call).tokens[:3]) == ahead[:3]


@pytest.mark.parametrize("num_seen", [0, 1, 3])
@pytest.mark.parametrize("when", ["dropped", "being rebuilt"])
def test_leaving_a_watched_segment_whose_pages_are_gone_keeps_what_was_looked_at(num_seen: int, when: str) -> None:
    rig = Rig(num_blocks=6)
    run, call, _ = paused(rig)
    everything(rig)
    run.now(Acknowledge(handle=int(call), num_tokens=num_seen))
    if when == "being rebuilt" and num_seen:
        running = rig.controller.schedule()
        assert running is not None
        run.session.interrupt(call)
        rig.controller.complete(rig.executor.run(running))
    else:
        run.session.interrupt(call)
    segment = run.segment(call)
    assert (segment.reason, list(segment.tokens)) == ("interrupted", alone(text(1), 12)[:num_seen])
    kv_len = segment.kv_len
    assert kv_len == (10 + max(num_seen - 1, 0) if num_seen else 12 - 2)
    kept = [*text(1), *segment.tokens][:kv_len]
    after = run.submit(
        generate([5], pages=range(100, 100 + segment.num_pages), kv_len=kv_len, grow_from=200, sampling=SAMPLING,
                 max_tokens=3)
    )  # fmt: skip
    rig.drain()
    assert list(run.segment(after).tokens) == alone([*kept, 5], 3)
    run.session.close()
    rig.assert_all_free()


def test_an_interrupt_while_a_segment_is_rebuilt_ends_it_with_that_step() -> None:
    """Not when all is rebuilt and one token more is there."""
    rig = Rig(num_blocks=8, config=ControlConfig(max_batch_rows=1, max_batch_tokens=3))
    run = rig.open("a")
    first = run.submit(generate(text(1, 20), sampling=SAMPLING, max_tokens=1))
    rig.drain()
    assert run.segment(first).num_pages == 5
    everything(rig)
    call = run.submit(generate([5], pages=range(100, 105), kv_len=20, grow_from=200, sampling=SAMPLING, max_tokens=9))
    rig.step()
    running = rig.controller.schedule()
    assert running is not None
    run.session.interrupt(call)
    rig.controller.complete(rig.executor.run(running))
    assert (run.segment(call).reason, run.segment(call).tokens, run.segment(call).kv_len) == ("interrupted", (), 20)
    again = run.submit(generate([5], pages=range(100, 105), kv_len=20, grow_from=200, sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert list(run.segment(again).tokens) == alone([*text(1, 20), 5], 3)


def test_a_rebuild_that_fails_fails_the_watched_segment_only_when_all_was_looked_at() -> None:
    rig = Rig(num_blocks=6)
    run, call, ahead = paused(rig)
    everything(rig)
    run.now(Acknowledge(handle=int(call), num_tokens=1))
    rig.executor.fault = RuntimeError("device lost")
    rig.drain()
    assert run.final(call) is None
    rig.controller.check_integrity()
    assert run.now(Veto(handle=int(call), index=2, ban=False)).error is None  # that is behind the failure
    accept_all(rig, run, call, num_vetoes=1)
    assert list(run.segment(call).tokens) == alone(text(1), 12)
    assert ahead == alone(text(1), 12)[:3]


class Crowd:
    """Six programs that watch, and one more after the other that only wants pages."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self._rig, self._rng = rig, rng
        self.pairs: list[tuple[Watcher, Generate, int]] = []
        self.plain: list[tuple[RigRun, CallId, list[int], int]] = []
        for number in range(6):
            call = watched(text(number, rng.randint(1, 20)), rng.randint(1, 9), rng.randint(1, 24))
            watcher = Watcher(rig.open(f"w {number}"), call, verdict_of(number, 40, None, None))
            self.pairs.append((watcher, call, number))

    @property
    def is_over(self) -> bool:
        calls = [(watcher.run, watcher.call_id) for watcher, *_ in self.pairs]
        return all(run.final(call) is not None for run, call in [*calls, *((one[0], one[1]) for one in self.plain)])

    def one_more(self) -> None:
        number, rng = len(self.plain), self._rng
        run, tokens, count = self._rig.open(f"p {number}"), text(10 * number, rng.randint(8, 30)), rng.randint(1, 20)
        call = run.submit(generate(tokens, sampling=SAMPLING, max_tokens=count))
        self.plain.append((run, call, tokens, count))

    def look(self) -> None:
        for watcher, *_ in self.pairs:
            if self._rng.random() < 0.4 and watcher.run.final(watcher.call_id) is None:
                watcher.look(acknowledges=self._rng.random() < 0.5)
        for run, call, *_ in self.plain:
            if run.final(call) is not None and not run.session.inbox.is_closed:
                run.session.close()

    def has_dropped(self) -> bool:
        """Whether somebody who watches has lost pages."""
        opened = (watcher.run.session.open_calls.get(watcher.call_id) for watcher, *_ in self.pairs)
        return any(is_dropped(page) for call in opened if call is not None for page in call.pages)

    def check(self) -> None:
        for watcher, call, number in self.pairs:
            assert list(watcher.run.segment(watcher.call_id).tokens) == looked_at(call, 40, number)
            watcher.run.session.close()
        for run, one, tokens, count in self.plain:
            assert list(run.segment(one).tokens) == alone(tokens, count)
            run.session.close()


@pytest.mark.parametrize("policy", ["adaptive", "eager", "k-only", "t-only"])
@pytest.mark.parametrize("seed", range(4))
def test_watched_segments_and_others_in_a_pool_that_holds_a_few_equal_their_solo_runs(
    seed: int, policy: PolicyName
) -> None:
    rng = random.Random(seed)
    rig = Rig(num_blocks=14, config=ControlConfig(max_batch_rows=4, max_batch_tokens=9, policy=policy, policy_calls=2))
    crowd = Crowd(rig, rng)
    has_suspended = has_dropped = False
    for turn in range(3000):
        if turn < 60 and turn % 10 == 0:
            crowd.one_more()
        crowd.look()
        if not rig.step():
            rig.clock.advance(rng.choice([0.001, 0.03]))
        has_suspended |= any(run_id.startswith("w") for run_id in rig.controller._scheduler.suspended)
        has_dropped |= crowd.has_dropped()
        if turn >= 60 and crowd.is_over:
            break
    assert (has_suspended, has_dropped) == (True, True)
    crowd.check()
    rig.assert_all_free()


def test_what_was_dropped_twice_and_vetoed_in_between_is_rebuilt_as_it_is_now() -> None:
    rig = Rig(num_blocks=8)
    run, call, ahead = paused(rig, window=5, max_tokens=14)
    everything(rig)
    assert run.now(Veto(handle=int(call), index=2)).error is None  # banned: another token comes
    rig.drain()
    everything(rig)
    accept_all(rig, run, call, num_vetoes=1)
    expected = step_by_step(
        watched(text(1), 5, 14), lambda index, token, num: "ban" if index == 2 and num == 0 else "keep"
    )
    assert list(run.segment(call).tokens) == expected.tokens
    assert ahead[2] != expected.tokens[2]
    part = run.parts[call][-1]
    assert isinstance(part, Progress)


def test_pages_of_a_segment_that_was_left_after_a_veto_can_be_dropped_again() -> None:
    rig = Rig(num_blocks=8)
    run, call, ahead = paused(rig, window=5, max_tokens=14)
    everything(rig)
    run.now(Acknowledge(handle=int(call), num_tokens=1))
    rig.drain()  # rebuilt
    assert run.now(Veto(handle=int(call), index=1)).error is None
    run.session.interrupt(call)
    segment = run.segment(call)
    assert (list(segment.tokens), segment.kv_len) == (ahead[:1], 10)
    everything(rig)
    after = run.submit(generate([5], pages=range(100, 103), kv_len=10, grow_from=200, sampling=SAMPLING, max_tokens=3))
    rig.drain()
    assert list(run.segment(after).tokens) == alone([*text(1), 5], 3)


def test_a_rebuild_that_fails_holds_no_block_while_the_program_looks_and_a_veto_takes_it_back() -> None:
    rig = Rig(num_blocks=8)
    run, call, _ = paused(rig)
    everything(rig)
    first = text(1)[-1]
    rig.executor.fail_rows[first] = InternalError("NaN logits").info()
    assert run.now(Acknowledge(handle=int(call), num_tokens=1)).error is None
    rig.drain()
    assert run.final(call) is None, "the program has two tokens to look at"
    assert rig.controller._resources.blocks.num_free == 8
    rig.executor.fail_rows.clear()
    assert run.now(Veto(handle=int(call), index=2, ban=False)).error is None
    accept_all(rig, run, call, num_vetoes=1)
    assert list(run.segment(call).tokens) == alone(text(1), 12)
    run.session.close()
    rig.assert_all_free()


def test_what_a_veto_took_back_after_it_was_dropped_is_no_base_of_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "MIN_PAGES", 2)
    rig = Rig(num_blocks=8)
    run, call, _ = paused(rig, window=7, max_tokens=16)
    assert run.now(CreateQueue(queue=QueueName(2))).error is None
    everything(rig)  # its four pages are noted as full, with what is ahead
    behind = [run.submit(generate([5], queue=2, pages=range(100, 104), kv_len=16, grow_from=200, max_tokens=1))]
    assert run.now(Veto(handle=int(call), index=5, ban=False)).error is None
    run.session.interrupt(call)
    rig.drain()
    assert (run.segment(call).kv_len, run.segment(call).num_pages) == (14, 4)
    run.submit(ClearQueue(queue=QueueName(2)))
    behind.append(run.submit(generate([5], queue=2, pages=range(100, 104), kv_len=16, grow_from=300, max_tokens=1)))
    rig.drain()
    for one in behind:
        assert run.error(one).message == "kv_len: pages[3] has KV for its first 2 tokens, and 4 are counted"
    run.session.close()
    rig.assert_all_free()
