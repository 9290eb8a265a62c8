"""When pages run out, runs give up theirs and get them back: nobody fails for what others hold, and nobody notices."""

import random
from collections.abc import Sequence

import pytest

from loopwright.control.block_pool import BlockPool
from loopwright.control.config import ControlConfig
from loopwright.control.dropping import Dropping
from loopwright.control.ordering import Page, Resource
from loopwright.control.page_content import PageContent, Prefix
from loopwright.control.policies import PolicyName
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    ClearQueue,
    CopyPage,
    EmbedText,
    ExportPages,
    Forward,
    ForwardText,
    FreeEmbeds,
    FreePages,
    Generate,
    Sampling,
    SharePages,
    ShiftKv,
)
from loopwright.core.ids import BlockId, CallId, EmbedName, PageName, RunId

from .fake_executor import choose, shifted
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=3)


def expected(tokens: Sequence[int], max_tokens: int) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, max_tokens)


def segment(tokens: Sequence[int], max_tokens: int, pages: Sequence[int] = (), kv_len: int = 0) -> Generate:
    return generate(
        tokens, pages=pages, kv_len=kv_len, grow_from=100 + len(pages), sampling=SAMPLING, max_tokens=max_tokens
    )


def names(start: int, num: int) -> tuple[PageName, ...]:
    return tuple(PageName(start + place) for place in range(num))


def text(number: int, length: int = 12) -> list[int]:
    """Texts that have no beginning in common."""
    return [(number * 7 + place * (number + 3)) % 64 for place in range(length)]


def filled(rig: Rig, number: int, num_pages: int = 4) -> tuple[RigRun, list[int]]:
    """A run that generated until it held so many pages, and its tokens with KV."""
    run = rig.open(f"run {number}")
    prompt = text(number)
    call = run.submit(segment(prompt, 4 * num_pages - len(prompt) + 1))
    rig.drain()
    result = run.segment(call)
    assert (result.num_pages, result.kv_len) == (num_pages, 4 * num_pages)
    return run, [*prompt, *result.tokens[:-1]]


def num_tokens(rig: Rig) -> int:
    return sum(batch.num_tokens for batch in rig.executor.batches)


def out_of_use(rig: Rig) -> None:
    """Time passes, so that runs without calls count as idle."""
    rig.clock.advance(1)


def finish(rig: Rig, runs: Sequence[RigRun], calls: Sequence[int]) -> None:
    """Steps until all calls are over; time passes only when nothing can run."""
    num_waits = 0
    while any(run.final(CallId(call)) is None for run, call in zip(runs, calls, strict=True)):
        if not rig.step():
            out_of_use(rig)
            num_waits += 1
            assert num_waits < 100, "calls wait for ever"


@pytest.mark.parametrize("policy", ["adaptive", "eager", "k-only", "t-only"])
def test_runs_that_wait_for_each_others_pages_all_say_what_they_say_alone(policy: PolicyName) -> None:
    rig = Rig(num_blocks=5, config=ControlConfig(policy=policy))
    big, small = rig.open("big"), rig.open("small")
    greedy = big.submit(segment(range(2, 12), 10))
    modest = small.submit(segment(range(20, 26), 9))
    finish(rig, [big, small], [greedy, modest])
    assert list(big.segment(greedy).tokens) == expected(range(2, 12), 10)
    assert list(small.segment(modest).tokens) == expected(range(20, 26), 9)


