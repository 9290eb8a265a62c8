"""Which tokens of a context see which: the log of its views. Never holds KV, and never runs anything.

Owned by one Context, which asks what has to run, under what mask, and what no later token can see. All of it is a pure
function of the log, so KV can be dropped and rebuilt at any time with equal results.

A token sees itself, and those before it that the view in force when it is asked does not hide. A change of view counts
from the last token on: that is the one that will be run to say what follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loopwright.sdk.spans import Span, Spans, common, minus, moved_up, size_of, spans_of, without

_BEYOND = 1 << 62  # no context is so long


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens see the first `sinks` and the last `size`, themselves included. Both reach to the next border of a page,
    so that what falls out are whole pages, and decoding needs no mask."""

    size: int
    sinks: int  # whole pages
    page_size: int

    def first_seen(self, token: int) -> int:
        """The first token, beside the sinks, that `token` sees."""
        return max(0, (token + 1 - self.size) // self.page_size * self.page_size)


@dataclass(frozen=True, slots=True)
class View:
    """What may be seen by a token that is run under it."""

    hidden: Spans = ()
    window: Window | None = None

    def seen_by_any(self, start: int, end: int) -> Spans:
        """What at least one of the tokens start … end - 1 sees, themselves included."""
        if self.window is None:
            return minus(((0, end),), self.hidden)
        return minus(spans_of([(0, min(self.window.sinks, end)), (self.window.first_seen(start), end)]), self.hidden)

    def seen_by(self, token: int) -> Spans:
        """What the token sees before itself."""
        return common(self.seen_by_any(token, token + 1), ((0, token),))


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that made a context approximate: from token `start` on, `hidden` was not seen, or what lay outside the
    window of `window` = (size, sinks)."""

    start: int
    hidden: Spans = ()
    window: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Exact:
    """Every token has seen every token before it."""


@dataclass(frozen=True, slots=True)
class Approximate:
    """Some tokens have not seen all that stands before them, for these reasons."""

    causes: tuple[Cause, ...]


Provenance = Exact | Approximate


_PLAIN = ((0, View()),)


@dataclass(frozen=True, slots=True)
class ViewLog:
    """The views of a context in the order of its tokens: each holds from its token up to that of the next."""

    epochs: tuple[tuple[int, View], ...] = _PLAIN

    @property
    def current(self) -> View:
        return self.epochs[-1][1]

    @property
    def is_plain(self) -> bool:
        """Whether every token sees all before it."""
        return self.epochs is _PLAIN or self.epochs == _PLAIN

    @property
    def has_window(self) -> bool:
        """Whether some tokens see through a window."""
        return any(view.window is not None for _, view in self.epochs)

    def is_ahead(self, num_tokens: int) -> bool:
        """Whether the current view is that of tokens that are still to come."""
        return self.epochs[-1][0] >= num_tokens

    def changed(self, view: View, first: int) -> "ViewLog":
        """With another view, from token `first` on."""
        return _log([*(epoch for epoch in self.epochs if epoch[0] <= first), (first, view)])

    def truncated(self, num_tokens: int) -> "ViewLog":
        """For the first tokens alone. The current view stays in force."""
        return self.forgotten(((num_tokens, _BEYOND),), num_tokens)

    def forgotten(self, gone: Spans, num_left: int) -> "ViewLog":
        """As if the tokens of `gone` had never been."""
        last = max(num_left - 1, 0)
        moved = [
            (min(moved_up(start, gone), last), replace(view, hidden=without(view.hidden, gone)))
            for start, view in self.epochs
        ]
        return _log(moved)

    def asked_by(self, num_tokens: int) -> Spans:
        """What the next token to be asked and all that may follow can see, that token not included: it is the last one,
        or the first that is to come if the view is that one's."""
        asked = num_tokens if self.is_ahead(num_tokens) else num_tokens - 1
        return self.current.seen_by(asked) if num_tokens else ()

    def missing(self, targets: Spans, cached: Spans) -> Spans:
        """The tokens that must run to give KV to `targets`, given that those of `cached` have theirs."""
        run = minus(targets, cached)
        while more := minus(self.seen_by_any(run), spans_of([*cached, *run])):
            run = spans_of([*run, *more])
        return run

    def seen_by_any(self, tokens: Spans) -> Spans:
        """What at least one of the tokens sees, themselves included."""
        return spans_of(span for start, end, view in self._pieces(tokens) for span in view.seen_by_any(start, end))

    def mask(self, layout: Sequence[Span], run: Spans) -> list[list[int]] | None:
        """What each token of `run` sees, as the ABI's visibility, when it is written after what `layout` says the KV
        places hold; None if that is all that lies before it."""
        if self.is_plain and len(spans_of([*layout, *run])) <= 1 and all(end <= run[0][0] for _, end in layout):
            return None
        rows: list[list[int]] = []
        is_plain = True
        placed = [*layout, *run]
        own_place = size_of(layout)
        for start, end, view in self._pieces(run):
            for token in range(start, end):
                seen = spans_of([*view.seen_by(token), (token, token + 1)])
                rows.append(_runs(placed, seen))
                own_place += 1
                is_plain = is_plain and rows[-1] == [0, own_place]
        return None if is_plain else rows

    def provenance(self, num_tokens: int) -> Provenance:
        """Whether all tokens have seen all before them."""
        causes = []
        ends = [start for start, _ in self.epochs[1:]] + [num_tokens]
        for (start, view), end in zip(self.epochs, ends, strict=True):
            if view.hidden and start < num_tokens:
                causes.append(Cause(start, hidden=view.hidden))
            window = view.window
            if window is not None and end and window.first_seen(end - 1) > window.sinks:
                causes.append(Cause(start, window=(window.size, window.sinks)))
        return Approximate(tuple(causes)) if causes else Exact()

    def _pieces(self, spans: Spans) -> Iterator[tuple[int, int, View]]:
        """The spans, cut where the view changes."""
        starts = [start for start, _ in self.epochs]
        for (first, view), beyond in zip(self.epochs, [*starts[1:], _BEYOND], strict=True):
            for start, end in common(spans, ((first, beyond),)):
                yield start, end, view


def _log(epochs: Sequence[tuple[int, View]]) -> ViewLog:
    """In order, with of several at one token the last, and none that is as the one before."""
    latest = dict(epochs)  # keeps the last view of each token
    ordered = [(0, View()), *sorted(latest.items())] if 0 not in latest else sorted(latest.items())
    changes = [later for earlier, later in pairwise(ordered) if later[1] != earlier[1]]
    return ViewLog((ordered[0], *changes))


def _runs(placed: Sequence[Span], seen: Spans) -> list[int]:
    """Run lengths that alternate hidden and visible over the places that hold the tokens of `placed`."""
    visible: list[Span] = []
    first = 0
    for start, end in placed:
        visible += [(first + one - start, first + other - start) for one, other in common(seen, ((start, end),))]
        first += end - start
    runs, last = list[int](), 0
    for start, end in spans_of(visible):
        runs += [start - last, end - start]
        last = end
    return runs
