"""Says which text tokens are. Behind /detokenize."""

# /// program
# limits = { max_output_bytes = 268435456 }
# ///

from typing import Any

from loopwright import resources


async def main(tokens: list[int], each: bool = False) -> dict[str, Any]:
    """Control tokens have no text. With `each` also how each is written by itself, control tokens too: `strings`."""
    found = await resources.detokenize(tokens, each=each)
    return {"text": found["text"], "strings": [piece["text"] for piece in found.get("pieces", ())]}
