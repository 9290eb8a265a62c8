"""Runs whose control is across a socket, where many segments' tokens come as columns: whatever happens around it, each
hears, one by one, what it is alone. Readers are slow, runs are given up in mid-stream, and a runtime worker dies."""

import asyncio
from collections import Counter, defaultdict
from contextlib import closing
from random import Random
from typing import Any

import pytest

from device_rig import device_executor
from disturbed_rig import VOCAB_SIZE
from loopwright.compose.small_engine import open_small_engine
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.clock import SystemClock
from loopwright.core.results import Completion, Progress, Segment
from loopwright.engine.byte_model import byte_model
from loopwright.grammar.pool import GrammarPool
from loopwright.text.byte_tokenizer import byte_tokenizer
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.control_client import ControlClient, RemoteSession
from loopwright.transport.control_server import ControlServer
from loopwright.transport.link import BINDER
from mixed_rig import Life, Turn, lived, lives_alone
from system_rig import everything_came_back, until

NUM_RUNS = 18


class Heard:
    """What came for each call, before anybody took it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: defaultdict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        self.ends: dict[tuple[int, int], Segment] = {}
        deliver = RemoteSession.deliver

        def heard(session: RemoteSession, completion: Completion) -> None:
            call = id(session), completion.call_id
            self.late += [call] if call in self.ends else []
            if isinstance(completion.result, Progress):
                self.parts[call].append(completion.result.tokens)
            elif isinstance(completion.result, Segment):
                self.ends[call] = completion.result
                self.sessions.append(session)
            deliver(session, completion)

        self.late: list[tuple[int, int]] = []  # calls for which something came behind their end
        self.sessions: list[RemoteSession] = []  # so that none of their ids is another's
        monkeypatch.setattr(RemoteSession, "deliver", heard)
        self.told: Counter[bool] = Counter()  # columns that a client took, and that it did not
        take = ControlServer.take_tokens

        def taken(*column: Any) -> bool:
            is_taken = take(*column)
            self.told[is_taken] += 1
            return is_taken

        monkeypatch.setattr(ControlServer, "take_tokens", taken)

    def check(self) -> None:
        """A segment that shows its tokens has shown each of them, once, in order, before its end."""
        assert not self.late
        for call, segment in self.ends.items():
            shown = [token for tokens in self.parts[call] for token in tokens]
            assert shown in ([], list(segment.tokens)), call


def lives() -> list[Life]:
    return [Life(number, is_shown=number % 4 > 0) for number in range(NUM_RUNS)]


async def stormy(control: Controller, weather: Random) -> list[list[Turn]]:
    """The lives of runs on three clients, of which one reads slowly and one dies."""
    with socket_folder() as folder:
        address = socket_address(folder, "control")
        server, is_ready = ControlServer(control, address), asyncio.Event()
        serving = asyncio.create_task(server.serve(is_ready.set))
        await is_ready.wait()
        is_full = server._link.is_full
        server._link.is_full = lambda peer: is_full(peer) or weather.random() < 0.2  # type: ignore[method-assign]
        clients = [await ControlClient.connect(address, name=f"runtime-{number}") for number in range(3)]
        slowing = asyncio.create_task(read_slowly(clients[1], weather))
        living = [
            asyncio.create_task(lived(clients[number % 3], life, Random(number + 1)))
            for number, life in enumerate(lives())
        ]
        await until(lambda: sum(one.done() for one in living) >= NUM_RUNS // 3)
        clients[2]._link.close()  # without a word, as when its process is killed
        for one in living[2::3]:
            one.cancel()
        found = await asyncio.gather(*living, return_exceptions=True)
        await everything_came_back(control)
        for task in (slowing, serving):
            task.cancel()
        await asyncio.gather(slowing, serving, return_exceptions=True)
        for client in clients:
            client.close()
        return [[] if isinstance(one, asyncio.CancelledError) else kept(one) for one in found]


def kept(found: list[Turn] | BaseException) -> list[Turn]:
    if isinstance(found, BaseException):
        raise found
    return found


async def read_slowly(client: ControlClient, weather: Random) -> None:
    transport: Any = client._link._connections[BINDER]._transport
    while True:
        transport.pause_reading()
        await asyncio.sleep(0.001 * weather.randrange(20))
        transport.resume_reading()
        await asyncio.sleep(0.001 * weather.randrange(20))


async def test_each_run_hears_what_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = byte_model(vocab_size=VOCAB_SIZE)
    expected = await lives_alone(device_executor(model, num_blocks=400), lives())
    heard = Heard(monkeypatch)
    executor, config = device_executor(model, num_blocks=40), ControlConfig(steps_ahead="on")
    with closing(GrammarPool(byte_tokenizer(), VOCAB_SIZE)) as grammars:
        async with open_small_engine(VOCAB_SIZE, SystemClock(), config, executor, grammars) as control:
            found = await stormy(control, Random(7))
    for number, (mine, alone) in enumerate(zip(found, expected, strict=True)):
        assert mine == alone[: len(mine)], number
    assert sum(mine == alone for mine, alone in zip(found, expected, strict=True)) > NUM_RUNS // 3
    heard.check()
    assert heard.told[True]
    assert heard.told[False]
