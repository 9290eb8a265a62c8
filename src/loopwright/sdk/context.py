"""A sequence of tokens with KV state that a program builds, reads from and forks. Never runs the model itself.

Built on `resources`, inside the program: everything here a program could do by hand.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import LoopwrightError
from loopwright.sdk.grammar import grammar_fields
from loopwright.sdk.port import Stream
from loopwright.sdk.resources import Queue, detokenize, render_chat, tokenize
from loopwright.sdk.run_state import run_state
from loopwright.sdk.sampling import context_seed, sampling_fields
from loopwright.sdk.token_by_token import generate_token_by_token
from loopwright.sdk.tracing import is_traceable, sampler_fields
from loopwright.sdk.transcript import Message, Transcript
from loopwright.sdk.turn import Chunk, Turn, Verified
from loopwright.sdk.watching import Watched

Part = str | list[int] | Message  # what was appended and is not tokens yet


class Context:
    """Text, chat messages or token ids go in at the end; the model continues them.

    Appending costs nothing: it is run when something asks for the model's answer, or by `flush`. The KV cache stays
    between calls. One operation at a time; contexts of one program run side by side in the same batches.

    `seed` keys all draws together with the token's position: the same seed and tokens give the same text. Without one,
    each context has its own, derived from the run's."""

    def __init__(self, *, seed: int | None = None, priority: int = 0) -> None:
        self._run = run_state()
        self._queue = Queue(priority=priority)
        self._priority = priority
        self._seed = seed
        self._number = self._run.take_context_number()
        self._tokens: list[int] = []
        self._pages: list[int] = []
        self._num_written = 0  # how many of the last tokens the model wrote
        self._kv_len = 0  # how many of the tokens have KV
        self._parts: deque[Part] = deque()
        self._transcript = Transcript()
        self._segment: Segment | None = None  # begun and not yet accounted for
        self._is_busy = False
        self._is_closed = False

    # What goes in

    def append(self, content: str | Sequence[int]) -> None:
        """Adds plain text or token ids. In a chat it continues the assistant's turn, opening it if need be.

        Control tokens written in text stay plain text; as ids they are what they are."""
        self._parts.append(content if isinstance(content, str) else list(content))

    def system(self, text: str) -> None:
        """Adds a system message by the model's chat template."""
        self._parts.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        """Adds a user message by the model's chat template."""
        self._parts.append({"role": "user", "content": text})

    def assistant(self, text: str) -> None:
        """Adds a finished assistant message, as an example or as history."""
        self._parts.append({"role": "assistant", "content": text})

    def message(self, role: str, content: str) -> None:
        """Adds a message of any role that the template knows."""
        self._parts.append({"role": role, "content": content})

    def accept(self, tokens: int | Sequence[int]) -> None:
        """Adds tokens that the program chose itself, say from `next_dist`."""
        self.append([tokens] if isinstance(tokens, int) else tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids in the context. What was appended since the last operation is not among them yet."""
        return tuple(self._tokens)

    # What comes out

    async def generate(self, *, emit: bool = False, **options: Any) -> Turn:  # noqa: ANN401 (options of stream)
        """Lets the model continue, as one segment, and returns it. Options as for `stream`.

        With `emit`, the text also goes to the client while it is made, at no cost to the program."""
        with _Busy(self):
            if options.pop("sampler_fallback", False) and options.get("sampler") is not None:
                sampler, state = options["sampler"], options.get("state") or {}
                if not is_traceable(sampler, state, (await self._run.description())["model"]["vocab_size"]):
                    rest = {name: one for name, one in options.items() if name not in ("sampler", "state")}
                    rest |= {"emit": True} if emit else {}
                    return await generate_token_by_token(self, sampler, state, rest)
            segment = await self._begin(emit=emit, stream=False, options=options)
            return await segment.finish()

    def stream(self, *, emit: bool = False, **options: Any) -> "TokenStream":  # noqa: ANN401 (see below)
        """Like `generate`, as an asynchronous iterator of chunks; leaving it early ends the segment there.

        Options: max_tokens (256; None is up to the model's limit), stop (a string or several: the text ends before the
        first that appears), repetition_penalty, presence_penalty, frequency_penalty, logit_bias {id: bias}, allowed
        (only these ids), temperature (0 is greedy), top_k, typical_p, top_p, min_p, seed, logprobs ("raw" or
        "processed"), top_logprobs (how many), stop_entropy (ends before a token in whose place the
        model's entropy, in nats, is higher), ignore_eos (go on past the end of the turn), grammar (what the text must
        be, as a whole: see `json_schema`, `regex`, `lark`, `choice`). docs/sampling.md says what each does.

        `sampler` is a function of the program that chooses each token, written with `tensor`, and `state` what it
        carries from one to the next: docs/samplers.md. With `sampler_fallback`, `generate` runs one that cannot be
        traced as Python, once a token."""
        return TokenStream(self, emit, options)

    def watch(self, window: int = 8, **options: Any) -> "Watched":  # noqa: ANN401 (options of stream)
        """Lets the model continue while the program looks at every token, and can take it back:

            async with ctx.watch(temperature=0.8) as watched:
                async for token in watched:
                    if token.id in banned:
                        watched.veto()
            turn = watched.turn

        The segment runs up to `window` tokens ahead; what it did ahead never shows. Options as for `stream`; those
        tokens that were looked at stay when the block is left early."""
        return Watched(_Watching(self, {**options, "watch": window}))

    async def next_dist(
        self,
        k: int = 256,
        must_include: Sequence[int] = (),
        *,
        allowed: Sequence[int] | None = None,
        entropy: bool = False,
        logits: bool = False,
    ) -> Distribution:
        """The distribution of the next token: its k most probable ids and those that must be included.

        With `allowed`, over those ids only. `entropy` and `logits` ask for those too."""
        with _Busy(self):
            await self._prepare(opens_turn=True)
            request = {"k": k, "must_include": list(must_include), "entropy": entropy, "logits": logits}
            if allowed is not None:
                request["allowed"] = list(allowed)
            payload = await self._forward(len(self._tokens), distributions=[request])
            return Distribution(payload["distributions"][0])

    async def verify(self, drafts: Sequence[int], **sampling: Any) -> Verified:  # noqa: ANN401 (options of stream)
        """Has the model judge guesses of its next tokens in one forward, and keeps what it would have said itself.

        That is the drafts up to the first that differs from what was sampled in its place, and the token sampled there:
        the same tokens as without drafts, greedy or with any seed. Sampling options as for `stream`."""
        with _Busy(self):
            await self._prepare(opens_turn=True)
            options = self._sampling(sampling, (await self._run.description())["seed"])
            payload = await self._forward(len(self._tokens), list(drafts), sampling=options)
            verified = Verified.from_payload(payload)
            if self._transcript.is_open:
                self._transcript.write((await detokenize(verified.tokens))["text"])
            self._extend_written(verified.tokens)
            return verified

    async def choose(self, options: Sequence[str], **sampling: Any) -> str:  # noqa: ANN401 (options of stream)
        """Lets the model write one of the options and returns it. None may begin another, in tokens."""
        with _Busy(self):
            await self._prepare(opens_turn=True)
            ids = [tuple((await tokenize(option))["tokens"]) for option in options]
            picked = await self._walk(ids, sampling)
            self._transcript.write(options[ids.index(picked)])
            return options[ids.index(picked)]

    async def flush(self) -> None:
        """Runs what was appended, so that its KV is there: before a fork, or while waiting for something else."""
        with _Busy(self):
            await self._prepare(opens_turn=False)
            await self._fill()

    async def fork(self) -> "Context":
        """A copy that goes its own way. Full pages are shared, the last partial page is copied; nothing is recomputed.

        Its draws differ from its parent's unless it is given the same seed in `generate`."""
        with _Busy(self):
            await self._prepare(opens_turn=False)
            await self._fill()
            child = Context(priority=self._priority)
            child._tokens = list(self._tokens)
            child._num_written = self._num_written
            child._transcript = self._transcript.copy()
            kv_len = min(self._kv_len, max(len(self._tokens) - 1, 0))  # the last token's place is written again
            await child._adopt(self._pages, kv_len, await self._page_size())
            return child

    def close(self) -> None:
        """Frees the pages. Happens by itself when the context is dropped or the run ends."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._segment is not None:
            self._segment.abandon()
        if self._pages:
            self._queue.free_pages(self._pages)

    async def __aenter__(self) -> "Context":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_is_closed") and not self._queue.is_over:
            self.close()

    # Implements token_by_token.LoopContext

    async def run_prompt(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For `generate`: takes in what was appended; the model's description, and sampling fields without options."""
        await self._prepare(opens_turn=True)
        description = await self._run.description()
        return description["model"], self._sampling({}, description["seed"])

    async def next_logits(self) -> Distribution:
        """For `generate`: of the next token the most probable, and all logits."""
        payload = await self._forward(len(self._tokens), distributions=[{"k": 1, "logits": True}])
        return Distribution(payload["distributions"][0])

    def write(self, tokens: Sequence[int], text: str) -> None:
        """For `generate`: adds what the model wrote."""
        self._extend_written(tokens)
        self._transcript.write(text)

    # Between the two

    async def _begin(self, *, emit: bool, stream: bool, options: dict[str, Any]) -> "Segment":
        """Starts a segment; the caller must finish it."""
        await self._prepare(opens_turn=True)
        fields = await self._segment_fields(dict(options))
        start = min(self._kv_len, len(self._tokens) - 1)
        if start < 0:
            raise LoopwrightError("the context is empty: append something before generating")
        page_size = await self._page_size()
        most = (len(self._tokens) + fields["max_tokens"]) // page_size + 1
        grow_from = self._run.take_names(most)
        stream_of_parts = self._queue.segment(
            emit=emit,
            stream=stream,
            pages=self._pages,
            grow_from=grow_from,
            kv_len=start,
            tokens=self._tokens[start:],
            positions=list(range(start, len(self._tokens))),
            **fields,
        )
        self._segment = Segment(self, stream_of_parts, grow_from)
        return self._segment

    async def _segment_fields(self, options: dict[str, Any]) -> dict[str, Any]:
        description = await self._run.description()
        model = description["model"]
        stop, stop_entropy = options.pop("stop", ()), options.pop("stop_entropy", None)
        max_tokens = options.pop("max_tokens", 256)
        ignore_eos = options.pop("ignore_eos", False)
        grammar = options.pop("grammar", None)
        watch = options.pop("watch", None)
        sampler, state = options.pop("sampler", None), options.pop("state", None) or {}
        return sampler_fields(sampler, state, model["vocab_size"]) | {
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "max_tokens": model["max_context"] if max_tokens is None else max_tokens,
            "stop_tokens": [] if ignore_eos else model["eos_ids"],
            "sampling": self._sampling(options, description["seed"]),
            "grammar": None if grammar is None else grammar_fields(grammar),
            "stop_entropy": stop_entropy,
            "watch": None if watch is None else {"window": watch},
        }

    def _sampling(self, options: dict[str, Any], run_seed: int) -> dict[str, Any]:
        seed = self._seed if self._seed is not None else context_seed(run_seed, self._number)
        return sampling_fields(options, seed, self._tokens, self._num_written)

    async def _prepare(self, *, opens_turn: bool) -> None:
        """Ends what an abandoned operation left running, and turns what was appended into tokens."""
        if self._segment is not None:
            self._segment.interrupt()
            await self._segment.finish()
        messages: list[Message] = []
        while self._parts:
            part = self._parts[0]
            if isinstance(part, dict):
                messages.append(part)
                self._parts.popleft()
                continue
            await self._render(messages, opens_turn=bool(messages or self._transcript.messages))
            messages = []
            await self._write(part)
            self._parts.popleft()
        await self._render(messages, opens_turn=opens_turn and bool(messages or self._transcript.messages))

    async def _render(self, messages: list[Message], *, opens_turn: bool) -> None:
        if not messages and (not opens_turn or self._transcript.is_open):
            return
        payload = await render_chat(**self._transcript.delta(messages, opens_turn))
        self._extend_given(payload["tokens"])
        self._transcript.extend(messages, opens_turn)

    async def _write(self, part: str | list[int]) -> None:
        if isinstance(part, str):
            ids = (await tokenize(part, starts_context=not self._tokens))["tokens"] if part else []
            self._transcript.write(part)
        else:
            ids = part
            if self._transcript.is_open:
                self._transcript.write((await detokenize(part))["text"])
        self._extend_given(ids)

    def _extend_given(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._tokens += tokens
            self._num_written = 0

    def _extend_written(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        self._num_written += len(tokens)

    async def _fill(self) -> None:
        """Gives KV to every token but the last: that one is run by whoever asks what follows it."""
        if self._kv_len < len(self._tokens) - 1:
            await self._forward(len(self._tokens) - 1)

    async def _forward(
        self,
        end: int,
        drafts: Sequence[int] = (),
        **outputs: Any,  # noqa: ANN401 (JSON)
    ) -> dict[str, Any]:
        """Runs the tokens before `end` that have no KV, and at least the last of them; then the drafts."""
        start = min(self._kv_len, end - 1)
        if start < 0:
            raise LoopwrightError("the context is empty: append something first")
        num_pages = -(-(end + len(drafts)) // await self._page_size())
        grow_from = self._run.take_names(max(num_pages - len(self._pages), 0))
        future = self._queue.forward_text(
            pages=self._pages,
            grow_from=grow_from,
            kv_len=start,
            tokens=[*self._tokens[start:end], *drafts],
            positions=list(range(start, end + len(drafts))),
            num_drafts=len(drafts),
            **outputs,
        )
        try:
            payload = await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._settle_forward(done, grow_from, end))
            raise
        except LoopwrightError:
            self._queue.post("clear_queue")
            raise
        self._account(payload, grow_from)
        return payload

    def _settle_forward(self, done: "asyncio.Future[dict[str, Any]]", grow_from: int, end: int) -> None:
        """A forward that the program stopped waiting for still counts, if it went well; its drafts do not."""
        if done.cancelled() or done.exception() is not None:
            self._queue.post("clear_queue")
        elif self._is_closed:
            self._queue.free_pages(list(range(grow_from, grow_from + done.result()["num_pages"] - len(self._pages))))
        else:
            payload = done.result()
            self._account({**payload, "kv_len": min(payload["kv_len"], end)}, grow_from)

    def _account(self, payload: dict[str, Any], grow_from: int) -> None:
        num_new = payload["num_pages"] - len(self._pages)
        self._pages.extend(range(grow_from, grow_from + num_new))
        self._kv_len = payload["kv_len"]

    async def _adopt(self, pages: list[int], kv_len: int, page_size: int) -> None:
        """Takes over the first kv_len tokens' KV from another context's pages."""
        num_full, tail = divmod(kv_len, page_size)
        first = self._run.take_names(num_full + 1)
        names = list(range(first, first + num_full))
        if names:
            await self._queue.share_pages(pages[:num_full], names)
            self._pages = names
        if tail:
            await self._queue.allocate_pages([first + num_full])
            self._pages = [*names, first + num_full]
            self._queue.post("copy_page", source=pages[num_full], target=first + num_full, size=tail)
        self._kv_len = kv_len

    async def _walk(self, ids: list[tuple[int, ...]], options: dict[str, Any]) -> tuple[int, ...]:
        """One of `ids`, chosen token by token where they part; the tokens are added on the way."""
        run_seed = (await self._run.description())["seed"]
        picked: tuple[int, ...] = ()
        while len(alive := {one for one in ids if one[: len(picked)] == picked}) > 1:
            if picked in alive:
                raise LoopwrightError("one option is the beginning of another: the model could not choose the shorter")
            ways = sorted({one[len(picked)] for one in alive})
            if len(ways) > 1:
                sampling = {**self._sampling(options, run_seed), "allowed": ways}
                payload = await self._forward(len(self._tokens), sampling=sampling)
                ways = [payload["token"]]
            self._extend_written(ways)
            picked = (*picked, ways[0])
        (rest,) = alive
        self._extend_written(rest[len(picked) :])
        return rest

    async def _page_size(self) -> int:
        size: int = (await self._run.description())["model"]["page_size"]
        return size


class Segment:
    """A segment that was begun on a context. Whoever finishes it brings the context up to date."""

    def __init__(self, context: Context, parts: Stream, grow_from: int) -> None:
        self.parts = parts
        self._context = context
        self._grow_from = grow_from
        self._num_prompt_tokens = len(context._tokens)
        self._turn: Turn | None = None

    async def finish(self) -> Turn:
        """Waits for the end and accounts for it, once. If this is cancelled, the context's next step does it."""
        if self._turn is not None:
            return self._turn
        context = self._context
        try:
            payload = await self.parts.final()
        except asyncio.CancelledError:
            self.interrupt()
            raise
        except LoopwrightError:
            context._segment = None
            context._queue.post("clear_queue")
            raise
        context._segment = None
        context._account(payload, self._grow_from)
        context._extend_written(payload["tokens"][: payload["num_kept"]])
        kept_text: str = payload["text"].removesuffix(payload["remainder"])
        context._transcript.write(kept_text)
        if payload["remainder"]:
            context._parts.appendleft(payload["remainder"])
        self._turn = Turn.from_payload(payload, self._num_prompt_tokens)
        return self._turn

    def interrupt(self) -> None:
        self.parts.interrupt()

    def abandon(self) -> None:
        """The context is gone: end early and free what the segment grew."""
        queue, num_known, grow_from = self._context._queue, len(self._context._pages), self._grow_from
        self.parts.interrupt()
        self.parts.when_ended(
            lambda payload: queue.free_pages(list(range(grow_from, grow_from + payload["num_pages"] - num_known)))
        )


class TokenStream:
    """An asynchronous iterator of chunks. `turn` is there once it has run out."""

    def __init__(self, context: Context, emit: bool, options: dict[str, Any]) -> None:
        self._context = context
        self._emit = emit
        self._options = options
        self._segment: Segment | None = None
        self.turn: Turn | None = None

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Chunk:
        if self.turn is not None:
            raise StopAsyncIteration
        with _Busy(self._context):
            if self._segment is None:
                self._segment = await self._context._begin(emit=self._emit, stream=True, options=self._options)
            part = await self._segment.parts.next_part()
            if part is not None:
                return Chunk(part["text"], tuple(part["tokens"]))
            self.turn = await self._segment.finish()
        raise StopAsyncIteration

    def __del__(self) -> None:
        if self._segment is not None and self.turn is None and not self._context._queue.is_over:
            self._segment.interrupt()


class _Watching:
    """Implements watching.Source: one watched segment on a context, which is busy from begin to end."""

    def __init__(self, context: Context, options: dict[str, Any]) -> None:
        self._context = context
        self._options = options
        self._busy = _Busy(context)
        self._segment: Segment | None = None

    async def begin(self) -> Stream:
        self._busy.__enter__()
        try:
            self._segment = await self._context._begin(emit=False, stream=False, options=self._options)
        except BaseException:
            self._busy.__exit__()
            raise
        return self._segment.parts

    async def end(self) -> Turn:
        assert self._segment is not None
        return await self._segment.finish()

    def leave(self) -> None:
        self._busy.__exit__()


class _Busy:
    """Refuses a second operation on a context while one is under way."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        if self._context._is_closed:
            raise LoopwrightError("this context is closed")
        if self._context._is_busy:
            raise LoopwrightError("this context is busy: await one operation before the next, or fork it")
        self._context._is_busy = True

    def __exit__(self, *exc_info: object) -> None:
        self._context._is_busy = False
