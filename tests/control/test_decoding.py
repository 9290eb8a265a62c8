"""Rows that decode: columns that stay from step to step, and what makes a row join, leave, or end."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.control.decoding import DecodeGroup
from loopwright.core.batch import DecodeRows
from loopwright.core.calls import AllocatePages, ClearQueue, ForwardText, Sampling
from loopwright.core.control import ControlLimits
from loopwright.core.errors import BadRequest
from loopwright.core.ids import PageName

from .reference import NaiveContext
from .rig import QUEUE, Rig, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
COLUMNS = ("block_ids", "kv_lens", "positions", "samplings", "generated")


def expected(first_token: int, max_tokens: int) -> list[int]:
    return NaiveContext().generate([first_token], range(1), SAMPLING, max_tokens)


def decodes(rig: Rig) -> list[DecodeRows]:
    return [batch.decodes for batch in rig.executor.batches]


def test_a_step_with_the_rows_of_the_one_before_has_the_very_same_columns_but_for_the_tokens() -> None:
    rig = Rig()
    calls = {run: run.submit(generate((5 + n,), sampling=SAMPLING, max_tokens=9)) for n, run in
             enumerate(rig.open(name) for name in "abc")}  # fmt: skip
    rig.drain()
    first, *later = decodes(rig)[1:]
    assert [rows.num_steps - first.num_steps for rows in later] == list(range(1, 8))
    assert all(getattr(rows, name) is getattr(first, name) for rows in later for name in COLUMNS)
    for n, (run, call) in enumerate(calls.items()):
        tokens = list(run.segment(call).tokens)
        assert tokens == expected(5 + n, 9)
        assert [rows.token_ids[n] for rows in (first, *later)] == tokens[:-1]


def test_rows_join_behind_the_others_and_those_that_end_leave_no_gap() -> None:
    rig = Rig()
    lengths = {"a": 3, "b": 8, "c": 5}
    calls = [(run := rig.open(name), run.submit(generate((5,), sampling=SAMPLING, max_tokens=lengths[name])))
             for name in lengths]  # fmt: skip
    for _ in range(4):
        rig.step()
    late = rig.open("d")
    calls.append((late, late.submit(generate((5,), sampling=SAMPLING, max_tokens=8))))
    rig.drain()
    assert [len(rows) for rows in decodes(rig)] == [0, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    assert all(list(run.segment(call).tokens) == expected(5, len(run.segment(call).tokens)) for run, call in calls)
    assert [len(run.segment(call).tokens) for run, call in calls] == [3, 8, 5, 8]


def test_a_row_that_fails_takes_nobody_along_and_keeps_what_it_had() -> None:
    rig = Rig()
    good, bad = rig.open("good"), rig.open("bad", ControlLimits())
    bad_tokens = expected(9, 12)
    place = next(place for place, token in enumerate(bad_tokens) if token not in expected(5, 12)[:12] and place > 1)
    rig.executor.fail_rows = {bad_tokens[place]: BadRequest("NaN").info()}
    good_call = good.submit(generate((5,), sampling=SAMPLING, max_tokens=12))
    bad_call = bad.submit(generate((9,), sampling=SAMPLING, max_tokens=12, progress=True))
    rig.drain()
    assert bad.error(bad_call).message == "NaN"
    assert [token for part in bad.parts[bad_call] for token in part.tokens] == bad_tokens[: place + 1]
    assert list(good.segment(good_call).tokens) == expected(5, 12)


def test_what_a_failed_row_should_have_written_does_not_count_as_written() -> None:
    rig = Rig()
    run = rig.open("a")
    tokens = expected(9, 6)
    rig.executor.fail_rows = {tokens[2]: BadRequest("NaN").info()}
    assert tokens[2] not in (9, *tokens[:2])
    pages = tuple(PageName(page) for page in (1, 2, 3))
    assert run.now(AllocatePages(queue=QUEUE, pages=pages)).error is None
    failed = run.submit(generate((9,), pages=pages, sampling=SAMPLING, max_tokens=12))
    rig.drain()
    assert run.error_type(failed) == "BadRequest"
    run.submit(ClearQueue(queue=QUEUE))
    calls = [
        run.submit(ForwardText(queue=QUEUE, pages=pages, kv_len=kv_len, tokens=(5,), positions=(kv_len,)))
        for kv_len in (4, 3)
    ]  # the prompt's token and two that were sampled are there; the row of the third failed
    rig.drain()
    assert [run.error_type(call) for call in calls] == ["BadRequest", "Poisoned"]
    assert "pages[0] has KV for its first 3 tokens" in run.error(calls[0]).message


def test_service_is_counted_for_each_token_that_ran() -> None:
    rig = Rig()
    long, short = rig.open("long"), rig.open("short")
    long.submit(generate((5,), sampling=SAMPLING, max_tokens=9))
    short.submit(generate((5,), sampling=SAMPLING, max_tokens=4))
    rig.drain()
    served = rig.controller._suspension._served
    assert (served[long.session.run_id], served[short.session.run_id]) == (9, 4)


def test_a_segment_that_is_interrupted_in_a_step_ends_with_what_that_step_samples() -> None:
    rig = Rig()
    runs = [rig.open(name) for name in "ab"]
    calls = [run.submit(generate((5,), sampling=SAMPLING, max_tokens=9)) for run in runs]
    for _ in range(3):
        rig.step()
    batch = rig.controller.schedule()
    assert batch is not None
    runs[0].session.interrupt(calls[0])
    assert runs[0].final(calls[0]) is None
    rig.controller.complete(rig.executor.run(batch))
    segment = runs[0].segment(calls[0])
    assert (list(segment.tokens), segment.reason) == (expected(5, 4), "interrupted")
    rig.drain()
    assert list(runs[1].segment(calls[1]).tokens) == expected(5, 9)


def test_a_stop_token_ends_the_row_that_lists_it_and_no_other() -> None:
    rig = Rig()
    stop = expected(5, 6)[-1]
    assert stop not in expected(5, 6)[:-1]
    stopped, other = rig.open("stopped"), rig.open("other")
    never = next(token for token in range(2, 64) if token not in expected(5, 9))
    first = stopped.submit(generate((5,), sampling=SAMPLING, max_tokens=9, stop_tokens=(stop,)))
    second = other.submit(generate((5,), sampling=SAMPLING, max_tokens=9, stop_tokens=(never,)))
    rig.drain()
    assert (stopped.segment(first).reason, len(stopped.segment(first).tokens)) == ("stop_token", 6)
    assert list(other.segment(second).tokens) == expected(5, 9)


@pytest.mark.parametrize("num_runs", [2, 5])
def test_a_row_that_gets_no_page_waits_and_goes_on_with_the_same_tokens(num_runs: int) -> None:
    rig = Rig(num_blocks=5, config=ControlConfig(prefix_cache=False))
    runs = [rig.open(f"run {n}") for n in range(num_runs)]
    calls = [run.submit(generate((5 + n,), sampling=SAMPLING, max_tokens=14)) for n, run in enumerate(runs)]
    for _ in range(500):
        if all(run.final(call) is not None for run, call in zip(runs, calls, strict=True)):
            break
        if not rig.step():
            rig.clock.advance(1.0)
    for n, (run, call) in enumerate(zip(runs, calls, strict=True)):
        assert list(run.segment(call).tokens) == expected(5 + n, 14)


def test_a_group_without_rows_forms_none() -> None:
    group = DecodeGroup(block_size=16)
    assert len(group.form()) == len(group) == 0
    assert group.take_full() == group.dissolve() == []
