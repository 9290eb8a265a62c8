"""Vertical batching: calls that share a step with what they wait for, and what happens when that fails."""

from loopwright.control.config import ControlConfig
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
    Sample,
    Sampling,
    SharePages,
    Synchronize,
)
from loopwright.core.errors import InternalError
from loopwright.core.ids import EmbedName, PageName, QueueName

from .fake_executor import choose
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=7)
PROMPT = (5, 6, 7, 8, 9)
FAULT = InternalError("NaN logits").info()


def pages(*names: int) -> tuple[PageName, ...]:
    return tuple(PageName(name) for name in names)


def embeds(*names: int) -> tuple[EmbedName, ...]:
    return tuple(EmbedName(name) for name in names)


def text(tokens, *, names=(), kv_len=0, queue=QUEUE, **rest) -> ForwardText:
    positions = tuple(range(kv_len, kv_len + len(tokens)))
    return ForwardText(
        queue=queue, pages=pages(*names), kv_len=kv_len, tokens=tuple(tokens), positions=positions, **rest
    )


def token_after(tokens, sampling=SAMPLING) -> int:
    return choose(NaiveContext().run(tokens, range(len(tokens)))[-1], sampling, len(tokens))


def chain(run: RigRun, page: int = 1, tokens=(5, 6, 7), kv_len: int = 0, first_embed: int = 1) -> list[int]:
    """embed → forward → sample and a distribution, issued before any of them ran."""
    places = range(kv_len, kv_len + len(tokens))
    inputs = embeds(*range(first_embed, first_embed + len(tokens)))
    output = EmbedName(first_embed + len(tokens))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(*inputs, output)))
    return [
        run.submit(EmbedText(queue=QUEUE, tokens=tuple(tokens), positions=tuple(places), embeds=inputs)),
        run.submit(Forward(queue=QUEUE, pages=pages(page), kv_len=kv_len, inputs=inputs, outputs=(output,))),
        run.submit(Sample(queue=QUEUE, embed=output, sampling=SAMPLING, position=kv_len + len(tokens))),
        run.submit(NextDistribution(queue=QUEUE, embed=output, request=DistributionRequest(k=3))),
    ]


def test_a_chain_that_is_known_in_advance_is_one_row_of_one_step() -> None:
    rig = Rig()
    runs = [rig.open(name) for name in "abc"]
    chains = []
    for run in runs:
        run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
        chains.append(chain(run))
    assert rig.drain() == 1
    assert rig.executor.batches[0].num_rows == 3
    for run, calls in zip(runs, chains, strict=True):
        assert run.order()[-4:] == calls
        assert run.forwarded(calls[2]).token == token_after((5, 6, 7))


def test_a_second_chain_over_the_same_page_takes_a_second_step() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    chain(run, tokens=(5, 6))
    second = chain(run, tokens=(7,), kv_len=2, first_embed=20)
    assert rig.drain() == 2
    assert run.forwarded(second[2]).token == token_after((5, 6, 7))


def test_a_copied_tail_and_the_segment_that_goes_on_from_it_start_in_one_step() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text(PROMPT, names=(1, 2)))
    rig.drain()
    run.now(SharePages(queue=QUEUE, sources=pages(1), targets=pages(11)))
    run.now(AllocatePages(queue=QUEUE, pages=pages(12)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(2), target=PageName(12), size=1))
    branch = run.submit(generate((10,), pages=(11, 12), kv_len=5, sampling=SAMPLING, max_tokens=4))
    assert rig.drain() == 4
    whole = NaiveContext()
    whole.run(PROMPT, range(5))
    assert list(run.segment(branch).tokens) == whole.generate((10,), (5,), SAMPLING, 4)


def test_a_call_behind_a_prompt_that_is_cut_waits_for_its_last_part() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=6))
    run = rig.open("a")
    run.submit(text(range(2, 12), grow_from=PageName(1)))
    behind = run.submit(text((20, 21), grow_from=PageName(50), sampling=SAMPLING))
    rig.drain()
    assert [[row.num_tokens for row in batch.all_rows] for batch in rig.executor.batches] == [[6], [4, 2]]
    assert run.forwarded(behind).token == token_after((20, 21))


def test_a_sample_behind_a_forward_that_is_cut_waits_for_its_last_part() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=3))
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    inputs = embeds(1, 2, 3, 4, 5)
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(*inputs, EmbedName(9))))
    run.submit(EmbedText(queue=QUEUE, tokens=PROMPT, positions=tuple(range(5)), embeds=inputs))
    run.submit(Forward(queue=QUEUE, pages=pages(1, 2), kv_len=0, inputs=inputs, outputs=embeds(9)))
    sample = run.submit(Sample(queue=QUEUE, embed=EmbedName(9), sampling=SAMPLING, position=5))
    assert rig.drain() == 2
    assert [(batch.num_rows, len(batch.heads)) for batch in rig.executor.batches] == [(1, 0), (1, 1)]
    assert run.forwarded(sample).token == token_after(PROMPT)


