"""A conversation loses its oldest messages until it fits: no more than it must, never what the system says or the last
message, and no call without its result's going too."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from loopwright.runtime.builtin.fitting import fitting, room

SAID = [("system", 3), ("user", 5), ("assistant", 4), ("tool", 2), ("tool", 2), ("assistant", 6), ("user", 1)]


def fitted(max_tokens: int, said: Sequence[tuple[str, int]] = SAID) -> list[int]:
    """Which messages are left, by place; a message has so many tokens."""
    messages: list[dict[str, Any]] = [
        {"role": role, "content": size, "place": place} for place, (role, size) in enumerate(said)
    ]

    async def tokens_of(told: Sequence[dict[str, Any]]) -> list[int]:
        return [0] * sum(message["content"] for message in told)

    return [message["place"] for message in asyncio.run(fitting(messages, max_tokens, tokens_of))]


@pytest.mark.parametrize(
    ("max_tokens", "left"),
    [
        (23, [0, 1, 2, 3, 4, 5, 6]),
        (22, [0, 2, 3, 4, 5, 6]),
        (18, [0, 2, 3, 4, 5, 6]),
        (17, [0, 5, 6]),
        (10, [0, 5, 6]),
        (9, [0, 6]),
        (4, [0, 6]),
        (1, [0, 6]),
    ],
)
def test_as_few_of_the_first_messages_go_as_it_takes(max_tokens: int, left: list[int]) -> None:
    assert fitted(max_tokens) == left


def test_what_the_system_says_between_stays_and_one_message_alone_too() -> None:
    assert fitted(1, [("user", 5), ("system", 3), ("user", 2)]) == [1, 2]
    assert fitted(1, [("user", 5)]) == [0]
    assert fitted(1, [("system", 5)]) == [0]


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 75), (10, 90), (50, 50), (99, 50)])
def test_a_prompt_has_room_beside_its_answer(max_tokens: int | None, expected: int) -> None:
    assert room(100, max_tokens) == expected
