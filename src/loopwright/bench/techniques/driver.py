"""A process of its own that sends requests and measures how long they take. Never serves. Started by the suite.

It reads orders from standard input, one JSON object a line, and answers each with one line. Both sides of a comparison
are driven from here: a program is one request that starts its run, a client is a function of `clients`.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import msgspec

from loopwright.bench.techniques.clients import CLIENTS
from loopwright.bench.techniques.endpoint import Endpoint
from loopwright.bench.together import all_of


class Order(msgspec.Struct, frozen=True):
    """What to do: a request for each of `inputs`, all at once. With `program` each of its arguments is a run."""

    technique: str
    inputs: list[list[dict[str, object]]]
    program: str | None = None
    round_trip_s: float = 0.0  # what a network would take there and back, for each request


class Timing(msgspec.Struct, frozen=True):
    """How long all of them took, and what CPU this process spent on it."""

    elapsed_s: float
    cpu_s: float


async def drive(url: str, model: str) -> None:
    """Follows orders until there are no more."""
    orders = msgspec.json.Decoder(Order)
    async with AsyncExitStack() as stack:
        endpoints: list[Endpoint] = []
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            order = orders.decode(line)
            while len(endpoints) < len(order.inputs):
                endpoints.append(await stack.enter_async_context(Endpoint(url, model)))
                await endpoints[-1].open()
            timing = await follow(order, endpoints)
            sys.stdout.buffer.write(msgspec.json.encode(timing) + b"\n")
            sys.stdout.buffer.flush()


async def follow(order: Order, endpoints: list[Endpoint]) -> Timing:
    """Each request has connections of its own, as users have."""
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for api in endpoints:
        api.round_trip_s = order.round_trip_s
    await all_of(request(order, inputs, api) for inputs, api in zip(order.inputs, endpoints, strict=False))
    return Timing(time.perf_counter() - started_s, time.process_time() - started_cpu_s)


async def request(order: Order, inputs: list[dict[str, object]], api: Endpoint) -> None:
    if order.program is not None:
        program = order.program
        await all_of(api.run(program, arguments) for arguments in inputs)
    else:
        await CLIENTS[order.technique](api, **inputs[0])


if __name__ == "__main__":
    asyncio.run(drive(*sys.argv[1:3]))
