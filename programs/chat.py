"""Answers a question by the model's chat template, and shows the text piece by piece as it is made."""

from loopwright import Context, emit_text


async def main(question: str, system: str = "You are a helpful assistant.", max_tokens: int = 200) -> str:
    ctx = Context()
    ctx.system(system)
    ctx.user(question)
    stream = ctx.stream(max_tokens=max_tokens)
    async for chunk in stream:
        emit_text(chunk.text)  # a program may look at each piece, change it, or break out of the loop
    assert stream.turn is not None
    return stream.turn.text