def test_eight_idle_runs_hold_every_page_and_a_ninth_is_served_at_once() -> None:
    """Case G4, at the level of calls."""
    rig = Rig(num_blocks=32)
    idle = [filled(rig, number) for number in range(8)]
    assert rig.controller._resources.blocks.num_free == 0
    ninth = rig.open("ninth")
    out_of_use(rig)
    call = ninth.submit(segment(text(50, 20), 9))
    assert rig.drain() == 9  # as many steps as it takes alone
    assert list(ninth.segment(call).tokens) == expected(text(50, 20), 9)
    calls = [run.submit(segment([5], 6, range(100, 104), 16)) for run, _ in idle]
    finish(rig, [run for run, _ in idle], calls)
    for (run, tokens), one in zip(idle, calls, strict=True):
        assert list(run.segment(one).tokens) == expected([*tokens, 5], 6)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_eight_runs_that_wait_hold_every_page_and_with_a_ninth_all_equal_their_solo_runs(prefix_cache: bool) -> None:
    rig = Rig(num_blocks=32, config=ControlConfig(max_batch_rows=16, max_batch_tokens=40, prefix_cache=prefix_cache))
    runs = [rig.open(f"run {number}") for number in range(9)]
    calls = [run.submit(segment(text(number, 10 + number), 60)) for number, run in enumerate(runs[:8])]
    while rig.controller._resources.blocks.num_free:
        assert rig.step()
    calls.append(runs[8].submit(segment(text(8, 40), 20)))
    finish(rig, runs, calls)
    for number, (run, call) in enumerate(zip(runs[:8], calls, strict=False)):
        result = run.segment(call)
        assert list(result.tokens) == expected(text(number, 10 + number), 60)
        assert (result.kv_len, result.num_pages) == (10 + number + 59, -(-(10 + number + 59) // 4))
    assert list(runs[8].segment(calls[8]).tokens) == expected(text(8, 40), 20)


def test_the_run_with_the_least_service_goes_on_and_the_one_with_the_most_is_suspended() -> None:
    rig = Rig(num_blocks=8)
    old, young = rig.open("old"), rig.open("young")
    long = old.submit(segment(text(1, 16), 17))
    for _ in range(6):
        rig.step()
    short = young.submit(segment(text(2, 8), 9))
    finish(rig, [old, young], [long, short])
    assert list(old.segment(long).tokens) == expected(text(1, 16), 17)
    assert list(young.segment(short).tokens) == expected(text(2, 8), 9)
    positions = [{row.positions[-1] for row in batch.all_rows} for batch in rig.executor.batches]
    young_ends = max(place for place, one in enumerate(positions) if 15 in one)
    old_ends = max(place for place, one in enumerate(positions) if 31 in one)
    assert young_ends < old_ends


def test_dropped_pages_that_nobody_needed_meanwhile_come_back_without_being_computed() -> None:
    rig = Rig(num_blocks=8)
    run, tokens = filled(rig, 1)
    other = rig.open("other")
    out_of_use(rig)
    call = other.submit(segment(text(2, 20), 1))  # five pages: four are empty, so all of the run's are dropped
    rig.drain()
    other.session.close()
    rig.executor.batches.clear()
    goes_on = run.submit(segment([5], 1, range(100, 104), 16))
    rig.drain()
    assert list(run.segment(goes_on).tokens) == expected([*tokens, 5], 1)
    assert num_tokens(rig) == 4 + 1  # only the last page had been emptied
    assert call


def test_a_partly_filled_page_and_a_fork_of_it_are_rebuilt_and_full_pages_stay_shared() -> None:
    rig = Rig(num_blocks=12)
    run, prompt = rig.open("a"), text(3, 10)
    run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=PageName(100), kv_len=0, tokens=tuple(prompt),
                           positions=tuple(range(10))))  # fmt: skip
    run.now(SharePages(queue=QUEUE, sources=names(100, 2), targets=names(1, 2)))
    rig.drain()
    everything(rig)
    assert run.now(AllocatePages(queue=QUEUE, pages=names(3, 1))).error is None
    run.submit(CopyPage(queue=QUEUE, source=PageName(102), target=PageName(3), size=2))
    child = run.submit(segment([5], 5, (1, 2, 3), 10))
    rig.drain()
    assert list(run.segment(child).tokens) == expected([*prompt, 5], 5)
    parent = run.submit(generate([6], pages=names(100, 3), kv_len=10, grow_from=200, sampling=SAMPLING, max_tokens=5))
    rig.drain()
    assert list(run.segment(parent).tokens) == expected([*prompt, 6], 5)
    assert rig.controller._resources.num_held_blocks() == {run.session.run_id: 6}  # 2 shared, 2 of each


