"""Random requests, each alone and then all at once where there is too little of everything: the same answers.

`make apart` runs it with the real default model in the deterministic class, over HTTP: alone on an engine with room, at
once on one with a few pages and rows, whose steps are ahead, beside clients that go. What differs is printed whole.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from apart_requests import Asked, request
from http_rig import Served, served

from loopwright.compose.model_parts import load_tokenizer, model_text
from loopwright.control.config import ControlConfig
from loopwright.engine.executor import create_executor
from loopwright.weights.store import no_progress, resolve
from system_rig import make_info, system_over

NUM_BLOCKS = 48
ALONE = ControlConfig(prefix_cache=False)
AT_ONCE = ControlConfig(max_batch_rows=10, max_batch_tokens=96, steps_ahead="on")
OWN = {
    "id", "created", "created_at", "completed_at", "run", "time_s", "call_id", "item_id", "response_id",
    "sequence_number", "system_fingerprint", "usage", "ran",
}  # fmt: skip
"""Names of what an answer has of its own: when it was, and what it found computed."""


async def answer(http: httpx.AsyncClient, asked: Asked) -> Any:
    """The answer without what is its own; of a stream what it joins to."""
    path, body = asked
    if not body.get("stream"):
        return told((await http.post(path, json=body)).json())
    async with http.stream("POST", path, json=body) as reply:
        lines = [line[6:] async for line in reply.aiter_lines() if line.startswith("data: ")]
    return joined([told(json.loads(line)) for line in lines if line != "[DONE]"])


def told(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items() if name not in OWN}
    return [told(one) for one in value] if isinstance(value, list) else value


def joined(events: list[Any]) -> dict[str, Any]:
    """What stands at each place of all events, by the type of event and the index of what it is of: texts in one, all
    else in order, but for what every chunk repeats."""
    found: dict[str, list[Any]] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                if name != "index":
                    walk(one, f"{place}/{value.get('index', '')}{name}")
        elif isinstance(value, list):
            for one in value:
                walk(one, f"{place}[]")
        elif value is not None:
            found.setdefault(place, []).append(value)

    for event in events:
        walk(event, str(event.get("type", "")))
    is_text = ("content", "arguments", "text", "delta", "partial_json")
    return {
        place: "".join(values) if place.endswith(is_text) else values
        for place, values in found.items()
        if not place.endswith(("model", "object", "logprob_kind", "type", "ping"))
    }


async def go(http: httpx.AsyncClient, asked: Asked, after_s: float) -> None:
    """A client that leaves."""
    path, body = asked
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s), http.stream("POST", path, json=body) as reply:
            async for _ in reply.aiter_raw():
                pass


async def round_of(random: Random, alone: Served, at_once: Served, num_requests: int) -> int:
    """How many answers differ."""
    asked = [request(random, alone.model) for _ in range(num_requests)]
    leaving = [(request(random, alone.model), 2 * random.random()) for _ in range(num_requests // 4)]
    expected = [await answer(alone.http, one) for one in asked]
    found = await asyncio.gather(
        *(answer(at_once.http, one) for one in asked), *(go(at_once.http, one, after_s) for one, after_s in leaving)
    )
    num_wrong = 0
    for one, mine, theirs in zip(asked, found, expected, strict=False):
        if mine != theirs:
            num_wrong += 1
            sys.stdout.write(f"DIFFERENT: {json.dumps(one)}\n  alone:   {theirs}\n  at once: {mine}\n")
    return num_wrong


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Served, Served]]:
    """The server where each is alone, and the one where all are at once."""
    files = resolve("default", no_progress)
    tokenizer = load_tokenizer(files)
    servers: list[Served] = []
    async with AsyncExitStack() as stack:
        for num_blocks, control in ((2048, ALONE), (NUM_BLOCKS, AT_ONCE)):
            executor = create_executor(files.path, num_blocks=num_blocks, num_slots=64, num_threads=1, dtype="bfloat16")
            stack.callback(executor.close)
            text = model_text(make_info(executor, tokenizer, files.name, has_template=True), tokenizer)
            system = await stack.enter_async_context(system_over(executor, text, control=control))
            servers.append(await stack.enter_async_context(served(system)))
        yield servers[0], servers[1]


async def run(minutes: float, seed: int, num_requests: int) -> int:
    num_rounds = num_wrong = 0
    async with both() as (alone, at_once):
        ends_s = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_s:
            num_wrong += await round_of(Random(seed + num_rounds), alone, at_once, num_requests)
            num_rounds += 1
            sys.stdout.write(f"{num_rounds * num_requests} requests, {num_wrong} different\n")
            sys.stdout.flush()
    return num_wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=30, help="at once")
    arguments = parser.parse_args()
    return 1 if asyncio.run(run(arguments.minutes, arguments.seed, arguments.requests)) else 0


if __name__ == "__main__":
    sys.exit(main())
