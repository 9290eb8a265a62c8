"""Lets the model choose one of some texts in three ways, which cost and mean different things.

`choose` walks through the tokens, so it decides early; a grammar does so inside of the engine, in one segment; `score`
looks at each text as a whole, and takes the one that is most probable.
"""

from loopwright import Context, choice, emit


async def main(
    question: str = "Which is heavier, a whale or a mouse?", options: list[str] = ["a whale", "a mouse"]
) -> str:
    trunk = Context()
    trunk.user(question)
    walking, held, weighing = [await trunk.fork() for _ in range(3)]
    found = {
        "choose": await walking.choose(options),
        "grammar": (await held.generate(grammar=choice(options), max_tokens=64)).text,
    }
    scores = await weighing.score(options)
    found["score"] = max(zip(scores, options, strict=True), key=lambda one: one[0].logprob)[1]
    emit(found)
    return found["score"]
