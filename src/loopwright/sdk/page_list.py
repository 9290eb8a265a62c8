"""The KV pages of one context: which tokens they hold, in which order, and what has to be copied when some go.

Never knows text, views or sampling. Owned by one context. KV place i lies in page i // page_size, and every page but
the last is full; the order of places is free, since keys carry their positions.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.sdk.errors import LoopwrightError
from loopwright.sdk.port import kept, lasting
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_state import RunState
from loopwright.sdk.spans import Span, Spans, common, minus, numbers, size_of, spans_of

Payload = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens start … start + size - 1, which lie in one page from `offset` on. `page` is a place in the page list."""

    page: int
    offset: int
    start: int
    size: int


class PageList:
    """Pages by name, and the tokens whose KV they hold. `layout` lists those in the order of their places."""

    def __init__(self, run: RunState, queue: Queue) -> None:
        self.names: list[int] = []
        self.layout: list[Span] = []
        self._run = run
        self._queue = queue
        self._shared: set[int] = set()  # names that another context has, or had, a name for too: never written
        self._unsettled: asyncio.Future[Payload] | None = None
        self._is_closed = False
        self._page_size = 0  # until it is known

    @property
    def kv_len(self) -> int:
        """How many tokens have KV."""
        return size_of(self.layout)

    @property
    def cached(self) -> Spans:
        """The tokens that have KV."""
        return spans_of(self.layout)

    @property
    def is_settled(self) -> bool:
        """Whether no forward that the program stopped waiting for is still on its way."""
        return self._unsettled is None

    def cut_last(self, token: int) -> None:
        """Lets the place of `token`, if it is the last one, be written again."""
        if self.layout and self.layout[-1][1] == token + 1:
            start, end = self.layout.pop()
            if start < end - 1:
                self.layout.append((start, end - 1))

    def first_missing(self, last: int) -> int | None:
        """The first token without KV, up to token `last`, whose place may be written again; None if the pages do not
        hold just the first tokens in their order, and none behind `last`."""
        layout = self.layout
        if last < 0 or len(layout) > 1 or (layout and (layout[0][0] or layout[0][1] > last + 1)):
            return None
        if layout and layout[0][1] > last:
            self.cut_last(last)
        return layout[0][1] if layout else 0

    async def forward(self, tokens: Sequence[int], run: Spans, num_drafts: int = 0, **outputs: Any) -> Payload:  # noqa: ANN401 (JSON)
        """Runs the tokens that `run` names, which have no KV, and appends theirs. `tokens` are the whole context, with
        the drafts at its end, which `run` names too."""
        if self._unsettled is not None:
            await self.settled()
        kv_len = self.kv_len
        num_pages = -(-(kv_len + size_of(run)) // (self._page_size or await self.page_size()))
        grow_from = self._run.take_names(max(num_pages - len(self.names), 0))
        future = self._queue.forward_text(
            pages=self.names,
            grow_from=grow_from,
            kv_len=kv_len,
            tokens=[token for start, end in run for token in tokens[start:end]],
            positions=list(numbers(run)),
            num_drafts=num_drafts or None,
            **outputs,
        )
        try:
            payload: Payload = await lasting(future)
        except asyncio.CancelledError:
            self._unsettled = kept(future)
            written = _without_last(run, num_drafts)
            self._unsettled.add_done_callback(lambda done: self._settle(done, grow_from, written))
            raise
        except LoopwrightError:
            self._queue.post("clear_queue")
            raise
        self.account(payload, grow_from, run)
        return payload

    def account(self, payload: Payload, grow_from: int, run: Spans) -> None:
        """Takes over what a call wrote: the tokens of `run`, in order, as far as its KV reaches."""
        num_new = payload["num_pages"] - len(self.names)
        self.names.extend(range(grow_from, grow_from + num_new))
        num_left = payload["kv_len"] - self.kv_len
        for start, end in run:
            size = min(end - start, num_left)
            if size > 0:
                self._append((start, start + size))
            num_left -= size

    def leave_out(self, freed: Sequence[int], size: int) -> None:
        """Takes note of pages that a segment freed, since they left its window."""
        gone = set(freed)
        pages = [(name, held) for name, held in zip(self.names, self._by_page(size), strict=True) if name not in gone]
        self.names, self.layout = [name for name, _ in pages], []
        for piece in (piece for _, held in pages for piece in held):
            self._append((piece.start, piece.start + piece.size))
        self._shared -= gone

    def lose(self) -> None:
        """Frees the pages after a segment failed that may have freed some, nobody knows which: so one by one, and what
        is not there fails, which the caller clears."""
        for name in self.names:
            self._queue.free_pages([name])
        self.names, self.layout, self._shared = [], [], set()

    async def settled(self) -> None:
        """Waits for a forward that the program stopped waiting for."""
        while self._unsettled is not None:
            await asyncio.wait([self._unsettled])
            await asyncio.sleep(0)  # its callback, which was there first, has run by now

    async def keep(self, wanted: Spans) -> None:
        """Drops the KV of all tokens but those. Pages that hold only such stay; what others still hold is copied to
        fresh pages, after all that stay, and they are freed. If that fails, nothing has changed."""
        if not minus(self.cached, wanted) and len(self.names) <= -(-self.kv_len // await self.page_size()):
            return
        size = await self.page_size()
        intact, moved = self._sorted_out(wanted, size)
        chunks = _chunks(moved, size)
        reused = [self._reusable(chunk, size) for chunk in chunks]
        first = self._run.take_names(len(chunks))
        fresh = [first + place for place, page in enumerate(reused) if page is None]
        await self._allocate(fresh)
        names = [self.names[page] for page in intact]
        for place, (chunk, page) in enumerate(zip(chunks, reused, strict=True)):
            names.append(first + place if page is None else self.names[page])
            if page is None:
                self._copy(chunk, first + place)
        kept = set(names)
        if gone := [name for name in self.names if name not in kept]:
            self._queue.free_pages(gone)
        pages = self._by_page(size)
        self.names, self.layout = names, []
        for piece in [*(piece for page in intact for piece in pages[page]), *moved]:
            self._append((piece.start, piece.start + piece.size))
        self._shared &= kept

    async def share_with(self, other: "PageList", wanted: Spans) -> None:
        """Gives `other`, which is empty, the KV of those of the tokens that have it and stand first in the layout: full
        pages by reference, of the last one a copy."""
        size = await self.page_size()
        kept = _first(self.layout, wanted)
        num_full, tail = divmod(size_of(kept), size)
        first = self._run.take_names(num_full + 1)
        names = list(range(first, first + num_full))
        bound: list[int] = []  # by what is known; `other.names` also has what is under way, to be freed if cancelled
        try:
            if names:
                other.names = list(names)
                self._shared.update(self.names[:num_full])  # before they are: it may be given up meanwhile
                await other._queue.share_pages(self.names[:num_full], names)
                bound = names
                other._shared.update(names)
            if tail:
                other.names = [*names, first + num_full]
                await other._queue.allocate_pages([first + num_full])
                other._queue.post("copy_page", source=self.names[num_full], target=first + num_full, size=tail)
        except LoopwrightError:
            other.names = bound
            raise
        other.layout = kept

    async def lend(self, name: str, **options: Any) -> None:  # noqa: ANN401 (JSON)
        """Exports the pages, which hold KV in full. Options as for `export_pages`."""
        await self._queue.export_pages(name, self.names, positions=list(numbers(self.layout)), **options)

    async def borrow(self, name: str, num_pages: int, *, ends_loan: bool) -> Payload:
        """Gives this list, which is empty, the pages that another run lent: full pages are shared from now on. The last
        one, if it is not full, is this list's alone when that ends the loan, and else a copy."""
        first = self._run.take_names(num_pages)
        taken = self._queue.import_pages(name, range(first, first + num_pages))
        self.names = list(range(first, first + num_pages))
        payload = await taken
        for position in payload["positions"]:
            self._append((position, position + 1))
        num_full, tail = divmod(self.kv_len, await self.page_size())
        self._shared.update(self.names[:num_full])
        if ends_loan:
            await self._queue.unexport_pages(name)
        elif tail:
            lent, own = self.names[-1], self._run.take_names()
            await self._allocate([own])
            self._queue.post("copy_page", source=lent, target=own, size=tail)
            self.names[-1] = own
            self._queue.free_pages([lent])
        return payload

    def free_grown(self, payload: Payload, grow_from: int) -> None:
        """Frees what a call grew that nobody will account for."""
        grown = range(grow_from, grow_from + payload["num_pages"] - len(self.names))
        self._queue.free_pages([name for name in grown if name not in set(payload.get("freed", ()))])

    def close(self, *, is_sliding: bool = False) -> None:
        """Frees the pages. `is_sliding`: a segment is on its way that may free some."""
        self._is_closed = True
        if is_sliding:
            names = list(self.names)
            self.lose()
            self.names = names  # how many there were, `free_grown` must know
        elif self.names:
            self._queue.free_pages(self.names)

    async def page_size(self) -> int:
        if not self._page_size:
            self._page_size = (await self._run.description(self._queue.model))["model"]["page_size"]
        return self._page_size

    def _append(self, span: Span) -> None:
        if self.layout and self.layout[-1][1] == span[0]:
            self.layout[-1] = (self.layout[-1][0], span[1])
        else:
            self.layout.append(span)

    def _settle(self, done: "asyncio.Future[Payload]", grow_from: int, written: Spans) -> None:
        """A forward that the program stopped waiting for still counts, if it went well; its drafts do not."""
        self._unsettled = None
        if self._queue.is_over:
            return
        if done.cancelled() or done.exception() is not None:
            self._queue.post("clear_queue")
        elif self._is_closed:
            self.free_grown(done.result(), grow_from)
        else:
            self.account(done.result(), grow_from, written)

    def _by_page(self, size: int) -> list[list[Piece]]:
        """What each page holds."""
        pages: list[list[Piece]] = [[] for _ in self.names]
        place = 0
        for start, end in self.layout:
            while start < end:
                num = min(end - start, size - place % size)
                pages[place // size].append(Piece(place // size, place % size, start, num))
                start, place = start + num, place + num
        return pages

    def _sorted_out(self, wanted: Spans, size: int) -> tuple[list[int], list[Piece]]:
        """The full pages that hold only what is wanted, and what is wanted in the others."""
        intact: list[int] = []
        moved: list[Piece] = []
        for page, pieces in enumerate(self._by_page(size)):
            held = spans_of((piece.start, piece.start + piece.size) for piece in pieces)
            if sum(piece.size for piece in pieces) == size and not minus(held, wanted):
                intact.append(page)
                continue
            for piece in pieces:
                for start, end in common(((piece.start, piece.start + piece.size),), wanted):
                    moved.append(Piece(page, piece.offset + start - piece.start, start, end - start))
        return intact, moved

    def _reusable(self, chunk: Sequence[Piece], size: int) -> int | None:
        """The page that holds the chunk in place already and may be written behind it."""
        page, offset = chunk[0].page, 0
        for piece in chunk:
            if piece.page != page or piece.offset != offset:
                return None
            offset += piece.size
        return page if offset < size and self.names[page] not in self._shared else None

    async def _allocate(self, fresh: list[int]) -> None:
        if not fresh:
            return
        try:
            await asyncio.shield(future := self._queue.allocate_pages(fresh))
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._free_again(done, fresh))
            raise
        except LoopwrightError:
            self._queue.post("clear_queue")
            raise

    def _free_again(self, done: "asyncio.Future[Payload]", fresh: list[int]) -> None:
        if done.cancelled():
            return
        if done.exception() is None:
            self._queue.free_pages(fresh)
        else:
            self._queue.post("clear_queue")

    def _copy(self, chunk: Sequence[Piece], target: int) -> None:
        """Posted: whatever reads the target waits for it."""
        offset = 0
        for piece in _joined(chunk):
            self._queue.post(
                "copy_page",
                source=self.names[piece.page],
                target=target,
                source_offset=piece.offset,
                target_offset=offset,
                size=piece.size,
            )
            offset += piece.size


def _chunks(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """The pieces, one after the other, cut into pages."""
    chunks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        page, offset, start, left = piece.page, piece.offset, piece.start, piece.size
        while left:
            if not room:
                chunks.append([])
                room = size
            num = min(left, room)
            chunks[-1].append(Piece(page, offset, start, num))
            offset, start, left, room = offset + num, start + num, left - num, room - num
    return chunks


def _joined(chunk: Sequence[Piece]) -> list[Piece]:
    """With pieces that lie next to each other as one: what is copied has no token numbers."""
    joined: list[Piece] = []
    for piece in chunk:
        last = joined[-1] if joined else None
        if last is not None and (last.page, last.offset + last.size) == (piece.page, piece.offset):
            joined[-1] = Piece(last.page, last.offset, last.start, last.size + piece.size)
        else:
            joined.append(piece)
    return joined


def _first(layout: Sequence[Span], wanted: Spans) -> list[Span]:
    """The spans of the layout up to the first token that is not wanted."""
    kept: list[Span] = []
    for start, end in layout:
        reach = next((other for first, other in wanted if first <= start < other), start)
        if reach > start:
            kept.append((start, min(end, reach)))
        if reach < end:
            break
    return kept


def _without_last(spans: Spans, count: int) -> Spans:
    """Without the last `count` numbers, which are consecutive."""
    return minus(spans, ((spans[-1][1] - count, spans[-1][1]),)) if count else spans
