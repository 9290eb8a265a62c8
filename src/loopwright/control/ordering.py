"""Owns who waits for whom: calls, their queues, and the pages and embeds they touch. Never runs or delivers anything.

Called by the controller when a call is issued, fails or is over. The rules:
- A call waits for the call before it in its queue, and for earlier calls that touch the same page or embed unless both
  only read it. It is over, well or badly, only when it waits for nobody: so its own order holds for who waits for it.
- A failure reaches, at once, the calls behind it in its queue up to a ClearQueue, and all that read what it should have
  written; they do not run, and fail as Poisoned when their turn comes. Who is reached depends on the order of issue
  alone, not on when the failure came: a page stays tainted until the queue of the failure is cleared, also when others
  wrote to it since; an embed until it is written anew.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from loopwright.control.feeds import Feed
from loopwright.control.inbox import Inbox
from loopwright.core.batch import EmbedRow, HeadRow
from loopwright.core.calls import ClearQueue, QueueCall
from loopwright.core.errors import ErrorInfo, Poisoned
from loopwright.core.ids import BlockId, CallId, PageName, QueueName, RunId, SlotId

if TYPE_CHECKING:
    from loopwright.control.page_content import PageContent

IdT = TypeVar("IdT", bound=int)

Work: TypeAlias = Feed | EmbedRow | HeadRow | None
"""What a call gives the engine; None for calls that need no engine, and for a copy, which is made when it runs."""


class Lent:
    """A block that an export lent."""

    __slots__ = ("num_holders",)

    def __init__(self) -> None:
        self.num_holders = 0  # exports, and pages that were exported or imported; not what the cache found for others


class Resource(Generic[IdT]):
    """A page or an embed: what names are bound to and calls hold. It lives while it has either.

    `id` is the block or slot behind it; a page that a forward binds has none until that forward starts."""

    __slots__ = (
        "content", "id", "lent", "num_exchanging", "num_holds", "num_names", "readers", "rewritten_by", "taints",
        "text", "writer", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.id: IdT | None = None
        self.num_names = 0
        self.num_holds = 0  # calls that are not over
        self.text: tuple[int, int] | None = None  # of an embed: the token and position that embed_text wrote there
        self.num_exchanging = 0  # those of them that export it, or give it an exported block
        self.lent: Lent | None = None  # if its block is, or was, part of an export
        self.written = 0  # bit i: offset i has been written since the block was taken
        self.content: PageContent | None = None  # of a page: what is known of its KV
        self.writer: OpenCall | None = None  # the last one issued, if not over
        self.readers: dict[OpenCall, None] = {}  # not over, issued since the last writer, in order
        self.rewritten_by = 0  # the number of the last call that was to write all of it
        # By queue and clears issued there before: the first call that failed to write it, and what readers fail with.
        self.taints: dict[tuple[CallQueue, int], tuple[int, ErrorInfo]] = {}


Page: TypeAlias = Resource[BlockId]
Embed: TypeAlias = Resource[SlotId]
AnyResource: TypeAlias = Page | Embed


class CallQueue:
    """An ordered stream of calls."""

    __slots__ = ("failure", "name", "num_clears", "num_open", "priority", "tail", "tainted")

    def __init__(self, name: QueueName, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.num_open = 0  # calls issued and not over
        self.tail: OpenCall | None = None  # the last call issued, if not over
        self.failure: ErrorInfo | None = None  # what the next call issued fails with
        self.num_clears = 0  # ClearQueues issued
        self.tainted: set[AnyResource] = set()  # by failures of this queue


class Decoding(Protocol):
    """The rows of one token that run in every step, as those know it that are among them."""

    @property
    def is_running(self) -> bool: ...

    def end(self, call: "OpenCall") -> None: ...

    def leave(self, call: "OpenCall") -> None: ...

    def withdraw(self, call: "OpenCall") -> None: ...

    def look_at(self, call: "OpenCall") -> None: ...


class LongList(Protocol):
    """Full pages that a call reads, so many that they are looked into and not marked."""

    @property
    def pages(self) -> list[Page]: ...

    def __len__(self) -> int: ...


class RunOrder:
    """The open calls of one run."""

    __slots__ = ("is_tainted", "open", "readers")

    def __init__(self) -> None:
        self.open: dict[OpenCall, None] = {}
        self.readers: dict[OpenCall, None] = {}  # those of them with a base
        self.is_tainted = False  # whether a call ever failed that was to write something

    def may_have_base(self, pages: list[Page]) -> bool:
        """Whether a call that reads the pages may have them as its base: nobody writes there, or failed to."""
        if len(self.open) > _MAX_OPEN or (self.is_tainted and any(page.taints for page in pages)):
            return False
        return not any(page in pages for call in self.open for page in call.page_writes)


_MAX_OPEN = 8  # with more open calls it takes longer to look into what they write than to mark each page


class OpenCall:
    """A call that is not over, with what it touches and how far it has come."""

    __slots__ = (
        "base", "call", "call_id", "decoding", "dependents", "embed_reads", "embed_writes", "failure", "first_s",
        "grown", "inbox", "is_apart", "is_over", "is_started", "issued_s", "num_blockers", "num_clears", "num_in_steps",
        "num_seen", "number", "order", "page_reads", "page_writes", "pages", "queue", "rank", "restoring", "run_id",
        "served_at", "started_s", "token_s", "work",
    )  # fmt: skip

    def __init__(
        self, run_id: RunId, inbox: Inbox, call_id: CallId, call: QueueCall, queue: CallQueue, rank: int, number: int
    ) -> None:
        self.run_id, self.inbox, self.call_id, self.call, self.queue = run_id, inbox, call_id, call, queue
        self.rank = rank  # the order among prompts: lower runs first
        self.number = number  # the order of issue
        self.num_clears = queue.num_clears  # issued in its queue until now, itself included
        self.served_at = 0  # the step that last ran a row of one token of the call: lower runs first
        self.pages: list[Page] = []  # of a feed in KV order; of a copy (source, target)
        self.base: LongList | None = None  # the first of `pages`, if they are many and only read
        self.order: RunOrder | None = None  # once it has its place
        self.page_reads: Sequence[Page] = ()  # but those of the base
        self.page_writes: list[Page] = []
        self.embed_reads: Sequence[Embed] = ()
        self.embed_writes: Sequence[Embed] = ()
        self.grown: list[PageName] = []  # names that the call itself bound: those of the last pages
        self.work: Work = None
        self.restoring: Feed | None = None  # what brings dropped pages back, before the work goes on
        self.num_blockers = 0
        self.dependents: list[tuple[OpenCall, bool]] = []  # who waits, and whether a failure reaches it
        self.failure: ErrorInfo | None = None
        self.decoding: Decoding | None = None  # if it has a row in every step
        self.is_started = self.is_over = False
        self.is_apart = False  # it goes on again and again, and the scheduler has it in none of its lists between
        self.num_in_steps = 0  # those that run and have something of it, other than by `decoding`
        self.issued_s = self.started_s = 0.0
        self.first_s: float | None = None  # when it sampled first, and last, as far as the observer saw
        self.token_s: float | None = None
        self.num_seen = 0  # tokens

    @property
    def is_running(self) -> bool:
        """Whether a step that runs has something of the call."""
        return self.num_in_steps > 0 or (self.decoding is not None and self.decoding.is_running)

    @property
    def marked_pages(self) -> list[Page]:
        """The pages of the call without its base."""
        return self.pages if self.base is None else self.pages[len(self.base) :]

    @property
    def all_page_reads(self) -> Sequence[Page]:
        """The pages that the call reads, with its base."""
        return self.page_reads if self.base is None else [*self.base.pages, *self.page_reads]

    @property
    def is_paused(self) -> bool:
        """Whether it waits for its own program."""
        return isinstance(self.work, Feed) and self.work.is_paused

    @property
    def is_resting(self) -> bool:
        """Whether it has no row in the next step, though it needs nothing: its program or a step has to tell first."""
        return self.is_running or self.is_paused

    @property
    def feed(self) -> Feed | None:
        """What the call's next row is made of, if it is a forward's."""
        return self.restoring or (self.work if isinstance(self.work, Feed) else None)


def is_lent(page: Page) -> bool:
    """Whether an export or another run holds the page's block by name, or will once a call's turn has come."""
    return page.num_exchanging > 0 or (page.lent is not None and page.lent.num_holders > 1)


def is_dropped(page: Page) -> bool:
    """Whether the page's KV has to be computed again before somebody reads it."""
    return page.id is None and page.written != 0


