"""Chooses every token by a function of its own, which runs in the engine: never one token twice in a row."""

from loopwright import Context, tensor


def varied(scores: tensor.Tensor, state: dict[str, tensor.Tensor]) -> tuple[tensor.Tensor, dict[str, tensor.Tensor]]:
    """Takes the most probable token that is not the one before."""
    is_repeated = tensor.ids() == state["last"]
    token = tensor.argmax(tensor.where(is_repeated, -float("inf"), scores))
    return token, {"last": token}


async def main(prompt: str = "Row, row, row", max_tokens: int = 32) -> str:
    ctx = Context()
    ctx.append(prompt)
    turn = await ctx.generate(sampler=varied, state={"last": -1.0}, max_tokens=max_tokens, emit=True)
    return turn.text
