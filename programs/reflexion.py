"""Tries, hears from a check what is wrong, reflects on it, and tries again with its own advice before it.

(Shinn et al., arXiv 2303.11366.) The check is code: here, that an answer holds all required words.
"""

from loopwright import Context, emit


async def main(
    task: str = "Write one sentence with the words sun, tree and cat.",
    words: list[str] = ["sun", "tree", "cat"],
    max_trials: int = 3,
    max_tokens: int = 40,
) -> str:
    advice: list[str] = []
    answer = ""
    base = Context()
    base.user(task)
    for trial in range(max_trials):
        async with await base.fork() as ctx:
            if advice:
                ctx.user("Heed this: " + " ".join(advice))
            answer = (await ctx.generate(max_tokens=max_tokens)).text.strip()
            missing = [word for word in words if word not in answer.lower()]
            emit({"trial": trial, "answer": answer, "missing": missing})
            if not missing:
                break
            ctx.user(f"The words {', '.join(missing)} are missing. Advise yourself in one line.")
            advice.append((await ctx.generate(max_tokens=max_tokens, stop="\n")).text.strip())
    return answer
