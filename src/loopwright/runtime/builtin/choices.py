"""Answers a request once its prompts are contexts: scores them, lets each go on several ways, and counts what ran.

What the built-in programs `chat` and `completion` share. Text, ids and log-probabilities go to the client as they come,
under the number of their candidate; what the run returns says which candidates are the answer, and why each ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loopwright.runtime.builtin.thinking import Limits, Thought, think_and_answer
from loopwright.sdk import (
    BadRequest,
    Context,
    Distribution,
    Grammar,
    Show,
    Tool,
    Turn,
    client_tool,
    emit,
    model,
    resources,
)  # fmt: skip
from loopwright.sdk.sampling import context_seed

MAX_CONTEXTS = 128
"""That one request has open at once; the prompts behind them wait."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a request asks for. `sampling` is as `Context.generate` takes it, but for the keys of its logit_bias."""

    max_tokens: int | None = None  # None is as many as fit, 0 is none: the prompt is only looked at
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None  # of the first choice; the others' follow from it
    stop: list[str] = field(default_factory=list)
    stop_tokens: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    grammar: dict[str, str] | None = None  # kind and source
    tools: dict[str, Any] | None = None  # {tools, choice, allowed, parallel}: the client executes what is called
    n: int = 1
    best_of: int = 1
    shows_tokens: bool = False
    shows_logprobs: bool = False
    shows_prompt: bool = False
    prompt_logprobs: int | None = None  # so many of the most probable tokens of each place
    truncate_prompt_tokens: int | None = None  # keep the last ones
    drops_messages: bool = False  # the oldest of a conversation, until it fits
    reasoning: tuple[str, str] | None = None  # the tags around what the model thinks before it answers
    max_thought_tokens: int | None = None  # of what it thinks; None is as many as fit, 0 is no thoughts
    opening: str = "turn"  # where the answer begins: in a turn, behind what the last message says, or in "none"
    tells_begin: bool = False  # how many tokens the prompt has, once it is clear that it fits

    @property
    def needs_prompt_ids(self) -> bool:
        """Whether the ids are wanted before the prompt runs."""
        return self.shows_prompt or self.prompt_logprobs is not None or self.truncate_prompt_tokens is not None

    template: dict[str, Any] = field(default_factory=dict)  # what the chat template reads beside messages and tools

    @cached_property
    def known_tools(self) -> list[Tool]:
        """What the model is told that it may call."""
        given = () if self.tools is None else self.tools["tools"]
        return [client_tool({"function": one}) for one in given]

    def of_tools(self) -> dict[str, Any]:
        """What holds a segment to its tools, as `Context.generate` takes it."""
        if self.tools is None:
            return {}
        allowed = [one for one in self.known_tools if one.name in self.tools["allowed"]]
        return {"tools": allowed, "tool_choice": self.tools["choice"], "parallel_calls": self.tools["parallel"]}

    @property
    def is_plain(self) -> bool:
        """Whether the text of one choice is all there is to show."""
        return self.best_of == 1 and not (self.shows_tokens or self.shows_logprobs or self.reasoning)


@dataclass(frozen=True, slots=True)
class Answered:
    """What one prompt came to."""

    ways: list[Thought]  # to go on
    num_prompt_tokens: int
    num_cached_tokens: int


Prompt = Callable[[], Awaitable[Context]]
"""Makes the context that ends where the answer begins."""


