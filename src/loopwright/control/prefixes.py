"""Owns what control knows of pages' content: it keeps the books, feeds the prefix cache and binds what is there.

Called by the resource manager before a call's row runs and after. Never takes an empty block, never decides who runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.control.block_pool import BlockPool
from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall, Page
from loopwright.control.page_content import Line, PageContent, PageKey, Prefix, Root
from loopwright.core.calls import CopyPage, EmbedText, Forward
from loopwright.core.ids import BlockId

CACHED_ADVANCE = 32
"""A prompt that is all in the cache goes before so many calls issued earlier, and one of which half is before half as
many. So what is in the cache is used before it is evicted, and no prompt is overtaken by more calls than these."""


@dataclass(frozen=True, slots=True)
class Cached:
    """Pages that a call need not compute."""

    before: Prefix  # what its page list holds already
    keys: Sequence[PageKey] = ()
    blocks: Sequence[BlockId] = ()


class Prefixes:
    """What of all pages is known. Without `binds`, calls compute all that they are told to."""

    def __init__(self, blocks: BlockPool, block_size: int, *, binds: bool) -> None:
        self._blocks, self._size, self._binds = blocks, block_size, binds

    def find(self, call: OpenCall, feed: Feed, root: Root) -> Cached:
        """What the cache has of the inputs of a call that has not started, after what its pages hold: whole pages, as
        many as may be left out. None if a page that it writes has a block already. Changes nothing."""
        place, offset = divmod(feed.start_kv_len, self._size)
        num_pages = feed.num_skippable // self._size
        if offset or num_pages == 0 or not self._binds or any(page.id is not None for page in call.pages[place:]):
            return Cached(root)
        before = self.after(call.pages[:place], root)
        if before is None:
            return Cached(root)
        keys = feed.page_keys(self._size, num_pages)
        blocks = self._blocks.cache.match(root.tenant, [*before.keys(), *keys])[place:]
        return Cached(before, keys[: len(blocks)], blocks)

    def advance(self, call: OpenCall, feed: Feed, root: Root) -> int:
        """How many calls issued earlier the call may overtake, for what the cache has of it."""
        return CACHED_ADVANCE * len(self.find(call, feed, root).blocks) * self._size // feed.num_left

    def bind(self, pages: Sequence[Page], cached: Cached, root: Root) -> None:
        """Notes what the pages hold that were just given the cached blocks."""
        self._note(pages, cached.keys, cached.before, root)

    def after(self, pages: list[Page], root: Root) -> Prefix | None:
        """What full pages hold, one after the other; None if that is not all known, or was not computed so.

        Calls of one token ask this of a long context again and again, each time of a page more at most: what was looked
        at before is not looked at again."""
        num_known = next((num for num in (len(pages), len(pages) - 1) if _is_line(pages[: max(num, 0)], root)), 0)
        before: Prefix = root
        if num_known:
            before = _full(pages[num_known - 1])
        for page in pages[num_known:]:
            content = page.content
            if content is None or content.full is None or content.before is not before:
                return None
            before = content.full
        if num_known < len(pages):
            _extend_line(pages, num_known, root)
        return before

    def record(self, call: OpenCall, feed: Feed, root: Root, end: int) -> None:
        """Notes what the feed wrote up to KV place `end` since the last time. The cache gets the pages that are full
        now."""
        start = feed.num_recorded
        if isinstance(call.call, Forward):
            feed.texts = [embed.text for embed in call.embed_reads]
        if end < start:
            return
        tokens, positions = feed.unrecorded(end)
        feed.num_recorded = end
        place, offset = divmod(start, self._size)
        # What ran in one step with a copy that it waited for began to write before the copy was noted.
        self.cut(call.pages[place : len(feed.block_ids)], offset, root)
        before = self.after(call.pages[:place], root) if tokens else None
        if before is None or (offset and not _is_known(call.pages[place], before, offset)):
            return
        done, last = 0, None
        for page in call.pages[place:]:
            if done == len(tokens):
                break
            if not offset:
                page.content = PageContent(before)
            assert page.content is not None
            num_tokens = min(self._size - offset, len(tokens) - done)
            page.content.extend(tokens[done : done + num_tokens], positions[done : done + num_tokens], self._size)
            done, offset = done + num_tokens, 0
            if page.content.full is not None:
                before = last = page.content.full
        if last is not None:
            self._keep(last, call.pages[: last.num_pages])

    def take_back(self, call: OpenCall, feed: Feed, root: Root) -> None:
        """What was noted when the call's pages were dropped does not hold any more: tokens were vetoed. The pages that
        held them have to be secured anew, for others may have come to share them."""
        (place, offset), end = divmod(feed.kv_len, self._size), -(-feed.num_recorded // self._size)
        pages = call.pages[place:end]
        self.cut(pages, offset, root)
        for page in pages:
            page.written &= (1 << offset) - 1
            offset = 0
        del feed.block_ids[place:]
        feed.num_recorded = feed.kv_len

    def cut(self, pages: Sequence[Page], offset: int, root: Root) -> None:
        """Notes that nothing is known any more from `offset` of the first page on."""
        for place, page in enumerate(pages):
            if (content := page.content) is not None:
                root.num_lost += content.full is not None
                content.cut(0 if place else offset)

    def keys_of(self, pages: Sequence[Page], root: Root) -> tuple[PageKey, ...]:
        """What is known of the first pages, one after the other; the last of them may be known in part."""
        keys: list[PageKey] = []
        before: Prefix | None = root
        for page in pages:
            content = page.content
            if content is None or content.before is not before:
                break
            keys.append((content.tokens, content.positions))
            before = content.full
        return tuple(keys)

    def note(self, pages: Sequence[Page], keys: Sequence[PageKey], root: Root) -> None:
        """Notes that first pages, which were just given blocks, hold what `keys_of` found in others."""
        self._note(pages, keys, root, root)

    def record_copy(self, copy: CopyPage, source: Page, target: Page, root: Root) -> None:
        """A copy of a page's beginning holds what the page holds; any other copy is opaque."""
        self.cut([target], copy.target_offset, root)
        if copy.source_offset == copy.target_offset == 0 and source.content is not None:
            size = copy.size
            target.content = PageContent(source.content.before)
            target.content.extend(source.content.tokens[:size], source.content.positions[:size], self._size)
            if source.content.full is not None and target.content.full is not None:
                target.content.full = source.content.full  # prefixes are compared by identity

    def _note(self, pages: Sequence[Page], keys: Sequence[PageKey], first: Prefix, root: Root) -> None:
        before: Prefix | None = first
        self.cut(pages, 0, root)
        for page, (tokens, positions) in zip(pages, keys, strict=False):
            assert before is not None
            page.content = PageContent(before)
            page.content.extend(tokens, positions, self._size)
            before = page.content.full

    def _keep(self, prefix: Prefix, pages: Sequence[Page]) -> None:
        unkept = pages[prefix.num_pages - self._blocks.num_unkept(prefix) :]
        blocks = [page.id for page in unkept if page.id is not None]
        if len(blocks) == len(unkept):
            self._blocks.keep(prefix, blocks)


