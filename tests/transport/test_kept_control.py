"""A control client outlives the model workers it talks to: what one did ends with it, and the next one takes over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from eventually import eventually
from fake_control import FakeControl
from fake_runs import MODEL

from loopwright.core.calls import Synchronize
from loopwright.core.control import ControlLimits
from loopwright.core.errors import InternalError, Unavailable
from loopwright.core.ids import CallId, QueueName, RunId, TenantId
from loopwright.core.model_info import ModelInfo
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.control_server import ControlServer
from loopwright.transport.kept_control import KeptControl
from loopwright.transport.link import Link

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

SYNC = Synchronize(queue=QueueName(1))


class OtherModel(FakeControl):
    def models(self) -> tuple[ModelInfo, ...]:
        return (msgspec.structs.replace(MODEL, vocab_size=MODEL.vocab_size + 1),)


@asynccontextmanager
async def model_worker(address: str, control: FakeControl) -> AsyncIterator[FakeControl]:
    is_ready = asyncio.Event()
    serving = asyncio.create_task(ControlServer(control, address).serve(is_ready.set))
    await is_ready.wait()
    try:
        yield control
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def first_and_kept(stack: AsyncExitStack) -> AsyncIterator[tuple[str, KeptControl]]:
    """The address, and a client that has met a first model worker there, which `stack` ends."""
    with socket_folder() as folder:
        address = socket_address(folder, "model")
        await stack.enter_async_context(model_worker(address, FakeControl(is_holding=True)))
        kept = await KeptControl.connect(address, name="runtime-0")
        try:
            yield address, kept
        finally:
            await kept.close()


async def refused(kept: KeptControl) -> str:
    """What both doors say now."""
    with pytest.raises(Unavailable) as opening:
        kept.open(RunId("x"), ControlLimits())
    with pytest.raises(Unavailable) as asking:
        await kept.stats()
    assert str(opening.value) == str(asking.value)
    return f"{opening.value}; {opening.value.hint}"


async def well(kept: KeptControl) -> None:
    """Waits until it is answered."""
    while True:
        try:
            assert (await kept.stats()).num_steps == 11
        except (Unavailable, InternalError):  # of the one that has just gone
            await asyncio.sleep(0)
        else:
            return


async def test_what_was_under_way_fails_and_the_next_model_worker_takes_over() -> None:
    async with AsyncExitStack() as first, first_and_kept(first) as (address, kept):
        session = kept.open(RunId("old"), ControlLimits())
        session.submit(CallId(1), SYNC)
        waiting = asyncio.create_task(session.receive())
        await first.aclose()
        with pytest.raises(InternalError, match="the model worker died"):
            await waiting
        assert "the model worker died; it is being started again: try again" in await refused(kept)
        assert kept.models() == (MODEL,)
        async with model_worker(address, FakeControl()) as control:
            await well(kept)
            again = kept.open(RunId("new"), ControlLimits(max_pages=7), TenantId("t"))
            again.submit(CallId(1), SYNC)
            assert [one.call_id for one in await again.receive()] == [1]
            assert (control.limits[RunId("new")].max_pages, control.tenants[RunId("new")]) == (7, "t")
            with pytest.raises(InternalError, match="the model worker died"):
                await session.receive()  # the old one stays dead
            session.close()
            again.close()


async def test_it_waits_for_one_after_another_that_dies_at_once() -> None:
    async with AsyncExitStack() as first, first_and_kept(first) as (address, kept):
        await first.aclose()
        for _ in range(3):
            async with model_worker(address, FakeControl()):
                await well(kept)
            await eventually(lambda: not kept._client.is_alive)
            assert "the model worker died" in await refused(kept)


async def test_one_that_dies_before_it_answers_is_not_the_last_that_is_looked_for() -> None:
    async with AsyncExitStack() as first, first_and_kept(first) as (address, kept):
        await first.aclose()
        heard: list[bytes] = []
        mute = Link(lambda _, message: heard.append(message), lambda _: None)
        await mute.listen(address)
        await eventually(lambda: bool(heard))
        mute.close()
        async with model_worker(address, FakeControl()):
            await well(kept)


async def test_another_model_at_the_same_place_is_refused() -> None:
    async with AsyncExitStack() as first, first_and_kept(first) as (address, kept):
        await first.aclose()
        async with model_worker(address, OtherModel()) as control:
            await eventually(lambda: kept._has_changed)
            assert "the model's file has changed since the server started; restart the server" in await refused(kept)
            assert not control.sessions


async def test_closing_ends_the_sessions_and_the_search_for_another() -> None:
    async with AsyncExitStack() as first, first_and_kept(first) as (_, kept):
        session = kept.open(RunId("a"), ControlLimits())
        await kept.close()
        with pytest.raises(InternalError, match="was closed"):
            await session.receive()
        assert kept._keeping.done()