def test_pages_that_were_allocated_while_none_was_free_get_their_block_when_they_are_written() -> None:
    rig = Rig(num_blocks=6)
    holder, run = rig.hold("holder", range(5)), rig.open("a")
    assert run.now(AllocatePages(queue=QUEUE, pages=names(0, 3))).error is None
    call = run.submit(segment(text(1), 1, (0, 1, 2)))
    rig.drain()
    assert run.final(call) is None
    holder.session.close()
    rig.drain()
    assert list(run.segment(call).tokens) == expected(text(1), 1)


def test_shifting_what_was_dropped_shifts_what_was_rebuilt() -> None:
    rig = Rig(num_blocks=6)
    run, tokens = filled(rig, 1)
    everything(rig)
    run.submit(ShiftKv(queue=QUEUE, pages=names(100, 4), start=4, size=12, delta=2))
    call = run.submit(segment([5], 1, range(100, 104), 16))
    rig.drain()
    naive = NaiveContext()
    naive.run(tokens, range(16))
    naive.values[4:] = [shifted(value, 2) for value in naive.values[4:]]
    assert list(run.segment(call).tokens) == [choose(naive.run([5], [16])[0], SAMPLING, 17)]


def test_a_run_between_two_calls_keeps_its_pages_for_a_moment() -> None:
    rig = Rig(num_blocks=6, config=ControlConfig(max_idle_s=0.5))
    run, tokens = filled(rig, 1)
    other, third = rig.open("other"), rig.open("third")
    calls = [other.submit(segment(text(2, 12), 1)), third.submit(segment(text(3, 12), 1))]
    rig.clock.advance(0.4)
    assert not rig.step()
    one_more = run.submit(segment([5], 1, range(100, 104), 16))
    rig.drain()
    assert list(run.segment(one_more).tokens) == expected([*tokens, 5], 1)
    assert (other.final(calls[0]), third.final(calls[1])) == (None, None)
    rig.clock.advance(0.4)
    assert not rig.step()
    rig.clock.advance(0.2)
    finish(rig, [other, third], calls)
    assert list(other.segment(calls[0]).tokens) == expected(text(2, 12), 1)
    assert list(third.segment(calls[1]).tokens) == expected(text(3, 12), 1)


def forwarded(rig: Rig, run: RigRun, tokens: Sequence[int], kv_len: int = 0, start: int = 0) -> None:
    """Runs tokens by way of embeds, which hold something else afterwards."""
    inputs = tuple(EmbedName(1 + place) for place in range(len(tokens)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=inputs))
    positions = tuple(range(start, start + len(tokens)))
    run.submit(EmbedText(queue=QUEUE, tokens=tuple(tokens), positions=positions, embeds=inputs))
    num_pages = -(-(kv_len + len(tokens)) // 4)
    outputs = inputs if kv_len else ()
    call = run.submit(Forward(queue=QUEUE, pages=names(100, num_pages), kv_len=kv_len, inputs=inputs, outputs=outputs))
    run.submit(EmbedText(queue=QUEUE, tokens=(63,), positions=(900,), embeds=inputs[:1]))
    rig.drain()
    assert run.error_type(call) is None
    run.now(FreeEmbeds(queue=QUEUE, embeds=inputs))


@pytest.mark.parametrize("num_first", [4, 7, 12])
def test_pages_whose_tokens_came_as_embeds_are_rebuilt_as_if_they_had_come_as_tokens(num_first: int) -> None:
    rig = Rig(num_blocks=6, config=ControlConfig(max_batch_rows=4, max_batch_tokens=7))
    run, tokens = rig.open("a"), text(1, 13)
    assert run.now(AllocatePages(queue=QUEUE, pages=names(100, 4))).error is None
    forwarded(rig, run, tokens[:num_first])
    forwarded(rig, run, tokens[num_first:], num_first, num_first)
    everything(rig)
    assert rig.controller._resources.num_held_blocks() == {}
    call = run.submit(segment([5], 4, range(100, 104), 13))
    rig.drain()
    assert list(run.segment(call).tokens) == expected([*tokens, 5], 4)


def test_pages_of_embeds_that_hold_hidden_states_stay_for_nobody_could_compute_them_again() -> None:
    rig = Rig(num_blocks=6)
    run, embeds = rig.open("a"), tuple(EmbedName(place) for place in range(4))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=embeds))
    run.now(AllocatePages(queue=QUEUE, pages=names(100, 2)))
    run.submit(EmbedText(queue=QUEUE, tokens=(5, 6, 7, 8), positions=(0, 1, 2, 3), embeds=embeds))
    run.submit(Forward(queue=QUEUE, pages=names(100, 1), kv_len=0, inputs=embeds, outputs=embeds))
    second = run.submit(Forward(queue=QUEUE, pages=names(100, 2), kv_len=4, inputs=embeds))
    other = rig.open("other")
    rig.drain()
    assert run.error_type(second) is None
    out_of_use(rig)
    other.submit(segment(text(2, 24), 1))
    rig.drain()
    assert rig.controller._resources.num_held_blocks() == {run.session.run_id: 1}


