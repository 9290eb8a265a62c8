"""A reader of many sessions gets what each of them would have got by itself, in the same order, in far fewer pieces."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from loopwright.core.errors import InternalError
from loopwright.core.ids import CallId
from loopwright.core.results import Completion, Progress
from loopwright.core.told_tokens import Whose

from .fake_grammars import FakeCompiler
from .reference import NaiveContext
from .rig import Rig, RigRun, generate
from .step_by_step import LETTERS, OPTIONS, PLACES, call_of

SAMPLING = Sampling(temperature=1.0, seed=3)


class Reader:
    """Reads sessions by number. Each `heard` is of tokens, log-probabilities and their kind, or of what a call ended
    with."""

    def __init__(self, may_take: Callable[[], bool] = lambda: True) -> None:
        self.heard: dict[int, list[object]] = {}
        self.columns: list[tuple[Whose, Sequence[int]]] = []
        self._may_take = may_take
        self._runs: dict[int, RigRun] = {}

    def listen(self, run: RigRun, name: int, *, is_together: bool) -> None:
        self.heard[name] = []
        self._runs[name] = run
        run.session.when_news(lambda: self._take(name, run.session.take()))
        if is_together:
            run.session.when_tokens(self, name)

    def take_tokens(
        self, whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float], left_out: Sequence[int]
    ) -> bool:
        if not self._may_take():
            return False
        assert list(left_out) == sorted(set(left_out))
        self.columns.append((whose, token_ids))
        for place, (name, *told) in enumerate(zip(*whose, token_ids, logprobs, strict=True)):
            if place not in left_out and not self._runs[name].session.inbox.is_closed:
                call_id, kind, token_id, logprob = told
                self.heard[name].append((call_id, token_id, logprob, kind))
        return True

    def _take(self, name: int, completions: Sequence[Completion]) -> None:
        for one in completions:
            if isinstance(one.result, Progress):
                kind = one.result.logprob_kind
                pairs = zip(one.result.tokens, one.result.logprobs, strict=True)
                self.heard[name] += [(one.call_id, token_id, logprob, kind) for token_id, logprob in pairs]
            else:
                self.heard[name].append((one.call_id, one.result, one.error))


async def heard_of(options: Sequence[str], seed: int, *, is_ahead: bool, is_together: bool) -> dict[int, list[object]]:
    """Segments that begin, are interrupted, and whose runs end at times that the seed says."""
    times, weather = Random(seed), Random(seed + 1)
    max_rows = times.choice([3, 64])
    config = ControlConfig(max_batch_tokens=times.choice([max_rows + 2, 512]), max_batch_rows=max_rows)
    rig = Rig(config=config, token_bytes=LETTERS, grammars=FakeCompiler(g=PLACES), is_ahead=is_ahead)
    if times.random() < 0.3:
        rig.executor.fail_rows[times.randrange(20, 60)] = InternalError("its row failed").info()
    reader = Reader(lambda: weather.random() < 0.8)
    runs = [rig.open(str(number)) for number in range(len(options))]
    waiting = []
    for number, (run, option) in enumerate(zip(runs, options, strict=True)):
        reader.listen(run, number, is_together=is_together)
        call, _ = call_of(option, seed + number)
        sampling = replace(call.sampling, logprobs=times.choice(["raw", "processed"]))
        shown = replace(call, progress=times.random() < 0.8, sampling=sampling, max_tokens=times.randrange(1, 30))
        waiting.append((times.randrange(6), run, shown))
    for step in range(40):
        for when, run, call in waiting:
            if when == step and not run.session.inbox.is_closed:
                run.submit(call)
        if times.random() < 0.1:
            times.choice(runs).session.interrupt(CallId(2))
        if times.random() < 0.03:
            await asyncio.sleep(0)  # what it has not taken by now it never hears
            times.choice(runs).session.close()
        rig.step()
        if times.random() < 0.6:  # else several steps end in one turn of the loop
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    for run in runs:
        run.session.close()
    rig.drain()
    rig.assert_all_free()
    return reader.heard


@settings(deadline=None, max_examples=200)
@given(
    options=st.lists(st.sampled_from(list(OPTIONS)), min_size=1, max_size=5),
    is_ahead=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_each_session_hears_the_same_in_the_same_order_read_together_or_alone(
    options: list[str], is_ahead: bool, seed: int
) -> None:
    alone = asyncio.run(heard_of(options, seed, is_ahead=is_ahead, is_together=False))
    together = asyncio.run(heard_of(options, seed, is_ahead=is_ahead, is_together=True))
    assert together == alone
    for heard in together.values():
        assert all(len(one) == 4 for one in heard[:-1]), "the end comes last, though a row behind it may have run"


def together(rig: Rig, reader: Reader, name: int, **fields) -> RigRun:
    """A run whose one segment the reader reads."""
    run = rig.open(str(name))
    reader.listen(run, name, is_together=True)
    run.submit(generate((5 + name,), sampling=SAMPLING, progress=True, **fields))
    return run


async def test_what_many_rows_show_is_one_column_with_the_very_same_names_as_long_as_the_rows_are() -> None:
    rig, reader = Rig(is_ahead=True), Reader()
    for name, max_tokens in enumerate((6, 9, 9)):
        together(rig, reader, name, max_tokens=max_tokens)
    rig.drain()
    await asyncio.sleep(0)
    lengths = [len(token_ids) for _, token_ids in reader.columns]
    assert lengths == [3, 3, 3, 3, 3, 2, 2], "first tokens are a prompt's, and the last come with their segments"
    assert (
        len({id(whose) for whose, _ in reader.columns[:5]}) == len({id(whose) for whose, _ in reader.columns[5:]}) == 1
    )
    assert [len(heard) for heard in reader.heard.values()] == [1 + 6, 1 + 9, 1 + 9], "with its end"


async def test_a_reader_keeps_its_names_when_the_rows_of_another_change() -> None:
    rig, readers = Rig(), (Reader(), Reader())
    for name, (reader, max_tokens) in enumerate(zip((0, 1, 0, 1), (9, 4, 9, 9), strict=True)):
        together(rig, readers[reader], name, max_tokens=max_tokens)
    rig.drain()
    assert len({id(whose) for whose, _ in readers[0].columns}) == 1
    assert len({id(whose) for whose, _ in readers[1].columns}) == 2
    assert {name for whose, _ in readers[1].columns for name in whose.names} == {1, 3}


async def test_what_a_session_had_before_is_told_before_its_next_token() -> None:
    rig, reader = Rig(), Reader()
    together(rig, reader, 0, max_tokens=4)
    for _ in range(3):
        rig.step()  # in one turn of the loop: the prompt's token is still in the inbox when the next is told
    assert [one[1] for one in reader.heard[0]] == NaiveContext().generate([5], range(1), SAMPLING, 3)
