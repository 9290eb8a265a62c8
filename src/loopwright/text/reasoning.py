"""How a model marks that it thinks before it answers, as far as its chat template says. Never reads an answer.

Called by compose for what is told of a model. Tags that are control tokens have no text, and are not told.
"""

from collections.abc import Container

TAGS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
"""Of the families that we know: what stands before the thoughts, and after them."""


def reasoning_tags(template: str, controls: Container[str]) -> tuple[str, str] | None:
    """The tags that the template has, both of them, as plain text."""
    for before, after in TAGS:
        if before in template and after in template and before not in controls and after not in controls:
            return before, after
    return None
