"""What one call computed, another need not: it binds the cached blocks, runs the rest, and its answer is the same."""

import random
from collections.abc import Sequence

import msgspec
import pytest

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
    FreePages,
    Generate,
    Sampling,
    SharePages,
    ShiftKv,
)
from loopwright.core.errors import InternalError
from loopwright.core.ids import EmbedName, PageName
from loopwright.core.results import Forwarded

from .fake_executor import describe
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
PROMPT = list(range(2, 16))  # three pages of 4, and 2 tokens
STEMS = (PROMPT, [*PROMPT[:6], *range(40, 48)], list(range(30, 44)))


def expected(tokens: Sequence[int], max_tokens: int) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, max_tokens)


def forward(
    tokens: Sequence[int],
    *,
    pages: Sequence[int] = (),
    kv_len: int = 0,
    grow_from: int | None = 100,
    first_position: int | None = None,
    mask: tuple[tuple[int, ...], ...] | None = None,
    distributions: Sequence[DistributionRequest] = (),
    num_drafts: int = 0,
) -> ForwardText:
    first = kv_len if first_position is None else first_position
    return ForwardText(
        queue=QUEUE, pages=tuple(map(PageName, pages)), kv_len=kv_len, tokens=tuple(tokens),
        grow_from=None if grow_from is None else PageName(grow_from),
        positions=tuple(range(first, first + len(tokens))), mask=mask, distributions=tuple(distributions),
        sampling=SAMPLING, num_drafts=num_drafts,
    )  # fmt: skip


def run_alone(rig: Rig, call: ForwardText | Generate, run: RigRun | None = None) -> tuple[RigRun, Forwarded]:
    """Issues a call of a fresh run and steps to its end."""
    run = run or rig.open(f"run {len(rig.executor.batches)}")
    call_id = run.submit(call)
    rig.drain()
    return run, run.result(call_id)  # type: ignore[return-value]


def num_run(rig: Rig, since: int) -> int:
    """Tokens that ran since that batch."""
    return sum(batch.num_tokens for batch in rig.executor.batches[since:])


@pytest.mark.parametrize("is_first_open", [True, False], ids=["in use", "freed"])
def test_the_second_of_two_equal_prompts_runs_only_what_is_behind_the_last_full_page(is_first_open: bool) -> None:
    rig = Rig()
    run, cold = run_alone(rig, generate(PROMPT, sampling=SAMPLING, max_tokens=6))
    if not is_first_open:
        run.session.close()
        rig.assert_all_free()
    before = len(rig.executor.batches)
    _, warm = run_alone(rig, generate(PROMPT, sampling=SAMPLING, max_tokens=6))
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 12)
    assert num_run(rig, before) == 2 + 5
    assert list(warm.tokens) == expected(PROMPT, 6)
    assert (warm.tokens, warm.logprobs, warm.kv_len, warm.num_pages) == (
        cold.tokens, cold.logprobs, cold.kv_len, cold.num_pages,
    )  # fmt: skip


def test_a_prompt_is_cached_while_the_first_to_send_it_still_decodes() -> None:
    rig = Rig()
    first = rig.open("first")
    segment = first.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=50))
    rig.step()
    second = rig.open("second")
    other = second.submit(forward(PROMPT))
    rig.step()
    assert second.forwarded(other).cached_tokens == 12
    assert first.final(segment) is None


def test_what_a_segment_wrote_is_cached_for_who_continues_it_in_another_run() -> None:
    rig = Rig()
    _, turn = run_alone(rig, generate(PROMPT, sampling=SAMPLING, max_tokens=7))
    conversation = [*PROMPT, *turn.tokens, 40, 41]
    _, answer = run_alone(rig, generate(conversation, sampling=SAMPLING, max_tokens=3))
    assert answer.cached_tokens == 20  # 14 of the prompt and 6 that the model wrote and ran
    assert list(answer.tokens) == expected(conversation, 3)


def test_at_least_the_last_token_runs() -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT[:12]))
    _, warm = run_alone(rig, forward(PROMPT[:12]))
    assert (warm.cached_tokens, warm.kv_len, warm.num_pages) == (8, 12, 3)
    assert [warm.token] == expected(PROMPT[:12], 1)


def test_a_token_whose_distribution_is_asked_for_is_not_left_out() -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT))
    requests = [DistributionRequest(index=5, k=8), DistributionRequest(index=-1, k=8)]
    _, warm = run_alone(rig, forward(PROMPT, distributions=requests))
    hiddens = NaiveContext().run(PROMPT, range(len(PROMPT)))
    assert warm.cached_tokens == 4
    assert list(warm.distributions) == [describe(hiddens[5], requests[0]), describe(hiddens[-1], requests[1])]


