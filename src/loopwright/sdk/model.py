"""The model a program runs beside: what it is, and its tokenizer. Never runs it. Used by programs directly."""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.sdk import resources
from loopwright.sdk.run_state import run_state


@dataclass(frozen=True, slots=True)
class Model:
    """Facts about the model. Sizes in tokens."""

    name: str
    traits: tuple[str, ...]
    vocab_size: int
    max_context: int
    page_size: int
    eos_ids: tuple[int, ...]  # tokens that end a turn
    exactness: str  # reference, deterministic or fast


async def model() -> Model:
    """The model that this program's contexts use."""
    data = (await run_state().description())["model"]
    return Model(
        name=data["name"],
        traits=tuple(data["traits"]),
        vocab_size=data["vocab_size"],
        max_context=data["max_context"],
        page_size=data["page_size"],
        eos_ids=tuple(data["eos_ids"]),
        exactness=data["exactness"],
    )


async def tokenize(text: str) -> list[int]:
    """Token ids of plain text: control tokens written in it stay plain text."""
    ids: list[int] = (await resources.tokenize(text))["tokens"]
    return ids


async def detokenize(tokens: Sequence[int]) -> str:
    """The text of token ids; control tokens have none, and a character cut at the end is left out."""
    text: str = (await resources.detokenize(tokens))["text"]
    return text
