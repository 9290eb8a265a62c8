"""Calls of one token that go on from the one before: nothing can be told by them from calls that are looked at anew."""

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    ClearQueue,
    CopyPage,
    DistributionRequest,
    ExportPages,
    ForwardText,
    FreePages,
    MaskPage,
    QueueCall,
    Sampling,
    SharePages,
    Synchronize,
)
from loopwright.core.control import ControlLimits
from loopwright.core.errors import InternalError
from loopwright.core.ids import CallId, PageName, QueueName
from loopwright.core.instrument import Meter
from loopwright.transport import control_messages as messages

from .fake_executor import VOCAB_SIZE, choose
from .going_rig import GREEDY, SIZE, Context, begun, kept, one_by_one
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate
from .wired import WiredRun, Wires


def test_tokens_one_by_one_over_many_pages_are_those_of_the_oracle_and_only_the_first_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, run, context = begun()
    enqueue, looked_at = rig.controller._intake._enqueue, []
    monkeypatch.setattr(rig.controller._intake, "_enqueue", lambda *a: looked_at.append(a[2]) or enqueue(*a))
    tokens = [7 + number % 50 for number in range(23)]
    calls = one_by_one(rig, context, tokens)
    assert looked_at == calls[:1]
    written = [2, 3, 4, 5, 6]
    for call, token in zip(calls, tokens, strict=True):
        written.append(token)
        result = run.forwarded(call)
        last = NaiveContext().run(written, range(len(written)))[-1]
        assert result.token == choose(last, GREEDY, len(written))
        assert (result.kv_len, result.num_pages) == (len(written), -(-len(written) // SIZE))
        assert len(result.distributions) == 1
        assert result.cached_tokens == 0
    assert kept(run)
    run.session.close()
    rig.assert_all_free()


def test_what_it_wrote_is_found_by_others_of_the_same_text() -> None:
    rig, run, context = begun()
    one_by_one(rig, context, [7, 8, 9, 10, 11, 12, 13])
    other = rig.open("b")
    again = other.submit(ForwardText(queue=QUEUE, pages=(), grow_from=PageName(5), kv_len=0,
                                     tokens=tuple(context.tokens), positions=tuple(range(len(context.tokens))),
                                     sampling=GREEDY))  # fmt: skip
    rig.drain()
    assert (
        other.forwarded(again).cached_tokens
        == len(context.tokens) // SIZE * SIZE - (len(context.tokens) % SIZE == 0) * SIZE
    )
    assert run.session.kept is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (VOCAB_SIZE,)}, {"tokens": (-1,), "sampling": None},
        {"positions": (-1,), "sampling": None}, {"positions": (1 << 20,)}, {"positions": ()},
        {"kv_len": 3}, {"kv_len": 9},
        {"pages": ()}, {"distributions": (DistributionRequest(index=1),)}, {"sampling": Sampling(temperature=-1.0)},
        {"distributions": (DistributionRequest(k=VOCAB_SIZE + 1),)}, {"mask": ((0, 2),)}, {"queue": 77},
        {"distributions": (DistributionRequest(k=2, allowed=(1, 2)),)}, {"num_drafts": 1}, {"sampling": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_call_that_differs_gets_what_it_would_get_anyway(changes: dict[str, Any]) -> None:
    answers = []
    for is_on in (True, False):
        rig, run, context = begun(is_on=is_on)
        one_by_one(rig, context, [7, 8])
        assert kept(run) == is_on
        call = run.submit(replace(context.forward([9]), **changes))
        after = run.submit(context.forward([9]))
        rig.drain()
        answers.append([run.final(one) for one in (call, after)])
        run.session.close()
        rig.assert_all_free()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("at_page", [False, True])
def test_a_step_that_fails_leaves_the_pages_as_they_were_and_poisons_what_follows(*, at_page: bool) -> None:
    answers = []
    for is_on in (True, False):
        rig, run, context = begun(is_on=is_on)
        calls = one_by_one(rig, context, [7, 8, 9] if at_page else [7, 8])
        rig.executor.fail_rows = {10: InternalError("no such number").info()}
        calls.append(run.submit(context.forward([10])))
        rig.drain()
        rig.executor.fail_rows = {}
        calls.append(run.submit(context.forward([10])))
        run.submit(ClearQueue(queue=QUEUE))
        rig.drain()
        calls += [run.submit(context.forward([10]))]
        rig.drain()
        context.has_run([10])
        calls += one_by_one(rig, context, [11, 12, 13])
        answers.append([run.final(call) for call in calls])
        assert run.session.kept is None or is_on
        run.session.close()
        rig.assert_all_free()
    assert answers[0] == answers[1]
    assert [one is not None and one.error is not None for one in answers[0]][-5:] == [True, False, False, False, False]


def test_pages_of_a_run_that_waits_for_nothing_can_be_taken_though_it_would_go_on() -> None:
    rig, run, context = begun(num_blocks=4, config=ControlConfig(max_idle_s=1.0))
    one_by_one(rig, context, [7, 8])
    assert kept(run)
    rig.clock.advance(5.0)
    other = rig.open("b")
    call = other.submit(generate(list(range(2, 14)), max_tokens=2))
    rig.drain()
    assert other.error_type(call) is None
    assert not kept(run)
    other.session.close()
    (last,) = one_by_one(rig, context, [9])
    expected = NaiveContext().run(context.tokens, range(len(context.tokens)))[-1]
    assert run.forwarded(last).token == choose(expected, GREEDY, len(context.tokens))


def test_a_limit_of_pages_and_a_full_pool_are_what_they_are_for_any_call() -> None:
    for limits, num_blocks in ((ControlLimits(max_pages=2), 64), (ControlLimits(), 2)):
        answers = []
        for is_on in (True, False):
            rig = Rig(num_blocks=num_blocks, config=ControlConfig(max_stuck_s=1.0))
            rig.controller._successors._is_on = is_on
            context = Context(rig.open("a", limits), QUEUE, 100)
            calls = one_by_one(rig, context, [2, 3, 4, 5, 6, 7, 8, 9])
            last = context.run.submit(context.forward([10]))
            rig.drain()
            rig.clock.advance(2.0)
            rig.drain()
            answers.append([context.run.final(call) for call in (*calls, last)])
        assert answers[0] == answers[1]
        assert answers[0][-1] is not None
        assert answers[0][-1].error is not None


def test_it_is_measured_as_any_call() -> None:
    timings = []
    for is_on in (True, False):
        rig, run, context = begun(is_on=is_on, meter=Meter({"model": "fake"}))
        found = []
        for token in (7, 8, 9, 10):
            call = run.submit(context.forward([token]))
            rig.clock.advance(0.5)
            rig.begin()
            rig.clock.advance(0.25)
            rig.drain()
            context.has_run([token])
            final = run.final(call)
            assert final is not None
            found.append(final.timing)
        timings.append(found)
    assert timings[0] == timings[1]
    assert all(one is not None and one.started_s - one.issued_s == 0.5 for one in timings[0])


def test_who_writes_where_it_read_waits_for_it_also_when_it_has_just_begun_a_page() -> None:
    rig, run, context = begun()
    one_by_one(rig, context, [7, 8, 9])
    assert len(context.tokens) % SIZE == 0
    call = run.submit(context.forward([10]))
    first, last = context.names[0], context.names[-1]
    copy = run.submit(CopyPage(queue=QueueName(2), source=first, target=last, size=SIZE))
    rig.drain()
    assert run.order()[-2:] == [call, copy]
    expected = NaiveContext().run([*context.tokens, 10], range(len(context.tokens) + 1))[-1]
    assert run.forwarded(call).token == choose(expected, GREEDY, len(context.tokens) + 1)


async def test_while_control_serves_a_call_that_goes_on_is_in_each_step_once() -> None:
    """Nothing is formed between its answer and the next one, so that the scheduler has it still."""
    rig, run, context = begun()
    assert run.order()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(rig.controller.serve())
        for token in (7, 8, 9, 10, 11, 12):
            call = run.submit(context.forward([token]))
            [final] = await run.session.receive()
            assert (final.call_id, final.error) == (call, None)
            context.has_run([token])
        serving.cancel()
    assert [batch.num_rows for batch in rig.executor.batches[-6:]] == [1] * 6


def test_one_that_ran_among_the_long_ones_goes_on_with_one_row() -> None:
    rig, run, context = begun()
    one_by_one(rig, context, [7, 8])
    assert run.session.kept is not None
    scheduler = rig.controller._scheduler
    scheduler._short.clear()
    scheduler._long.append(run.session.kept.call)  # as behind dropped pages that the cache had
    [call] = one_by_one(rig, context, [9])
    assert rig.executor.batches[-1].num_rows == 1
    expected = NaiveContext().run(context.tokens, range(len(context.tokens)))[-1]
    assert run.forwarded(call).token == choose(expected, GREEDY, len(context.tokens))


class Chaos:
    """Programs that mostly choose token by token in two contexts, and do whatever else in between."""

    def __init__(self, seed: int, way: str, *, is_ahead: bool) -> None:
        """`way`: each call is looked at `anew`, or may go on from one that was `kept`, or comes and is told over
        `wires` as well."""
        self.random = random.Random(seed)
        num_blocks = self.random.choice([12, 64])
        self.rig = Rig(num_blocks=num_blocks, config=ControlConfig(max_stuck_s=1.0), is_ahead=is_ahead)
        self.nums_at_once = [1, 1, 2] if num_blocks > 12 else [1]  # who gets the last page first is not laid down
        self.rig.controller._successors._is_on = way != "anew"
        self.way, self.num_clients = way, self.random.choice([1, 2])
        self.calls: list[tuple[RigRun | WiredRun, CallId]] = []
        self.names = 5000

    def begin(self, patch: pytest.MonkeyPatch) -> None:
        self.wires = Wires(self.rig, patch)
        self.runs: list[Any] = []
        if self.way == "wires":
            clients = [self.wires.connect() for _ in range(self.num_clients)]
            self.runs = [WiredRun(clients[n % len(clients)], name, (QUEUE, 2)) for n, name in enumerate("ab")]
        else:
            self.runs = [self.rig.open(name, queues=(QUEUE, 2)) for name in "ab"]
        self.contexts = [Context(run, queue, 100 * queue) for run in self.runs for queue in (QUEUE, 2)]
        for context in self.contexts:
            context.sampling = self.random.choice([None, None, None, GREEDY])

    async def told(self) -> None:
        """All have heard what there is."""
        for _ in range(4):
            await asyncio.sleep(0)

    async def drain(self) -> None:
        await self.told()
        self.rig.drain()
        await self.told()

    def submit(self, run: RigRun | WiredRun, call: QueueCall) -> CallId:
        call_id = run.submit(call)
        self.calls.append((run, call_id))
        return call_id

    def tokens(self) -> list[int]:
        if self.random.random() < 0.04:
            return [VOCAB_SIZE + 3]
        return [self.random.randrange(2, 60) for _ in range(1 if self.random.random() < 0.9 else 3)]

    async def token_by_token(self) -> None:
        contexts = self.random.sample(self.contexts, self.random.choice(self.nums_at_once))
        for _ in range(self.random.randint(1, 9)):
            chosen = [self.tokens() for _ in contexts]
            calls = [self.submit(one.run, one.forward(tokens)) for one, tokens in zip(contexts, chosen, strict=True)]
            if self.random.random() < 0.06:
                contexts[0].run.session.interrupt(calls[0])
            if self.random.random() < 0.1:
                self.disturb(contexts[0])
            if self.random.random() < 0.04:
                self.rig.executor.fault = RuntimeError("the device is gone for a moment")
            self.rig.executor.fail_rows = {7: InternalError("a seven").info()}
            self.wires.may_take = self.random.random() < 0.9
            if self.random.random() < 0.93:
                await self.drain()
            self.wires.may_take = True
            await self.told()
            for context, tokens, call in zip(contexts, chosen, calls, strict=True):
                await self.follow(context, tokens, call)

    async def follow(self, context: Context, tokens: list[int], call: CallId) -> None:
        """The context has what the call ran, if it went well."""
        final = context.run.final(call)
        if final is not None and final.error is None:
            context.has_run(tokens)
            return
        self.rig.clock.advance(1.5)
        await self.drain()
        if (final := context.run.final(call)) is not None and final.error is None:
            context.has_run(tokens)
        for queue in (QUEUE, 2):
            self.submit(context.run, ClearQueue(queue=QueueName(queue)))
        await self.drain()

    def disturb(self, context: Context) -> None:
        """Something else of the run, on either queue, perhaps about the very pages."""
        own = self.random.choice([one for one in self.contexts if one.run is context.run])
        queue = QueueName(self.random.choice([QUEUE, 2]))
        self.names += 10
        fresh = PageName(self.names)
        if not own.names:
            return
        page = self.random.choice(own.names)
        doing = self.random.randrange(7)
        if doing == 0:
            self.submit(own.run, SharePages(queue=queue, sources=(page,), targets=(fresh,)))
            if self.random.random() < 0.5:
                self.submit(own.run, FreePages(queue=queue, pages=(fresh,)))
        elif doing == 1:
            self.submit(own.run, FreePages(queue=queue, pages=(page,)))
            own.names, own.tokens, own.first_name = (), [], self.names
        elif doing == 2:
            self.submit(own.run, CopyPage(queue=queue, source=page, target=own.names[0], size=2))
        elif doing == 3:
            self.submit(own.run, MaskPage(queue=queue, page=page, keep=(True, False, True, True)))
        elif doing == 4:
            self.submit(own.run, Synchronize(queue=queue))
        elif doing == 5 and len(own.tokens) >= SIZE:
            positions = tuple(range(SIZE))
            self.submit(
                own.run, ExportPages(queue=queue, name=f"export{self.names}", pages=own.names[:1], positions=positions)
            )
        else:
            self.submit(own.run, generate([5, 6], queue=queue, grow_from=self.names + 1, max_tokens=3))

    async def play(self, patch: pytest.MonkeyPatch) -> list[Any]:
        async with asyncio.TaskGroup() as self.tasks:
            self.begin(patch)
            self.wires.server._tasks = self.tasks
            for _ in range(12):
                await self.token_by_token()
            await self.drain()
            found = [run.final(call) for run, call in self.calls]
            for run in self.runs:
                run.session.close()
            await self.drain()
        resources = self.rig.controller._resources
        self.rig.controller.check_integrity()
        assert resources.blocks.num_free == resources.blocks.num_total
        return [None if one is None else asdict(one) for one in found]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("way", ["kept", "wires"])
async def test_whatever_else_programs_do_their_answers_are_those_of_calls_looked_at_anew(
    way: str, monkeypatch: pytest.MonkeyPatch, *, is_ahead: bool
) -> None:
    kinds: set[type] = set()
    for seed in range(25):
        chaos = Chaos(seed, way, is_ahead=is_ahead)
        found = await chaos.play(monkeypatch)
        kinds.update(map(type, chaos.wires.sent))
        assert found == await Chaos(seed, "anew", is_ahead=is_ahead).play(monkeypatch), f"seed {seed}"
    assert kinds >= {messages.GoOn, messages.Lists} or way == "kept"