def test_drafts_and_the_token_before_them_are_not_left_out() -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT))
    right = expected(PROMPT[:9], 3)
    _, cold = run_alone(rig, forward([*PROMPT[:9], *right[:2], 1]))
    _, warm = run_alone(rig, forward([*PROMPT[:9], *right[:2], 1], num_drafts=3))
    assert cold.cached_tokens == warm.cached_tokens == 8
    assert (list(warm.tokens), warm.kv_len) == (right, 11)


def test_a_context_that_ends_at_a_page_border_finds_what_others_put_behind_it() -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT))
    run, _ = run_alone(rig, forward(PROMPT[:4]))
    call = run.submit(forward(PROMPT[4:], pages=[100], kv_len=4, grow_from=101))
    rig.drain()
    assert run.forwarded(call).cached_tokens == 8
    assert [run.forwarded(call).token] == expected(PROMPT, 1)


@pytest.mark.parametrize(
    ("pages", "kv_len", "first_position"), [([], 0, 7), ([100], 2, None), ([50], 0, None)],
    ids=["other positions", "the middle of a page", "a page that has a block"],
)  # fmt: skip
def test_what_is_not_the_same_prefix_is_computed(pages: list[int], kv_len: int, first_position: int | None) -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT))
    run = rig.open("other")
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(50),)))
    if kv_len:
        run.submit(forward(PROMPT[:2]))
    _, answer = run_alone(
        rig, forward(PROMPT[kv_len:], pages=pages, kv_len=kv_len, grow_from=200, first_position=first_position), run
    )
    assert answer.cached_tokens == 0


def masked(rig: Rig) -> RigRun:
    mask = tuple((0, place + 1) if place != 5 else (1, 5) for place in range(len(PROMPT)))
    return run_alone(rig, forward(PROMPT, mask=mask))[0]


def from_embeds(rig: Rig) -> RigRun:
    run = rig.open("embeds")
    names = tuple(EmbedName(number) for number in range(len(PROMPT)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=names))
    run.now(AllocatePages(queue=QUEUE, pages=tuple(PageName(100 + number) for number in range(4))))
    run.submit(EmbedText(queue=QUEUE, tokens=tuple(PROMPT), positions=tuple(range(len(PROMPT))), embeds=names))
    run.submit(Forward(queue=QUEUE, pages=tuple(PageName(100 + number) for number in range(4)), kv_len=0, inputs=names))
    rig.drain()
    return run


def from_hidden_states(rig: Rig) -> RigRun:
    run = rig.open("hidden states")
    names = tuple(EmbedName(one) for one in range(len(PROMPT)))
    pages, other = (tuple(PageName(first + one) for one in range(4)) for first in (100, 200))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=names))
    run.now(AllocatePages(queue=QUEUE, pages=(*pages, *other)))
    run.submit(EmbedText(queue=QUEUE, tokens=tuple(PROMPT), positions=tuple(range(len(PROMPT))), embeds=names))
    mask = tuple((0, place + 1) for place in range(len(PROMPT)))
    run.submit(Forward(queue=QUEUE, pages=other, kv_len=0, inputs=names, outputs=names, mask=mask))
    run.submit(Forward(queue=QUEUE, pages=pages, kv_len=0, inputs=names))
    rig.drain()
    return run


def shifted(rig: Rig) -> RigRun:
    run, _ = run_alone(rig, forward(PROMPT))
    run.submit(ShiftKv(queue=QUEUE, pages=(PageName(100),), size=2, delta=3))
    rig.drain()
    return run


def out_of_order(rig: Rig) -> RigRun:
    """Pages whose second is put behind another first one: what follows saw something else."""
    run, _ = run_alone(rig, forward(PROMPT[:8]))
    run.submit(forward([60, 61, 62, 63], grow_from=200))
    run.submit(forward(PROMPT[8:], pages=[200, 101], kv_len=8, grow_from=102))
    rig.drain()
    return run


