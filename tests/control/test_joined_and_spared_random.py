"""Random calls of two runs over pages that they copy, shift, mask, lend and lose: the prefix cache, calls that join a
step and pages that are dropped change no answer."""

from collections.abc import Sequence
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.control.scheduler import Scheduler
from loopwright.core.calls import (
    AllocatePages,
    ClearQueue,
    CopyPage,
    ExportPages,
    ForwardText,
    FreePages,
    ImportPages,
    MaskPage,
    QueueCall,
    Sampling,
    ShiftKv,
    UnexportPages,
)
from loopwright.core.ids import CallId, PageName

from .rig import QUEUE, Rig, RigRun, generate

PAGES, BORROWED, RUNS = (1, 2, 3, 4), (5, 6), ("a", "b")
SAMPLING = Sampling(temperature=1.0, seed=7)
CLEAR = ClearQueue(queue=QUEUE)
Op: TypeAlias = tuple[str, Sequence[QueueCall]] | int
"""Calls of a run, one behind the other, or a number of steps; 0 is all, and then both runs lose their pages."""

page = st.sampled_from(PAGES).map(PageName)
two_pages = st.sampled_from([(1, 2), (1, 2), (3, 4), (1, 4), (5, 6), (3, 2)])
tokens = st.lists(st.sampled_from([10, 10, 10, 11]), min_size=1, max_size=9)
fresh_names = st.integers(1, 10**6).map(lambda number: number * 1000)
titles = st.sampled_from("xy")


def _text(names: Sequence[int], kv_len: int, given_tokens: Sequence[int], *, hides: bool = False) -> ForwardText:
    fitting = given_tokens[: 8 - kv_len]
    end = kv_len + len(fitting)
    mask = tuple((1, place - 1, 1) if place > 1 else (0, place + 1) for place in range(kv_len, end)) if hides else None
    return ForwardText(
        queue=QUEUE, pages=tuple(map(PageName, names if end > 4 else names[:1])), kv_len=kv_len, tokens=tuple(fitting),
        positions=tuple(range(kv_len, end)), mask=mask, sampling=SAMPLING,
    )  # fmt: skip


def _copy(source: int, target: int, size: int, offset: int = 0) -> CopyPage:
    return CopyPage(
        queue=QUEUE, source=PageName(source), target=PageName(target), size=min(size, 4 - offset),
        source_offset=offset, target_offset=offset,
    )  # fmt: skip


