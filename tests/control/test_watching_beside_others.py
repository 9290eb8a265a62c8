"""Watched segments with windows and masked pages, in small and grouped steps, and in chains of calls."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.core.calls import DebugQuery, ForwardText, KvWindow, MaskPage, Sampling, Synchronize
from loopwright.core.ids import PageName
from loopwright.core.results import DebugInfo
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .fake_executor import mix
from .fake_grammars import FakeCompiler
from .reference import NaiveContext
from .rig import QUEUE, Rig, generate
from .step_by_step import LETTERS, OPTIONS, PLACES, call_of, step_by_step
from .watcher import Watcher, drive, verdict_of

SIZE = 4  # tokens a page
MOVES = st.lists(st.sampled_from(["step", "begin", "complete", "look", "look", "ack"]), max_size=60)


@dataclass
class WindowedContext(NaiveContext):
    """Its tokens see what a window and a mask of the first places leave."""

    window: KvWindow | None = None
    hidden: Sequence[int] = ()

    def run(self, tokens: Sequence[int], positions: Sequence[int]) -> list[int]:
        hiddens = []
        for token, own in zip(tokens, positions, strict=True):
            seen = [value for place, value in enumerate(self.values) if self._sees(own, place)]
            self.values.append(mix(token, own, *seen, mix(token, own)))
            hiddens.append(self.values[-1])
        return hiddens

    def _sees(self, own: int, place: int) -> bool:
        if place in self.hidden:
            return False
        if self.window is None:
            return True
        border = max(0, SIZE * ((own + 1 - self.window.size) // SIZE))
        return place < self.window.sinks or place >= border


@settings(deadline=None, max_examples=150)
@given(
    option=st.sampled_from([one for one in OPTIONS if one != "stop string"]),
    watch=st.integers(1, 9),
    size=st.integers(1, 12),
    sinks=st.integers(0, 5),
    mask=st.none() | st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
    has_window=st.booleans(),
    seed=st.integers(0, 10_000),
    leaves_at=st.sampled_from([None, None, 0, 3, 8]),
    moves=MOVES,
    max_batch_tokens=st.sampled_from([3, 512]),
    is_ahead=st.booleans(),
)
def test_a_watched_segment_that_does_not_see_all_equals_the_loop(
    option: str, watch: int, size: int, sinks: int, mask: list[bool] | None, has_window: bool, seed: int,
    leaves_at: int | None, moves: list[str], max_batch_tokens: int, is_ahead: bool,
) -> None:  # fmt: skip
    call, places = call_of(option, seed, Watch(watch))
    window = KvWindow(size=size, sinks=sinks, positions=tuple(range(6))) if has_window else None
    naive = WindowedContext()
    naive.run(range(40, 46), range(6))
    naive.window, naive.hidden = window, [place for place, is_kept in enumerate(mask or []) if not is_kept]
    call = msgspec.structs.replace(
        call, pages=(PageName(1), PageName(2)), kv_len=6, positions=tuple(range(6, 12)), window=window
    )
    verdict = verdict_of(seed, 40, leaves_at, places)
    expected = step_by_step(call, verdict, places, naive)
    config = ControlConfig(max_batch_rows=2, max_batch_tokens=max_batch_tokens)
    rig = Rig(grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS, config=config, is_ahead=is_ahead)
    run = rig.open("a")
    run.submit(
        ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=tuple(range(40, 46)),
                    positions=tuple(range(6)))
    )  # fmt: skip
    rig.drain()
    if mask is not None:
        run.now(MaskPage(queue=QUEUE, page=PageName(1), keep=tuple(mask)))
    watcher = Watcher(run, call, verdict)
    drive(rig, watcher, moves)
    segment = run.segment(watcher.call_id)
    assert list(segment.tokens) == expected.tokens
    assert (segment.reason, segment.stop) == (expected.reason, expected.stop)
    assert segment.kv_len == min(6 + expected.num_run(), 12 + segment.num_kept)
    assert watcher.max_ahead <= watch
    run.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize("policy", ["adaptive", "eager", "k-only", "t-only"])
def test_paused_segments_leave_the_rows_of_a_small_step_to_others_and_go_on_when_they_may(policy: str) -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=8, policy=policy, policy_calls=2))
    watchers = [rig.open(f"watcher {number}") for number in range(4)]
    calls = [run.submit(msgspec.structs.replace(generate([5 + n], max_tokens=5), watch=Watch(2)))
             for n, run in enumerate(watchers)]  # fmt: skip
    rig.clock.advance(1)
    drain_in_time(rig)
    assert all(run.final(call) is None for run, call in zip(watchers, calls, strict=True))
    plain = rig.open("plain")
    whole = plain.submit(generate([50], max_tokens=20))
    drain_in_time(rig)
    assert len(plain.segment(whole).tokens) == 20
    for num_tokens in range(1, 6):
        for run, call in zip(watchers, calls, strict=True):
            assert run.now(Acknowledge(handle=int(call), num_tokens=num_tokens)).error is None
        drain_in_time(rig)
    for number, (run, call) in enumerate(zip(watchers, calls, strict=True)):
        expected = NaiveContext().generate([5 + number], [0], Sampling(temperature=1.0), 5)
        assert list(run.segment(call).tokens) == expected


def drain_in_time(rig: Rig) -> None:
    """Until nothing runs, though groups may be due later."""
    for _ in range(60):
        rig.drain()
        rig.clock.advance(0.1)


def test_a_watched_segment_joins_the_call_that_it_waits_for_and_nothing_joins_it() -> None:
    rig = Rig()
    run = rig.open("a")
    first = run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=(5, 6),
                                   positions=(0, 1)))  # fmt: skip
    segment = run.submit(msgspec.structs.replace(generate([7], max_tokens=3), watch=Watch(8)))
    behind = run.submit(Synchronize(queue=QUEUE))
    rig.step()
    assert rig.executor.batches[-1].num_rows == 2
    assert run.final(first) is not None
    rig.drain()
    assert run.now(Veto(handle=int(segment), index=1)).error is None
    rig.drain()
    assert run.final(behind) is None
    described = run.now(DebugQuery()).result
    assert isinstance(described, DebugInfo)
    assert [(call.op, call.state) for call in described.queues[0].calls] == [
        ("generate", "waiting"), ("synchronize", "waiting"),
    ]  # fmt: skip
    run.now(Acknowledge(handle=int(segment), num_tokens=3))
    assert run.order()[-3:] == [segment, behind, behind + 3]