@pytest.mark.parametrize("make", [masked, from_hidden_states, shifted, out_of_order])
def test_what_does_not_follow_from_tokens_and_positions_never_serves_a_prefix(make) -> None:
    rig = Rig()
    opaque = make(rig)
    pages, kv_len = (100, 101, 102, 103), len(PROMPT)
    opaque.submit(forward([33] * 8, pages=pages, kv_len=kv_len, grow_from=300))  # nor does what stands behind it
    rig.drain()
    opaque.session.close()
    _, answer = run_alone(rig, generate([*PROMPT, *[33] * 8, 3], sampling=SAMPLING, max_tokens=3))
    assert answer.cached_tokens == {out_of_order: 8}.get(make, 0)  # its first two pages are in order
    assert list(answer.tokens) == expected([*PROMPT, *[33] * 8, 3], 3)


def test_tokens_that_came_as_embeds_serve_a_prefix() -> None:
    rig = Rig(num_blocks=16)
    from_embeds(rig).session.close()
    _, answer = run_alone(rig, generate([*PROMPT, 3], sampling=SAMPLING, max_tokens=3))
    assert answer.cached_tokens == len(PROMPT) // 4 * 4
    assert list(answer.tokens) == expected([*PROMPT, 3], 3)


def test_a_copy_of_a_pages_beginning_is_known_and_what_follows_it_is_cached() -> None:
    rig = Rig()
    run, _ = run_alone(rig, forward(PROMPT))
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(7),)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(103), target=PageName(7), size=2))
    run.submit(forward([50, 51, 52, 53], pages=[100, 101, 102, 7], kv_len=14, grow_from=8))
    rig.drain()
    run.session.close()
    _, answer = run_alone(rig, forward([*PROMPT, 50, 51, 52, 53]))
    assert answer.cached_tokens == 16


def test_writing_into_a_shared_page_copies_it_first_and_its_other_users_do_not_notice() -> None:
    rig = Rig()
    first, _ = run_alone(rig, forward(PROMPT))
    second, warm = run_alone(rig, forward(PROMPT))
    assert warm.cached_tokens == 12
    free_before = rig.controller._resources.blocks.num_free
    rewritten = second.submit(forward([60, 61], pages=range(100, 104), kv_len=10))
    rig.drain()
    assert [second.forwarded(rewritten).token] == expected([*PROMPT[:10], 60, 61], 1)
    assert rig.controller._resources.blocks.num_free == free_before - 1
    goes_on = first.submit(generate([5], pages=range(100, 104), kv_len=14, grow_from=200, sampling=SAMPLING))
    again = run_alone(rig, forward(PROMPT))[1]
    assert again.cached_tokens == 12
    assert list(first.segment(goes_on).tokens) == expected([*PROMPT, 5], 8)


def test_shifting_and_copying_into_shared_pages_leave_others_theirs() -> None:
    rig = Rig()
    first, _ = run_alone(rig, forward(PROMPT))
    second, _ = run_alone(rig, forward(PROMPT))
    shift = second.submit(ShiftKv(queue=QUEUE, pages=(PageName(100), PageName(101)), size=8, delta=3))
    copy = second.submit(CopyPage(queue=QUEUE, source=PageName(103), target=PageName(102), size=2))
    rig.drain()
    assert second.error_type(shift) is second.error_type(copy) is None
    goes_on = first.submit(generate([5], pages=range(100, 104), kv_len=14, grow_from=200, sampling=SAMPLING))
    rig.drain()
    assert list(first.segment(goes_on).tokens) == expected([*PROMPT, 5], 8)


def test_a_write_into_the_only_users_page_takes_it_out_of_the_cache_without_a_copy() -> None:
    rig = Rig()
    run, _ = run_alone(rig, forward(PROMPT))
    run.submit(forward([60, 61, 62], pages=range(100, 104), kv_len=5))
    rig.drain()
    assert not any(batch.copies for batch in rig.executor.batches)
    _, other = run_alone(rig, forward(PROMPT))
    assert other.cached_tokens == 4


def test_a_step_that_fails_while_it_copies_leaves_a_page_that_says_so() -> None:
    rig = Rig()
    run_alone(rig, forward(PROMPT))
    second, _ = run_alone(rig, forward(PROMPT))
    rig.executor.fault = RuntimeError("device lost")
    failed = second.submit(forward([60], pages=range(100, 104), kv_len=10))
    rig.drain()
    assert second.error_type(failed) == InternalError.__name__
    second.now(ClearQueue(queue=QUEUE))
    lost = second.submit(forward([1], pages=range(100, 104), kv_len=10))
    kept = second.submit(ClearQueue(queue=QUEUE))
    rig.drain()
    assert second.error_type(lost) == "BadRequest"
    assert second.error_type(kept) is None
    rewritten = second.submit(forward(PROMPT[8:], pages=range(100, 104), kv_len=8))
    rig.drain()
    assert [second.forwarded(rewritten).token] == expected(PROMPT, 1)


