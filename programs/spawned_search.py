"""Answers a question in several ways at once, each in a child program with a fork of the context; the likeliest wins.

Each child is a run of its own: it has its own permissions and its own log, and when one fails the others go on.
"""

# /// program
# permissions = { children = ["@self"] }
# limits = { max_children = 8, memory_mb = 32 }
# ///

import asyncio

from loopwright import Child, ChildFailed, Context, log, parent_context, spawn


async def explore(seed: int, max_tokens: int) -> dict:
    """One way, in a child: the parent's tokens and KV are there already."""
    ctx = await parent_context(seed=seed)
    turn = await ctx.generate(max_tokens=max_tokens, temperature=0.8)
    return {"text": turn.text, "logprob": sum(turn.logprobs) / max(len(turn.logprobs), 1)}


async def main(question: str = "Name a good use of a paper clip.", num_ways: int = 3, max_tokens: int = 24) -> dict:
    ctx = Context()
    ctx.user(question)
    await ctx.flush()  # run once, for all
    children = [await spawn(explore, context=ctx, seed=seed, max_tokens=max_tokens) for seed in range(num_ways)]
    found = [one for one in await asyncio.gather(*map(outcome, children)) if one is not None]
    best = max(found, key=lambda one: one["logprob"], default={"text": ""})
    return {"question": question, "num_found": len(found), "best": best["text"]}


async def outcome(child: Child) -> dict | None:
    """What a child found; one that failed found nothing."""
    try:
        return await child.wait()
    except ChildFailed as error:
        log(error)
        return None
