"""An agent whose code runs in a nested sandbox between its turns; what the code is, the benchmark decides."""

from loopwright import Context, sandbox


async def main(number: str, system: str, codes: list[str], max_tokens: int) -> str:
    ctx = Context()
    ctx.system(system)
    ctx.user(f"What is the sum of the numbers below {number}?")
    for code in codes:
        await ctx.generate(max_tokens=max_tokens, ignore_eos=True)
        outcome = await sandbox.run(code)
        ctx.user(f"It is {outcome.result}.")
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
