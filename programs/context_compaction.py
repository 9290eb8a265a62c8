"""A conversation that is longer than its context: when it grows beyond a limit, what was said is replaced by a summary.

The beginning is kept as it is, with its KV: the new context is a fork of it. The old one is kept until the summary has
passed a check, here that it is shorter than what it stands for and not empty.
"""

from loopwright import Context, emit


async def main(
    messages: list[str] = ["My name is Ada.", "I live in Oslo.", "I like tea.", "Who am I?"],
    max_tokens_kept: int = 160,
    max_tokens: int = 40,
) -> list[str]:
    beginning = Context()
    beginning.system("You are a good listener. You answer in one line.")
    ctx, answers = await beginning.fork(), []
    for message in messages:
        ctx.user(message)
        answers.append((await ctx.generate(max_tokens=max_tokens, stop="\n")).text.strip())
        if len(ctx.tokens) > max_tokens_kept:
            ctx = await compacted(beginning, ctx, max_tokens)
    return answers


async def compacted(beginning: Context, ctx: Context, max_tokens: int) -> Context:
    """A new context with a summary of the old one; the old one if its summary is of no use."""
    async with await ctx.fork() as writer:
        writer.user("Sum up in one line what you know about me.")
        summary = (await writer.generate(max_tokens=max_tokens, stop="\n")).text.strip()
    fresh = await beginning.fork()
    fresh.user(f"What you know: {summary}")
    fresh.assistant("Yes.")
    await fresh.flush()
    is_accepted = bool(summary) and len(fresh.tokens) < len(ctx.tokens)
    emit({"before": len(ctx.tokens), "after": len(fresh.tokens), "accepted": is_accepted})
    kept, left = (fresh, ctx) if is_accepted else (ctx, fresh)
    left.close()
    return kept
