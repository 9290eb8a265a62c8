"""Says which tokens a text or a chat becomes. Behind /tokenize, the rendering of chats, and /ready."""

# /// program
# limits = { max_output_bytes = 268435456 }
# ///

from typing import Any

from loopwright import resources


async def main(
    text: str = "",
    starts_context: bool = True,
    messages: list[dict[str, Any]] | None = None,
    tools: list[dict[str, Any]] = [],  # noqa: B006
    template: dict[str, Any] = {},  # noqa: B006
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    with_strings: bool = False,
    with_text: bool = False,
    num_kept: int | None = None,
) -> dict[str, Any]:
    """`with_strings` tells each token by itself, `with_text` how the whole reads, control tokens written out.
    `num_kept`: of the last tokens alone."""
    if messages is None:
        found = await resources.tokenize(text, starts_context=starts_context)
    else:
        found = await resources.render_chat(
            messages,
            num_done=0,
            is_open=False,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            tools=tools,
            options=template,
        )
    tokens = found["tokens"] if num_kept is None else found["tokens"][-num_kept:]
    if not (with_strings or with_text):
        return {"tokens": tokens, "strings": None}
    pieces = (await resources.detokenize(tokens, each=True))["pieces"]
    answer: dict[str, Any] = {"tokens": tokens, "strings": [piece["text"] for piece in pieces]}
    if with_text:
        written = [piece["text"].encode() if piece["bytes"] is None else bytes(piece["bytes"]) for piece in pieces]
        answer["text"] = b"".join(written).decode(errors="replace")
    return answer
