"""Runs the beginning that many prompts share once and lends its KV by name; every later run of this program imports it.

The export outlives the run, so a second one with the same beginning runs its own question alone, whatever the server
remembers of prompts by itself.
"""

import hashlib

from loopwright import Context, NotFound, emit, export_context, import_context


async def main(
    question: str = "When do you open?",
    prefix: str = "You are the guide of a museum of clocks. It is open from 9 to 5, and closed on Mondays. The oldest "
    "clock is a water clock from 1680; the tower clock in the yard strikes every hour.",
    max_tokens: int = 64,
) -> str:
    name = f"prefix/{hashlib.sha256(prefix.encode()).hexdigest()}"
    try:
        ctx, is_found = await import_context(name), True
    except NotFound:
        ctx, is_found = Context(), False
        ctx.system(prefix)
        await export_context(ctx, name, persistent=True)
    num_shared = len(ctx.tokens)
    ctx.user(question)
    turn = await ctx.generate(max_tokens=max_tokens)
    emit({"imported": is_found, "prefix": num_shared, "own": turn.num_prompt_tokens - num_shared})
    return turn.text
