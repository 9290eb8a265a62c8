"""The chat side of a context: which messages it holds and whether the assistant's turn is open.

Never talks to the model. Owned by one Context, which renders what `delta` describes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]


@dataclass(slots=True)
class Transcript:
    """Messages that are in the context. While `is_open`, the last one is an assistant message still being written."""

    messages: list[Message] = field(default_factory=list)
    is_open: bool = False

    def delta(self, new: Sequence[Message], opens_turn: bool) -> dict[str, Any]:
        """Arguments of render_chat for what must follow the context to add `new` and, if asked, open a turn."""
        return {
            "messages": [*self.messages, *new],
            "num_done": len(self.messages),
            "is_open": self.is_open,
            "add_generation_prompt": opens_turn,
        }

    def extend(self, new: Sequence[Message], opens_turn: bool) -> None:
        """Records that what `delta` described is in the context now."""
        self.messages.extend(new)
        self.is_open = opens_turn
        if opens_turn:
            self.messages.append({"role": "assistant", "content": ""})

    def write(self, text: str) -> None:
        """Records text of the open turn."""
        if self.is_open:
            last = self.messages[-1]
            self.messages[-1] = {**last, "content": last["content"] + text}

    def copy(self) -> "Transcript":
        return Transcript(list(self.messages), self.is_open)
