"""Forks one prompt into branches that go on side by side, and joins what they wrote.

The prefix is run once: its KV pages are shared by reference. The branches share the model's batches.
"""

import asyncio

from loopwright import Context, emit


async def main(topic: str = "the sea", branches: int = 8, max_tokens: int = 24, seed: int = 1) -> list[str]:
    trunk = Context()
    trunk.user(f"Write the first line of a poem about {topic}.")
    forks = [await trunk.fork(opens_turn=True) for _ in range(branches)]
    turns = await asyncio.gather(
        *(
            fork.generate(max_tokens=max_tokens, temperature=1.0, top_p=0.95, seed=seed + number, stop="\n")
            for number, fork in enumerate(forks)
        )
    )
    lines = [turn.text.strip() for turn in turns]
    for number, line in enumerate(lines):
        emit({"branch": number, "line": line})
    return lines
