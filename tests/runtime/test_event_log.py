"""A run's events: in order, one final one, always last."""

import asyncio

import pytest

from loopwright.core.clock import FakeClock
from loopwright.core.errors import LimitExceeded
from loopwright.core.events import Event, Finished
from loopwright.core.ids import RunId
from loopwright.runtime.event_log import MIN_EVENT_BYTES, EventLog


def make_log(max_bytes: int = 1000) -> EventLog:
    return EventLog(RunId("r"), FakeClock(), max_bytes)


async def collect(log: EventLog, after: int = -1) -> list[Event]:
    return [event async for event in log.follow(after)]


def test_followers_see_every_event_once_whenever_they_come() -> None:
    async def scenario() -> None:
        log = make_log()
        log.text("a")
        early = asyncio.create_task(collect(log))
        await asyncio.sleep(0)
        log.text("b")
        late = asyncio.create_task(collect(log, after=0))
        await asyncio.sleep(0)
        log.finish("ok", 1)
        assert [event.seq for event in await early] == [0, 1, 2]
        assert [event.seq for event in await late] == [1, 2]
        assert [event.seq for event in await collect(log)] == [0, 1, 2]

    asyncio.run(scenario())


def test_nothing_comes_after_the_final_event_and_it_comes_once() -> None:
    log = make_log()
    log.finish("ok", "first")
    log.finish("internal")
    log.text("late")
    (event,) = asyncio.run(collect(log))
    assert isinstance(event, Finished)
    assert (event.code, event.result) == ("ok", "first")


@pytest.mark.parametrize("after", [1, 2, 10**30])
def test_who_follows_from_the_end_is_told_that_the_run_is_over(after: int) -> None:
    async def scenario() -> None:
        log = make_log()
        log.text("a")
        early = asyncio.create_task(collect(log, after))
        await asyncio.sleep(0)
        log.finish("ok", 1)
        for events in (await early, await collect(log, after)):
            assert [(event.seq, type(event)) for event in events] == [(1, Finished)]

    asyncio.run(scenario())


def test_the_write_that_passes_the_output_limit_names_the_limit_and_is_kept_out() -> None:
    log = make_log(max_bytes=20)
    log.text("abcdeabcdeabcdeabcde")
    with pytest.raises(LimitExceeded, match="limit is 20"):
        log.log("stdout", "e")
    assert len(log) == 1
    log.finish("limit")
    assert log.final is not None


def test_empty_lines_count_and_letters_count_as_their_bytes() -> None:
    log = make_log(max_bytes=10 * MIN_EVENT_BYTES)
    for _ in range(9):
        log.log("stdout", "")
    with pytest.raises(LimitExceeded):
        log.text("\N{GRINNING FACE}" * 5)


def test_a_result_counts_as_output() -> None:
    log = make_log(max_bytes=20)
    log.check_result(20)
    with pytest.raises(LimitExceeded, match="limit is 20"):
        log.check_result(21)
