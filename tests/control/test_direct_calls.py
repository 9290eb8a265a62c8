"""Calls that control answers at once: priorities that move what waits, and looking into a run."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import AllocateEmbeds, AllocatePages, DebugQuery, QueueCall, SetPriority, SharePages
from loopwright.core.control import ControlLimits
from loopwright.core.ids import EmbedName, PageName, QueueName
from loopwright.core.results import CallInfo, DebugInfo, Done, QueueInfo

from .rig import QUEUE, Rig, RigRun, generate

Q2 = QueueName(2)


def debug(run: RigRun, queue: int | None = None) -> DebugInfo:
    result = run.now(DebugQuery(queue=None if queue is None else QueueName(queue))).result
    assert isinstance(result, DebugInfo)
    return result


def first_tokens(rig: Rig) -> list[int]:
    """The first token of every row that started a prompt, in the order of the steps."""
    return [row.token_ids[0] for batch in rig.executor.batches for row in batch.all_rows if row.kv_len == 0]


@pytest.mark.parametrize(("priority", "order"), [(1, [31, 11, 21]), (0, [11, 21, 31]), (-1, [11, 21, 31])])
def test_a_new_priority_moves_calls_that_wait_already(priority: int, order: list[int]) -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
    runs = [rig.open(name) for name in "abc"]
    for number, run in enumerate(runs):
        run.submit(generate((10 * number + 11,) * 4, max_tokens=1))
    assert runs[2].now(SetPriority(queue=QUEUE, priority=priority)).result == Done()
    rig.drain()
    assert first_tokens(rig) == order


def test_a_low_priority_lets_later_calls_pass_and_normal_again_takes_the_place_back() -> None:
    for lowered, order in ((True, [21, 11]), (False, [11, 21])):
        rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
        first, second = rig.open("a"), rig.open("b")
        first.submit(generate((11,) * 4, max_tokens=1))
        first.now(SetPriority(queue=QUEUE, priority=-1))
        second.submit(generate((21,) * 4, max_tokens=1))
        if not lowered:
            first.now(SetPriority(queue=QUEUE, priority=0))
        rig.drain()
        assert first_tokens(rig) == order


def test_a_new_priority_holds_for_later_calls_and_for_those_that_wait_behind_others() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
    busy, run = rig.open("busy"), rig.open("a")
    run.submit(generate((11,) * 4, max_tokens=1))
    busy.submit(generate((21,) * 4, max_tokens=1))
    run.submit(generate((12,) * 4, grow_from=200, max_tokens=1))  # waits for the one before it
    run.now(SetPriority(queue=QUEUE, priority=1))
    run.submit(generate((13,) * 4, grow_from=300, max_tokens=1))
    rig.drain()
    assert first_tokens(rig) == [11, 12, 13, 21]


def test_a_priority_changes_no_answer() -> None:
    answers = []
    for priority in (-1, 0, 1):
        rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=4))
        runs = [rig.open(name) for name in "abc"]
        calls = [run.submit(generate(range(5, 14), max_tokens=6)) for run in runs]
        rig.step()
        runs[1].now(SetPriority(queue=QUEUE, priority=priority))
        rig.drain()
        answers.append([run.segment(call).tokens for run, call in zip(runs, calls, strict=True)])
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == answers[0][1] == answers[0][2]


def test_a_debug_query_says_what_the_run_holds_of_what_it_may_and_what_is_open() -> None:
    rig = Rig()
    run = rig.open("a", ControlLimits(max_pages=9, max_embeds=7, max_open_calls=5), queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(1), PageName(2))))
    run.now(SharePages(queue=QUEUE, sources=(PageName(1),), targets=(PageName(3),)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(EmbedName(1),)))
    first = run.submit(generate((5, 6), max_tokens=2))
    second = run.submit(generate((7,), grow_from=200, max_tokens=2))
    assert rig.controller.schedule() is not None
    ready = run.submit(generate((8,), grow_from=300, max_tokens=1, queue=2))
    info = debug(run)
    assert (info.num_pages, info.max_pages, info.num_page_names) == (3, 9, 4)  # the segment's own is one
    assert (info.num_embeds, info.max_embeds) == (1, 7)
    assert (info.num_open_calls, info.max_open_calls) == (3, 5)
    calls = (CallInfo(first, "generate", "running"), CallInfo(second, "generate", "waiting"))
    assert info.queues == (QueueInfo(QUEUE, 0, calls), QueueInfo(Q2, 0, (CallInfo(ready, "generate", "ready"),)))
    assert debug(run, 2).queues == info.queues[1:]


def test_a_debug_query_shows_a_failure_and_is_answered_on_a_poisoned_queue() -> None:
    rig = Rig()
    run = rig.open("a")
    run.submit(generate((7,), max_tokens=2))
    run.submit(generate((64,), grow_from=200))
    assert run.now(SetPriority(queue=QUEUE, priority=1)).result == Done()
    (queue,) = debug(run, QUEUE).queues
    assert queue.priority == 1
    assert queue.failure is not None
    assert "token 64" in queue.failure.message
    assert [call.state for call in queue.calls] == ["ready", "failed"]


def test_a_run_sees_nothing_of_another() -> None:
    rig = Rig()
    busy, idle = rig.open("busy"), rig.open("idle")
    busy.submit(generate((5, 6)))
    info = debug(idle)
    assert (info.num_pages, info.num_open_calls) == (0, 0)
    assert [queue.calls for queue in info.queues] == [()]


@pytest.mark.parametrize("call", [DebugQuery(queue=Q2), SetPriority(queue=Q2, priority=1)])
def test_a_queue_that_is_not_there_is_named_with_how_many_are(call: QueueCall) -> None:
    error = Rig().open("a").now(call).error
    assert error is not None
    assert (error.type, error.field) == ("NotFound", "queue")
    assert "2 is not one of the 1 queues" in error.message
