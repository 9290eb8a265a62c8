"""Masks of pages and windows of segments: what a row sees equals a list of visible places, whatever blocks it drops."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocateEmbeds,
    EmbedText,
    Forward,
    ForwardText,
    FreePages,
    KvWindow,
    MaskPage,
    Sample,
    Sampling,
    SharePages,
)
from loopwright.core.ids import EmbedName, PageName

from .fake_executor import choose, is_visible, mix
from .rig import QUEUE, Rig, RigRun, generate

SIZE = 4  # tokens a page
SAMPLING = Sampling(temperature=1.0, seed=3)
KEEPS = st.lists(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE) | st.just([False] * SIZE), max_size=5)

Sees = Callable[[int, int], bool]  # own place, other place


def naive(tokens: Sequence[int], num_new: int, sees: Sees, positions: Sequence[int] | None = None) -> list[int]:
    """Runs tokens, then samples and runs one after another; each sees itself and what `sees` says."""
    places = list(positions or range(len(tokens)))
    values: list[int] = []
    tokens, sampled = list(tokens), []
    while len(sampled) < num_new:
        for own in range(len(values), len(tokens)):
            token, position = tokens[own], places[own]
            seen = [value for other, value in enumerate(values) if sees(own, other)]
            values.append(mix(token, position, *seen, mix(token, position)))
        places.append(places[-1] + 1)
        sampled.append(choose(values[-1], SAMPLING, places[-1]))
        tokens.append(sampled[-1])
    return sampled


def masked_run(rig: Rig, prompt: Sequence[int], keeps: Sequence[Sequence[bool]]) -> tuple[RigRun, tuple[PageName, ...]]:
    """A run that has run the prompt, seeing all, and has then masked its first pages."""
    run = rig.open("a")
    call = run.submit(text(prompt))
    rig.drain()
    names = tuple(PageName(1 + place) for place in range(run.forwarded(call).num_pages))
    for name, keep in zip(names, keeps, strict=False):
        assert run.now(MaskPage(queue=QUEUE, page=name, keep=tuple(keep))).error is None
    return run, names


def text(tokens: Sequence[int], kv_len: int = 0, names: Sequence[PageName] = (), **rest) -> ForwardText:
    positions = tuple(range(kv_len, kv_len + len(tokens)))
    return ForwardText(
        queue=QUEUE, pages=tuple(names), grow_from=PageName(len(names) + 1), kv_len=kv_len, tokens=tuple(tokens),
        positions=positions, **rest,
    )  # fmt: skip


def is_kept(keeps: Sequence[Sequence[bool]], num_prompt: int) -> Sees:
    """After the prompt, masks hide its places."""

    def sees(own: int, other: int) -> bool:
        is_masked = other // SIZE < len(keeps) and not keeps[other // SIZE][other % SIZE]
        return own < num_prompt or other >= num_prompt or not is_masked

    return sees


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 22), KEEPS, st.integers(1, 7), st.sampled_from([2, 5, 512]))
def test_every_kind_of_forward_sees_what_the_masks_keep(
    num_prompt: int, keeps: list[list[bool]], num_more: int, max_batch_tokens: int
) -> None:
    prompt, more = [5 + one for one in range(num_prompt)], [40 + one for one in range(num_more)]
    expected = naive([*prompt, *more], 6, is_kept(keeps, num_prompt))
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=max_batch_tokens))
    run, names = masked_run(rig, prompt, keeps)
    whole = run.submit(generate(more, pages=names, kv_len=num_prompt, sampling=SAMPLING, max_tokens=6))
    rig.drain()
    assert list(run.segment(whole).tokens) == expected
    one = run.submit(text(more, num_prompt, names, sampling=SAMPLING))
    rig.drain()
    assert run.forwarded(one).token == expected[0]
    names = tuple(PageName(1 + place) for place in range(run.forwarded(one).num_pages))
    assert sampled_in_pieces(rig, run, names, num_prompt, more) == expected[0]
    everything = tuple((0, num_prompt + 1 + place) for place in range(num_more))  # a mask of the call's own joins
    with_mask = run.submit(text(more, num_prompt, names, sampling=SAMPLING, mask=everything))
    rig.drain()
    assert run.forwarded(with_mask).token == expected[0]


def sampled_in_pieces(
    rig: Rig, run: RigRun, names: tuple[PageName, ...], kv_len: int, tokens: Sequence[int]
) -> int | None:
    """The same by embed, forward and sample."""
    inputs, output = tuple(EmbedName(1 + place) for place in range(len(tokens))), EmbedName(50)
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(*inputs, output)))
    positions = tuple(range(kv_len, kv_len + len(tokens)))
    run.submit(EmbedText(queue=QUEUE, tokens=tuple(tokens), positions=positions, embeds=inputs))
    run.submit(Forward(queue=QUEUE, pages=names, kv_len=kv_len, inputs=inputs, outputs=(output,)))
    call = run.submit(Sample(queue=QUEUE, embed=output, sampling=SAMPLING, position=kv_len + len(tokens)))
    rig.drain()
    return run.forwarded(call).token


def test_a_mask_joins_the_calls_own_mask() -> None:
    rig = Rig()
    prompt = range(5, 15)
    run, names = masked_run(rig, prompt, [[True, False, True, True]])
    runs = (1, 5, 2, 3)
    call = run.submit(text([40], 10, names, sampling=SAMPLING, mask=(runs,)))
    rig.drain()

    def sees(own: int, other: int) -> bool:
        return own < 10 or (other != 1 and is_visible(runs, other))

    assert run.forwarded(call).token == naive([*prompt, 40], 1, sees)[0]


def test_a_mask_is_the_names_and_counts_from_when_it_is_issued() -> None:
    rig = Rig()
    prompt, hidden = range(5, 13), (False, False, True, True)
    run, names = masked_run(rig, prompt, [])
    plain, masked = (naive([*prompt, 40], 1, is_kept(keeps, 8))[0] for keeps in ([], [hidden]))
    assert plain != masked

    def ask(*pages: int) -> int:
        return run.submit(
            ForwardText(
                queue=QUEUE, pages=tuple(PageName(page) for page in pages), kv_len=8, grow_from=PageName(60 + asked()),
                tokens=(40,), positions=(8,), sampling=SAMPLING,
            )
        )  # fmt: skip

    count = iter(range(100))

    def asked() -> int:
        return next(count)

    def share(source: int, target: int) -> None:
        sharing = SharePages(queue=QUEUE, sources=(PageName(source),), targets=(PageName(target),))
        assert run.now(sharing).error is None

    share(1, 20)
    before = ask(1, 2)
    run.now(MaskPage(queue=QUEUE, page=names[0], keep=hidden))
    after, elsewhere = ask(1, 2), ask(20, 2)
    share(1, 21)
    child = ask(21, 2)
    run.now(MaskPage(queue=QUEUE, page=names[0], keep=(True,) * SIZE))
    again, still = ask(1, 2), ask(21, 2)
    run.now(FreePages(queue=QUEUE, pages=(PageName(21),)))
    share(20, 21)
    fresh = ask(21, 2)
    rig.drain()
    found = {name: run.forwarded(call).token for name, call in locals().items() if name in ASKED}  # type: ignore[arg-type]
    assert found == {
        "before": plain, "after": masked, "elsewhere": plain, "child": masked, "again": plain, "still": masked,
        "fresh": plain,
    }  # fmt: skip
    run.session.close()
    rig.assert_all_free()


ASKED = ("before", "after", "elsewhere", "child", "again", "still", "fresh")


def test_a_page_of_which_nothing_is_seen_leaves_the_row_and_the_others_need_no_mask() -> None:
    rig = Rig()
    run, names = masked_run(rig, range(5, 17), [[True] * SIZE, [False] * SIZE])
    run.submit(generate([40], pages=names, kv_len=12, max_tokens=6))
    rig.executor.batches.clear()
    rig.drain()
    rows = [row for batch in rig.executor.batches for row in batch.all_rows]
    assert [(row.mask, row.kv_len, len(row.block_ids)) for row in rows] == [
        (None, 8 + place, 3 + place // SIZE) for place in range(6)
    ]


@pytest.mark.parametrize(
    ("page", "keep", "message"),
    [
        (1, (True,) * 5, "keep: 5 of them for the page's 4"),
        (9, (True,) * 4, "page: page 9 is not bound; the run has 1 names of pages"),
    ],
)
def test_a_mask_that_fits_no_page_is_refused(page: int, keep: tuple[bool, ...], message: str) -> None:
    rig = Rig()
    run, _ = masked_run(rig, range(5, 9), [])
    assert run.error(run.submit(MaskPage(queue=QUEUE, page=PageName(page), keep=keep))).message == message


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(1, 12), st.integers(1, 20), st.integers(0, 9),
    st.sampled_from([2, 5, 512]),
)  # fmt: skip
def test_a_windowed_segment_equals_a_list_of_visible_positions(
    gaps: list[int], num_last: int, size: int, sinks: int, max_batch_tokens: int
) -> None:
    positions = [sum(gaps[: place + 1]) - gaps[0] for place in range(len(gaps))]
    num_cached = max(0, len(gaps) - num_last)
    tokens = [5 + place for place in range(len(gaps))]
    every = [*positions, *(positions[-1] + 1 + place for place in range(20))]

    def sees(own: int, other: int) -> bool:
        border = max(0, SIZE * ((every[own] + 1 - size) // SIZE))
        return own < num_cached or every[other] < sinks or every[other] >= border

    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=max_batch_tokens))
    run = rig.open("a")
    names: tuple[PageName, ...] = ()
    if num_cached:
        first = text(tokens[:num_cached])
        cached = run.submit(msgspec.structs.replace(first, positions=tuple(positions[:num_cached])))
        rig.drain()
        names = tuple(PageName(1 + place) for place in range(run.forwarded(cached).num_pages))
    call = generate(tokens[num_cached:], pages=names, kv_len=num_cached, sampling=SAMPLING, max_tokens=20)
    window = KvWindow(size=size, sinks=sinks, positions=tuple(positions[:num_cached]))
    segment = run.submit(msgspec.structs.replace(call, positions=tuple(positions[num_cached:]), window=window))
    rig.drain()
    assert list(run.segment(segment).tokens) == naive(tokens, 20, sees, positions)
    assert run.segment(segment).kv_len == len(tokens) + 19


def test_rows_of_a_windowed_segment_stay_short_and_need_no_mask() -> None:
    rig = Rig()
    run = rig.open("a")
    call = generate([5], sampling=SAMPLING, max_tokens=100)
    run.submit(msgspec.structs.replace(call, window=KvWindow(size=8, sinks=4)))
    rig.drain()
    rows = [row for batch in rig.executor.batches for row in batch.all_rows]
    assert len(rows) == 100
    assert all(row.mask is None for row in rows)
    assert max(row.kv_len + 1 for row in rows) == 4 + 8 + SIZE - 1


def test_a_window_says_where_every_cached_token_stands() -> None:
    rig = Rig()
    run, names = masked_run(rig, range(5, 9), [])
    call = generate([40], pages=names, kv_len=4, max_tokens=2)
    refused = run.submit(msgspec.structs.replace(call, window=KvWindow(size=8, positions=(0, 1))))
    rig.drain()
    assert run.error(refused).message == "window.positions: 2 of them for 4 cached tokens"
