"""Says which text tokens are. Behind /detokenize."""

# /// program
# limits = { max_output_bytes = 268435456 }
# ///

from loopwright import resources


async def main(tokens: list[int]) -> dict[str, str]:
    """Control tokens have no text."""
    return {"text": (await resources.detokenize(tokens))["text"]}
