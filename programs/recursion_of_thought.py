"""Recursion of thought: the model either answers a task or splits it in two; the parts are solved side by side.

Its choice is made among two tags, so it always parses. (Lee and Kim, arXiv 2306.06891.)
"""

import asyncio

from loopwright import Context, emit

RULES = "Solve a task. Write <leaf> before an answer, or <branch> before two smaller tasks, each in a line."
LEAF, BRANCH = "<leaf>", "<branch>"


async def main(task: str = "What is 987 * 123?", max_depth: int = 5, max_tokens: int = 32, seed: int = 1) -> str:
    root = Context(seed=seed)
    root.system(RULES)
    await root.flush()
    return await solve(root, task, max_depth, max_tokens)


async def solve(rules: Context, task: str, depth_left: int, max_tokens: int) -> str:
    """The answer to the task. `rules` is what every task begins with; it is run once."""
    async with await rules.fork() as ctx:
        ctx.user(task)
        tag = await ctx.choose([LEAF, BRANCH]) if depth_left > 0 else LEAF
        if tag == LEAF:
            return await finish(ctx, task, "" if depth_left > 0 else LEAF, max_tokens)
        parts = [(await ctx.generate(max_tokens=max_tokens, until="\n")).text.strip() for _ in range(2)]
        emit({"task": task, "parts": parts})
        answers = await asyncio.gather(*(solve(rules, part, depth_left - 1, max_tokens) for part in parts))
        ctx.user(f"The answers are: {answers[0]} and {answers[1]}. What follows for the whole task?")
        return await finish(ctx, task, LEAF, max_tokens)


async def finish(ctx: Context, task: str, tag: str, max_tokens: int) -> str:
    if tag:
        ctx.append(tag)
    answer = (await ctx.generate(max_tokens=max_tokens, stop="\n")).text.strip()
    emit({"task": task, "answer": answer})
    return answer