def test_a_call_behind_drafts_waits_until_it_is_known_which_of_them_count() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    wrong = (token_after((5,)) + 1) % 60
    drafted = run.submit(text((5, wrong), names=(1,), sampling=SAMPLING, num_drafts=1))
    reader = run.submit(text((7,), names=(1,), kv_len=2, sampling=SAMPLING))
    rig.drain()
    assert run.forwarded(drafted).kv_len == 1
    assert run.error_type(reader) == "BadRequest"


def test_no_more_calls_join_than_a_step_may_hold() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=3))
    run = rig.open("a")
    calls = [run.submit(text((5,), grow_from=PageName(10 * n), sampling=SAMPLING)) for n in range(1, 6)]
    rig.drain()
    assert [batch.num_rows for batch in rig.executor.batches] == [2, 2, 1]
    assert [run.forwarded(call).token for call in calls] == [token_after((5,))] * 5


def test_who_joins_has_what_decode_rows_leave_of_a_step() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=3, max_batch_tokens=4))
    streams = rig.open("b")
    streams.submit(generate((5,), max_tokens=12))
    for _ in range(3):
        rig.step()
    run = rig.open("a")
    first = run.submit(text((5,), grow_from=PageName(10)))
    joined = run.submit(text((5, 6, 7, 8), grow_from=PageName(20), sampling=SAMPLING))
    rig.drain()
    assert max(batch.num_tokens for batch in rig.executor.batches) == 4
    assert run.order()[-2:] == [first, joined]
    assert run.forwarded(joined).token == token_after((5, 6, 7, 8))


def test_a_call_behind_a_barrier_does_not_pass_it() -> None:
    rig = Rig()
    run = rig.open("a")
    first = run.submit(text((5,), grow_from=PageName(1)))
    barrier = run.submit(Synchronize(queue=QUEUE))
    last = run.submit(text((6,), grow_from=PageName(20)))
    assert rig.drain() == 2
    assert run.order()[-3:] == [first, barrier, last]


def test_what_joined_a_call_that_failed_is_poisoned_and_what_it_wrote_is_not_read() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((20, 21), names=(2,)))
    rig.drain()
    rig.executor.fail_rows[13] = FAULT
    failing = run.submit(text((13,), names=(1,)))
    joined = run.submit(text((5, 6), names=(2,), sampling=SAMPLING))
    assert rig.drain() == 1
    assert rig.executor.batches[-1].num_rows == 2
    assert (run.error_type(failing), run.error_type(joined)) == ("InternalError", "Poisoned")
    assert run.order()[-2:] == [failing, joined]
    run.now(ClearQueue(queue=QUEUE))
    reader = run.submit(text((7,), names=(2,), kv_len=2, sampling=SAMPLING))
    rig.drain()
    assert run.error_type(reader) == "BadRequest"
    run.now(ClearQueue(queue=QUEUE))
    again = run.submit(text((5, 6), names=(2,), sampling=SAMPLING))
    rig.drain()
    assert run.forwarded(again).token == token_after((5, 6))


def test_a_segment_that_joined_a_call_that_failed_does_not_go_on() -> None:
    rig = Rig()
    run = rig.open("a")
    rig.executor.fail_rows[13] = FAULT
    run.submit(text((13,), grow_from=PageName(1)))
    segment = run.submit(generate((5, 6), max_tokens=5))
    assert rig.drain() == 1
    assert run.error_type(segment) == "Poisoned"
    run.session.close()
    rig.assert_all_free()


def test_when_the_whole_step_fails_its_calls_fail_in_order_and_another_queue_that_shared_it_too() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    rig.executor.fault = RuntimeError("device lost")
    calls = chain(run)
    other = run.submit(text((5,), queue=QueueName(2), grow_from=PageName(40)))
    assert rig.drain() == 1
    assert [run.error_type(call) for call in calls] == ["InternalError", *["Poisoned"] * 3]
    assert [call for call in run.order() if call in calls] == calls
    assert run.error_type(other) == "InternalError"
    run.session.close()
    rig.assert_all_free()


def test_a_run_that_is_closed_while_its_chain_runs_leaves_nothing_behind() -> None:
    rig = Rig()
    run, other = rig.open("a"), rig.open("b")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    chain(run)
    behind = other.submit(text((5,), grow_from=PageName(1), sampling=SAMPLING))
    batch = rig.controller.schedule()
    assert batch is not None
    run.session.close()
    rig.controller.complete(rig.executor.run(batch))
    assert other.forwarded(behind).token == token_after((5,))
    other.session.close()
    rig.assert_all_free()
