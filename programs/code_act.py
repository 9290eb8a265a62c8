"""An agent that acts by writing Python: each piece runs in a sandbox that can only compute, and the model reads what it
printed, or its error, and goes on. The variable `data` is all that the code is given.

Its first turn is begun for it, as code: so it computes before it answers, however sure it is."""

# /// program
# limits = { seconds = 300, memory_mb = 64, cpu_seconds = 60 }
# ///

from loopwright import Context, emit, sandbox

SYSTEM = """You solve tasks with Python. Write one piece of code between ```python and ```; it is run, and you \
are told what it printed. The numbers are in the variable `data`. When you know \
the answer, write "Answer:" and the answer."""
OPENING = "```python\n"


async def main(
    task: str = "What is the mean of the numbers? Print it.", data: list[float] = [3, 5, 10], max_turns: int = 4
) -> str:
    ctx = Context()
    ctx.system(SYSTEM)
    ctx.user(task)
    ctx.append(OPENING)
    begun, last, printed = OPENING, "", ""
    for _ in range(max_turns):
        turn = await ctx.generate(until="\n```\n", max_tokens=300)
        said, found, written = (begun + turn.text).partition(OPENING)
        begun = ""
        if not found:
            if answer := said.rpartition("Answer:")[2].strip():
                return answer
            break
        code = written.removesuffix("\n```")  # its turn may end right behind them
        if code == last:
            break  # it would hear the same
        outcome = await sandbox.run(code, {"data": data}, cpu_seconds=5)
        emit({"code": code, "error": outcome.error and outcome.error.message, "printed": outcome.stdout[:500]})
        ctx.user(report(outcome))
        last, printed = code, outcome.stdout.strip()
    ctx.append("Answer:")  # no more code: what it makes of what it has seen
    return (await ctx.generate(stop="\n", max_tokens=60)).text.strip() or printed


def report(outcome: sandbox.CodeResult) -> str:
    """What the model is told of its code: short, for a context is not free."""
    if outcome.error is not None:
        return f"It failed:\n{outcome.error.traceback[-500:] or outcome.error.message}"
    return f"It printed:\n{outcome.stdout[:500]}"
