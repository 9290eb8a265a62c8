"""Lets a model that thinks first do so, and then answer: its thoughts are told apart, and no constraint holds on them.

Used by `choices` for models whose template has tags for it. Whether it thinks is seen where its turn begins: the prompt
ends inside the tags, or behind them, or the model itself writes the first one.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loopwright.sdk import Context, Show, Turn, resources

MAX_TAIL_TOKENS = 32
"""Of the prompt, which end with a tag if it has one there."""

MAX_PROBED_TOKENS = 8
"""In which the first tag has to be complete, if the model writes it."""


FREE: dict[str, Any] = {"stop_tokens": [], "grammar": None, "tools": (), "tool_choice": "auto"}
"""Of what holds the answer, nothing holds the thoughts."""


class Generate(Protocol):
    """Goes on as the request says, but for what is given here."""

    def __call__(self, ctx: Context, shown: Show | bool, **instead: Any) -> Awaitable[Turn]: ...  # noqa: ANN401 (options)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tokens thoughts and answer may have together, and how many the thoughts; None is as many as fit."""

    num_tokens: int | None = None
    num_thoughts: int | None = None

    def less(self, num_used: int) -> "Limits":
        """What is left of them after so many thoughts."""
        return Limits(_less(self.num_tokens, num_used), _less(self.num_thoughts, num_used))


@dataclass(frozen=True, slots=True)
class Thought:
    """Turns of one way to go on, in order; the last one is the answer, or where the thoughts were cut."""

    turns: tuple[Turn, ...]
    num_reasoning_tokens: int = 0


async def think_and_answer(
    ctx: Context, tags: tuple[str, str], generate: Generate, shown: Show, limits: Limits
) -> Thought:
    """`ctx` ends where the model's turn begins, and has run. The thoughts are shown under the same index."""
    before, after = tags
    max_tokens = limits.num_tokens
    tail = (await resources.detokenize(ctx.tokens[-MAX_TAIL_TOKENS:]))["text"].rstrip()
    probes: tuple[Turn, ...] = ()
    if tail.endswith(after):
        return Thought((await generate(ctx, shown),))
    if limits.num_thoughts == 0:
        ctx.append(f"\n{after}\n\n" if tail.endswith(before) else f"{before}\n\n{after}\n\n")
        return Thought((await generate(ctx, shown),))
    if not tail.endswith(before):
        probe = await _probe(ctx, before, generate, max_tokens)
        probes, is_over = (probe,), max_tokens is not None and len(probe.tokens) >= max_tokens
        if probe.stop != before or probe.text.strip():
            is_begun = is_over and probe.reason == "length" and before.startswith(probe.text.strip())
            return Thought((probe,), len(probe.tokens)) if is_begun else Thought((await generate(ctx, shown),))
        if is_over:
            return Thought((_cut(probe),), len(probe.tokens))
        ctx.append(before)
    limits = Limits(_less(max_tokens, sum(len(turn.tokens) for turn in probes)), limits.num_thoughts)
    return await _think(ctx, after, generate, shown, limits, probes)


async def _think(
    ctx: Context, after: str, generate: Generate, shown: Show, limits: Limits, probes: tuple[Turn, ...]
) -> Thought:
    """`ctx` ends inside the tags."""
    apart = Show(shown.index, tokens=shown.tokens, channel="reasoning")
    room = [one for one in (limits.num_tokens, limits.num_thoughts) if one is not None]
    thoughts = await generate(ctx, apart, stop=[after], **FREE, max_tokens=min(room, default=None))
    num_tokens = sum(len(turn.tokens) for turn in (*probes, thoughts))
    left = limits.less(len(thoughts.tokens))
    is_enough = thoughts.reason == "length" and left.num_thoughts == 0
    if thoughts.stop != after and not is_enough:
        return Thought((*probes, thoughts), num_tokens)
    if left.num_tokens is not None and left.num_tokens < 1:
        return Thought((*probes, _cut(thoughts)), num_tokens)
    ctx.append(f"\n{after}\n\n" if is_enough else f"{after}\n\n")
    return Thought((*probes, thoughts, await generate(ctx, shown, max_tokens=left.num_tokens)), num_tokens)


async def _probe(ctx: Context, before: str, generate: Generate, max_tokens: int | None) -> Turn:
    """How the model begins, unconstrained; the context stays as it is. The draws are those of going on from it."""
    num_tokens = MAX_PROBED_TOKENS if max_tokens is None else min(max_tokens, MAX_PROBED_TOKENS)
    async with await ctx.fork() as fork:
        return await generate(fork, False, stop=[before], **FREE, max_tokens=num_tokens)


def _cut(turn: Turn) -> Turn:
    """One that stopped where it was meant to, with nothing left to go on with."""
    return replace(turn, reason="length", stop=None)


def _less(limit: int | None, num_used: int) -> int | None:
    return None if limit is None else limit - num_used