async def answer(prompts: Sequence[Prompt], options: Options) -> dict[str, Any]:
    """Lets every prompt go on, and returns {choices, usage}. Candidate c of prompt p is number p * best_of + c."""
    room = asyncio.Semaphore(max(1, MAX_CONTEXTS // options.best_of))

    async def one(number: int, prompt: Prompt) -> Answered:
        async with room:
            ctx = await prompt()
            try:
                return await _answer_one(ctx, number, options, shows_text=len(prompts) == 1)
            finally:
                ctx.close()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # what is wrong with one is wrong with the request
    answered = [task.result() for task in tasks]
    num_prompt = sum(one.num_prompt_tokens for one in answered)
    num_completion = sum(len(turn.tokens) for one in answered for way in one.ways for turn in way.turns)
    num_reasoning = sum(way.num_reasoning_tokens for one in answered for way in one.ways)
    return {
        "choices": [choice for number, one in enumerate(answered) for choice in _choices(one, number, options)],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": sum(one.num_cached_tokens for one in answered)},
            "completion_tokens_details": {"reasoning_tokens": num_reasoning},
        },
    }


def truncated(ids: Sequence[int], options: Options) -> list[int]:
    """The last tokens of a prompt, as many as asked for. Raises BadRequest for a prompt without any."""
    if not ids:
        raise BadRequest("prompt: there is no token in it", field="prompt")
    num_kept = options.truncate_prompt_tokens
    return list(ids if num_kept is None else ids[-num_kept:])


async def prompt_of_ids(number: int, ids: Sequence[int], options: Options, text: str | None = None) -> Context:
    """A context of a prompt's ids. The client is told what it is and how probable, if it asked."""
    ctx = Context()
    if options.prompt_logprobs is None:
        ctx.append(ids)
        found: list[Distribution] = []
    else:
        ctx.append(ids[:1])
        found = await ctx.append_scored(ids[1:], max(1, options.prompt_logprobs), ranks=True)
    if options.shows_prompt or options.prompt_logprobs is not None:
        shown = (await resources.detokenize(ids))["text"] if text is None else text
        logprobs = None if options.prompt_logprobs is None else await _logprobs(ids, found, options.prompt_logprobs)
        emit({"type": "prompt", "prompt": number, "text": shown, "tokens": list(ids), "logprobs": logprobs})
    return ctx


async def _answer_one(ctx: Context, number: int, options: Options, *, shows_text: bool) -> Answered:
    first = number * options.best_of
    if options.tells_begin:
        await _tell_begin(ctx)
    if options.max_tokens == 0:
        num_cached = await ctx.flush()
        return Answered([], len(ctx.tokens), num_cached)
    if options.best_of == 1 and options.reasoning is None:
        is_plain = options.is_plain and shows_text
        turn = await _generate(ctx, 0, True if is_plain else _show(first, options), options)
        return Answered([Thought((turn,))], turn.num_prompt_tokens, turn.cached_tokens)
    num_cached = await ctx.flush(opens_turn=True)
    num_prompt_tokens = len(ctx.tokens)
    ways = [ctx, *[await ctx.fork() for _ in range(options.best_of - 1)]]
    try:
        thoughts = await asyncio.gather(*(_go_on(one, way, first + way, options) for way, one in enumerate(ways)))
    finally:
        for one in ways[1:]:
            one.close()
    return Answered(thoughts, num_prompt_tokens, num_cached)


async def _tell_begin(ctx: Context) -> None:
    """Before anything runs. Of a prompt that does not fit an error comes instead, from who runs it."""
    ctx.append("")
    await ctx.place("")
    if len(ctx.tokens) < (await model()).max_context:
        emit({"type": "begun", "prompt_tokens": len(ctx.tokens)})


async def _go_on(ctx: Context, way: int, candidate: int, options: Options) -> Thought:
    shown = _show(candidate, options)
    if options.reasoning is None:
        return Thought((await _generate(ctx, way, shown, options),))

    def generate(ctx: Context, shown: Show | bool, **instead: Any) -> Awaitable[Turn]:  # noqa: ANN401 (options)
        return _generate(ctx, way, shown, options, **instead)

    limits = Limits(options.max_tokens, options.max_thought_tokens)
    return await think_and_answer(ctx, options.reasoning, generate, shown, limits)


async def _generate(ctx: Context, way: int, shown: Show | bool, options: Options, **instead: Any) -> Turn:  # noqa: ANN401 (options)
    sampling = dict(options.sampling)
    if bias := sampling.pop("logit_bias", None):
        sampling["logit_bias"] = {int(token): one for token, one in bias.items()}
    if options.seed is not None:
        sampling["seed"] = options.seed if way == 0 else context_seed(options.seed, way)
    asked: dict[str, Any] = {
        "max_tokens": options.max_tokens,
        "stop": options.stop,
        "stop_tokens": options.stop_tokens,
        "ignore_eos": options.ignore_eos,
        "grammar": None if options.grammar is None else Grammar(**options.grammar),
        **options.of_tools(),
    }
    return await ctx.generate(emit=shown, **{**asked, **sampling, **instead})


def _show(candidate: int, options: Options) -> Show:
    return Show(candidate, tokens=options.shows_tokens, logprobs=options.shows_logprobs)


def _choices(answered: Answered, number: int, options: Options) -> list[dict[str, Any]]:
    """The best candidates, by log-probability a token, or all, in their order."""
    if not answered.ways:
        return [{"candidate": number, "finish_reason": "length", "stop_reason": None}]
    ranked = list(range(options.best_of))
    if options.best_of > options.n:
        ranked.sort(key=lambda way: -_mean_logprob(answered.ways[way].turns[-1]))
    return [
        _choice(number * options.best_of + way, answered.ways[way].turns[-1], options) for way in ranked[: options.n]
    ]


def _choice(candidate: int, turn: Turn, options: Options) -> dict[str, Any]:
    is_asked_for = turn.reason == "stop" or turn.stop in options.stop_tokens
    return {
        "candidate": candidate,
        "finish_reason": "length" if turn.reason == "length" else "stop",
        "stop_reason": turn.stop if is_asked_for else None,
    }


def _mean_logprob(turn: Turn) -> float:
    return sum(turn.logprobs) / max(1, len(turn.logprobs))


async def _logprobs(ids: Sequence[int], found: Sequence[Distribution], num_top: int) -> list[dict[str, Any]]:
    """What the client is shown of a prompt's tokens, in the form of events of the type tokens."""
    tops = [[pair for pair, _ in zip(one, range(num_top), strict=False)] for one in found]
    wanted = list(dict.fromkeys([*ids, *(token for top in tops for token, _ in top)]))
    pieces = {piece["token"]: piece for piece in (await resources.detokenize(wanted, each=True))["pieces"]}
    rows = [{**pieces[ids[0]], "logprob": None}]
    for token, one, top in zip(ids[1:], found, tops, strict=True):
        listed = [{**pieces[other], "logprob": logprob, "rank": one.rank(other)} for other, logprob in top]
        rows.append({**pieces[token], "logprob": one.listed(token), "rank": one.rank(token), "top": listed})
    return rows