def note_texts(call: OpenCall) -> None:
    """What the embeds hold that a call, which is over, was to write: tokens, or something else."""
    for embed in call.embed_writes:
        embed.text = None
    if isinstance(call.call, EmbedText) and call.failure is None:
        for embed, *text in zip(call.embed_writes, call.call.tokens, call.call.positions, strict=True):
            embed.text = (text[0], text[1])


def _is_line(pages: list[Page], root: Root) -> bool:
    """Whether it is known that each of the pages holds what comes after those before it."""
    if not pages or pages[-1].content is None or (line := pages[-1].content.line) is None:
        return False
    return line.num_lost == root.num_lost and line.pages[: len(pages)] == pages


def _extend_line(pages: list[Page], num_known: int, root: Root) -> None:
    """Notes that the pages are a line, of which the first `num_known` are in one already."""
    last = pages[num_known - 1].content if num_known else None
    line = None if last is None else last.line
    if line is None or len(line.pages) > num_known:  # that one goes on in another way
        line = Line(root.num_lost)
    line.pages += pages[len(line.pages) :]
    for page in pages[num_known:]:
        assert page.content is not None
        page.content.line = line


def _full(page: Page) -> Prefix:
    assert page.content is not None
    assert page.content.full is not None, "a page lost what it held, and it was not noted"
    return page.content.full


def _is_known(page: Page, before: Prefix, offset: int) -> bool:
    content = page.content
    return content is not None and content.before is before and len(content.tokens) == offset
