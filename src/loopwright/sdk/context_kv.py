"""The KV of one context: what has to run before a question, under which mask, and what may go. Never knows text.

Owned by one Context, over its TokenLog, ViewLog and PageList. KV is a cache of what tokens and views determine:
whatever is missing is run again when it is needed, under the view that it had.
"""

from typing import Any

from loopwright.sdk.errors import BadRequest, LoopwrightError
from loopwright.sdk.page_list import PageList, Payload
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_state import RunState
from loopwright.sdk.spans import Spans, common, minus, numbers, size_of, spans_of, split
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.views import View, ViewLog, Window

MAX_TOKENS_AT_ONCE = 256
"""Tokens that run before what nobody sees any more is dropped: so much more than its window may a context hold."""

MAX_TOKENS_SCORED = 64
"""Places whose distributions are asked for at once: each is over the whole vocabulary."""


class ContextKv:
    """KV of the tokens of `log`. Every method that may wait leaves things right if it is cancelled or fails."""

    def __init__(self, run: RunState, queue: Queue, log: TokenLog) -> None:
        self.views = ViewLog()
        self.pages = PageList(run, queue)
        self._log = log

    async def fill(self) -> int:
        """Gives KV to all that the last token sees: that one is run by whoever asks what follows it. Says how many
        tokens did not run, because their KV was there."""
        num_cached = await self._forward(self.views.missing(self._wanted, self.pages.cached))
        await self.slide()
        return num_cached

    async def ask(self, drafts: list[int], *, proposes: bool = False, **outputs: Any) -> Payload:  # noqa: ANN401 (JSON)
        """Runs what is needed to say what follows the last token, and then the drafts. With `proposes`, distributions
        come too: the most probable token after each draft."""
        tokens, mask = self._log.tokens, None
        first = self.pages.first_missing(len(tokens) - 1) if self.views.is_plain else None
        if first is not None:
            run: Spans = ((first, len(tokens) + len(drafts)),)
        else:
            run = await self._run_to_ask(len(drafts))
            mask = self.views.mask(self.pages.layout, run)
        if proposes:
            first = size_of(run) - len(drafts)
            outputs["distributions"] = [{"index": first + place, "k": 1} for place in range(len(drafts))]
        if drafts:
            tokens = [*tokens, *drafts]
        return await self.pages.forward(tokens, run, len(drafts), mask=mask, **outputs)

    async def score(self, tokens: list[int], k: int, *, ranks: bool = False) -> list[Payload]:
        """Adds tokens to the log, and says for each in which distribution it was found. Distributions of a few places
        at a time are in memory."""
        found: list[Payload] = []
        for first in range(0, len(tokens), MAX_TOKENS_SCORED):
            some = tokens[first : first + MAX_TOKENS_SCORED]
            found += await self.ask_each(some, k, ranks=ranks)
            self._log.tokens.append(some[-1])
            self._log.num_written = 0
        return found

    async def ask_each(self, tokens: list[int], k: int = 1, *, ranks: bool = False) -> list[Payload]:
        """The distributions, each with the next of `tokens` in it, that follow the last token and then, one after the
        other, those; all but the last of them are in the log then."""
        self._needed_to_ask()
        last = len(self._log) - 1
        self._log.tokens += tokens[:-1]
        run = self.views.missing(((last, len(self._log)),), self.pages.cached)
        first = size_of(run) - len(tokens)
        asked = [
            {"index": first + place, "k": k, "must_include": [one], "ranks": ranks} for place, one in enumerate(tokens)
        ]
        mask = self.views.mask(self.pages.layout, run)
        payload = await self.pages.forward(self._log.tokens, run, mask=mask, distributions=asked)
        found: list[Payload] = payload["distributions"]
        return found

    async def run_masked(self) -> Spans:
        """What must run, the last token at the end, to say what follows, once all that needs a mask has run."""
        await self.slide()
        run = self._needed_to_ask()
        if self.views.mask(self.pages.layout, run) is None:
            return run
        return await self._up_to_last(run)

    async def look(self, view: View, *, ahead: bool = False) -> None:
        """Changes the view, from the last token on or, `ahead`, from the next; drops what nobody sees any more."""
        views = self.views.changed(view, len(self._log) if ahead else max(len(self._log) - 1, 0))
        await self.pages.keep(views.asked_by(len(self._log)))
        self.views = views

    async def window_of(self, num_tokens: int, sinks: int) -> Window:
        """A window of so many tokens and sinks, in whole pages. Raises BadRequest for what cannot be one."""
        if num_tokens < 1 or sinks < 0:
            raise BadRequest(f"window: {num_tokens} tokens and {sinks} sinks; at least 1 and 0", field="window")
        size = await self.pages.page_size()
        return Window(num_tokens, -(-sinks // size) * size, size)

    async def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens. Raises BadRequest if there are not so many."""
        if not 0 <= num_tokens <= len(self._log):
            raise BadRequest(
                f"truncate: {num_tokens} is not from 0 to the context's {len(self._log)}", field="num_tokens"
            )
        views = self.views.truncated(num_tokens)
        await self.pages.keep(views.asked_by(num_tokens))
        await self._log.truncate(num_tokens)
        self.views = views

    async def forget(self, gone: Spans) -> None:
        """Takes tokens out. What follows them has to run again."""
        num_left = len(self._log) - size_of(gone)
        views = self.views.forgotten(gone, num_left)
        await self.pages.keep(common(views.asked_by(num_left), ((0, gone[0][0]),)))
        self._log.forget(gone)
        self.views = views

    async def slide(self) -> None:
        """Drops what was needed only to run others, or fell out of the window."""
        if not self.views.is_plain:
            last = len(self._log) - 1
            await self.pages.keep(spans_of([*self._wanted, (last, last + 1)]))

    async def share_with(self, other: "ContextKv") -> None:
        """Gives the view and KV of a filled context to one that is empty and has the same tokens."""
        other.views = self.views
        await self.pages.share_with(other.pages, self._wanted)

    def window_fields(self) -> dict[str, Any] | None:
        """The window as the ABI's."""
        window = self.views.current.window
        if window is None:
            return None
        return {"size": window.size, "sinks": window.sinks, "positions": list(numbers(self.pages.layout))}

    @property
    def _wanted(self) -> Spans:
        return self.views.asked_by(len(self._log))

    async def _run_to_ask(self, num_drafts: int) -> Spans:
        """What must run to say what follows, and the drafts."""
        await self.slide()
        end = len(self._log)
        needed = self._needed_to_ask()
        if size_of(needed) > MAX_TOKENS_AT_ONCE and self.views.has_window:
            needed = await self._up_to_last(needed)
        return spans_of([*needed, (end, end + num_drafts)])

    async def _up_to_last(self, run: Spans) -> Spans:
        """Runs all but the last token, which is left, and keeps only what that one sees."""
        last = ((len(self._log) - 1, len(self._log)),)
        await self._forward(minus(run, last))
        await self.pages.keep(self._wanted)
        return last

    async def _forward(self, run: Spans) -> int:
        """Runs tokens, under a window in portions: what no later one sees is dropped in between. Says how many did not
        run, because their KV was there."""
        num_cached = 0
        while run:
            now, run = split(run, MAX_TOKENS_AT_ONCE) if self.views.has_window else (run, ())
            mask = self.views.mask(self.pages.layout, now)
            payload = await self.pages.forward(self._log.tokens, now, mask=mask)
            num_cached += payload.get("cached_tokens", 0)
            if run:
                await self.pages.keep(spans_of([*self._wanted, *self.views.seen_by_any(run)]))
        return num_cached

    def _needed_to_ask(self) -> Spans:
        """The tokens that must run to say what follows: the last one at least, whose place is written again."""
        last = len(self._log) - 1
        if last < 0:
            raise LoopwrightError("the context is empty: append something first")
        if common(self.views.current.hidden, ((last, last + 1),)):
            raise LoopwrightError(
                f"the last token, {last}, is hidden, and it is the one to ask: append something first"
            )
        if self.views.is_ahead(len(self._log)):
            raise LoopwrightError("nothing follows the tokens that the view was chosen after: append something first")
        self.pages.cut_last(last)
        return self.views.missing(((last, last + 1),), self.pages.cached)
