"""Writes without a letter: looks at every token while the model runs ahead, and takes back those that have it.

A veto takes the tokens after it back too, with their KV, and the model goes on from there with another one. What ran
ahead in vain never shows: the answer is that of a loop that looks at each token before the next is made.
"""

from loopwright import Context, detokenize, emit, emit_text


async def main(question: str = "Describe the sea.", without: str = "e", max_tokens: int = 32, window: int = 8) -> str:
    ctx = Context()
    ctx.user(question)
    texts: dict[int, str] = {}
    num_vetoes = 0
    async with ctx.watch(window=window, max_tokens=max_tokens) as watched:
        async for token in watched:
            if token.id not in texts:
                texts[token.id] = await detokenize([token.id])
            if without in texts[token.id].lower():
                watched.veto()
                num_vetoes += 1
    assert watched.turn is not None
    emit_text(watched.turn.text)
    emit({"vetoes": num_vetoes, "tokens": len(watched.turn.tokens)})
    return watched.turn.text