def taint(call: OpenCall) -> ErrorInfo | None:
    """What the call fails with because somebody before it failed to write what it reads. All that did so is known when
    the call waits for nobody."""
    resources: Iterable[AnyResource] = (*call.page_reads, *call.embed_reads)
    taints = (taint for resource in resources if resource.taints for taint in resource.taints.values())
    return next((failure for number, failure in taints if number < call.number), None)


def enqueue(call: OpenCall, failure: ErrorInfo | None, order: RunOrder) -> None:
    """Gives the call its place: behind the tail of its queue, and behind those that touch the same resources. With a
    failure it waits there only to fail."""
    queue, call.order = call.queue, order
    if queue.tail is not None:
        _wait(call, queue.tail, carries_failure=not isinstance(call.call, ClearQueue))
    queue.tail = call
    _read(call, call.page_reads)
    _read(call, call.embed_reads)
    _wait_for_bases(call, order)
    _write(call, call.page_writes)
    _write(call, call.embed_writes)
    order.open[call] = None
    if call.base is not None:
        order.readers[call] = None
    if failure is not None:
        fail(call, failure)
        return
    for embed in call.embed_writes:
        embed.taints.clear()  # it is written whole, so what was to be there before does not matter
        embed.rewritten_by = call.number


def leave(call: OpenCall) -> list["OpenCall"]:
    """Takes a call that waits for nobody out of the order. Returns those that now wait for nobody either."""
    _forget(call, call.page_reads, call.page_writes)
    _forget(call, call.embed_reads, call.embed_writes)
    if call.order is not None:
        del call.order.open[call]
        call.order.readers.pop(call, None)
    if call.queue.tail is call:
        call.queue.tail = None
    for dependent, _ in call.dependents:
        dependent.num_blockers -= 1
    # A dependent may be listed more than once: it is free once, at its last mention.
    free = {id(dependent): dependent for dependent, _ in call.dependents if dependent.num_blockers == 0}
    return list(free.values())


