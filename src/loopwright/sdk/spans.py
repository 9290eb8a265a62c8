"""Sets of token numbers as sorted, disjoint, half-open spans. Never knows what the tokens are.

Used by the views of a context and by its page list: a set has few spans however long the context is.
"""

from collections.abc import Iterable, Iterator

Span = tuple[int, int]
Spans = tuple[Span, ...]


def spans_of(spans: Iterable[Span]) -> Spans:
    """The union of spans in any order; empty ones are left out."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def minus(spans: Spans, taken: Spans) -> Spans:
    """What is in `spans` and not in `taken`."""
    left: list[Span] = []
    for start, end in spans:
        for taken_start, taken_end in taken:
            if taken_end <= start:
                continue
            if taken_start >= end:
                break
            if start < taken_start:
                left.append((start, taken_start))
            start = taken_end
        if start < end:
            left.append((start, end))
    return tuple(left)


def common(spans: Spans, others: Spans) -> Spans:
    """What is in both."""
    return spans_of(
        (max(start, other_start), min(end, other_end)) for start, end in spans for other_start, other_end in others
    )


def size_of(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def split(spans: Spans, count: int) -> tuple[Spans, Spans]:
    """The first `count` numbers, and the rest."""
    first: list[Span] = []
    for place, (start, end) in enumerate(spans):
        if count < end - start:
            rest = spans_of([(start + count, end), *spans[place + 1 :]])
            return spans_of([*first, (start, start + count)]), rest
        first.append((start, end))
        count -= end - start
    return spans, ()


def numbers(spans: Iterable[Span]) -> Iterator[int]:
    """The single numbers, in the order of the spans."""
    for start, end in spans:
        yield from range(start, end)


def without(spans: Spans, gone: Spans) -> Spans:
    """What `spans` are called once the numbers of `gone` are taken out and those behind them move up."""
    return spans_of((moved_up(start, gone), moved_up(end, gone)) for start, end in spans)


def moved_up(number: int, gone: Spans) -> int:
    """What a number is once those of `gone` are taken out: for one that is gone, that of the next one left."""
    return number - size_of(common(gone, ((0, number),)))