def test_pages_that_are_lent_by_name_keep_their_blocks_for_dropping_them_would_free_none() -> None:
    rig = Rig(num_blocks=6)
    run, _ = filled(rig, 1)
    run.submit(ExportPages(queue=QUEUE, name="doc", pages=names(100, 1), positions=tuple(range(4))))
    other = rig.open("other")
    out_of_use(rig)
    call = other.submit(segment(text(2, 20), 1))
    rig.drain()
    assert list(other.segment(call).tokens) == expected(text(2, 20), 1)
    assert rig.controller._resources.num_held_blocks()[run.session.run_id] == 1


def test_pages_that_are_opaque_are_not_dropped_and_keep_what_they_hold() -> None:
    rig = Rig(num_blocks=6)
    holder = rig.hold("holder", range(4))
    other = rig.open("other")
    call = other.submit(segment(text(1), 1))
    rig.clock.advance(10)
    assert not rig.step()  # the holder is busy elsewhere, and will free
    holder.now(FreePages(queue=QUEUE, pages=names(0, 4)))
    rig.drain()
    assert list(other.segment(call).tokens) == expected(text(1), 1)


def test_pages_whose_beginning_their_run_does_not_hold_any_more_are_not_dropped() -> None:
    rig = Rig(num_blocks=6)
    run, _ = filled(rig, 1)
    run.now(FreePages(queue=QUEUE, pages=names(100, 2)))
    other = rig.open("other")
    out_of_use(rig)
    other.submit(segment(text(2, 20), 1))
    rig.drain()
    assert rig.controller._resources.num_held_blocks() == {run.session.run_id: 2}


def test_a_page_whose_beginning_was_freed_after_it_was_dropped_is_rebuilt_all_the_same() -> None:
    rig = Rig(num_blocks=6)
    run, tokens = filled(rig, 1)
    everything(rig)
    run.now(FreePages(queue=QUEUE, pages=names(100, 2)))
    call = run.submit(generate([5], pages=(102, 103), kv_len=8, grow_from=300, sampling=SAMPLING, max_tokens=1))
    rig.drain()
    naive = NaiveContext()
    naive.run(tokens, range(16))
    del naive.values[:8]
    assert list(run.segment(call).tokens) == [choose(naive.run([5], [8])[0], SAMPLING, 9)]


def test_interrupting_and_closing_suspended_runs_leaves_nothing_behind() -> None:
    rig = Rig(num_blocks=8)
    runs = [rig.open(f"run {number}") for number in range(3)]
    calls = [run.submit(segment(text(number, 10), 20)) for number, run in enumerate(runs)]
    suspended = rig.controller._scheduler.suspended
    while not suspended:
        assert rig.step()
    (victim,) = [place for place, run in enumerate(runs) if run.session.run_id in suspended]
    runs[victim].session.interrupt(calls[victim])
    result = runs[victim].segment(calls[victim])
    assert result.reason == "interrupted"
    assert list(result.tokens) == expected(text(victim, 10), 20)[: len(result.tokens)]
    while not suspended:
        assert rig.step()
    for run in [run for run in runs if run.session.run_id in suspended]:
        run.session.close()
    rig.drain()
    rest = [run for run in runs if not run.session.inbox.is_closed]
    for run in rest:
        run.session.close()
    rig.assert_all_free()


