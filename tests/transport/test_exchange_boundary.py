"""The exchange boundary: a client and a server speak over a real socket, with the real exchange behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from child_process import python_process
from eventually import eventually
from raw_peer import RawPeer

from loopwright.core.errors import NotFound, PermissionDenied, Unavailable
from loopwright.core.exchange import Member
from loopwright.core.ids import RunId, TenantId
from loopwright.core.message_calls import Broadcast, NextMessages, Pull, Push, Settle, Subscribe
from loopwright.core.store_calls import StoreGet, StoreSet
from loopwright.runtime.exchange import LocalExchange
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.exchange_client import ExchangeClient
from loopwright.transport.exchange_server import ExchangeServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

TENANT = TenantId("")


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[LocalExchange, str]]:
    exchange = LocalExchange()
    with socket_folder() as folder:
        address = socket_address(folder, "exchange")
        is_ready = asyncio.Event()
        task = asyncio.create_task(ExchangeServer(exchange, address).serve(is_ready.set))
        await is_ready.wait()
        try:
            yield exchange, address
        finally:
            exchange.check_integrity()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert exchange.num_members == 0
            exchange.close()


def join(client: ExchangeClient, run: str = "r") -> Member:
    return client.join(RunId(run), TENANT, 1 << 20)


async def ask(member: Member, call: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(await member.ask(call)))


async def test_two_workers_meet_and_see_the_same() -> None:
    async with serving() as (exchange, address):
        first, second = await ExchangeClient.connect(address), await ExchangeClient.connect(address)
        one, two = join(first), join(second)
        await ask(one, Subscribe(topic="t", subscription=1))
        assert await ask(two, Broadcast(topic="t", value={"big": 2**90, "text": "é\u2028"})) == {"num_subscribers": 1}
        messages = [{"big": 2**90, "text": "é\u2028"}]
        assert await ask(one, NextMessages(subscription=1)) == {"first": 0, "messages": messages}
        await ask(two, StoreSet(store="s", key="k", value="v"))
        assert await ask(one, StoreGet(store="s", key="k")) == {"value": "v"}
        waiting = [asyncio.create_task(ask(one, Pull(queue="q", ticket=n))) for n in range(2)]
        await eventually(lambda: num_waiting(exchange) == 2)
        for value in ("a", "b"):
            await ask(two, Push(queue="q", value=value))
        assert [await one for one in waiting] == [{"value": "a"}, {"value": "b"}]
        assert (first.num_waiting, second.num_waiting) == (0, 0)
        first.close()
        second.close()


async def test_errors_keep_their_type_and_a_malformed_call_is_answered() -> None:
    async with serving() as (_, address):
        client = await ExchangeClient.connect(address)
        member = join(client)
        with pytest.raises(NotFound, match="no subscription 7"):
            await member.ask(NextMessages(subscription=7))
        with pytest.raises(Exception, match="malformed call") as caught:
            await member.ask({"op": "nonsense"})  # type: ignore[arg-type]
        assert type(caught.value).__name__ == "BadRequest"
        assert not isinstance(caught.value, PermissionDenied)
        client.close()


async def test_a_call_that_is_given_up_waits_no_more_and_loses_nothing() -> None:
    async with serving() as (exchange, address):
        client = await ExchangeClient.connect(address)
        member = join(client)
        for is_late in (False, True):
            pull = asyncio.create_task(member.ask(Pull(queue="q", ticket=1)))
            await eventually(lambda: num_waiting(exchange) == 1)
            if is_late:  # the answer and the wish to hear no more cross each other
                exchange._channels[TENANT].push("q", msgspec.Raw(b'"late"'))
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
            await ask(member, Settle(ticket=1, is_taken=False))
            assert client.num_waiting == 0
            if not is_late:
                await eventually(lambda: num_waiting(exchange) == 0)
        assert await ask(member, Pull(queue="q", ticket=2)) == {"value": "late"}
        client.close()


CAREFREE = """
import asyncio, sys
from loopwright.core.message_calls import Pull, Subscribe
from loopwright.transport.exchange_client import ExchangeClient

async def main():
    client = await ExchangeClient.connect(sys.argv[1])
    member = client.join("r", "", 1000)
    await member.ask(Subscribe(topic="t", subscription=1))
    await member.ask(Pull(queue="q", ticket=1))
    await member.ask(Pull(queue="q", ticket=2))  # there is no second one

asyncio.run(main())
"""


async def test_a_worker_that_is_killed_leaves_nothing_and_what_it_was_lent_is_there_again() -> None:
    async with serving() as (exchange, address):
        client = await ExchangeClient.connect(address)
        member = join(client)
        await ask(member, Push(queue="q", value="precious"))
        with python_process(CAREFREE, address) as process:
            await eventually(lambda: num_waiting(exchange) == 1)
            process.kill()
            assert await ask(member, Pull(queue="q", ticket=1)) == {"value": "precious"}
        assert exchange.num_members == 1
        assert await ask(member, Broadcast(topic="t", value=1)) == {"num_subscribers": 0}
        client.close()


async def test_without_the_other_side_every_call_says_so() -> None:
    async with serving() as (_, address):
        client = await ExchangeClient.connect(address)
        member = join(client)
        waiting = asyncio.create_task(ask(member, Pull(queue="q", ticket=1)))
        await ask(member, Broadcast(topic="t", value=1))
    with pytest.raises(Unavailable, match="channels and stores died"):
        await waiting
    with pytest.raises(Unavailable, match="died"):
        await member.ask(Push(queue="q", value=1))
    member.close()
    client.close()


async def test_messages_that_are_none_are_dropped_and_nobody_else_notices() -> None:
    async with serving() as (_, address):
        raw = RawPeer(address)
        encode = msgspec.msgpack.encode
        for message in (b"", b"\xff", encode(["no such", 1]), encode(["ask", 9, 9, b"{}"]), encode(["leave", 3])):
            raw.send_frame(encode([message]))
        client = await ExchangeClient.connect(address)
        assert await ask(join(client), Broadcast(topic="t", value=1)) == {"num_subscribers": 0}
        raw.close()
        client.close()


def num_waiting(exchange: LocalExchange) -> int:
    """Pulls that wait."""
    return sum(len(queue.waiting) for one in exchange._channels.values() for queue in one._queues.values())
