"""Pages that leave a segment's window go back to the pool, and nothing else does: what is answered stays the same."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    ClearQueue,
    CopyPage,
    DebugQuery,
    ForwardText,
    FreePages,
    Generate,
    KvWindow,
    MaskPage,
    SharePages,
)
from loopwright.core.control import ControlLimits
from loopwright.core.ids import CallId, PageName
from loopwright.core.results import DebugInfo
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .fake_executor import choose, mix
from .rig import QUEUE, Rig, RigRun, generate
from .test_page_masks import SAMPLING, SIZE, naive, text


def windowed(call: Generate, size: int, sinks: int = 0, positions: Sequence[int] = ()) -> Generate:
    return msgspec.structs.replace(call, window=KvWindow(size=size, sinks=sinks, positions=tuple(positions)))


def border_of(position: int, size: int) -> int:
    return max(0, SIZE * ((position + 1 - size) // SIZE))


def num_held(run: RigRun) -> int:
    info = run.now(DebugQuery()).result
    assert isinstance(info, DebugInfo)
    return info.num_pages


def names_of(run: RigRun) -> int:
    info = run.now(DebugQuery()).result
    assert isinstance(info, DebugInfo)
    return info.num_page_names


def prompted(rig: Rig, tokens: Sequence[int], name: str = "a") -> tuple[RigRun, tuple[PageName, ...]]:
    """A run that has run tokens, seeing all; and its pages."""
    run = rig.open(name)
    call = run.submit(text(tokens))
    rig.drain()
    return run, tuple(PageName(1 + place) for place in range(run.forwarded(call).num_pages))


def test_two_thousand_tokens_take_the_pages_of_their_window_and_no_more() -> None:
    rig = Rig(num_blocks=8, max_context=3000)
    run = rig.open("a", ControlLimits(max_pages=6))
    call = run.submit(windowed(generate([5], max_tokens=2000, sampling=SAMPLING), size=12, sinks=4))
    most = 0
    while rig.step():
        most = max(most, num_held(run))
    segment = run.segment(call)
    assert len(segment.tokens) == 2000
    assert most == 1 + 12 // SIZE + 1  # sinks, the window, and where it begins within a page
    assert (segment.kv_len, segment.num_pages) == (2000, 500)
    assert num_held(run) == names_of(run) == 500 - len(segment.freed) <= 5
    expected = naive([5], 2000, lambda own, other: other < 4 or other >= border_of(own, 12))
    assert list(segment.tokens) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(1, 12), st.integers(1, 20), st.integers(0, 9),
    st.sampled_from([2, 5, 512]), st.integers(1, 30),
)  # fmt: skip
def test_exactly_the_pages_are_freed_that_the_next_token_could_not_see_and_the_rest_goes_on(
    gaps: list[int], num_last: int, size: int, sinks: int, max_batch_tokens: int, num_new: int
) -> None:
    positions = [sum(gaps[: place + 1]) - gaps[0] for place in range(len(gaps))]
    num_cached = max(0, len(gaps) - num_last)
    tokens = [5 + place for place in range(len(gaps))]
    every = [*positions, *(positions[-1] + 1 + place for place in range(num_new + 9))]

    def sees(own: int, other: int) -> bool:
        is_cached = own < num_cached
        return is_cached or every[other] < sinks or every[other] >= border_of(every[own], size)

    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=max_batch_tokens))
    run, names = rig.open("a"), ()
    if num_cached:
        first = run.submit(msgspec.structs.replace(text(tokens[:num_cached]), positions=tuple(positions[:num_cached])))
        rig.drain()
        names = tuple(PageName(1 + place) for place in range(run.forwarded(first).num_pages))
    call = generate(tokens[num_cached:], pages=names, kv_len=num_cached, sampling=SAMPLING, max_tokens=num_new)
    call = msgspec.structs.replace(call, positions=tuple(positions[num_cached:]))
    one = run.submit(windowed(call, size, sinks, positions[:num_cached]))
    rig.drain()
    segment = run.segment(one)
    expected = naive(tokens, num_new + 8, sees, positions)
    assert list(segment.tokens) == expected[:num_new]
    kv_len, border = len(tokens) + num_new - 1, border_of(every[len(tokens) + num_new - 1], size)
    assert (segment.kv_len, segment.num_pages) == (kv_len, -(-kv_len // SIZE))
    listed = [*names, *(PageName(100 + place) for place in range(segment.num_pages - len(names)))]
    gone = [
        page for page in range(kv_len // SIZE)
        if all(sinks <= every[place] < border for place in range(page * SIZE, page * SIZE + SIZE))
    ]  # fmt: skip
    assert sorted(segment.freed) == sorted(listed[page] for page in gone)
    assert num_held(run) == names_of(run) == len(listed) - len(gone)
    left = [page for place, page in enumerate(listed) if place not in gone]
    there = [every[place] for place in range(kv_len) if place // SIZE not in gone]
    after = generate(
        [segment.tokens[-1]], pages=left, kv_len=len(there), grow_from=900, first_position=every[kv_len],
        sampling=SAMPLING, max_tokens=8,
    )  # fmt: skip
    goes_on = run.submit(windowed(after, size, sinks, there))
    rig.drain()
    assert list(run.segment(goes_on).tokens) == expected[num_new:]
    run.session.close()
    rig.assert_all_free()


def test_pages_with_another_name_or_that_another_call_holds_lose_the_reference_alone() -> None:
    rig = Rig()
    prompt = list(range(5, 17))
    run, names = prompted(rig, prompt)
    assert (
        run.now(SharePages(queue=QUEUE, sources=names, targets=tuple(PageName(50 + one) for one in range(3)))).error
        is None
    )
    one = run.submit(windowed(generate([40], pages=names, kv_len=12, max_tokens=30), 8, 0, range(12)))
    reads = run.submit(CopyPage(queue=QUEUE, source=names[1], target=PageName(60), size=2))
    assert run.error_type(reads) is None
    rig.drain()
    assert set(names) < set(run.segment(one).freed)
    run.submit(ClearQueue(queue=QUEUE))
    fork = run.submit(generate([41], pages=range(50, 53), kv_len=12, grow_from=70, max_tokens=4, sampling=SAMPLING))
    rig.drain()
    assert list(run.segment(fork).tokens) == naive([*prompt, 41], 4, lambda own, other: True)
    gone = run.submit(text([1], 4, names[:1]))
    rig.drain()
    assert run.error(gone).message.startswith("pages: page 1 is not bound")
    run.session.close()
    rig.assert_all_free()


def test_a_page_that_the_segment_wrote_can_be_read_by_its_other_name_once_it_has_left() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(windowed(generate([5], max_tokens=30, sampling=SAMPLING), 4))
    for _ in range(5):
        rig.step()
    assert run.now(SharePages(queue=QUEUE, sources=(PageName(100),), targets=(PageName(50),))).error is None
    rig.drain()
    assert PageName(100) in run.segment(call).freed
    after = run.submit(generate([9], pages=[50], kv_len=4, grow_from=700, max_tokens=3, sampling=SAMPLING))
    rig.drain()
    tokens = [5, *run.segment(call).tokens[:3]]
    sees = lambda own, other: own >= 4 or other >= border_of(own, 4)  # noqa: E731
    assert list(run.segment(after).tokens) == naive([*tokens, 9], 3, sees)


def test_a_name_that_its_program_bound_anew_meanwhile_is_left_alone() -> None:
    rig = Rig()
    run, names = prompted(rig, range(5, 9))
    call = run.submit(windowed(generate([40], pages=names, kv_len=4, max_tokens=30, sampling=SAMPLING), 8, 0, range(4)))
    rig.step()
    assert run.now(FreePages(queue=QUEUE, pages=names)).error is None
    other = run.submit(text([9, 9, 9], 0))  # binds name 1, in turn
    rig.drain()
    assert run.error_type(other) is None
    assert names[0] in run.segment(call).freed
    again = run.submit(text([8], 3, names))
    rig.drain()
    assert run.error_type(again) is None


def test_a_segment_that_fails_leaves_the_names_free_that_it_freed_and_the_others_bound() -> None:
    rig = Rig()
    run, names = prompted(rig, range(5, 17))
    call = run.submit(windowed(generate([40], pages=names, kv_len=12, max_tokens=30), 8, 4, range(12)))
    for _ in range(6):
        rig.step()
    rig.executor.fault = RuntimeError("device lost")
    rig.drain()
    assert run.error_type(call) == "InternalError"
    assert num_held(run) == names_of(run) == 2  # the sinks, and the page that is still in the window
    run.submit(ClearQueue(queue=QUEUE))
    assert run.now(FreePages(queue=QUEUE, pages=(names[0], names[2]))).error is None
    run.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize("max_batch_tokens", [3, 512])
def test_what_is_freed_does_not_depend_on_how_the_prompt_was_cut(max_batch_tokens: int) -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=max_batch_tokens))
    run = rig.open("a")
    call = run.submit(windowed(generate(range(5, 35), max_tokens=1, sampling=SAMPLING), 8))
    rig.drain()
    assert run.segment(call).freed == tuple(range(100, 105))


def test_prompts_whose_positions_go_back_keep_what_their_last_tokens_see() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
    run = rig.open("a")
    tokens, positions = list(range(5, 25)), [*range(20, 32), *range(8)]
    call = msgspec.structs.replace(generate(tokens, max_tokens=9, sampling=SAMPLING), positions=tuple(positions))
    one = run.submit(windowed(call, 6))
    rig.drain()
    every = [*positions, *range(8, 40)]
    sees = lambda own, other: every[other] >= border_of(every[own], 6)  # noqa: E731
    assert list(run.segment(one).tokens) == naive(tokens, 9, sees, positions)


def looked_at(tokens: Sequence[int], num_tokens: int, size: int, sinks: int, bans: dict[int, int]) -> list[int]:
    """Token by token, with the first choices of some places vetoed and banned."""
    values: list[int] = []
    every, sampled = list(tokens), list[int]()
    while len(sampled) < num_tokens:
        for own in range(len(values), len(every)):
            border = border_of(own, size)
            seen = [value for other, value in enumerate(values) if other < sinks or other >= border]
            values.append(mix(every[own], own, *seen, mix(every[own], own)))
        sampling, banned = SAMPLING, set[int]()
        for _ in range(bans.get(len(sampled), 0)):
            banned.add(choose(values[-1], sampling, len(every)))
            allowed = tuple(token for token in range(64) if token not in banned)
            sampling = msgspec.structs.replace(SAMPLING, allowed=allowed)
        sampled.append(choose(values[-1], sampling, len(every)))
        every.append(sampled[-1])
    return sampled


@pytest.mark.parametrize("seed", range(6))
def test_a_veto_finds_the_pages_that_its_token_sees_however_far_the_segment_ran_ahead(seed: int) -> None:
    rng = random.Random(seed)
    size, sinks, ahead = rng.randint(1, 9), rng.randint(0, 5), rng.randint(1, 14)
    bans = {index: rng.randint(1, 2) for index in range(0, 50, rng.randint(1, 5))}
    rig = Rig(num_blocks=14)
    run, prompt = rig.open("a"), list(range(5, 5 + rng.randint(1, 14)))
    call = windowed(generate(prompt, max_tokens=50, sampling=SAMPLING), size, sinks)
    handle = run.submit(msgspec.structs.replace(call, watch=Watch(ahead)))
    most = seen = num_vetoes = 0
    left = dict(bans)
    while run.final(handle) is None:
        for _ in range(rng.randint(0, ahead + 1)):
            rig.step()
            most = max(most, num_held(run))
        run.final(handle)
        parts = [part for part in run.parts.get(handle, []) if part.num_vetoes == num_vetoes]
        if max((part.first + len(part.tokens) for part in parts), default=0) <= seen:
            assert run.now(Acknowledge(handle=int(handle), num_tokens=seen)).error is None
            rig.step()
        elif left.get(seen, 0):
            left[seen] -= 1
            num_vetoes += 1
            assert run.now(Veto(handle=int(handle), index=seen)).error is None
        else:
            seen += 1
        rig.controller.check_integrity()
    segment = run.segment(handle)
    assert list(segment.tokens) == looked_at(prompt, 50, size, sinks, bans)
    border = border_of(len(prompt) + 49, size)
    first = -(-sinks // SIZE)
    assert len(segment.freed) == max(0, border // SIZE - first)
    pages_of_prompt = -(-len(prompt) // SIZE)
    assert most <= max(pages_of_prompt, first + (size + ahead) // SIZE + 3)
    run.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize("index", [0, 1, 5])
def test_leaving_a_watched_segment_frees_what_the_tokens_that_were_looked_at_do_not_see(index: int) -> None:
    rig = Rig()
    run = rig.open("a")
    call = windowed(generate(range(5, 15), max_tokens=50, sampling=SAMPLING), 4)
    handle = run.submit(msgspec.structs.replace(call, watch=Watch(30)))
    rig.drain()
    run.now(Acknowledge(handle=int(handle), num_tokens=index))
    run.session.interrupt(handle)
    segment = run.segment(handle)
    expected = looked_at(range(5, 15), index + 4, 4, 0, {})
    assert list(segment.tokens) == expected[:index]
    kv_len = 10 + max(index - 1, 0)
    assert (segment.kv_len, segment.num_pages) == (kv_len, -(-kv_len // SIZE))
    assert len(segment.freed) == border_of(9 + index, 4) // SIZE
    left = [PageName(100 + page) for page in range(segment.num_pages) if PageName(100 + page) not in segment.freed]
    if index:
        there = range(SIZE * len(segment.freed), kv_len)
        after = generate(
            [segment.tokens[-1]], pages=left, kv_len=len(there), grow_from=900, first_position=kv_len,
            sampling=SAMPLING, max_tokens=4,
        )  # fmt: skip
        goes_on = run.submit(windowed(after, 4, 0, there))
        rig.drain()
        assert list(run.segment(goes_on).tokens) == expected[index:]


def test_a_windowed_run_that_was_suspended_gives_back_what_leaves_and_says_what_it_says_alone() -> None:
    rig = Rig(num_blocks=10)
    run, names = prompted(rig, range(5, 21))
    call = run.submit(
        windowed(generate([40], pages=names, kv_len=16, max_tokens=30, sampling=SAMPLING), 8, 4, range(16))
    )
    other = rig.open("other")
    rig.step()
    big = other.submit(generate(range(30, 54), max_tokens=8, sampling=SAMPLING))
    for _ in range(200):
        if not rig.step():
            rig.clock.advance(1)
        if run.final(call) is not None:
            run.session.close()
    sees = lambda own, other: own < 16 or other < 4 or other >= border_of(own, 8)  # noqa: E731
    assert list(run.segment(call).tokens) == naive([*range(5, 21), 40], 30, sees)
    assert list(other.segment(big).tokens) == naive(range(30, 54), 8, lambda own, other: True)
    other.session.close()
    rig.assert_all_free()


@pytest.mark.parametrize("num_steps", [0, 1, 3, 9, 20])
def test_closing_a_run_in_the_middle_of_a_windowed_segment_leaves_nothing(num_steps: int) -> None:
    rig = Rig()
    run, names = prompted(rig, range(5, 17))
    call: CallId = run.submit(windowed(generate([40], pages=names, kv_len=12, max_tokens=30), 6, 2, range(12)))
    for _ in range(num_steps):
        rig.step()
    assert run.final(call) is None
    run.session.close()
    rig.drain()
    rig.assert_all_free()


def test_masks_of_page_names_move_with_the_pages_that_stay() -> None:
    rig = Rig()
    prompt = list(range(5, 25))
    run, names = prompted(rig, prompt)
    masked = {0: (True, False, True, True), 4: (False, True, True, False)}  # sinks, and what stays for a while
    for place, keep in masked.items():
        assert run.now(MaskPage(queue=QUEUE, page=names[place], keep=keep)).error is None
    hidden = {1, 16, 19}
    call = run.submit(
        windowed(generate([40], pages=names, kv_len=20, max_tokens=25, sampling=SAMPLING), 10, 4, range(20))
    )
    rig.drain()

    def sees(own: int, other: int) -> bool:
        return own < 20 or (other not in hidden and (other < 4 or other >= border_of(own, 10)))

    assert list(run.segment(call).tokens) == naive([*prompt, 40], 25, sees)


def test_forwards_after_the_segment_count_on_what_stayed() -> None:
    rig = Rig()
    run, names = prompted(rig, range(5, 13))
    call = run.submit(windowed(generate([40], pages=names, kv_len=8, max_tokens=11, sampling=SAMPLING), 4, 4, range(8)))
    rig.drain()
    segment = run.segment(call)
    left = [name for name in (*names, *range(100, 98 + segment.num_pages)) if name not in segment.freed]
    too_much = run.submit(
        ForwardText(queue=QUEUE, pages=tuple(left), kv_len=len(left) * SIZE, grow_from=PageName(800), tokens=(1,),
                    positions=(60,))
    )  # fmt: skip
    rig.drain()
    assert "has KV for its first 3 tokens, and 4 are counted" in run.error(too_much).message


def test_a_name_that_a_segment_freed_has_lost_its_mask_too() -> None:
    rig = Rig()
    prompt = list(range(5, 17))
    run, names = prompted(rig, prompt)
    assert run.now(MaskPage(queue=QUEUE, page=names[0], keep=(False, True, True, True))).error is None
    call = run.submit(
        windowed(generate([40], pages=names, kv_len=12, max_tokens=20, sampling=SAMPLING), 4, 0, range(12))
    )
    rig.drain()
    assert names[0] in run.segment(call).freed
    again = run.submit(text([7, 8, 9, 10, 11]))  # binds the names anew
    rig.drain()
    assert run.error_type(again) is None
    asks = run.submit(text([12], 5, names[:2], sampling=SAMPLING))
    rig.drain()
    assert run.forwarded(asks).token == naive([7, 8, 9, 10, 11, 12], 1, lambda own, other: True)[0]
