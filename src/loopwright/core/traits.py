"""The traits that a model may have, and what each needs. Never says which call wants which: `call_table` does.

A trait is a group of calls. Compose gives a model the traits that its engine and its tokenizer really have.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeAlias, get_args

Trait: TypeAlias = Literal["allocate", "forward", "input_text", "input_image", "output_text", "tokenize", "adapter"]

TRAITS: Final[tuple[Trait, ...]] = get_args(Trait)

NEEDS: Final[Mapping[Trait, tuple[Trait, ...]]] = {
    "allocate": (),
    "forward": ("allocate",),
    "input_text": ("allocate", "forward"),
    "input_image": ("allocate", "forward"),
    "output_text": ("allocate",),
    "tokenize": ("input_text",),
    "adapter": ("forward",),
}


def supported(offered: Collection[Trait]) -> tuple[Trait, ...]:
    """Those of the offered traits that have all they need among the supported, in the order of TRAITS."""
    found = set(offered)
    while lacking := {trait for trait in found if not found.issuperset(NEEDS[trait])}:
        found -= lacking
    return tuple(trait for trait in TRAITS if trait in found)
