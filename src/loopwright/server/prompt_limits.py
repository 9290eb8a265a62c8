"""Refuses prompts that no model's context holds, before anything is made of them. Pure. Used by who makes their runs.

A token has so many bytes at most, so a text of more bytes than the context times that cannot fit; of one that might,
the run says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.core.errors import BadRequest, ContextTooLong
from loopwright.core.model_info import ModelInfo

MAX_MESSAGES = 2048
MAX_PARTS = 4096
"""Of all messages together."""

MAX_CALL_MARKS = 1 << 17
"""Commas and brackets in the arguments of all calls of a conversation, which are JSON in a text."""

MAX_BIASES = 4096
MAX_STOP_CHARS = 4096


def check_messages(messages: Sequence[Mapping[str, Any]], model: ModelInfo) -> None:
    """Raises ContextTooLong for texts that cannot fit."""
    check_text("messages", sum(len(message["content"]) for message in messages), model)


def check_text(field: str, num_chars: int, model: ModelInfo) -> None:
    """As `check_messages`, of a text of so many characters, none of which is less than a byte."""
    max_bytes = model.max_context * model.max_token_bytes
    if max_bytes and num_chars > max_bytes:
        raise _too_long(field, f"{num_chars} characters", model, f", {max_bytes} bytes at the most")


def check_ids(field: str, num_ids: int, model: ModelInfo) -> None:
    """As `check_messages`, of a prompt of token ids."""
    if num_ids > model.max_context:
        raise _too_long(field, f"{num_ids} tokens", model)


def check_number(field: str, number: int, limit: int, what: str) -> None:
    """Raises BadRequest for more than the limit."""
    if number > limit:
        raise BadRequest(f"{field}: {number} {what}; the limit is {limit}", field=field)


def _too_long(field: str, size: str, model: ModelInfo, more: str = "") -> ContextTooLong:
    message = f"{field}: the prompt is too long: it has {size}; this model's maximum context length is "
    return ContextTooLong(f"{message}{model.max_context} tokens{more}", field=field)
