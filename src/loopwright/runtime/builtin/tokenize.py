"""Says which tokens a text or a chat becomes. Behind /tokenize, the rendering of chats, and /ready."""

# /// program
# limits = { max_output_bytes = 268435456 }
# ///

from typing import Any

from loopwright import resources

PIECES = 1024
"""Tokens that are told in one go: others have their turns in between."""


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
        found = await resources.tokenize(text, starts_context=starts_context, must_fit=with_strings)
    else:
        found = await resources.render_chat(
            messages,
            num_done=0,
            is_open=False,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            must_fit=(with_strings or with_text) and num_kept is None,
            tools=tools,
            options=template,
        )
    tokens = found["tokens"] if num_kept is None else found["tokens"][-num_kept:]
    if not (with_strings or with_text):
        return {"tokens": tokens, "strings": None}
    strings: list[str] = []
    written = bytearray()
    for at in range(0, len(tokens), PIECES):
        for piece in (await resources.detokenize(tokens[at : at + PIECES], each=True))["pieces"]:
            strings.append(piece["text"])
            written += piece["text"].encode() if piece["bytes"] is None else bytes(piece["bytes"])
    answer: dict[str, Any] = {"tokens": tokens, "strings": strings}
    return {**answer, "text": written.decode(errors="replace")} if with_text else answer
