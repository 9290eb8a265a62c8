"""Steps of calls that go on: who hears what of them and when, and what is new in a call is taken where it may be."""

import asyncio

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Synchronize
from loopwright.core.errors import InternalError
from loopwright.core.going_on import Next
from loopwright.core.ids import CallId
from loopwright.core.instrument import Meter
from loopwright.core.results import Completion, Done
from loopwright.core.told_tokens import ToldLists
from loopwright.transport import control_messages as messages

from .fake_executor import VOCAB_SIZE, describe
from .going_rig import LIST, Context, begun, kept, one_by_one
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate
from .wired import WiredRun, Wires


class Reader:
    """Reads lists of sessions for as long as it `takes`."""

    def __init__(self, run: RigRun) -> None:
        self.run, self.takes = run, True
        self.told: list[tuple[ToldLists, int]] = []  # and how many calls of the run were open
        run.session.when_tokens(self, 7)

    def take_tokens(self, *_: object) -> bool:
        return False

    def take_lists(self, told: ToldLists) -> bool:
        if self.takes:
            self.told.append((told, len(self.run.session.open_calls)))
        return self.takes


def test_programs_are_told_before_the_books_are_done_and_once() -> None:
    rig, run, context = begun(meter=Meter({"model": "fake"}))
    reader, context.sampling = Reader(run), None
    one_by_one(rig, context, [7, 8])
    assert len(run.order()) == 5, "the first two take a place as any other does"
    one_by_one(rig, context, [8])
    assert len(reader.told) == 1
    rig.clock.advance(1.0)
    call = run.submit(context.forward([9]))
    rig.clock.advance(0.5)
    rig.begin()
    rig.clock.advance(0.25)
    rig.drain()
    assert run.final(call) is None, "it is told by the reader alone"
    told, num_open = reader.told[-1]
    assert num_open == 1
    expected = rig.executor.batches[-1].rows[0]
    assert expected.token_ids == [9]
    assert (told.names, told.call_ids, told.kv_lens, told.nums_pages) == ([7], [call], [9], [3])
    assert told.started_s[0] - told.issued_s[0] == 0.5
    assert told.ended_s - told.started_s[0] == 0.25
    assert kept(run)
    context.has_run([9])
    reader.takes = False
    [call] = one_by_one(rig, context, [10])
    assert run.forwarded(call).kv_len == 10


def test_what_a_session_has_not_taken_yet_comes_first() -> None:
    rig, run, context = begun()
    reader, context.sampling = Reader(run), None
    one_by_one(rig, context, [7, 8, 9])
    run.order()
    num_told = len(reader.told)
    call = run.submit(context.forward([10]))
    run.session.inbox.put(Completion(CallId(99), Done()))  # as one that was answered at once
    rig.drain()
    assert run.order()[-2:] == [99, call]
    assert len(reader.told) == num_told


@pytest.mark.parametrize("is_closed", [False, True])
def test_one_that_is_cancelled_before_its_step_has_no_row_in_it(*, is_closed: bool) -> None:
    rig, run, context = begun()
    context.sampling = None
    one_by_one(rig, context, [7, 8, 9])
    call = run.submit(context.forward([10]))
    assert rig.controller._scheduler._going.calls
    if is_closed:
        run.session.close()
    else:
        run.session.interrupt(call)
        assert run.error_type(call) == "Cancelled"
    assert rig.drain() == 0
    run.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize("max_rows", [3, 5, 64])
