"""Drafts, penalties and shifts at the calls' level: what they complete with, what they refuse, who waits for whom."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocatePages,
    ClearQueue,
    CopyPage,
    ForwardText,
    Sampling,
    SharePages,
    ShiftKv,
)
from loopwright.core.errors import BadRequest
from loopwright.core.ids import PageName, QueueName
from loopwright.core.results import Done

from .fake_executor import choose, shifted
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

Q2 = QueueName(2)
SAMPLING = Sampling(temperature=1.0, seed=7)
PENALTIES = Sampling(temperature=1.0, seed=7, frequency_penalty=0.5, top_logprobs=1, logprobs="processed")
PROMPT = tuple(range(5, 22))


def pages(*names: int) -> tuple[PageName, ...]:
    return tuple(PageName(name) for name in names)


def text(tokens, *, names=(), kv_len=0, queue=QUEUE, **rest) -> ForwardText:
    positions = rest.pop("positions", tuple(range(kv_len, kv_len + len(tokens))))
    return ForwardText(
        queue=queue, pages=pages(*names), kv_len=kv_len, tokens=tuple(tokens), positions=positions, **rest
    )


def naive(num_tokens: int) -> list[int]:
    return NaiveContext().generate(PROMPT, range(len(PROMPT)), SAMPLING, num_tokens)


def drafts_with(num_right: int, num_drafts: int) -> list[int]:
    right = naive(num_drafts)
    return [*right[:num_right], *((one + 1) % 64 for one in right[num_right:])]


@pytest.mark.parametrize("max_batch_tokens", [3, 4, 7, 512])
@pytest.mark.parametrize("num_right", [0, 1, 3, 5])
def test_drafts_give_what_sampling_one_by_one_gives_however_the_prompt_is_cut(
    max_batch_tokens: int, num_right: int
) -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=max_batch_tokens))
    run = rig.open("a")
    tokens = [*PROMPT, *drafts_with(num_right, 5)]
    call = run.submit(text(tokens, grow_from=PageName(1), sampling=SAMPLING, num_drafts=5))
    beside = run.submit(text((5, 6, 7), queue=QUEUE, grow_from=PageName(50), sampling=SAMPLING))
    rig.drain()
    result = run.forwarded(call)
    assert list(result.tokens) == naive(num_right + 1)
    assert (result.token, result.logprob) == (result.tokens[-1], result.logprobs[-1])
    assert result.logprobs == tuple(-float(token) for token in result.tokens)
    assert result.logprob_kind == "raw"
    assert (result.kv_len, result.num_pages) == (len(PROMPT) + num_right, 6)
    assert run.forwarded(beside).tokens == (choose(NaiveContext().run((5, 6, 7), range(3))[-1], SAMPLING, 3),)
    judged = [row for batch in rig.executor.batches for row in batch.all_rows if row.num_drafts]
    assert [row.num_drafts for row in judged] == [5]
    assert judged[0].num_tokens >= 6


def test_what_rejected_drafts_left_is_not_there_and_is_written_over() -> None:
    rig = Rig()
    run = rig.open("a")
    first = run.submit(text([*PROMPT, *drafts_with(1, 6)], grow_from=PageName(0), sampling=SAMPLING, num_drafts=6))
    rig.drain()
    assert run.forwarded(first).kv_len == 18
    names = range(run.forwarded(first).num_pages)
    beyond = run.submit(text((9,), names=names, kv_len=19, sampling=SAMPLING))
    rig.drain()
    run.submit(ClearQueue(queue=QUEUE))
    expected = naive(8)
    again = run.submit(text(expected[1:7], names=names, kv_len=18, sampling=SAMPLING, num_drafts=5))
    rig.drain()
    assert "pages[4] has KV for its first 2 tokens, and 3 are counted" in run.error(beyond).message
    assert list(run.forwarded(again).tokens) == expected[2:8]


def test_penalties_count_the_drafts_before_a_place() -> None:
    rig = Rig()
    run = rig.open("a")
    expected, pages_named, kv_len, tokens = [], 0, 0, list(PROMPT)
    for _ in range(5):  # one by one, as a program that lists what it got
        sampling = Sampling(temperature=1.0, seed=7, frequency_penalty=0.5, generated=(1, *expected))
        call = run.submit(
            text(tokens, names=range(pages_named), kv_len=kv_len, grow_from=PageName(pages_named), sampling=sampling)
        )
        rig.drain()
        result = run.forwarded(call)
        pages_named, kv_len, tokens = result.num_pages, result.kv_len, [result.token]
        expected += tokens
    sampling = Sampling(temperature=1.0, seed=7, frequency_penalty=0.5, generated=(1,))
    call = run.submit(text([*PROMPT, *expected[:4]], grow_from=PageName(100), sampling=sampling, num_drafts=4))
    segment = run.submit(generate(PROMPT, grow_from=200, sampling=sampling, max_tokens=5))
    rig.drain()
    assert list(run.forwarded(call).tokens) == expected
    assert list(run.segment(segment).tokens) == expected


def test_a_segment_reports_the_kind_and_the_top_of_its_logprobs_on_the_way_and_at_the_end() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=PENALTIES, max_tokens=4, progress=True))
    plain = run.submit(generate(PROMPT, grow_from=300, sampling=SAMPLING, max_tokens=4, progress=True))
    rig.drain()
    segment = run.segment(call)
    assert segment.logprob_kind == "processed"
    assert segment.top_logprobs == tuple(((token, -1.0),) for token in segment.tokens)
    parts = run.parts[call]
    assert [part.logprob_kind for part in parts] == ["processed"] * 4
    assert tuple(top for part in parts for top in part.top_logprobs) == segment.top_logprobs
    assert (run.segment(plain).top_logprobs, run.segment(plain).logprob_kind) == ((), "raw")
    assert all(part.top_logprobs == () for part in run.parts[plain])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_drafts": 2, "sampling": None}, "num_drafts: 2 drafts without sampling"),
        ({"num_drafts": 4}, "num_drafts: 4 of 4 tokens; at most 3"),
        ({"num_drafts": 2, "positions": (0, 1, 2, 4)}, "do not stand one after the other behind position 1"),
        ({"sampling": Sampling(seen=(64,))}, "sampling.seen: token 64 is not in the vocabulary of 64"),
        ({"sampling": Sampling(generated=(64,))}, "sampling.generated: token 64"),
    ],
)
def test_what_cannot_be_verified_is_refused(changes: dict, message: str) -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(text((5, 6, 7, 8), grow_from=PageName(1), **{"sampling": SAMPLING} | changes))
    assert message in run.error(call).message
    rig.assert_all_free()


def shift(names, *, start: int = 0, size: int, delta: int = 3, queue=QUEUE) -> ShiftKv:
    return ShiftKv(queue=queue, pages=pages(*names), start=start, size=size, delta=delta)


def prompt_pages(run: RigRun, rig: Rig) -> range:
    """Ten tokens in pages 0, 1 and 2."""
    run.submit(text(PROMPT[:10], grow_from=PageName(0)))
    rig.drain()
    return range(3)


def after_shift(start: int, size: int, delta: int) -> int:
    """What is sampled after one more token."""
    context = NaiveContext()
    context.run(PROMPT[:10], range(10))
    context.values[start : start + size] = [shifted(value, delta) for value in context.values[start : start + size]]
    return choose(context.run((9,), (10,))[-1], SAMPLING, 11)


@pytest.mark.parametrize(("start", "size"), [(0, 10), (0, 4), (3, 2), (5, 5), (9, 1)])
def test_a_shift_moves_its_range_and_who_reads_waits_for_it(start: int, size: int) -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    names = prompt_pages(run, rig)
    moved = run.submit(shift(names, start=start, size=size))
    reader = run.submit(text((9,), names=names, kv_len=10, queue=Q2, sampling=SAMPLING))
    rig.drain()
    assert run.result(moved) == Done()
    touched = {page for page in names if page * 4 < start + size and (page + 1) * 4 > start}
    assert [len(one.block_ids) for batch in rig.executor.batches for one in batch.shifts] == [len(touched)]
    assert run.forwarded(reader).token == after_shift(start, size, 3)


def test_a_shift_waits_for_who_writes_and_for_who_reads() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    names = prompt_pages(run, rig)
    reader = run.submit(text((9,), names=names, kv_len=10, sampling=SAMPLING))
    run.submit(shift(names, size=10, queue=Q2))
    rig.drain()
    before = NaiveContext()
    before.run(PROMPT[:10], range(10))
    assert run.forwarded(reader).token == choose(before.run((9,), (10,))[-1], SAMPLING, 11)
    later = run.submit(text((9,), names=names, kv_len=10, sampling=SAMPLING))
    rig.drain()
    assert run.forwarded(later).token == after_shift(0, 10, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 3, "size": 10}, "start: 3 + size 10 is not within the 12 tokens that the pages hold"),
        ({"start": 9, "size": 2}, "start: tokens 9 … 10 are not all written"),
    ],
)
def test_a_shift_beyond_what_is_written_is_refused(fields: dict, message: str) -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(shift(prompt_pages(run, rig), **fields))
    rig.drain()
    assert run.error(call).message == message


def test_a_shared_page_is_not_shifted_and_a_copy_of_it_is() -> None:
    rig = Rig()
    run = rig.open("a")
    names = prompt_pages(run, rig)
    run.now(SharePages(queue=QUEUE, sources=pages(1), targets=pages(70)))
    refused = run.submit(shift(names, start=2, size=5))
    run.submit(ClearQueue(queue=QUEUE))
    alone = run.submit(shift(names, start=8, size=2))  # page 2 is nobody else's
    run.submit(AllocatePages(queue=QUEUE, pages=pages(71)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(1), target=PageName(71), size=4))
    copied = run.submit(shift((0, 71), start=4, size=4))
    rig.drain()
    assert "pages: page 1 is shared by 2 names" in run.error(refused).message
    assert run.result(alone) == run.result(copied) == Done()


def test_a_shift_that_the_engine_refuses_poisons_who_reads_what_it_should_have_written() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    names = prompt_pages(run, rig)
    rig.executor.fail_shift = BadRequest("delta: -9 moves a token to position -1", field="delta").info()
    call = run.submit(shift(names, size=10))
    reader = run.submit(text((9,), names=names, kv_len=10, queue=Q2, sampling=SAMPLING))
    rig.drain()
    assert run.error_type(call) == "BadRequest"
    assert run.error_type(reader) == "Poisoned"
