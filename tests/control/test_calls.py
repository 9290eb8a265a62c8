"""Single calls and their order: what each completes with, what it refuses, who waits for whom."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    Call,
    ClearQueue,
    CopyPage,
    CreateQueue,
    DistributionRequest,
    EmbedText,
    Forward,
    ForwardText,
    FreeEmbeds,
    FreePages,
    NextDistribution,
    Sample,
    Sampling,
    SharePages,
    Synchronize,
)
from loopwright.core.control import ControlLimits
from loopwright.core.errors import InternalError
from loopwright.core.ids import EmbedName, PageName, QueueName
from loopwright.core.results import Done

from .fake_executor import choose, mix
from .reference import NaiveContext
from .rig import QUEUE, Rig, generate

Q2 = QueueName(2)
SAMPLING = Sampling(temperature=1.0, seed=7)


def pages(*names: int) -> tuple[PageName, ...]:
    return tuple(PageName(name) for name in names)


def embeds(*names: int) -> tuple[EmbedName, ...]:
    return tuple(EmbedName(name) for name in names)


def text(tokens, *, names=(), kv_len=0, queue=QUEUE, **rest) -> ForwardText:
    positions = tuple(range(kv_len, kv_len + len(tokens)))
    return ForwardText(
        queue=queue, pages=pages(*names), kv_len=kv_len, tokens=tuple(tokens), positions=positions, **rest
    )


def test_a_fused_forward_equals_embed_then_forward_then_sample() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2, 3, 4)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds(1, 2, 3, 4, 5, 9)))
    run.submit(EmbedText(queue=QUEUE, tokens=(5, 6, 7, 8, 9), positions=(0, 1, 2, 3, 4), embeds=embeds(1, 2, 3, 4, 5)))
    forward = run.submit(
        Forward(queue=QUEUE, pages=pages(1, 2), kv_len=0, inputs=embeds(1, 2, 3, 4, 5), outputs=embeds(9))
    )
    sample = run.submit(Sample(queue=QUEUE, embed=EmbedName(9), sampling=SAMPLING, position=5))
    head = run.submit(NextDistribution(queue=QUEUE, embed=EmbedName(9), request=DistributionRequest(k=3)))
    fused = run.submit(
        text((5, 6, 7, 8, 9), names=(3, 4), sampling=SAMPLING, distributions=(DistributionRequest(k=3),))
    )
    rig.drain()
    assert (run.forwarded(forward).kv_len, run.forwarded(forward).num_pages) == (5, 2)
    assert run.forwarded(sample).token == run.forwarded(fused).token
    assert run.forwarded(head).distributions == run.forwarded(fused).distributions
    assert run.forwarded(fused).token == choose(NaiveContext().run((5, 6, 7, 8, 9), range(5))[-1], SAMPLING, 5)


def test_pages_that_tokens_need_are_bound_from_grow_from_when_the_call_is_issued() -> None:
    rig = Rig()
    run = rig.open("a")
    grown = run.submit(text(range(2, 11), grow_from=PageName(50)))
    assert run.now(FreePages(queue=QUEUE, pages=pages(52))).error is None
    unknown = run.submit(FreePages(queue=QUEUE, pages=pages(53)))
    rig.drain()
    assert run.error_type(unknown) == "NotFound"
    assert (run.forwarded(grown).kv_len, run.forwarded(grown).num_pages) == (9, 3)


def test_a_name_is_free_for_reuse_at_once_and_its_block_when_its_last_call_is_over() -> None:
    rig = Rig(num_blocks=2)
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    first = run.submit(text((5, 6), names=(1,)))
    assert run.now(FreePages(queue=QUEUE, pages=pages(1))).error is None
    assert run.now(AllocatePages(queue=QUEUE, pages=pages(1))).error is None
    rig.controller.check_integrity()
    early = run.submit(AllocatePages(queue=QUEUE, pages=pages(2)))  # the old block is still in use
    run.submit(ClearQueue(queue=QUEUE))
    rig.drain()
    assert run.error_type(early) == "OutOfPages"
    assert run.forwarded(first).kv_len == 2
    assert run.now(AllocatePages(queue=QUEUE, pages=pages(2))).error is None


def test_calls_of_one_queue_complete_in_order_though_they_share_a_batch() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    first = [run.submit(text((5, 6), grow_from=PageName(10 * n))) for n in range(1, 4)]
    other = [run.submit(text((5, 6), queue=Q2, grow_from=PageName(10 * n))) for n in range(4, 7)]
    assert rig.drain() == 1
    assert [call for call in run.order() if call in first] == first
    assert [call for call in run.order() if call in other] == other
    assert [batch.num_rows for batch in rig.executor.batches] == [6]


def test_a_call_of_another_queue_that_reads_a_page_waits_for_its_writer_and_sees_its_tokens() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((5, 6, 7, 8), names=(1,)))
    reader = run.submit(text((9,), queue=Q2, names=(1, 2), kv_len=4, sampling=SAMPLING))
    assert rig.drain() == 2
    assert run.forwarded(reader).token == choose(NaiveContext().run((5, 6, 7, 8, 9), range(5))[-1], SAMPLING, 5)


def test_a_write_waits_for_earlier_readers_of_the_page_in_other_queues() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((5, 6, 7, 8), names=(1,)))
    reader = run.submit(text((9,), names=(1, 2), kv_len=4, sampling=SAMPLING))
    run.submit(text((20, 21, 22, 23), queue=Q2, names=(1,)))
    assert rig.drain() == 3
    assert run.forwarded(reader).token == choose(NaiveContext().run((5, 6, 7, 8, 9), range(5))[-1], SAMPLING, 5)


def test_shared_pages_are_read_by_all_and_a_copy_of_the_tail_is_written_alone() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((5, 6, 7, 8, 9, 10), names=(1, 2)))
    assert run.now(SharePages(queue=QUEUE, sources=pages(1), targets=pages(11))).error is None
    run.now(AllocatePages(queue=QUEUE, pages=pages(12)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(2), target=PageName(12), size=2))
    branch = run.submit(text((11,), names=(11, 12), kv_len=6, sampling=SAMPLING))
    trunk = run.submit(text((12,), names=(1, 2), kv_len=6, sampling=SAMPLING))
    rig.drain()
    for call, token in ((branch, 11), (trunk, 12)):
        expected = NaiveContext().run((5, 6, 7, 8, 9, 10, token), range(7))[-1]
        assert run.forwarded(call).token == choose(expected, SAMPLING, 7)


def test_a_copied_range_lands_where_it_was_asked_to() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((5, 6, 7, 8), names=(1,)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(1), target=PageName(2), source_offset=2, target_offset=0, size=2))
    after = run.submit(text((9,), names=(2,), kv_len=2, sampling=SAMPLING))
    rig.drain()
    values = NaiveContext()
    values.run((5, 6, 7, 8), range(4))
    hidden = mix(9, 2, *values.values[2:], mix(9, 2))
    assert run.forwarded(after).token == choose(hidden, SAMPLING, 3)


def test_a_write_to_a_shared_page_is_refused_and_works_once_it_is_unshared() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    run.now(SharePages(queue=QUEUE, sources=pages(1), targets=pages(2)))
    completion = run.now(text((5,), names=(1,)))
    assert completion.error is not None
    assert "page 1 is shared" in completion.error.message
    assert "copy it first" in completion.error.message
    run.now(ClearQueue(queue=QUEUE))
    run.now(FreePages(queue=QUEUE, pages=pages(2)))
    again = run.submit(text((5,), names=(1,)))
    rig.drain()
    assert run.forwarded(again).kv_len == 1


def test_an_embed_may_be_input_and_output_of_a_forward_longer_than_a_batch() -> None:
    rig = Rig()
    run = rig.open("a")
    names = embeds(*range(5))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=names))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(EmbedText(queue=QUEUE, tokens=(5, 6, 7, 8, 9), positions=tuple(range(5)), embeds=names))
    run.submit(Forward(queue=QUEUE, pages=pages(1, 2), kv_len=0, inputs=names, outputs=names[::-1]))
    samples = [run.submit(Sample(queue=QUEUE, embed=name, sampling=SAMPLING, position=9)) for name in names[::-1]]
    rig.drain()
    hiddens = NaiveContext().run((5, 6, 7, 8, 9), range(5))
    assert [run.forwarded(one).token for one in samples] == [choose(hidden, SAMPLING, 9) for hidden in hiddens]


def test_synchronize_completes_after_all_earlier_calls_of_its_queue() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    slow = run.submit(generate((5, 6), max_tokens=5))
    sync = run.submit(Synchronize(queue=QUEUE))
    assert run.now(Synchronize(queue=Q2)).result == Done()
    rig.step()
    assert run.final(sync) is None
    rig.drain()
    assert run.order()[-2:] == [slow, sync]


def test_a_failed_call_poisons_what_follows_in_its_queue_until_it_is_cleared() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    good = run.submit(text((5, 6), grow_from=PageName(10)))
    bad = run.submit(text((5, 6), grow_from=PageName(20), distributions=(DistributionRequest(k=65),)))
    behind = run.submit(text((5, 6), grow_from=PageName(30)))
    sync = run.submit(Synchronize(queue=QUEUE))
    clear = run.submit(ClearQueue(queue=QUEUE))
    again = run.submit(text((5, 6), grow_from=PageName(40)))
    elsewhere = run.submit(text((5, 6), queue=Q2, grow_from=PageName(50)))
    rig.drain()
    assert [run.error_type(call) for call in (good, bad, behind, sync, clear, again, elsewhere)] == [
        None, "BadRequest", "Poisoned", "Poisoned", None, None, None,
    ]  # fmt: skip
    cause = run.error(behind)
    assert f"call {bad}" in cause.message
    assert "65" in cause.message
    assert [call for call in run.order() if call != elsewhere][-6:] == [good, bad, behind, sync, clear, again]


def test_a_failure_while_running_poisons_calls_that_were_already_issued() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    rig.executor.fail_rows[6] = InternalError("NaN").info()
    bad = run.submit(text((5, 6), names=(1,)))
    behind = run.submit(Synchronize(queue=QUEUE))
    reader = run.submit(text((7,), queue=Q2, names=(1, 2), kv_len=2))
    independent = run.submit(text((7,), queue=Q2, names=(2,)))
    rig.drain()
    assert [run.error_type(call) for call in (bad, behind, reader, independent)] == [
        "InternalError", "Poisoned", "Poisoned", "Poisoned",
    ]  # fmt: skip
    run.now(ClearQueue(queue=Q2))
    late = run.now(text((7,), queue=Q2, names=(1, 2), kv_len=2))
    assert late.error is not None
    assert late.error.type == "Poisoned"  # queue 1, where the cause is, was not cleared


def test_what_a_refused_call_should_have_written_is_not_read_from_another_queue() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds(1)))
    run.now(EmbedText(queue=QUEUE, tokens=(64,), positions=(0,), embeds=embeds(1)))
    reader = run.now(Sample(queue=Q2, embed=EmbedName(1), sampling=SAMPLING, position=1))
    assert reader.error is not None
    assert reader.error.type == "Poisoned"
    run.now(ClearQueue(queue=Q2))
    run.submit(EmbedText(queue=Q2, tokens=(6,), positions=(0,), embeds=embeds(1)))  # writes all of it: a cure
    run.now(AllocatePages(queue=Q2, pages=pages(1)))
    cured = run.submit(Forward(queue=Q2, pages=pages(1), kv_len=0, inputs=embeds(1)))
    rig.drain()
    assert run.error_type(cured) is None


def test_clearing_the_queue_of_the_cause_lets_others_read_again() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.submit(text((5, 6), names=(1,)))
    rig.drain()
    run.now(text((64,), names=(1,), kv_len=2))
    run.now(ClearQueue(queue=QUEUE))
    reader = run.submit(text((7,), queue=Q2, names=(1,), kv_len=2))
    rig.drain()
    assert run.error_type(reader) is None


def test_what_is_issued_behind_a_clear_reads_what_a_call_before_it_failed_to_write() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    run.submit(text((5, 6), names=(1,)))
    bad = run.submit(text((64,), names=(1,), kv_len=2))
    run.submit(ClearQueue(queue=QUEUE))
    good = run.submit(text((7,), names=(1,), kv_len=2, sampling=SAMPLING))
    rig.drain()
    assert run.error_type(bad) == "BadRequest"
    assert run.forwarded(good).token == choose(NaiveContext().run((5, 6, 7), range(3))[-1], SAMPLING, 3)


def test_freeing_works_on_a_poisoned_queue() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds(1)))
    run.now(text((64,), names=(1,)))
    assert run.now(AllocatePages(queue=QUEUE, pages=pages(2))).error is not None
    assert run.now(FreePages(queue=QUEUE, pages=pages(1))).error is None
    assert run.now(FreeEmbeds(queue=QUEUE, embeds=embeds(1))).error is None
    rig.assert_all_free()


def test_a_failed_step_fails_its_calls_only() -> None:
    rig = Rig()
    runs = [rig.open(name) for name in "abc"]
    first = [run.submit(text((5, 6), grow_from=PageName(10))) for run in runs[:2]]
    rig.executor.fault = RuntimeError("the kernel crashed")
    rig.step()
    second = [run.submit(text((5, 6), grow_from=PageName(20))) for run in runs]
    rig.drain()
    assert [run.error_type(call) for run, call in zip(runs, first, strict=False)] == ["InternalError"] * 2
    assert "the kernel crashed" in runs[0].error(first[0]).message
    assert [run.error_type(call) for run, call in zip(runs, second, strict=True)] == ["Poisoned", "Poisoned", None]


def test_reading_kv_or_an_embed_that_was_never_written_is_refused() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2, 3, 4))
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2, 3, 4, 5)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds(1)))
    run.submit(text((5, 6), names=(1,)))
    calls = [
        run.submit(text((7,), names=(1, 2), kv_len=4)),
        run.submit(text((7,), names=(3,), kv_len=1, queue=Q2)),
        run.submit(CopyPage(queue=QueueName(3), source=PageName(4), target=PageName(5), size=1)),
        run.submit(NextDistribution(queue=QueueName(4), embed=EmbedName(1))),
    ]
    rig.drain()
    assert [run.error_type(call) for call in calls] == ["BadRequest"] * 4
    assert "pages[0] has KV for its first 2 tokens, and 4" in run.error(calls[0]).message
    run.now(ClearQueue(queue=QUEUE))
    again = run.submit(text((7,), names=(1, 2), kv_len=4))
    rig.drain()
    assert run.error_type(again) == "BadRequest"  # being refused did not make it written


@pytest.mark.parametrize(
    ("call", "field", "words"),
    [
        (text((5,), names=(9,)), "pages", ["page 9"]),
        (text((5,), names=(1, 1)), "pages", ["1 is there twice"]),
        (text((5, 6, 7, 8, 9), names=(1,)), "pages", ["0 + 5", "4"]),
        (text((5,), names=(1,), kv_len=5), "kv_len", ["5", "4"]),
        (text((5, 64), names=(1,)), "tokens", ["64"]),
        (text((5,), names=(1,), mask=((0, 1), (0, 1))), "mask", ["2", "1"]),
        (text((5,), names=(1,), mask=((0, 2),)), "mask", ["slot 1", "own is 0"]),
        (text((5,), names=(1,), mask=((1,),)), "mask", ["nothing is visible"]),
        (text((5,), names=(1,), mask=((0, 0, 5, 0),)), "mask", ["nothing is visible"]),
        (text((5,), names=(1,), mask=((0, 10**30),)), "mask", ["own is 0"]),
        (text((5,), names=(1,), sampling=Sampling(allowed=(3, 70))), "sampling.allowed", ["70", "64"]),
        (text((5,), names=(1,), sampling=Sampling(allowed=())), "sampling.allowed", ["at least 1"]),
        (text((5,), names=(1,), sampling=Sampling(logit_bias={99: 1.0})), "sampling.logit_bias", ["99"]),
        (text((5,), names=(1,), distributions=(DistributionRequest(index=1),)), "distributions.index", ["1"]),
        (text((5,), names=(1,), distributions=(DistributionRequest(k=65),)), "distributions.k", ["65", "64"]),
        (
            text((5,), names=(1,), distributions=(DistributionRequest(k=1, must_include=(64,)),)),
            "distributions.must_include",
            ["64"],
        ),
        (
            text((5,), names=(1,), distributions=(DistributionRequest(k=1), DistributionRequest(index=0, k=1))),
            "distributions.index",
            ["twice"],
        ),
        (text((5,) * 5, names=(1,), grow_from=PageName(1)), "grow_from", ["page 1 is already bound"]),
        (ForwardText(queue=QUEUE, pages=pages(1), kv_len=0, tokens=(5, 6), positions=(0,)), "positions", ["1", "2"]),
        (ForwardText(queue=QUEUE, pages=pages(1), kv_len=0, tokens=(), positions=()), "tokens", ["at least 1"]),
        (generate((5,), pages=(1,), stop_tokens=(64,)), "stop_tokens", ["64"]),
        (generate((5,), pages=(1,), stop=("",)), "stop", ["empty"]),
        (EmbedText(queue=QUEUE, tokens=(5,), positions=(0,), embeds=()), "embeds", ["0", "1"]),
        (EmbedText(queue=QUEUE, tokens=(5, 6), positions=(0, 1), embeds=embeds(1, 1)), "embeds", ["twice"]),
        (Forward(queue=QUEUE, pages=pages(1), kv_len=0, inputs=()), "inputs", ["at least 1"]),
        (Forward(queue=QUEUE, pages=pages(1), kv_len=0, inputs=embeds(7)), "inputs", ["embed 7"]),
        (Forward(queue=QUEUE, pages=pages(1), kv_len=0, inputs=embeds(1), outputs=embeds(1, 2)), "outputs", ["2", "1"]),
        (CopyPage(queue=QUEUE, source=PageName(1), target=PageName(1), size=1), "target", ["source too"]),
        (CopyPage(queue=QUEUE, source=PageName(1), target=PageName(2), size=5), "source_offset", ["5", "4"]),
        (AllocatePages(queue=QUEUE, pages=pages(1)), "pages", ["already bound"]),
        (AllocatePages(queue=QUEUE, pages=pages(5, 5)), "pages", ["twice"]),
        (FreePages(queue=QUEUE, pages=pages(2, 9)), "pages", ["page 9"]),
        (FreePages(queue=QUEUE, pages=pages(2, 2)), "pages", ["twice"]),
        (SharePages(queue=QUEUE, sources=pages(1), targets=pages(2)), "targets", ["already bound"]),
        (SharePages(queue=QUEUE, sources=pages(1), targets=()), "targets", ["0", "1"]),
        (AllocateEmbeds(queue=QUEUE, embeds=embeds(1)), "embeds", ["already bound"]),
        (FreeEmbeds(queue=QUEUE, embeds=embeds(3)), "embeds", ["embed 3"]),
        (Synchronize(queue=QueueName(5)), "queue", ["5"]),
        (CreateQueue(queue=QUEUE), "queue", ["exists already"]),
        (CreateQueue(queue=Q2, model="other"), "model", ["other", "fake"]),
    ],
)
def test_a_bad_call_completes_with_an_error_that_names_field_and_value(
    call: Call, field: str, words: list[str]
) -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=pages(1, 2)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds(1, 2)))
    error = run.now(call).error  # type: ignore[arg-type]
    assert error is not None
    assert error.code == "bad_request"
    assert error.field == field
    assert all(word in error.message for word in words), error.message
    run.session.close()
    rig.assert_all_free()


def test_a_position_beyond_the_context_is_too_long_and_both_numbers_are_named() -> None:
    rig = Rig(max_context=4)
    run = rig.open("a")
    error = run.now(text((5, 6, 7, 8, 9), grow_from=PageName(1))).error
    assert error is not None
    assert error.type == "ContextTooLong"
    assert "5 tokens" in error.message
    assert error.message.endswith("4")


def test_the_limits_of_a_run_are_enforced_with_both_numbers() -> None:
    rig = Rig()
    run = rig.open("a", ControlLimits(max_pages=2, max_embeds=1, max_queues=2, max_open_calls=2), queues=(1, 2))
    for call, words in (
        (AllocatePages(queue=QUEUE, pages=pages(1, 2, 3)), ["3", "2"]),
        (AllocateEmbeds(queue=QUEUE, embeds=embeds(1, 2)), ["2", "1"]),
        (text(range(2, 11), grow_from=PageName(1)), ["3", "2"]),
        (generate(range(2, 11)), ["3", "2"]),
        (CreateQueue(queue=QueueName(3)), ["2"]),
    ):
        error = run.now(call).error
        assert error is not None
        assert error.code == "limit"
        assert all(word in error.message for word in words), error.message
        run.now(ClearQueue(queue=QUEUE))
    for _ in range(2):
        run.submit(generate((5,), grow_from=10))
    error = run.now(Synchronize(queue=Q2)).error
    assert error is not None
    assert "2 open calls" in error.message
    rig.drain()
    assert run.now(Synchronize(queue=Q2)).error is not None  # the call that found no room may have been needed
    run.now(ClearQueue(queue=Q2))
    assert run.now(Synchronize(queue=Q2)).error is None


def test_a_forward_that_fails_leaves_no_page_bound_that_it_grew() -> None:
    rig = Rig()
    run = rig.open("a")
    rig.executor.fail_rows[6] = InternalError("NaN").info()
    run.submit(text((5, 6), grow_from=PageName(1)))
    rig.drain()
    run.now(ClearQueue(queue=QUEUE))
    assert run.now(AllocatePages(queue=QUEUE, pages=pages(1))).error is None


def test_distributions_masks_and_outputs_of_a_prompt_cut_into_chunks_equal_those_of_one_row() -> None:
    requests = tuple(DistributionRequest(index=index, k=2) for index in (19, 3, 8, 7, 0))
    mask = tuple((0, max(1, n - 2), 1 if n > 2 else 0, 2) if n > 3 else (0, n + 1) for n in range(20))
    answers = []
    for config in (ControlConfig(), ControlConfig(max_batch_rows=2, max_batch_tokens=8)):
        rig = Rig(config=config)
        run = rig.open("a", queues=(1, 2))
        fused = run.submit(
            text(range(2, 22), grow_from=PageName(1), mask=mask, distributions=requests, sampling=SAMPLING)
        )
        names = embeds(*range(20))
        run.now(AllocateEmbeds(queue=Q2, embeds=(*names, *embeds(50, 51, 52, 53, 54, 55, 56, 57, 58, 59))))
        run.now(AllocatePages(queue=Q2, pages=pages(*range(60, 65))))
        run.submit(EmbedText(queue=Q2, tokens=tuple(range(2, 22)), positions=tuple(range(20)), embeds=names))
        outputs = embeds(*range(50, 60))
        run.submit(Forward(queue=Q2, pages=pages(*range(60, 65)), kv_len=0, inputs=names, outputs=outputs, mask=mask))
        heads = [
            run.submit(NextDistribution(queue=Q2, embed=name, request=DistributionRequest(k=4))) for name in outputs
        ]
        rig.drain()
        answers.append((run.forwarded(fused), [run.forwarded(head) for head in heads], len(rig.executor.batches)))
    assert answers[0][:2] == answers[1][:2]
    assert answers[0][2] < answers[1][2]
