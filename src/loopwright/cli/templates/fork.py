"""Writes several answers from one prompt side by side, and lets the model judge which is best."""

import asyncio

from loopwright import Context, emit


async def main(question: str = "Name a good name for a boat.", branches: int = 4, max_tokens: int = 24) -> str:
    trunk = Context()
    trunk.user(question)
    forks = [
        await trunk.fork(opens_turn=True) for _ in range(branches)
    ]  # the prompt runs once; its KV pages are shared
    turns = await asyncio.gather(
        *(fork.generate(max_tokens=max_tokens, temperature=0.7, seed=number) for number, fork in enumerate(forks))
    )
    answers = [turn.text.strip() for turn in turns]
    emit(answers)
    scores = await trunk.score([answer or " " for answer in answers])
    means = [score.logprob / len(score.tokens) for score in scores]
    return answers[means.index(max(means))]
