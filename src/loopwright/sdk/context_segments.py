"""What one context asks the model: segments, whose tokens and KV are the context's afterwards, and single forwards.

Never holds tokens or KV itself. Owned by one Context, over its TokenLog and ContextKv.
"""

from typing import Any

from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.grammar import Grammar, grammar_fields
from loopwright.sdk.output import Show
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_state import RunState
from loopwright.sdk.sampling import context_seed, sampling_fields
from loopwright.sdk.segment import Payload, Segment
from loopwright.sdk.segment_options import segment_fields, take_untraceable
from loopwright.sdk.spans import Spans, numbers, size_of
from loopwright.sdk.token_by_token import generate_token_by_token
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.tool_calls import ToolUse
from loopwright.sdk.turn import Turn, Verified


class ContextSegments:
    """`current` was begun and is not accounted for yet. Without a `seed`, `number`, that of the context, gives one."""

    def __init__(
        self, run: RunState, queue: Queue, log: TokenLog, kv: ContextKv, seed: int | None, number: int
    ) -> None:
        self.current: Segment | None = None
        self._run, self._queue = run, queue
        self._log, self._kv = log, kv
        self._seed, self._number = seed, number

    async def begin(
        self, *, emit: bool | Show, stream: bool, options: dict[str, Any], use: ToolUse | None = None
    ) -> Segment:
        """Starts a segment; the caller must finish it."""
        description = await self._run.description(self._queue.model)
        if use is not None:
            options = use.options(options, description["tool_format"])
            self._log.transcript.announce([one.spec for one in use.tools])
        await self.prepare(opens_turn=True)
        fields, sampling = segment_fields(options, description["model"])
        fields["sampling"] = self.sampling(sampling, description["seed"])
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
        self.current = Segment(
            parts,
            settle=lambda payload: self._settle(
                payload, grow_from, written, num_tokens, page_size, options.get("until") or ""
            ),
            fail=self._drop,
            free=lambda payload: pages.free_grown(payload, grow_from),
            nothing=Turn.nothing(num_tokens),
        )
        return self.current

    async def whole(self, *, emit: bool | Show, options: dict[str, Any], use: ToolUse | None = None) -> Turn:
        """A segment from beginning to end."""
        return await self.end(await self.begin(emit=emit, stream=False, options=options, use=use))

    async def generated(self, *, emit: bool | Show, options: dict[str, Any]) -> Turn:
        """As `whole`; with `sampler_fallback`, token by token where Python has to run the sampler."""
        if not await take_untraceable(options, self._run, self._queue.model):
            return await self.whole(emit=emit, options=options)
        if isinstance(emit, Show):
            raise BadRequest("emit: of a sampler that runs as Python only the text can be shown", field="emit")
        await self.prepare(opens_turn=True)
        description = await self._run.description(self._queue.model)
        given = {"seed": self.sampling({}, description["seed"])["seed"], **options} | ({"emit": True} if emit else {})
        turn = await generate_token_by_token(self._log, self._kv, description["model"], given)
        await self._kv.slide()
        return turn

    async def end(self, segment: Segment) -> Turn:
        """Waits for it, and drops what fell out of the window."""
        turn = await segment.finish()
        await self._kv.slide()
        return turn

    def _settle(
        self, payload: Payload, grow_from: int, written: Spans, num_prompt_tokens: int, page_size: int, until: str
    ) -> Turn:
        """Brings the context up to date with a segment that is over. `until` follows, whatever ended it."""
        self.current = None
        self._kv.pages.account(payload, grow_from, written)
        if freed := payload.get("freed"):
            self._kv.pages.leave_out(freed, page_size)
        self._log.extend_written(payload["tokens"][: payload["num_kept"]])
        kept_text: str = payload["text"].removesuffix(payload["remainder"])
        self._log.transcript.write(kept_text)
        if behind := payload["remainder"] + until:
            self._log.put_back(behind)
        return Turn.from_payload(payload, num_prompt_tokens)

    def _drop(self) -> None:
        self.current = None
        if not self._queue.is_over:
            if self._kv.views.current.window is not None:
                self._kv.pages.lose()
            self._queue.post("clear_queue")

    def sampling(self, options: dict[str, Any], run_seed: int) -> dict[str, Any]:
        """Sampling options as the ABI's, at the place where the context ends."""
        seed = self._seed if self._seed is not None else context_seed(run_seed, self._number)
        return sampling_fields(options, seed, self._log.tokens, self._log.num_written)

    async def prepare(self, *, opens_turn: bool) -> None:
        """Ends what an abandoned operation left running, and turns what was appended into tokens."""
        if self.current is not None:
            self.current.interrupt()
            await self.current.finish()
        if not self._kv.pages.is_settled:
            await self._kv.pages.settled()
        await self._log.write_out(opens_turn=opens_turn)

    async def run_seed(self) -> int:
        """The run's own."""
        seed: int = (await self._run.description(self._queue.model))["seed"]
        return seed

    async def distribution(self, asked: dict[str, Any], grammar: Grammar | None, since: int) -> Distribution:
        """What may come next, by one forward."""
        await self.prepare(opens_turn=True)
        held = None if grammar is None else await self._held(grammar, since)
        payload = await self._kv.ask([], distributions=[asked], held=held)
        return Distribution(payload["distributions"][0])

    async def verified(self, drafts: list[int], sampling: dict[str, Any], *, proposes: bool) -> Verified:
        """What the model says to drafts, by one forward; what it would have said itself is in the context then."""
        await self.prepare(opens_turn=True)
        options = self.sampling(sampling, await self.run_seed())
        verified = Verified.from_payload(await self._kv.ask(drafts, proposes=proposes, sampling=options))
        await self._log.transcribe(verified.tokens)
        self._log.extend_written(verified.tokens)
        return verified

    async def _held(self, grammar: Grammar, since: int) -> dict[str, Any]:
        """What follows held to a grammar, as the ABI's."""
        (start, end) = self._log.checked([(since, len(self._log))])[0] if since < len(self._log) else (0, 0)
        ends = (await self._run.description(self._queue.model))["model"]["eos_ids"]
        return {"grammar": grammar_fields(grammar), "text": self._log.tokens[start:end], "stop_tokens": ends}

    def close(self) -> None:
        """The context is gone."""
        is_sliding = self.current is not None and self._kv.views.current.window is not None
        self._kv.pages.close(is_sliding=is_sliding)
        if self.current is not None:
            self.current.abandon()
        elif self._kv.pages.is_settled:
            self._queue.leave(self._run)