def fail(call: OpenCall, failure: ErrorInfo) -> None:
    """Marks the call, and all that its failure reaches. They stay in the order until they wait for nobody."""
    inherited = consequence(call.queue, call.call_id, failure)
    reached: list[tuple[OpenCall, ErrorInfo]] = [(call, failure)]
    while reached:
        one, its_failure = reached.pop()
        if one.failure is not None:
            continue
        one.failure = its_failure
        writes: list[AnyResource] = [*one.page_writes, *one.embed_writes]
        if writes and one.order is not None:
            one.order.is_tainted = True
        for resource in writes:
            if one.number >= resource.rewritten_by:
                resource.taints.setdefault((one.queue, one.num_clears), (one.number, inherited))
                one.queue.tainted.add(resource)
        if one.queue.tail is one:
            one.queue.failure = inherited
        reached.extend((dependent, inherited) for dependent, is_reached in one.dependents if is_reached)


def consequence(queue: CallQueue, call_id: CallId, failure: ErrorInfo) -> ErrorInfo:
    """What those fail with that depend on a call that failed."""
    if failure.type == Poisoned.__name__:
        return failure
    return Poisoned(
        f"call {call_id} of queue {queue.name}, which this one depends on, failed: {failure.message}",
        hint=f"submit clear_queue for queue {queue.name} to go on",
    ).info()


def clear(queue: CallQueue, num_clears: int) -> None:
    """Takes back the marks left by failures of calls before the queue's clear of that number, the first being 1."""
    still_tainted: set[AnyResource] = set()
    for resource in queue.tainted:
        mine = [key for key in resource.taints if key[0] is queue]
        for key in mine:
            if key[1] < num_clears:
                del resource.taints[key]
        if any(key in resource.taints for key in mine):
            still_tainted.add(resource)
    queue.tainted = still_tainted


def _wait(call: OpenCall, blocker: OpenCall, *, carries_failure: bool) -> None:
    call.num_blockers += 1
    blocker.dependents.append((call, carries_failure))


def _read(call: OpenCall, resources: Iterable[AnyResource]) -> None:
    for resource in resources:
        if resource.writer is not None:
            _wait(call, resource.writer, carries_failure=True)
        resource.readers[call] = None


def _wait_for_bases(call: OpenCall, order: RunOrder) -> None:
    """Waits for those that read what the call writes as part of their bases."""
    if not call.page_writes:
        return
    for reader in order.readers:
        if reader.base is not None and any(page in reader.base.pages for page in call.page_writes):
            _wait(call, reader, carries_failure=False)


def _write(call: OpenCall, resources: Iterable[AnyResource]) -> None:
    for resource in resources:
        if resource.writer is not None and resource.writer is not call:
            _wait(call, resource.writer, carries_failure=False)
        for reader in resource.readers:
            if reader is not call:
                _wait(call, reader, carries_failure=False)
        resource.readers.clear()  # later writers wait for this one, which waits for them
        resource.writer = call


def _forget(call: OpenCall, reads: Iterable[AnyResource], writes: Iterable[AnyResource]) -> None:
    for resource in reads:
        resource.readers.pop(call, None)
    for resource in writes:
        if resource.writer is call:
            resource.writer = None
