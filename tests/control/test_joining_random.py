"""Random calls over a few pages and embeds: with calls that join a step, everything completes as without."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.control.scheduler import Scheduler
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    ClearQueue,
    CopyPage,
    DistributionRequest,
    EmbedText,
    Forward,
    ForwardText,
    NextDistribution,
    QueueCall,
    Sample,
    Sampling,
    ShiftKv,
    Synchronize,
)
from loopwright.core.errors import InternalError
from loopwright.core.ids import EmbedName, PageName, QueueName

from .rig import Rig, generate

PAGES, INPUTS, OUTPUTS, QUEUES = (1, 2, 3, 4), (1, 2, 3), (4, 5), (1, 2)
SAMPLING = Sampling(temperature=1.0, seed=7)
FAILING_TOKEN = 13

queues = st.sampled_from(QUEUES).map(QueueName)
pages = st.sampled_from(PAGES).map(PageName)
tokens = st.integers(10, 15)  # one in six is FAILING_TOKEN
Op: TypeAlias = QueueCall | int
"""A call, or a number of steps."""


@st.composite
def texts(draw: st.DrawFn) -> ForwardText:
    """On one page, or behind a whole page on a second one."""
    two, kv_len = draw(st.lists(pages, min_size=2, max_size=2, unique=True)), draw(st.integers(0, 4))
    given_tokens = draw(st.lists(tokens, min_size=1, max_size=4))
    names = two if kv_len + len(given_tokens) > 4 else two[:1]
    return ForwardText(
        queue=draw(queues), pages=tuple(names), kv_len=kv_len, tokens=tuple(given_tokens),
        positions=tuple(range(kv_len, kv_len + len(given_tokens))), sampling=draw(st.sampled_from([None, SAMPLING])),
    )  # fmt: skip


@st.composite
def copies(draw: st.DrawFn) -> CopyPage:
    source, target = draw(st.lists(pages, min_size=2, max_size=2, unique=True))
    return CopyPage(queue=draw(queues), source=source, target=target, size=draw(st.integers(1, 4)))


@st.composite
def embeds(draw: st.DrawFn) -> EmbedText:
    given_tokens = draw(st.lists(tokens, min_size=1, max_size=3))
    names = tuple(EmbedName(name) for name in INPUTS[: len(given_tokens)])
    positions = tuple(range(len(given_tokens)))
    return EmbedText(queue=draw(queues), tokens=tuple(given_tokens), positions=positions, embeds=names)


@st.composite
def forwards(draw: st.DrawFn) -> Forward:
    inputs = tuple(EmbedName(name) for name in INPUTS[: draw(st.integers(1, 3))])
    output = EmbedName(draw(st.sampled_from(OUTPUTS)))
    kv_len = draw(st.integers(0, 1))
    return Forward(queue=draw(queues), pages=(draw(pages),), kv_len=kv_len, inputs=inputs, outputs=(output,))


@st.composite
def heads(draw: st.DrawFn) -> Sample | NextDistribution:
    embed = EmbedName(draw(st.sampled_from(OUTPUTS)))
    if draw(st.booleans()):
        return Sample(queue=draw(queues), embed=embed, sampling=SAMPLING, position=3)
    return NextDistribution(queue=draw(queues), embed=embed, request=DistributionRequest(k=2))


@st.composite
def shifts(draw: st.DrawFn) -> ShiftKv:
    return ShiftKv(
        queue=draw(queues), pages=(draw(pages),), size=draw(st.integers(1, 4)), delta=draw(st.integers(1, 3))
    )


@st.composite
def segments(draw: st.DrawFn) -> QueueCall:
    kv_len = draw(st.integers(0, 3))
    return generate(
        (draw(tokens),), queue=draw(queues), pages=(draw(pages),), grow_from=draw(st.integers(1, 10**6)) * 1000,
        kv_len=kv_len, sampling=SAMPLING, max_tokens=draw(st.integers(1, 4)),
    )  # fmt: skip


barriers = queues.map(lambda queue: Synchronize(queue=queue))
clears = queues.map(lambda queue: ClearQueue(queue=queue))
calls = st.one_of(texts(), copies(), embeds(), forwards(), heads(), shifts(), segments(), barriers)


def outcome(
    ops: list[Op], *, fails: bool, is_ahead: bool = False
) -> tuple[dict[int, object], dict[int, list[int]], int]:
    """What each call completes with (of an error, its type), the order of completion by queue, and the steps."""
    rig = Rig(is_ahead=is_ahead)
    run = rig.open("a", queues=QUEUES)
    run.now(AllocatePages(queue=QueueName(1), pages=tuple(PageName(page) for page in PAGES)))
    run.now(AllocateEmbeds(queue=QueueName(1), embeds=tuple(EmbedName(name) for name in (*INPUTS, *OUTPUTS))))
    if fails:
        rig.executor.fail_rows[FAILING_TOKEN] = InternalError("NaN logits").info()
    issued = {}
    for op in ops:
        if isinstance(op, int):
            for _ in range(op):
                rig.step()
        else:
            issued[run.submit(op)] = op
    rig.drain()
    ends = {call: run.error_type(call) or run.result(call) for call in issued}
    order = {
        queue: [call for call in run.order() if call in issued and issued[call].queue == queue] for queue in QUEUES
    }
    run.session.close()
    rig.assert_all_free()
    return ends, order, len(rig.executor.batches)


def without_joining(run: Callable[[], tuple]) -> tuple:
    """What `run` gives where each call waits for its own step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_take_joining", lambda self, step: None)
        return run()


@given(ops=st.lists(st.one_of(calls, clears, st.integers(1, 2)), max_size=25))
def test_calls_that_join_complete_as_if_they_had_waited(ops: list[Op]) -> None:
    ends, order, num_steps = outcome(ops, fails=False)
    assert outcome(ops, fails=False, is_ahead=True)[0] == ends
    expected_ends, expected_order, expected_steps = without_joining(lambda: outcome(ops, fails=False))
    assert (ends, order) == (expected_ends, expected_order)
    assert num_steps <= expected_steps


@given(ops=st.lists(st.one_of(calls, st.integers(1, 2)), max_size=25))
def test_failures_reach_those_that_joined_as_if_they_had_waited(ops: list[Op]) -> None:
    """Without clear_queue: after it, what a poisoned call overwrote could be read, had it not run in vain."""
    ends, order, _ = outcome(ops, fails=True)
    assert outcome(ops, fails=True, is_ahead=True)[0] == ends
    assert (ends, order) == without_joining(lambda: outcome(ops, fails=True))[:2]


def test_joining_can_be_turned_off_for_these_tests() -> None:
    ops: list[Op] = [
        EmbedText(queue=QueueName(1), tokens=(10,), positions=(0,), embeds=(EmbedName(1),)),
        Forward(queue=QueueName(1), pages=(PageName(1),), kv_len=0, inputs=(EmbedName(1),), outputs=(EmbedName(4),)),
        Sample(queue=QueueName(1), embed=EmbedName(4), sampling=SAMPLING, position=1),
    ]
    assert outcome(ops, fails=False)[2] == 1
    assert without_joining(lambda: outcome(ops, fails=False))[2] == 3
