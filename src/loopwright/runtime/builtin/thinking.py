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
class Thought:
    """Turns of one way to go on, in order; the last one is the answer, or where the thoughts were cut."""

    turns: tuple[Turn, ...]
    num_reasoning_tokens: int = 0


async def think_and_answer(
    ctx: Context, tags: tuple[str, str], generate: Generate, shown: Show, max_tokens: int | None
) -> Thought:
    """`ctx` ends where the model's turn begins, and has run. The thoughts are shown under the same index."""
    before, after = tags
    tail = (await resources.detokenize(ctx.tokens[-MAX_TAIL_TOKENS:]))["text"].rstrip()
    probes: tuple[Turn, ...] = ()
    if not tail.endswith(before):
        if tail.endswith(after):
            return Thought((await generate(ctx, shown),))
        probe = await _probe(ctx, before, generate, max_tokens)
        probes, is_over = (probe,), max_tokens is not None and len(probe.tokens) >= max_tokens
        if probe.stop != before or probe.text.strip():
            is_begun = is_over and probe.reason == "length" and before.startswith(probe.text.strip())
            return Thought((probe,), len(probe.tokens)) if is_begun else Thought((await generate(ctx, shown),))
        if is_over:
            return Thought((_cut(probe),), len(probe.tokens))
        ctx.append(before)
    left = None if max_tokens is None else max_tokens - sum(len(turn.tokens) for turn in probes)
    apart = Show(shown.index, tokens=shown.tokens, channel="reasoning")
    thoughts = await generate(ctx, apart, stop=[after], **FREE, max_tokens=left)
    num_tokens = sum(len(turn.tokens) for turn in (*probes, thoughts))
    left = None if left is None else left - len(thoughts.tokens)
    if thoughts.stop != after:
        return Thought((*probes, thoughts), num_tokens)
    if left is not None and left < 1:
        return Thought((*probes, _cut(thoughts)), num_tokens)
    ctx.append(f"{after}\n\n")
    return Thought((*probes, thoughts, await generate(ctx, shown, max_tokens=left)), num_tokens)


async def _probe(ctx: Context, before: str, generate: Generate, max_tokens: int | None) -> Turn:
    """How the model begins, unconstrained; the context stays as it is. The draws are those of going on from it."""
    num_tokens = MAX_PROBED_TOKENS if max_tokens is None else min(max_tokens, MAX_PROBED_TOKENS)
    async with await ctx.fork() as fork:
        return await generate(fork, False, stop=[before], **FREE, max_tokens=num_tokens)


def _cut(turn: Turn) -> Turn:
    """One that stopped where it was meant to, with nothing left to go on with."""
    return replace(turn, reason="length", stop=None)
