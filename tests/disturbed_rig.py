"""Runs of all kinds over control and an engine: as they come, and interrupted, cancelled and short of blocks.

With steps ahead and without, answers have to be the same. Never asserts what a test is about but for that: used with a
CPU's engine, with a device's on the CPU, and on a GPU.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest
from msgspec.structs import replace

from loopwright.bench.sessions import QUEUE, Caller, segment_call
from loopwright.bench.together import all_of
from loopwright.compose.small_engine import open_small_engine
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.control.scheduler import Scheduler
from loopwright.core.calls import CreateQueue, Generate, Sampling
from loopwright.core.clock import SystemClock
from loopwright.core.control import ControlStats
from loopwright.core.executor import Executor
from loopwright.core.grammars import Grammar
from loopwright.core.ids import CallId, RunId
from loopwright.core.results import Progress, Segment
from loopwright.core.watch_calls import Watch
from loopwright.grammar.pool import GrammarPool
from loopwright.text.byte_tokenizer import byte_tokenizer
from sampler_rig import SAMPLERS, STATES, initial, traced

VOCAB_SIZE = 260
NUM_RUNS = 27
FORM = "[a-f]{2,9}(first|second)[0-9]+(third){1,3}[a-z]*"


def drawn(seed: int, **fields) -> Sampling:
    return Sampling(temperature=1.0, seed=seed, **fields)


KINDS: list[Callable[[int], dict[str, object]]] = [
    lambda seed: {"sampling": drawn(seed)},
    lambda seed: {"sampling": drawn(seed, presence_penalty=1.5, frequency_penalty=0.7)},
    lambda seed: {"sampling": drawn(seed), "stop_tokens": tuple(range(seed % 7, 260, 7))},
    lambda seed: {
        "sampling": drawn(seed),
        "sampler": traced(SAMPLERS["presence"], STATES["presence"]),
        "sampler_state": initial(STATES["presence"]),
    },
    lambda seed: {"sampling": drawn(seed, top_logprobs=3)},
    lambda seed: {"sampling": drawn(seed, presence_penalty=0.5), "grammar": Grammar("regex", FORM)},
    lambda seed: {"sampling": drawn(seed, typical_p=0.9), "watch": Watch(1 + seed % 4)},
    lambda seed: {"sampling": drawn(seed, top_p=0.9), "stop_entropy": 5.2},
    lambda seed: {
        "sampling": Sampling(seed=seed),
        "grammar": Grammar("regex", FORM),
        "sampler": traced(SAMPLERS["mirostat"], STATES["mirostat"]),
        "sampler_state": initial(STATES["mirostat"]),
        "watch": Watch(2),
    },
]


def call_of(number: int) -> Generate:
    """A segment of 3 to 40 tokens behind a prompt of 1 to 30."""
    call = segment_call(3 + 7 * number % 38, prompt_len=1 + 11 * number % 30, first_token=number)
    return replace(call, progress=number % 3 == 0, **KINDS[number % len(KINDS)](number))


async def answers(config: ControlConfig, executor: Executor | None = None) -> tuple[list[Segment], ControlStats]:
    """Runs that come while others run, over that executor or torch's."""

    async def one(number: int) -> Segment:
        for _ in range(40 * number):
            await asyncio.sleep(0)
        with Caller(control, f"run-{number}") as caller:
            await caller.call(CreateQueue(queue=QUEUE))
            call = call_of(number)
            segment = await (caller.call(call) if call.watch is None else caller.watch(call))
            assert isinstance(segment, Segment)
            return segment

    with closing(GrammarPool(byte_tokenizer(), VOCAB_SIZE)) as grammars:
        async with open_small_engine(VOCAB_SIZE, SystemClock(), config, executor, grammars) as control:
            found = await all_of(one(number) for number in range(NUM_RUNS))
            return found, await control.stats()


def assert_equal_answers(found: Sequence[Segment], expected: Sequence[Segment]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one.tokens, one.reason, one.kv_len, one.num_pages) == (
            other.tokens, other.reason, other.kv_len, other.num_pages,
        ), number  # fmt: skip
        for name, value in other.sampler_state.items():  # logits depend, in their last bits, on who is in a step
            expected_value = value if isinstance(value, bytes) else pytest.approx(value, abs=1e-4)
            assert one.sampler_state[name] == expected_value, number


async def disturbed(control: Controller, number: int) -> Segment | None:
    """One in four is interrupted after some tokens, one in seven cancelled: None."""
    with Caller(control, f"run-{number}") as caller:
        await caller.call(CreateQueue(queue=QUEUE))
        session, num_tokens = caller._session, 0
        session.submit(CallId(9), replace(disturbed_call(number), progress=True))
        while True:
            for one in await session.receive():
                assert one.error is None
                if isinstance(one.result, Segment):
                    return one.result
                num_tokens += len(one.result.tokens) if isinstance(one.result, Progress) else 0
            if num_tokens > 5 + number % 5 and number % 4 == 1:
                session.interrupt(CallId(9))
            elif num_tokens > 5 and number % 7 == 2:
                return None  # closing cancels it


def disturbed_call(number: int) -> Generate:
    """As `call_of`, of kinds that decode as one group, and longer."""
    call = segment_call(30 + number % 30, prompt_len=20, first_token=number)
    return replace(call, **KINDS[number % 4](number))


async def undisturbed(executor: Executor | None = None) -> list[Segment]:
    """What `disturbed_call` gives, one after the other and step by step."""
    expected = []
    async with open_small_engine(VOCAB_SIZE, SystemClock(), ControlConfig(steps_ahead="off"), executor) as control:
        for number in range(NUM_RUNS):
            with Caller(control, f"run-{number}") as caller:
                await caller.call(CreateQueue(queue=QUEUE))
                segment = await caller.call(disturbed_call(number))
                assert isinstance(segment, Segment)
                expected.append(segment)
    return expected


def noted_suspensions(monkeypatch: pytest.MonkeyPatch) -> list[RunId]:
    """The runs that are suspended from now on, as they are."""
    suspended: list[RunId] = []
    suspend = Scheduler.suspend

    def noted(scheduler: Scheduler, run_id: RunId) -> None:
        suspended.append(run_id)
        suspend(scheduler, run_id)

    monkeypatch.setattr(Scheduler, "suspend", noted)
    return suspended


async def check_disturbed(executor: Executor, expected: Sequence[Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    """`executor` has blocks for a few of the runs at a time: rows are taken out of steps that are ahead, and come
    back."""
    suspended = noted_suspensions(monkeypatch)
    config = ControlConfig(steps_ahead="on")
    async with open_small_engine(VOCAB_SIZE, SystemClock(), config, executor) as control:
        found = await all_of(disturbed(control, number) for number in range(NUM_RUNS))
        stats = await control.stats()
    assert suspended, "nobody ran out of blocks"
    assert stats.num_wasted_rows > 0
    reasons = {None if one is None else one.reason for one in found}
    assert reasons >= {None, "interrupted", "stop_token", "length"}
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is not None:
            assert one.tokens == other.tokens[: len(one.tokens)], number
            assert one.reason == ("interrupted" if number % 4 == 1 and one.reason != other.reason else other.reason)