def test_a_run_that_is_closed_while_its_pages_are_rebuilt_gives_back_all() -> None:
    rig = Rig(num_blocks=6)
    run, _ = filled(rig, 1)
    everything(rig)
    run.submit(CopyPage(queue=QUEUE, source=PageName(100), target=PageName(101), size=2))
    batch = rig.controller.schedule()
    assert batch is not None
    assert batch.all_rows
    run.session.close()
    rig.controller.complete(rig.executor.run(batch))
    rig.assert_all_free()


def test_a_rebuild_that_fails_fails_its_call_and_the_pages_can_be_rebuilt_again() -> None:
    rig = Rig(num_blocks=6)
    run, tokens = filled(rig, 1)
    everything(rig)
    rig.executor.fault = RuntimeError("device lost")
    failed = run.submit(segment([5], 1, range(100, 104), 16))
    rig.drain()
    assert run.error_type(failed) == "InternalError"
    assert rig.controller._resources.num_held_blocks() == {}
    run.submit(ClearQueue(queue=QUEUE))
    again = run.submit(segment([5], 4, range(100, 104), 16))
    rig.drain()
    assert list(run.segment(again).tokens) == expected([*tokens, 5], 4)


def everything(rig: Rig) -> None:
    """Another run takes every block for a while, so that nothing of what idle runs had is left."""
    num_blocks = rig.executor.shape.num_blocks
    greedy = rig.open("greedy")
    out_of_use(rig)
    call = greedy.submit(segment([63] * 4 * num_blocks, 1))
    rig.drain()
    assert greedy.error_type(call) is None
    greedy.session.close()
    rig.controller.check_integrity()
    rig.executor.batches.clear()


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_in_a_pool_that_holds_one_of_them_at_a_time_equal_their_solo_runs(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(num_blocks=12, config=ControlConfig(max_batch_rows=4, max_batch_tokens=9))
    contexts = [(rig.open(f"run {number}"), list[int]()) for number in range(6)]
    checks: list[tuple[RigRun, int, list[int], int]] = []
    num_needed = 0
    for _ in range(4):
        for run, tokens in contexts:
            if len(tokens) > 34 or rng.random() < 0.3:
                continue
            given, count = rng.choices(range(64), k=rng.randint(1, 6)), rng.randint(1, 6)
            pages, kv_len = range(100, 100 - (-len(tokens) // 4)), len(tokens)
            call = run.submit(segment(given, count, pages, kv_len))
            checks.append((run, call, [*tokens, *given], count))
            answer = expected([*tokens, *given], count)
            tokens += [*given, *answer[:-1]]
            num_needed += len(given) + count - 1
        for _ in range(rng.randint(1, 8)):
            rig.step()
        finish(rig, [run for run, *_ in checks], [call for _, call, *_ in checks])
    for run, call, tokens, count in checks:
        assert list(run.segment(call).tokens) == expected(tokens, count)
    assert num_tokens(rig) > num_needed, "nothing was ever rebuilt"
    for run, _ in contexts:
        run.session.close()
    rig.assert_all_free()


def test_a_page_that_lost_all_that_was_known_and_written_of_it_is_dropped_once() -> None:
    blocks = BlockPool([BlockId(0)])
    page: Page = Resource()
    page.id, page.content = blocks.take(), PageContent(Prefix(""))
    assert Dropping(blocks, block_size=4).droppable([page]) == [page]


def test_no_rebuild_begins_that_leaves_no_block_for_what_its_call_needs_besides() -> None:
    rig = Rig(num_blocks=6)
    run, tokens = filled(rig, 1)
    everything(rig)
    rig.hold("other", range(900, 902))
    call = run.submit(segment([5, 6, 7, 8, 9], 1, range(100, 104), 16))
    rig.drain()
    assert run.final(call) is None
    assert (rig.executor.batches, rig.controller._resources.blocks.num_free) == ([], 4), "nothing is computed in vain"
    other = rig.controller._sessions[RunId("other")]
    other.close()
    rig.drain()
    assert list(run.segment(call).tokens) == expected([*tokens, 5, 6, 7, 8, 9], 1)
