"""A program that looks at every token of a long context: what is known of its pages costs what a short one's does."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from loopwright.core.calls import AllocatePages, CopyPage, ForwardText, FreePages, Sampling, SharePages
from loopwright.core.control import ControlLimits
from loopwright.core.ids import PageName
from loopwright.engine.simulated import answer

from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

SIZE = 4  # tokens a page
BOOKS = ("prefixes.py", "prefix_cache.py", "page_content.py", "block_pool.py")
SAMPLING = Sampling(temperature=1.0, seed=3)


class Context:
    """One run's only context, over an engine that answers without looking."""

    def __init__(self, num_tokens: int) -> None:
        self.rig = Rig(num_blocks=4096, max_context=40_000)
        self.run = self.rig.open("a", ControlLimits(max_pages=4096))
        self.kv_len = self.num_pages = 0
        self.extend([place % 60 for place in range(num_tokens)])

    def extend(self, tokens: list[int]) -> None:
        call = self.run.submit(
            ForwardText(
                queue=QUEUE, pages=tuple(map(PageName, range(self.num_pages))), grow_from=PageName(self.num_pages),
                kv_len=self.kv_len, tokens=tuple(tokens),
                positions=tuple(range(self.kv_len, self.kv_len + len(tokens))), sampling=Sampling(),
            )
        )  # fmt: skip
        while (batch := self.rig.controller.schedule()) is not None:
            self.rig.controller.complete(answer(batch))
        forwarded = self.run.forwarded(call)
        self.kv_len, self.num_pages = forwarded.kv_len, forwarded.num_pages


def lines_run(work: Callable[[], None]) -> Counter[str]:
    """How many lines of the books' files ran, by function; a loop's lines count each time."""
    counted: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(BOOKS):
            return None
        counted[frame.f_code.co_qualname] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


def test_a_token_of_a_long_context_costs_the_books_what_one_of_a_short_context_costs() -> None:
    counted: list[Counter[str]] = []
    for num_tokens in (25 * SIZE, 512 * SIZE):  # as many pages as 8,192 tokens have in pages of 16
        context = Context(num_tokens)
        for _ in range(2 * SIZE):
            context.extend([1])
        counted.append(lines_run(lambda: [context.extend([1]) for _ in range(3 * SIZE)]))  # noqa: B023 (run at once)
    short, long = counted
    assert short["PrefixCache.insert"] > 0  # pages became full
    assert short["Prefixes.after"] > 0
    assert long == short


def test_what_an_earlier_page_lost_is_noticed_however_often_the_line_was_looked_at() -> None:
    """The program goes back into the first page, writes something else there, and goes on behind the pages that it had:
    they were computed after other tokens, so nobody else may be given them for these."""
    rig = Rig()
    run, tokens = rig.open("a"), list(range(10, 10 + 4 * SIZE))
    forward(rig, run, (), 0, tokens)
    for token in (1, 2, 3, 4):
        forward(rig, run, range(4 + (token > 1)), 4 * SIZE + token - 1, [token])
    forward(rig, run, range(1), 0, [60] * SIZE)
    forward(rig, run, range(5), 5 * SIZE, [5, 6, 7, 8])
    forward(rig, run, range(6), 6 * SIZE, [9])
    run.session.close()
    other, prompt = rig.open("other"), [*[60] * SIZE, *tokens[SIZE:], 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    call = other.submit(generate(prompt, sampling=SAMPLING, max_tokens=3))
    rig.drain()
    segment = other.segment(call)
    assert list(segment.tokens) == NaiveContext().generate(prompt, range(len(prompt)), SAMPLING, 3)
    assert segment.cached_tokens == SIZE  # the page that was written last; those behind it are another's


@pytest.mark.parametrize("parent_goes_first", [True, False])
def test_forks_of_a_line_go_on_in_lines_of_their_own(parent_goes_first: bool) -> None:
    rig = Rig()
    run, tokens = rig.open("a"), [place % 60 for place in range(20 * SIZE + 2)]
    forward(rig, run, (), 0, tokens)
    shared, tail = range(200, 220), 220
    run.now(SharePages(queue=QUEUE, sources=names(*range(20)), targets=names(*shared)))
    run.submit(CopyPage(queue=QUEUE, source=PageName(20), target=fresh(run, tail), size=2))
    ways = [([*range(21)], [31, 32, 33, 34, 35, 36, 37]), ([*shared, tail], [41, 42, 43, 44, 45, 46, 47])]
    for pages, way in ways if parent_goes_first else ways[::-1]:
        for place, token in enumerate(way):
            kv_len = len(tokens) + place
            if len(pages) * SIZE == kv_len:
                pages.append(fresh(run, 300 + pages[0] + kv_len))
            counted = lines_run(lambda: forward(rig, run, pages, kv_len, [token]))  # noqa: B023 (run at once)
            assert counted["Prefixes.after"] < 24 or place < 2, "a line was looked at anew"
    run.now(FreePages(queue=QUEUE, pages=names(*ways[0][0])))
    for number, (_, way) in enumerate(ways):
        prompt, other = [*tokens, *way, 50], rig.open(f"other {number}")
        call = other.submit(generate(prompt, sampling=SAMPLING, max_tokens=3))
        rig.drain()
        segment = other.segment(call)
        assert list(segment.tokens) == NaiveContext().generate(prompt, range(len(prompt)), SAMPLING, 3)
        assert segment.cached_tokens == 22 * SIZE
        other.session.close()
    run.session.close()
    rig.assert_all_free()


def names(*numbers: int) -> tuple[PageName, ...]:
    return tuple(map(PageName, numbers))


def fresh(run: RigRun, number: int) -> PageName:
    assert run.now(AllocatePages(queue=QUEUE, pages=names(number))).error is None
    return PageName(number)


def forward(rig: Rig, run: RigRun, pages, kv_len: int, tokens: list[int]) -> None:
    grow_from = PageName(max(pages, default=-1) + 1)
    positions = tuple(range(kv_len, kv_len + len(tokens)))
    call = run.submit(
        ForwardText(queue=QUEUE, pages=names(*pages), grow_from=grow_from, kv_len=kv_len, tokens=tuple(tokens),
                    positions=positions)
    )  # fmt: skip
    rig.drain()
    assert run.error_type(call) is None
