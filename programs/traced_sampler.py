"""Chooses every token by a function of its own that runs in the engine: Mirostat, which keeps surprise near a target.

The function is traced once, so it costs no message a token. What it carries from token to token is its state.
(Basu et al., "Mirostat", arXiv 2007.14966, version 2.)
"""

from loopwright import Context, emit, tensor

TARGET, RATE = 2.0, 0.2  # nats


def mirostat(scores: tensor.Tensor, state: dict[str, tensor.Tensor]) -> tuple[tensor.Tensor, dict[str, tensor.Tensor]]:
    logprobs = scores - tensor.logsumexp(scores)
    is_kept = (-logprobs <= state["most"]) | (scores == tensor.highest(scores))
    weights = tensor.where(is_kept, tensor.exp(logprobs), 0)
    token = tensor.draw(weights)
    surprise = tensor.log(tensor.total(weights)) - logprobs[token]
    return token, {"most": state["most"] - RATE * (surprise - TARGET)}


async def main(question: str = "Tell me about the sea.", max_tokens: int = 48, seed: int = 1) -> str:
    ctx = Context(seed=seed)
    ctx.user(question)
    turn = await ctx.generate(sampler=mirostat, state={"most": 2 * TARGET}, max_tokens=max_tokens, emit=True)
    emit({"surprise": round(-sum(turn.logprobs) / len(turn.logprobs), 2), "most": round(turn.sampler_state["most"], 2)})
    return turn.text