def test_more_programs_than_rows_take_turns_and_get_the_oracles_lists(max_rows: int) -> None:
    rig = Rig(num_blocks=200, config=ControlConfig(max_batch_rows=max_rows))
    contexts = [Context(rig.open(f"run {number}"), QUEUE, 100) for number in range(5)]
    segment = rig.open("segment")
    text = segment.submit(generate([2, 3], max_tokens=30))
    for step in range(12):
        tokens = [2 + (number + step) % 40 for number in range(len(contexts))]
        calls = []
        for context, token in zip(contexts, tokens, strict=True):
            context.sampling = None
            calls.append(context.run.submit(context.forward([token])))
        while any(one.run.final(call) is None for one, call in zip(contexts, calls, strict=True)):
            assert rig.step()
        for context, token, call in zip(contexts, tokens, calls, strict=True):
            context.has_run([token])
            expected = NaiveContext().run(context.tokens, range(len(context.tokens)))[-1]
            assert context.run.forwarded(call).distributions == (describe(expected, LIST[0]),)
    nums = [len(batch.decodes) + sum(row.num_tokens == 1 for row in batch.rows) for batch in rig.executor.batches]
    assert max(nums) == min(max_rows, 6)
    rig.drain()
    assert len(segment.segment(text).tokens) == 30


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("what", ["nothing", "another call", "closed", "interrupted", "row failed", "step failed"])
def test_what_comes_while_a_step_runs_is_in_what_is_told_of_it(what: str, *, is_prepared: bool) -> None:
    rig, run, context = begun()
    other = Context(rig.open("b"), QUEUE, 100)
    reader = Reader(run)
    other.run.session.when_tokens(reader, 8)
    context.sampling = other.sampling = None
    for _ in range(3):
        one_by_one(rig, context, [9])
        one_by_one(rig, other, [9])
        run.order(), other.run.order()
    reader.told.clear()
    call, beside = run.submit(context.forward([10])), other.run.submit(other.forward([11]))
    rig.begin()
    if is_prepared:
        rig.controller._prepare()
    if what == "another call":
        run.submit(Synchronize(queue=QUEUE))
    elif what == "closed":
        run.session.close()
    elif what == "interrupted":
        run.session.interrupt(call)
    elif what == "row failed":
        rig.executor.fail_rows = {10: InternalError("no such number").info()}
    elif what == "step failed":
        rig.executor.fault = RuntimeError("gone")
    rig.end()
    rig.executor.fail_rows = {}
    names = [name for told, _ in reader.told for name in told.names]
    assert names == {"nothing": [7, 8], "interrupted": [7, 8], "step failed": []}.get(what, [8])
    if what == "another call":
        assert run.forwarded(call).kv_len == len(context.tokens) + 1
    assert (run.error_type(call) == "InternalError") == what.endswith("failed")
    assert (other.run.error_type(beside) == "InternalError") == (what == "step failed")
    rig.drain()
    for one in (run, other.run):
        one.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize(
    "what", ["right", "grown", "open", "poisoned", "shared", "no place", "token", "position", "checked"]
)
def test_what_is_new_in_a_call_is_taken_only_where_it_may_go_on(what: str) -> None:
    rig, run, context = begun()
    context.sampling = None
    one_by_one(rig, context, [7, 8])
    session = run.session
    assert session.kept is not None
    call, one = session.kept.call, Next(9, 7, context.forward([9]).grow_from, has_grown=False)
    if what == "grown":
        one = one._replace(has_grown=True)
    elif what == "open":
        run.submit(context.forward([9]))
    elif what == "poisoned":
        call.queue.failure = InternalError("before").info()
    elif what == "shared":
        call.pages[-1].num_names += 1
    elif what == "no place":
        one_by_one(rig, context, [9])
        one = one._replace(grow_from=None, position=8)
    elif what == "token":
        one = one._replace(token=VOCAB_SIZE)
    elif what == "position":
        one = one._replace(position=1000)
    elif what == "checked":
        session.kept.checked = None
    assert session.go_on(CallId(77), one) == (what == "right")
    assert (CallId(77) in session.open_calls) == (what == "right")


async def test_who_does_not_take_what_it_is_sent_hears_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    wires = Wires(rig, monkeypatch)
    run = WiredRun(wires.connect(), "a", (QUEUE,))
    context = Context(run, QUEUE, 100)
    context.sampling = None
    async with asyncio.TaskGroup() as wires.server._tasks:
        for token in (5, 6, 7, 8, 9):
            wires.may_take = token != 8
            wires.sent.clear()
            call = run.submit(context.forward([token]))
            for _ in range(3):
                await asyncio.sleep(0)
            rig.drain()
            for _ in range(3):
                await asyncio.sleep(0)
            assert (run.final(call) is None) == (token == 8)
            wires.may_take = True
            for _ in range(3):
                await asyncio.sleep(0)
            assert run.final(call) is not None
            context.has_run([token])
            assert any(isinstance(one, messages.Lists) for one in wires.sent) == (token in (7, 9))