def _segment(names: Sequence[int], kv_len: int, given_tokens: Sequence[int], grow_from: int) -> QueueCall:
    pages = names[: -(-kv_len // 4)]
    return generate(given_tokens, pages=pages, kv_len=kv_len, grow_from=grow_from, sampling=SAMPLING, max_tokens=3)


def _fork(names: Sequence[int], target: int, size: int, kv_len: int, given_tokens: Sequence[int]) -> list[QueueCall]:
    """A page's beginning is copied, and written on: all in one step, if nothing needs one before it."""
    target = target if target not in names else 7 - names[0] if names[0] in (3, 4) else 3
    return [_copy(names[0], target, size), _text((target, 4 if target != 4 else 1), min(size, kv_len), given_tokens)]


def _borrow(title: str) -> list[QueueCall]:
    names = tuple(map(PageName, BORROWED))
    return [
        FreePages(queue=QUEUE, pages=names), CLEAR, ImportPages(queue=QUEUE, pages=names, name=title), CLEAR,
        AllocatePages(queue=QUEUE, pages=names), CLEAR,
    ]  # fmt: skip


def _lend(names: Sequence[int], title: str) -> QueueCall:
    return ExportPages(queue=QUEUE, pages=tuple(map(PageName, names)), name=title, positions=tuple(range(8)))


texts = st.builds(
    _text, two_pages, st.sampled_from([0, 0, 0, 2, 4, 6]), tokens, hides=st.sampled_from([False] * 5 + [True])
)
copies = st.builds(
    _copy, st.sampled_from((1, 2, 5, 6)), st.sampled_from((3, 4)), st.integers(1, 4), st.sampled_from([0, 0, 0, 2])
)
shifts = st.builds(lambda one, size: ShiftKv(queue=QUEUE, pages=(one,), size=size, delta=1), page, st.integers(1, 4))
segments = st.builds(_segment, two_pages, st.sampled_from([0, 0, 0, 4, 7, 8]), tokens, fresh_names)
masks = st.builds(
    lambda one, hidden: MaskPage(queue=QUEUE, page=one, keep=tuple(place != hidden for place in range(4))),
    page, st.integers(0, 6),
)  # fmt: skip
frees = page.map(lambda one: [FreePages(queue=QUEUE, pages=(one,)), CLEAR, AllocatePages(queue=QUEUE, pages=(one,))])
phrases = st.one_of(
    *[one.map(lambda call: [call]) for one in (texts, texts, copies, shifts, segments, segments, masks)],
    st.builds(_fork, two_pages, page, st.integers(1, 4), st.integers(1, 4), tokens),
    st.builds(_lend, two_pages, titles).map(lambda call: [call]),
    titles.map(lambda title: [UnexportPages(queue=QUEUE, name=title)]),
    titles.map(_borrow), titles.map(_borrow), frees,
)  # fmt: skip
ops = st.lists(
    st.one_of(*[st.tuples(st.sampled_from(RUNS), phrases)] * 3, st.integers(0, 2), st.just(0)), min_size=5, max_size=30
)


def outcome(
    steps: list[Op], *, prefix_cache: bool, drops: bool, is_ahead: bool = False
) -> dict[tuple[str, CallId], object]:
    """What each call completes with, but how much of it was cached; of an error, its type."""
    rig = Rig(num_blocks=400, config=ControlConfig(prefix_cache=prefix_cache), is_ahead=is_ahead)
    runs = {name: rig.open(name) for name in RUNS}
    for run in runs.values():
        run.now(AllocatePages(queue=QUEUE, pages=tuple(map(PageName, (*PAGES, *BORROWED)))))
        for names in ((1, 2), (3, 4), BORROWED):
            run.submit(_text(names, 0, [10] * 8))
    rig.drain()
    issued: list[tuple[str, CallId]] = []
    for op in steps:
        if isinstance(op, tuple):
            issued += _issue(rig, op[0], runs[op[0]], op[1])
            continue
        for _ in range(op):
            rig.step()
        if op == 0:
            rig.drain()
            for run in runs.values() if drops else ():
                rig.controller._resources.drop(run.session.run_id, ())
            rig.controller.check_integrity()
    rig.drain()
    ends = {(name, call): _said(runs[name], call) for name, call in issued}
    for run in runs.values():
        run.session.close()
    rig.assert_all_free()
    return ends


def _issue(rig: Rig, name: str, run: RigRun, phrase: Sequence[QueueCall]) -> list[tuple[str, CallId]]:
    """Calls of two runs about one export have no order but time: so they end before others are issued."""
    is_about_exports = any(isinstance(call, ExportPages | UnexportPages | ImportPages) for call in phrase)
    if is_about_exports:
        rig.drain()
    issued = [(name, run.submit(call)) for call in (*phrase, CLEAR)]
    if is_about_exports:
        rig.drain()
    return issued


def _said(run: RigRun, call: CallId) -> object:
    if (error := run.error_type(call)) is not None:
        return error
    return tuple(getattr(run.result(call), field, None) for field in ("tokens", "token", "kv_len", "num_pages"))


@settings(max_examples=300, deadline=None)
@given(steps=ops, prefix_cache=st.booleans(), drops=st.booleans(), is_ahead=st.booleans())
def test_nothing_that_is_spared_or_lost_changes_an_answer(
    steps: list[Op], prefix_cache: bool, drops: bool, is_ahead: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_take_joining", lambda self, step: None)
        plain = outcome(steps, prefix_cache=False, drops=False)
    assert outcome(steps, prefix_cache=prefix_cache, drops=drops, is_ahead=is_ahead) == plain
