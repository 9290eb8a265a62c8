"""A sequence of tokens with KV state that a program builds, reads from and forks. Never runs the model itself.

Built on `resources`, inside the program: everything here a program could do by hand. docs/context.md says what each
method costs.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import BadRequest, LoopwrightError
from loopwright.sdk.grammar import Grammar, grammar_fields
from loopwright.sdk.options import GenerateOptions, SamplingOptions, SegmentOptions
from loopwright.sdk.output import Show
from loopwright.sdk.resources import Queue, detokenize, tokenize
from loopwright.sdk.run_state import run_state
from loopwright.sdk.sampling import context_seed, sampling_fields
from loopwright.sdk.segment import Payload, Segment, TokenStream
from loopwright.sdk.segment_options import segment_fields, take_untraceable
from loopwright.sdk.spans import Span, Spans, minus, numbers, size_of, spans_of
from loopwright.sdk.token_by_token import generate_token_by_token
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.tool_calls import ToolUse, tool_use
from loopwright.sdk.tool_stream import ToolStream
from loopwright.sdk.tools import Tool
from loopwright.sdk.transcript import plain_message
from loopwright.sdk.turn import Score, ToolCall, Turn, Verified
from loopwright.sdk.turnstile import Turnstile
from loopwright.sdk.views import Provenance, Window
from loopwright.sdk.watching import Watched

MAX_FORKS_SCORED = 32
"""Candidates that `score` runs at once: each holds pages of its own meanwhile."""


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
        self._log = TokenLog(model, template)
        self._kv = ContextKv(self._run, self._queue, self._log)
        self._segment: Segment | None = None  # begun and not yet accounted for

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
            await self._prepare(opens_turn=False)
            if sees is not None:
                hidden = minus(((0, len(self._log)),), self._checked(sees))
                await self._kv.look(replace(self._kv.views.current, hidden=hidden), ahead=True)
            start = len(self._log)
            self._log.append(content if isinstance(content, str) else list(content))
            await self._prepare(opens_turn=False)
            return start, len(self._log)

    def tool_result(self, call: ToolCall, value: Any) -> None:  # noqa: ANN401 (JSON)
        """Adds what a call came to, as a message of the role `tool`: a string as it is, anything else as JSON."""
        content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self._log.append({"role": "tool", "content": content, "name": call.name})

    def accept(self, tokens: int | Sequence[int]) -> None:
        """Adds tokens that the program chose itself, say from `next_dist`."""
        self.append([tokens] if isinstance(tokens, int) else tokens)

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
                return use.read(await self._end(await self._begin(emit=emit, stream=False, options=options, use=use)))
            if await take_untraceable(options, self._run, self._queue.model):
                if isinstance(emit, Show):
                    raise BadRequest("emit: of a sampler that runs as Python only the text can be shown", field="emit")
                return await self._generate_token_by_token(options | ({"emit": True} if emit else {}))
            return await self._end(await self._begin(emit=emit, stream=False, options=options))

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

        Options: max_tokens (256; None is up to the model's limit), stop (a string or several: the text ends before the
        first that appears), stop_tokens (ids that end it, beside the model's own), repetition_penalty,
        presence_penalty, frequency_penalty, logit_bias {id: bias}, allowed (only these ids), temperature (0 is greedy),
        top_k, typical_p, top_p, min_p, seed, logprobs ("raw" or "processed"), top_logprobs (how many), stop_entropy
        (ends before a token in whose place the model's entropy, in nats, is higher), ignore_eos (go on past the end of
        the turn), grammar (what the text must be, as a whole: see `json_schema`, `regex`, `lark`, `choice`).
        docs/sampling.md says what each does.

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
            lambda: self._begin(emit=emit, stream=True, options={**options}, use=use),
            self._end,
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
        return Watched(self._turnstile, lambda: self._begin(emit=False, stream=False, options=given), self._end)

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
            await self._prepare(opens_turn=True)
            request = {"k": k, "must_include": list(must_include), "entropy": entropy, "logits": logits}
            if allowed is not None:
                request["allowed"] = list(allowed)
            held = None if grammar is None else await self._held(grammar, since)
            payload = await self._kv.ask([], distributions=[request], held=held)
            return Distribution(payload["distributions"][0])

    async def score(self, candidates: Sequence[str | Sequence[int]]) -> list[Score]:
        """The exact log-probability of each candidate, text or ids, as what follows. The context stays as it is.

        Each runs on a fork of its own, and they share batches."""
        with self._turnstile:
            await self._prepare(opens_turn=True)
            ids = [
                (await tokenize(one, model=self._queue.model))["tokens"] if isinstance(one, str) else list(one)
                for one in candidates
            ]
            await self._kv.fill()
            scores: list[Score] = []
            for first in range(0, len(ids), MAX_FORKS_SCORED):
                scores += await self._score(ids[first : first + MAX_FORKS_SCORED])
            return scores

    async def append_scored(self, tokens: Sequence[int], k: int = 1, *, ranks: bool = False) -> list[Distribution]:
        """Adds token ids, and says for each which distribution it was found in: the k most probable of its place, and
        the token itself, if asked with their ranks. The context must not be empty. Nothing of what it runs comes out of
        a cache."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            return [Distribution(one) for one in await self._kv.score(list(tokens), k, ranks=ranks)]

    async def verify(
        self, drafts: Sequence[int], *, proposes: bool = False, **sampling: Unpack[SamplingOptions]
    ) -> Verified:
        """Has the model judge guesses of its next tokens in one forward, and keeps what it would have said itself.

        That is the drafts up to the first that differs from what was sampled in its place, and the token sampled there:
        the same tokens as without drafts, greedy or with any seed. Sampling options as for `stream`. With `proposes`,
        the answer also says what the model finds most probable after each draft, the rejected ones included."""
        with self._turnstile:
            await self._prepare(opens_turn=True)
            options = self._sampling({**sampling}, (await self._run.description(self._queue.model))["seed"])
            verified = Verified.from_payload(await self._kv.ask(list(drafts), proposes=proposes, sampling=options))
            if self._log.transcript.is_open:
                self._log.transcript.write((await detokenize(verified.tokens, model=self._queue.model))["text"])
            self._log.extend_written(verified.tokens)
            return verified

    async def choose(self, options: Sequence[str], **sampling: Unpack[SamplingOptions]) -> str:
        """Lets the model write one of the options and returns it. None may begin another, in tokens."""
        with self._turnstile:
            await self._prepare(opens_turn=True)
            ids = [tuple(await self._tokenize(option)) for option in options]
            picked = await self._walk(ids, {**sampling})
            self._log.transcript.write(options[ids.index(picked)])
            return options[ids.index(picked)]

    # What is seen. Spans are pairs (start, end) of token numbers, end excluded, or ranges.

    async def hide(self, span: Span | range) -> None:
        """The last token and all that follow it no longer see the span; what saw it keeps its influence."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            view = self._kv.views.current
            await self._kv.look(replace(view, hidden=spans_of([*view.hidden, *self._checked([span])])))

    async def attend(self, spans: Iterable[Span | range]) -> None:
        """Of what is there now, the last token and all that follow it see these spans alone, hidden before or not."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            hidden = minus(((0, len(self._log)),), self._checked(spans))
            await self._kv.look(replace(self._kv.views.current, hidden=hidden))

    async def window(self, num_tokens: int | None, sinks: int = 0) -> None:
        """The last token and all that follow it see the first `sinks` tokens and the last `num_tokens`, themselves
        included, and no others but what completes the pages that these lie in. Positions stay. None ends it."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            window = None
            if num_tokens is not None:
                if num_tokens < 1 or sinks < 0:
                    raise BadRequest(f"window: {num_tokens} tokens and {sinks} sinks; at least 1 and 0", field="window")
                size = await self._kv.pages.page_size()
                window = Window(num_tokens, -(-sinks // size) * size, size)
            await self._kv.look(replace(self._kv.views.current, window=window))

    async def forget(self, span: Span | range) -> None:
        """Takes the span out as if it had never been: what follows moves up, and is run again when it is needed."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            if gone := self._checked([span]):
                await self._kv.forget(gone)

    async def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens alone. The view stays."""
        with self._turnstile:
            await self._prepare(opens_turn=False)
            if not 0 <= num_tokens <= len(self._log):
                raise BadRequest(
                    f"truncate: {num_tokens} is not from 0 to the context's {len(self._log)}", field="num_tokens"
                )
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
            await self._prepare(opens_turn=opens_turn)
            return await self._kv.fill()

    async def fork(self) -> "Context":
        """A copy that goes its own way, with the same view. Full pages are shared, the last partial page is copied;
        nothing is recomputed.

        Its draws differ from its parent's unless it is given the same seed in `generate`. Several tasks may fork one
        context: they take turns."""
        async with self._turnstile.forks:
            with self._turnstile:
                await self._prepare(opens_turn=False)
                await self._kv.fill()
                child = self._sibling()
                await self._kv.share_with(child._kv)
                return child

    def close(self) -> None:
        """Frees the pages. Happens by itself when the context is dropped or the run ends."""
        if self._turnstile.is_closed:
            return
        self._turnstile.is_closed = True
        self._kv.pages.close(is_sliding=self._segment is not None and self._kv.views.current.window is not None)
        if self._segment is not None:
            self._segment.abandon()
        elif self._kv.pages.is_settled:
            self._queue.leave(self._run)

    async def __aenter__(self) -> "Context":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_segment") and not self._queue.is_over:
            self.close()

    # Between the two

    async def _begin(
        self, *, emit: bool | Show, stream: bool, options: dict[str, Any], use: ToolUse | None = None
    ) -> Segment:
        """Starts a segment; the caller must finish it."""
        description = await self._run.description(self._queue.model)
        if use is not None:
            options = use.options(options, description["tool_format"])
            self._log.transcript.announce([one.spec for one in use.tools])
        await self._prepare(opens_turn=True)
        fields, sampling = segment_fields(options, description["model"])
        fields["sampling"] = self._sampling(sampling, description["seed"])
        run = await self._kv.run_masked()
        pages = self._kv.pages
        num_tokens, kv_len, page_size = len(self._log), pages.kv_len, await pages.page_size()
        grow_from = self._run.take_names((kv_len + size_of(run) + fields["max_tokens"]) // page_size + 1)
        parts = self._queue.segment(
            emit=emit,
            stream=stream,
            pages=list(pages.names),
            grow_from=grow_from,
            kv_len=kv_len,
            tokens=[self._log.tokens[token] for token in numbers(run)],
            positions=list(numbers(run)),
            window=self._kv.window_fields(),
            **fields,
        )
        written = (*run[:-1], (run[-1][0], num_tokens + fields["max_tokens"]))  # as far as its KV will reach
        self._segment = Segment(
            parts,
            settle=lambda payload: self._settle(payload, grow_from, written, num_tokens, page_size),
            fail=self._drop_segment,
            free=lambda payload: pages.free_grown(payload, grow_from),
            nothing=Turn.nothing(num_tokens),
        )
        return self._segment

    async def _end(self, segment: Segment) -> Turn:
        turn = await segment.finish()
        await self._kv.slide()
        return turn

    def _settle(self, payload: Payload, grow_from: int, written: Spans, num_prompt_tokens: int, page_size: int) -> Turn:
        """Brings the context up to date with a segment that is over."""
        self._segment = None
        self._kv.pages.account(payload, grow_from, written)
        if freed := payload.get("freed"):
            self._kv.pages.leave_out(freed, page_size)
        self._log.extend_written(payload["tokens"][: payload["num_kept"]])
        kept_text: str = payload["text"].removesuffix(payload["remainder"])
        self._log.transcript.write(kept_text)
        if payload["remainder"]:
            self._log.put_back(payload["remainder"])
        return Turn.from_payload(payload, num_prompt_tokens)

    def _drop_segment(self) -> None:
        self._segment = None
        if not self._queue.is_over:
            if self._kv.views.current.window is not None:
                self._kv.pages.lose()
            self._queue.post("clear_queue")

    async def _generate_token_by_token(self, options: dict[str, Any]) -> Turn:
        await self._prepare(opens_turn=True)
        description = await self._run.description(self._queue.model)
        seed = self._sampling({}, description["seed"])["seed"]
        turn = await generate_token_by_token(self._log, self._kv, description["model"], {"seed": seed, **options})
        await self._kv.slide()
        return turn

    def _sampling(self, options: dict[str, Any], run_seed: int) -> dict[str, Any]:
        seed = self._seed if self._seed is not None else context_seed(run_seed, self._number)
        return sampling_fields(options, seed, self._log.tokens, self._log.num_written)

    async def _prepare(self, *, opens_turn: bool) -> None:
        """Ends what an abandoned operation left running, and turns what was appended into tokens."""
        if self._segment is not None:
            self._segment.interrupt()
            await self._segment.finish()
        await self._kv.pages.settled()
        await self._log.write_out(opens_turn=opens_turn)

    async def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = (await tokenize(text, model=self._queue.model))["tokens"]
        return ids

    async def _held(self, grammar: Grammar, since: int) -> dict[str, Any]:
        """What follows held to a grammar, as the ABI's."""
        (start, end) = self._checked([(since, len(self._log))])[0] if since < len(self._log) else (0, 0)
        ends = (await self._run.description(self._queue.model))["model"]["eos_ids"]
        return {"grammar": grammar_fields(grammar), "text": self._log.tokens[start:end], "stop_tokens": ends}

    def _checked(self, spans: Iterable[Span | range]) -> Spans:
        pairs = [(one.start, one.stop) if isinstance(one, range) else one for one in spans]
        for start, end in pairs:
            if not 0 <= start <= end <= len(self._log):
                raise BadRequest(
                    f"span: {start} … {end} is not within the context's {len(self._log)} tokens", field="span"
                )
        return spans_of(pairs)

    def _sibling(self) -> "Context":
        """With the same tokens, and no KV yet."""
        sibling = Context(priority=self._priority, model=self._queue.model)
        sibling._log = self._log.copy()
        sibling._kv = ContextKv(self._run, sibling._queue, sibling._log)
        return sibling

    async def _score(self, candidates: Sequence[Sequence[int]]) -> list[Score]:
        """Of candidates that share their batches."""
        forks = [self._sibling() for _ in candidates]
        try:
            scoring = (self._score_on(fork, ids) for fork, ids in zip(forks, candidates, strict=True))
            found = await asyncio.gather(*scoring, return_exceptions=True)  # all are over when their pages are freed
        finally:
            for fork in forks:
                fork.close()
        scores: list[Score] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            scores.append(one)
        return scores

    async def _score_on(self, fork: "Context", ids: Sequence[int]) -> Score:
        if not ids:
            raise BadRequest("candidates: one has no tokens", field="candidates")
        await self._kv.share_with(fork._kv)
        dists = [Distribution(one) for one in await fork._kv.ask_each(list(ids))]
        return Score(tuple(ids), tuple(dist.listed(one) for dist, one in zip(dists, ids, strict=True)))

    async def _walk(self, ids: list[tuple[int, ...]], options: dict[str, Any]) -> tuple[int, ...]:
        """One of `ids`, chosen token by token where they part; the tokens are added on the way."""
        run_seed = (await self._run.description(self._queue.model))["seed"]
        picked: tuple[int, ...] = ()
        while len(alive := {one for one in ids if one[: len(picked)] == picked}) > 1:
            if picked in alive:
                raise LoopwrightError("one option is the beginning of another: the model could not choose the shorter")
            ways = sorted({one[len(picked)] for one in alive})
            if len(ways) > 1:
                sampling = {**self._sampling(options, run_seed), "allowed": ways}
                payload = await self._kv.ask([], sampling=sampling)
                ways = [payload["token"]]
            self._log.extend_written(ways)
            picked = (*picked, ways[0])
        (rest,) = alive
        self._log.extend_written(rest[len(picked) :])
        return rest
