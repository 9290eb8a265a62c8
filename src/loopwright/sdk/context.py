"""A sequence of tokens with KV state that a program builds, reads from and forks. Never runs the model itself.

Built on `resources`, inside the program: everything here a program could do by hand. docs/context.md says what each
method costs.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack, overload

from loopwright.sdk.argument_check import checked
from loopwright.sdk.candidates import picked_of, scored
from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.context_segments import ContextSegments
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.grammar import Grammar
from loopwright.sdk.options import GenerateOptions, SamplingOptions, SegmentOptions
from loopwright.sdk.output import Show
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_state import run_state
from loopwright.sdk.segment import TokenStream
from loopwright.sdk.spans import Span, minus, spans_of
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.tool_calls import tool_use
from loopwright.sdk.tool_stream import ToolStream
from loopwright.sdk.tools import Tool
from loopwright.sdk.transcript import plain_message
from loopwright.sdk.turn import Score, ToolCall, Turn, Verified
from loopwright.sdk.turnstile import Turnstile
from loopwright.sdk.views import Provenance
from loopwright.sdk.watching import Watched


@checked
class Context:
    """Text, chat messages or token ids go in at the end; the model continues them.

    Appending costs nothing: it is run when something asks for the model's answer, or by `flush`. The KV cache stays
    between calls. One operation at a time; contexts of one program run side by side in the same batches.

    `seed` keys all draws together with the token's position: the same seed and tokens give the same text. Without one,
    each context has its own, derived from the run's. `model` names another model of the
    server than the run's own: docs/models.md. `template` sets what the model's chat template reads beside messages and
    tools, such as {"enable_thinking": False}; what it does not read is BadRequest when messages are written."""

    def __init__(
        self,
        *,
        seed: int | None = None,
        priority: int = 0,
        model: str = "",
        template: dict[str, Any] | None = None,
    ) -> None:
        self._turnstile = Turnstile()
        self._run = run_state()
        self._queue = Queue.of_context(priority, model)
        self._priority = priority
        self._seed = seed
        self._number = self._run.take_context_number()
        self._hold(TokenLog(model, template))

    # What goes in

    def append(self, content: str | Sequence[int]) -> None:
        """Adds plain text or token ids. In a chat it continues the assistant's turn, opening it if need be.

        Control tokens written in text stay plain text; as ids they are what they are."""
        self._log.append(content if isinstance(content, str) else list(content))

    def system(self, text: str) -> None:
        """Adds a system message by the model's chat template."""
        self.message("system", text)

    def user(self, text: str) -> None:
        """Adds a user message by the model's chat template."""
        self.message("user", text)

    def assistant(self, text: str) -> None:
        """Adds a finished assistant message, as an example or as history."""
        self.message("assistant", text)

    def message(self, role: str, content: str, **more: Any) -> None:  # noqa: ANN401 (JSON)
        """Adds a message of any role that the template knows. `more`: of a result, `tool_call_id` and the `name` of its
        tool; of an assistant's message, `tool_calls` as {name, arguments, id}."""
        self._log.append({"role": role, "content": content, **more})

    def messages(self, messages: Iterable[dict[str, Any]]) -> None:
        """Adds messages in the form of OpenAI's requests, as a program that is used as a model gets them: calls of
        tools and their results among them."""
        for one in messages:
            self._log.append(plain_message(one))

    def tell_tools(self, tools: Sequence[Tool]) -> None:
        """Has the chat's first messages tell of the tools, before anything of it has run. `generate` and `stream` do so
        by themselves, with those that they are given."""
        self._log.transcript.announce([one.spec for one in tools])

    async def place(
        self, content: str | Sequence[int], *, sees: Iterable[Span | range] | None = None
    ) -> tuple[int, int]:
        """Appends text or ids now and returns their span; nothing runs yet.

        With `sees`, they and all that follows them see those spans alone of what stands before: parts of one text that
        do not know of each other, or only of some. Every part keeps the view that it was placed under."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            if sees is not None:
                hidden = minus(((0, len(self._log)),), self._log.checked(sees))
                await self._kv.look(replace(self._kv.views.current, hidden=hidden), ahead=True)
            start = len(self._log)
            self._log.append(content if isinstance(content, str) else list(content))
            await self._segments.prepare(opens_turn=False)
            return start, len(self._log)

    def tool_result(self, call: ToolCall, value: Any) -> None:  # noqa: ANN401 (JSON)
        """Adds what a call came to, as a message of the role `tool`: a string as it is, anything else as JSON."""
        content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self._log.append({"role": "tool", "content": content, "name": call.name})

    def accept(self, tokens: int | Sequence[int]) -> None:
        """Adds tokens that the program chose itself, say from `next_dist`."""
        self._log.append([tokens] if isinstance(tokens, int) else list(tokens))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids in the context. What was appended since the last operation is not among them yet."""
        return tuple(self._log.tokens)

    @property
    def model(self) -> str:
        """The name of its model; "" is the run's own."""
        return self._queue.model

    @property
    def num_pages(self) -> int:
        """The KV pages that the context holds a name for, shared ones included."""
        return len(self._kv.pages.names)

    # What comes out

    async def generate(
        self,
        *,
        emit: bool | Show = False,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_calls: bool = True,
        strict: bool = True,
        **given: Unpack[GenerateOptions],
    ) -> Turn:
        """Lets the model continue, as one segment, and returns it. Options as for `stream`.

        With `emit`, the text also goes to the client while it is made, at no cost to the program; `Show` says what
        else."""
        options: dict[str, Any] = {**given}
        use = tool_use(tools, tool_choice, parallel_calls, strict)
        with self._turnstile:
            if use is not None:
                return use.read(await self._segments.whole(emit=emit, options=options, use=use))
            return await self._segments.generated(emit=emit, options=options)

    @overload
    def stream(
        self,
        *,
        tools: Sequence[Tool],
        emit: bool | Show = False,
        tool_choice: str = "auto",
        parallel_calls: bool = True,
        strict: bool = True,
        **options: Unpack[SegmentOptions],
    ) -> ToolStream: ...

    @overload
    def stream(self, *, emit: bool | Show = False, **options: Unpack[SegmentOptions]) -> TokenStream: ...

    def stream(
        self,
        *,
        emit: bool | Show = False,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_calls: bool = True,
        strict: bool = True,
        **options: Unpack[SegmentOptions],
    ) -> TokenStream | ToolStream:
        """Like `generate`, as an asynchronous iterator of chunks; leaving it early ends the segment there.

        Options: max_tokens (256; None is up to the model's limit), stop (a string or up to 64: the text ends before the
        first that appears), until (one of the 64, which the context has behind the text unless cancelled), stop_tokens
        (ids that end it, beside the model's own), repetition_penalty, presence_penalty, frequency_penalty, logit_bias
        {id: bias}, allowed (only these ids), temperature (0 is greedy), top_k, typical_p, top_p, min_p, seed, logprobs
        ("raw" or "processed"), top_logprobs (how many), stop_entropy (ends before a token in whose place the model's
        entropy, in nats, is higher), ignore_eos (go on past the end of the turn), grammar (what the text must be, as a
        whole: see `json_schema`, `regex`, `lark`, `choice`). docs/sampling.md says what each does.

        `sampler` is a function of the program that chooses each token, written with `tensor`, and `state` what it
        carries from one to the next: docs/samplers.md. With `sampler_fallback`, `generate` runs one that cannot be
        traced as Python, once a token.

        `tools` are what the model may call, with `tool_choice` ("auto", "none", "required" or a tool's name),
        `parallel_calls` (false ends the segment with the first call) and `strict` (false lets go of the grammar that
        holds calls to their schemas). The iterator then also gives each ToolCall, the moment it is complete:
        docs/tools-while-generating.md."""
        use = tool_use(tools, tool_choice, parallel_calls, strict)
        chunks = TokenStream(
            self._turnstile,
            lambda: self._segments.begin(emit=emit, stream=True, options={**options}, use=use),
            self._segments.end,
            lambda: self._queue.is_over,
        )
        return chunks if use is None else ToolStream(chunks, use)

    def watch(self, window: int = 8, **options: Unpack[SegmentOptions]) -> Watched:
        """Lets the model continue while the program looks at every token, and can take it back:

            async with ctx.watch(temperature=0.8) as watched:
                async for token in watched:
                    if token.id in banned:
                        watched.veto()
            turn = watched.turn

        The segment runs up to `window` tokens ahead; what it did ahead never shows. Options as for `stream`; those
        tokens that were looked at stay when the block is left early."""
        given = {**options, "watch": window}
        return Watched(
            self._turnstile,
            lambda: self._segments.begin(emit=False, stream=False, options=given),
            self._segments.end,
        )

    async def next_dist(
        self,
        k: int = 256,
        must_include: Sequence[int] = (),
        *,
        allowed: Sequence[int] | None = None,
        entropy: bool = False,
        logits: bool = False,
        grammar: Grammar | None = None,
        since: int = 0,
    ) -> Distribution:
        """The distribution of the next token: its k most probable ids and those that must be included.

        With `allowed`, a mask, over those ids only. With `grammar`, over those that may follow in a text of it which
        began at token number `since`, and the tokens that end a turn where that text is whole. `allowed_mass` is what
        those had before. `entropy` and `logits` ask for those too."""
        with self._turnstile:
            asked: dict[str, Any] = {"k": k}
            if must_include:
                asked["must_include"] = list(must_include)
            if allowed is not None:
                asked["allowed"] = list(allowed)
            if entropy or logits:
                asked |= {"entropy": entropy, "logits": logits}
            return await self._segments.distribution(asked, grammar, since)

    async def score(self, candidates: Sequence[str | Sequence[int]]) -> list[Score]:
        """The exact log-probability of each candidate, text or ids, as what follows. The context stays as it is.

        Each runs on a fork of its own, and they share batches."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=True)
            ids = [await self._log.ids_of(one) if isinstance(one, str) else list(one) for one in candidates]
            await self._kv.fill()
            return await scored(self._kv, self._siblings, ids)

    async def append_scored(self, tokens: Sequence[int], k: int = 1, *, ranks: bool = False) -> list[Distribution]:
        """Adds token ids, and says for each which distribution it was found in: the k most probable of its place, and
        the token itself, if asked with their ranks. The context must not be empty. Nothing of what it runs comes out of
        a cache."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            return [Distribution(one) for one in await self._kv.score(list(tokens), k, ranks=ranks)]

    async def verify(
        self, drafts: Sequence[int], *, proposes: bool = False, **sampling: Unpack[SamplingOptions]
    ) -> Verified:
        """Has the model judge guesses of its next tokens in one forward, and keeps what it would have said itself.

        That is the drafts up to the first that differs from what was sampled in its place, and the token sampled there:
        the same tokens as without drafts, greedy or with any seed. Sampling options as for `stream`. With `proposes`,
        the answer also says what the model finds most probable after each draft, the rejected ones included."""
        with self._turnstile:
            return await self._segments.verified(list(drafts), {**sampling}, proposes=proposes)

    async def choose(self, options: Sequence[str], **sampling: Unpack[SamplingOptions]) -> str:
        """Lets the model write one of the options and returns it. None may begin another, in tokens."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=True)
            ids = [tuple(await self._log.ids_of(option)) for option in options]
            seed = await self._segments.run_seed()
            picked = await picked_of(ids, self._log, self._kv, lambda: self._segments.sampling({**sampling}, seed))
            self._log.transcript.write(options[ids.index(picked)])
            return options[ids.index(picked)]

    # What is seen. Spans are pairs (start, end) of token numbers, end excluded, or ranges.

    async def hide(self, span: Span | range) -> None:
        """The last token and all that follow it no longer see the span; what saw it keeps its influence."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            view = self._kv.views.current
            await self._kv.look(replace(view, hidden=spans_of([*view.hidden, *self._log.checked([span])])))

    async def attend(self, spans: Iterable[Span | range]) -> None:
        """Of what is there now, the last token and all that follow it see these spans alone, hidden before or not."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            hidden = minus(((0, len(self._log)),), self._log.checked(spans))
            await self._kv.look(replace(self._kv.views.current, hidden=hidden))

    async def window(self, num_tokens: int | None, sinks: int = 0) -> None:
        """The last token and all that follow it see the first `sinks` tokens and the last `num_tokens`, themselves
        included, and no others but what completes the pages that these lie in. Positions stay. None ends it."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            window = None if num_tokens is None else await self._kv.window_of(num_tokens, sinks)
            await self._kv.look(replace(self._kv.views.current, window=window))

    async def forget(self, span: Span | range) -> None:
        """Takes the span out as if it had never been: what follows moves up, and is run again when it is needed."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            if gone := self._log.checked([span]):
                await self._kv.forget(gone)

    async def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens alone. The view stays."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=False)
            await self._kv.truncate(num_tokens)

    def provenance(self) -> Provenance:
        """Exact, or Approximate with what made it so."""
        return self._kv.views.provenance(len(self._log))

    # Its life

    async def flush(self, *, opens_turn: bool = False) -> int:
        """Runs what was appended, so that its KV is there: before a fork, or while waiting for something else.

        Of a chat, `opens_turn` begins the assistant's turn too. Says how many of the tokens did not run, because
        somebody had computed their KV before."""
        with self._turnstile:
            await self._segments.prepare(opens_turn=opens_turn)
            return await self._kv.fill()

    async def fork(self, *, opens_turn: bool = False) -> "Context":
        """A copy that goes its own way, with the same view. Full pages are shared, the last partial page is copied;
        nothing is recomputed.

        Of a chat, `opens_turn` begins the assistant's turn before, once for all branches that answer. A copy's draws
        differ from its parent's unless it is given the same seed in `generate`. Several tasks may fork one context:
        they take turns."""
        async with self._turnstile.forks:
            with self._turnstile:
                await self._segments.prepare(opens_turn=opens_turn)
                await self._kv.fill()
                child = self._sibling()
                await self._kv.share_with(child._kv)
                return child

    def close(self) -> None:
        """Frees the pages. Happens by itself when the context is dropped or the run ends."""
        if self._turnstile.is_closed:
            return
        self._turnstile.is_closed = True
        self._segments.close()

    async def __aenter__(self) -> "Context":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_segments") and not self._queue.is_over:
            self.close()

    # Between the two

    def _hold(self, log: TokenLog) -> None:
        """Begins with the tokens of the log, and no KV."""
        self._log = log
        self._kv = ContextKv(self._run, self._queue, log)
        self._segments = ContextSegments(self._run, self._queue, log, self._kv, self._seed, self._number)

    def _sibling(self) -> "Context":
        """With the same tokens, and no KV yet."""
        sibling = Context(priority=self._priority, model=self._queue.model)
        sibling._hold(self._log.copy())
        return sibling

    @contextmanager
    def _siblings(self, num: int) -> Iterator[list[ContextKv]]:
        """The KV of so many, which are gone afterwards."""
        forks = [self._sibling() for _ in range(num)]
        try:
            yield [fork._kv for fork in forks]
        finally:
            for fork in forks:
                fork.close()