def test_cached_blocks_are_free_for_whoever_needs_them_and_evicted_prompts_are_computed_again() -> None:
    rig = Rig(num_blocks=5)
    run, _ = run_alone(rig, forward(PROMPT))
    run.session.close()
    rig.assert_all_free()
    other = rig.open("other")
    assert other.now(AllocatePages(queue=QUEUE, pages=tuple(map(PageName, range(5))))).error is None
    other.now(FreePages(queue=QUEUE, pages=tuple(map(PageName, range(5)))))
    _, again = run_alone(rig, generate(PROMPT, sampling=SAMPLING, max_tokens=3))
    assert again.cached_tokens == 0
    assert list(again.tokens) == expected(PROMPT, 3)


def test_a_prompt_whose_cached_blocks_leave_too_few_for_its_rest_waits_and_holds_none() -> None:
    rig = Rig(num_blocks=5)
    run, _ = run_alone(rig, forward(PROMPT))
    run.session.close()
    holder, waiter = rig.hold("holder", (1, 2)), rig.open("waiter")
    call = waiter.submit(forward(PROMPT))
    assert not rig.step()
    assert rig.controller._resources.blocks.num_free == 3
    holder.session.close()
    rig.drain()
    assert [waiter.forwarded(call).token] == expected(PROMPT, 1)


def test_a_forked_context_counts_as_known_by_whatever_names_its_pages_have() -> None:
    rig = Rig()
    run, _ = run_alone(rig, forward(PROMPT[:8]))
    run.now(SharePages(queue=QUEUE, sources=(PageName(100), PageName(101)), targets=(PageName(1), PageName(2))))
    run.now(FreePages(queue=QUEUE, pages=(PageName(100), PageName(101))))
    run.submit(forward(PROMPT[8:], pages=[1, 2], kv_len=8, grow_from=3))
    rig.drain()
    assert run_alone(rig, forward(PROMPT))[1].cached_tokens == 12


def test_prompts_that_are_cached_go_before_some_that_are_not_and_overtake_no_more_than_that() -> None:
    rig = Rig(num_blocks=1000, config=ControlConfig(max_batch_rows=1, max_batch_tokens=16))
    run_alone(rig, forward(PROMPT))
    run = rig.open("many", queues=range(1, 200))
    cold = run.submit(generate(range(20, 36), queue=1, grow_from=10_000, max_tokens=1))
    warm = [run.submit(generate(PROMPT, queue=n, grow_from=1000 + 10 * n, max_tokens=1)) for n in range(2, 200)]
    rig.drain()
    num_before = run.order().index(cold) - 199
    assert run.order().index(warm[0]) < run.order().index(cold)
    assert 20 < num_before <= 32


def test_without_the_cache_every_call_computes_what_it_says() -> None:
    rig = Rig(config=ControlConfig(prefix_cache=False))
    run_alone(rig, forward(PROMPT))
    assert run_alone(rig, forward(PROMPT))[1].cached_tokens == 0


@pytest.mark.parametrize("num_blocks", [400, 24])
def test_random_programs_answer_alike_with_the_cache_and_without(num_blocks: int) -> None:
    answers, num_cached = {}, {}
    for is_on in (True, False):
        rng = random.Random(5)
        rig = Rig(num_blocks=num_blocks, config=ControlConfig(prefix_cache=is_on, max_batch_rows=4, max_batch_tokens=9))
        finals: list[Forwarded] = []
        for number in range(60):
            runs = [rig.open(f"run {number} {place}") for place in range(3)]
            calls = []
            for run in runs:
                text = [*rng.choice(STEMS)[: rng.randint(3, 14)], *rng.choices(range(64), k=rng.randint(0, 3))]
                seed = Sampling(temperature=1.0, seed=rng.randrange(3))
                calls.append(run.submit(generate(text, sampling=seed, max_tokens=rng.randint(1, 7))))
            rig.drain()
            finals += [run.segment(call) for run, call in zip(runs, calls, strict=True)]  # type: ignore[misc]
            for run in runs:
                run.session.close()
        rig.assert_all_free()
        num_cached[is_on] = sum(final.cached_tokens for final in finals)
        answers[is_on] = [msgspec.structs.replace(final, cached_tokens=0) for final in finals]
    assert answers[True] == answers[False]
    assert num_cached[True] > 300
    assert num_cached[False] == 0
