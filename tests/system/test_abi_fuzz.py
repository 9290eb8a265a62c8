"""The program's boundary under malformed messages, from both sides. Every message to the host is answered as its call
or with an error of the program's own, and a neighbour's answer stays what it is alone; no event that a host could send
breaks the program's port. `make fuzz` does it with 100,000 messages each way."""

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from abi_messages import is_call, messages
from loopwright.compose.config import RuntimeConfig
from loopwright.control.config import ControlConfig
from loopwright.core.errors import error_types
from loopwright.sdk.errors import InternalError, LoopwrightError
from loopwright.sdk.port import Port
from system_rig import byte_system, in_loop

NUM_MESSAGES = int(os.environ.get("LOOPWRIGHT_TEST_FUZZ", "3000"))
MESSAGES_PER_RUN = 500
OURS = {"InternalError", "LoopwrightError"}  # faults of the host, which no message may bring about

SENDS_ALL = """
import asyncio
from abi_messages import messages
from loopwright.sdk.port import current_port

async def main(first: int, num: int):
    port = current_port()
    await port.issue({"op": "create_queue", "queue": 1})
    waiting = {}
    for number, text in enumerate(messages(first, num)):
        waiting[number] = text, asyncio.get_running_loop().create_future()
        port._futures[port._submit(text)] = waiting[number][1]
        if number % 20 == 0:
            await asyncio.sleep(0)
    await port.issue({"op": "describe"})  # what is answered at once is answered before this
    answers = []
    for text, future in waiting.values():
        if future.done():
            error = future.exception()
            answers.append([ascii(text[:300]), "" if error is None else type(error).__name__, ascii(error)])
    return answers
"""


def test_no_message_of_a_program_is_a_fault_of_its_host_or_harms_a_neighbour() -> None:
    async def scenario() -> None:
        runtime, control = RuntimeConfig(allows_native=True, needs_wasm=False), ControlConfig(prefix_cache=False)
        async with byte_system(runtime=runtime, control=control) as system:
            honest: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 3}
            alone = await system.chat("Count.", **honest)
            kinds: Counter[str] = Counter()
            for seed in range(NUM_MESSAGES // MESSAGES_PER_RUN):
                neighbour = asyncio.create_task(system.chat("Count.", **honest))
                outcome = await system.run(SENDS_ALL, first=seed, num=MESSAGES_PER_RUN)
                assert (await neighbour).result == alone.result
                for text, kind, message in outcome.result:
                    assert kind not in OURS, (seed, text, message)
                    kinds[kind] += 1
            assert kinds[""] > NUM_MESSAGES // 20, kinds  # some were calls, and were done
            assert kinds["BadRequest"] > NUM_MESSAGES // 10, kinds
            assert kinds.keys() <= {kind.__name__ for kind in error_types()} | {""}

    in_loop(scenario)


def test_the_messages_are_what_they_claim_to_be() -> None:
    texts = list(messages(1, 1000))
    assert texts == list(messages(1, 1000)) != list(messages(2, 1000))
    assert 500 < sum(map(is_call, texts)) < 990


def test_no_events_of_a_host_break_the_port_of_a_program() -> None:
    async def scenario() -> None:
        draw = random.Random(1)
        for _ in range(NUM_MESSAGES // 100):
            port = Port(Handles().submit, lambda stream, line: None)
            futures = [port.issue({"op": "nothing"}) for _ in range(5)]
            streams = [port.stream({"op": "nothing"}) for _ in range(5)]
            for _ in range(100):
                with suppress(InternalError):  # and nothing else
                    port.deliver(events(draw))
            last = port.issue({"op": "nothing"})
            port.deliver('[[11, "ok", "still here"]]')
            assert last.result() == "still here"
            port.close()
            for future in futures:
                if not future.cancelled() and future.done() and (error := future.exception()) is not None:
                    assert isinstance(error, LoopwrightError), error
            for stream in streams:
                while await stream.next_part() is not None:
                    pass
            await asyncio.sleep(0)
            assert port.num_open == 0

    in_loop(scenario)


class Handles:
    """A host that only counts."""

    def __init__(self) -> None:
        self.num = 0

    def submit(self, op: str) -> int:
        self.num += 1
        return self.num


def events(draw: random.Random) -> str:
    """A list of events as a broken host would send it."""
    payloads = (None, 1, "text", [], {}, {"type": "BadRequest", "message": "m"}, {"type": 1}, {"message": []}, [[]])
    pieces: list[Any] = [
        [draw.choice((*range(12), -1, "1", None, [], 2**70)), draw.choice(("ok", "error", "part", "", 1, None)),
         draw.choice(payloads)]
        for _ in range(draw.randrange(4))
    ]  # fmt: skip
    if draw.random() < 0.3:
        pieces.append(draw.choice((None, [], [1], [1, "ok"], {}, "abc", [1, "ok", 2, 3])))
    text = json.dumps(draw.choice((pieces, pieces, pieces, {}, None, 1, "x")))
    return text[: draw.randrange(len(text) + 1)] if draw.random() < 0.1 else text
