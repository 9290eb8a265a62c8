"""Answers a chat: messages in, the assistant's next turn out. Behind every OpenAI chat completion."""

# /// program
# limits = { seconds = 3600, max_pages = 65536 }
# ///

from typing import Any

from loopwright import Context


async def main(
    messages: list[dict[str, str]],
    max_tokens: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: list[str] = [],  # noqa: B006 (defaults of main are part of its input schema and never written)
    logit_bias: dict[str, float] = {},  # noqa: B006
    stream: bool = False,
) -> dict[str, Any]:
    """`stream` sends the text while it is made; without it, it comes with the result's end."""
    ctx = Context(seed=seed)
    for message in messages:
        ctx.message(message["role"], message["content"])
    turn = await ctx.generate(
        emit=True,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        stop=stop,
        logit_bias={int(token): bias for token, bias in logit_bias.items()},
    )
    num_prompt, num_completion = turn.num_prompt_tokens, len(turn.tokens)
    return {
        "finish_reason": "length" if turn.reason == "length" else "stop",
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        },
    }
