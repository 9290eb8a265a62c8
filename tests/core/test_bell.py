"""Many readers are told in one turn of the loop, each once, and none of those that have their news already."""

import asyncio

import pytest

from loopwright.core.bell import Bell, Doorbell


async def test_all_are_told_in_one_turn_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    bell = Bell()
    doors = {name: Doorbell(bell, lambda name=name: told.append(name)) for name in "abc"}  # type: ignore[misc]
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    call_soon = loop.call_soon
    monkeypatch.setattr(
        loop, "call_soon", lambda *args, **context: (calls.append(args), call_soon(*args, **context))[1]
    )
    for name in "bab":
        doors[name].news()
    doors["c"].news()
    doors["a"].has_them()
    assert (told, len(calls)) == ([], 1)
    monkeypatch.undo()
    await asyncio.sleep(0)
    assert told == ["b", "c"]
    doors["a"].news()
    await asyncio.sleep(0)
    assert told == ["b", "c", "a"]


async def test_who_has_taken_and_gets_more_in_the_same_turn_is_told_once() -> None:
    told: list[int] = []
    bell = Bell()
    door = Doorbell(bell, lambda: told.append(1))
    door.news()
    door.has_them()
    door.news()
    await asyncio.sleep(0)
    assert told == [1]


async def test_a_reader_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    bell = Bell()
    contexts: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))

    def fail() -> None:
        raise ValueError("on purpose")

    for tell in (fail, lambda: told.append("other")):
        Doorbell(bell, tell).news()
    await asyncio.sleep(0)
    assert told == ["other"]
    assert str(contexts[0]["exception"]) == "on purpose"


async def test_news_that_come_while_others_are_told_are_of_the_next_turn() -> None:
    told: list[str] = []
    bell = Bell()
    second = Doorbell(bell, lambda: told.append("second"))
    first = Doorbell(bell, lambda: (told.append("first"), second.news())[0])
    first.news()
    await asyncio.sleep(0)
    assert told == ["first"]
    await asyncio.sleep(0)
    assert told == ["first", "second"]
