"""Asks a small model first, and a large one only where the small one was not sure of its own words.

Sure means a mean log-probability of the answer's tokens of at least `sure`. The ledger says to the token what each
model ran: prompts less what was cached, and rows of one token. (Chen et al., "FrugalGPT", arXiv 2305.05176.)
"""

# /// program
# permissions = { models = ["*"] }
# ///

from loopwright import Context, Turn, emit

Ledger = dict[str, dict[str, int]]


async def main(
    questions: list[str] = ["What is the capital of France?", "Why is the sea salty?"],
    small: str = "",
    large: str = "",
    sure: float = -0.5,
    max_tokens: int = 40,
) -> list[str]:
    ledger: Ledger = {name: {"asked": 0, "prefill": 0, "decode": 0} for name in ("small", "large")}
    answers: list[str] = []
    for question in questions:
        turn = await ask(small, question, max_tokens, ledger["small"])
        is_sure = sum(turn.logprobs) >= sure * len(turn.logprobs)
        if not is_sure:
            turn = await ask(large, question, max_tokens, ledger["large"])
        answers.append(turn.text.strip())
        emit({"question": question, "by": "small" if is_sure else "large"})
    emit({"ledger": ledger})
    return answers


async def ask(model: str, question: str, max_tokens: int, costs: dict[str, int]) -> Turn:
    async with Context(model=model) as ctx:
        ctx.user(question)
        turn = await ctx.generate(max_tokens=max_tokens)
    costs["asked"] += 1
    costs["prefill"] += turn.num_prompt_tokens - turn.cached_tokens
    costs["decode"] += len(turn.tokens) - 1  # the last one was not run
    return turn
