"""Imports the KV of a beginning that all runs share; the first run exports it."""

from loopwright import Context, NotFound, export_context, import_context


async def main(number: str, system: str, max_tokens: int) -> str:
    try:
        ctx = await import_context("bench/prefix")
    except NotFound:
        ctx = Context()
        ctx.system(system)
        await export_context(ctx, "bench/prefix", persistent=True)
    ctx.user(f"{number}: what is this exhibit?")
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
