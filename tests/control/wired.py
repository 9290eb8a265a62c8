"""Runs of a rig as a runtime worker has them: the real client and server of control, without the socket between."""

import asyncio

import pytest

from loopwright.core.calls import CreateQueue, QueueCall
from loopwright.core.control import ControlLimits
from loopwright.core.errors import LoopwrightError
from loopwright.core.ids import CallId, QueueName, RunId
from loopwright.core.results import Completion, Progress
from loopwright.transport import control_client
from loopwright.transport import control_messages as messages
from loopwright.transport.control_client import ControlClient
from loopwright.transport.control_server import ControlServer
from loopwright.transport.link import BINDER, Peer

from .rig import Rig


class Wires:
    """What is sent arrives at once. `may_take`: whether the clients take what they are sent."""

    def __init__(self, rig: Rig, patch: pytest.MonkeyPatch) -> None:
        self.server = ControlServer(rig.controller, "nowhere")
        self.server._link = self  # type: ignore[assignment]
        self.may_take = True
        self.sent: list[object] = []  # messages, both ways
        self._clients: dict[Peer, ControlClient] = {}
        self._patch = patch

    def connect(self) -> ControlClient:
        """On a running loop."""
        peer = Peer(b"client-%d" % len(self._clients))
        self._patch.setattr(control_client, "Link", _ClientEnd(self, peer))
        client = self._clients[peer] = ControlClient("nowhere")
        client.send(messages.Hello(peer.decode()))
        return client

    def is_full(self, peer: Peer) -> bool:
        return not self.may_take

    async def drained(self, peer: Peer) -> None:
        while not self.may_take:  # noqa: ASYNC110 (a test says when)
            await asyncio.sleep(0)

    def send(self, peer: Peer, payload: bytes) -> None:
        self.sent.append(messages.decode_from_control(payload))
        self._clients[peer]._take(BINDER, payload)

    send_at_once = send


class _ClientEnd:
    is_closed = False

    def __init__(self, wires: Wires, peer: Peer) -> None:
        self._wires, self._peer = wires, peer

    def connect(self, *_: object) -> "_ClientEnd":
        return self

    def is_full(self, peer: Peer) -> bool:
        return False

    def send(self, peer: Peer, payload: bytes) -> None:
        self._wires.sent.append(messages.decode_to_control(payload))
        self._wires.server._take(self._peer, payload)

    send_at_once = send


class WiredRun:
    """As `rig.RigRun`."""

    def __init__(self, client: ControlClient, name: str, queues: tuple[int, ...]) -> None:
        self.session = client.open(RunId(name), ControlLimits(), program=name)
        self.finals: dict[int, Completion] = {}  # in order of completion
        self._num_calls = 0
        for queue in queues:
            self.submit(CreateQueue(queue=QueueName(queue)))

    def submit(self, call: QueueCall) -> CallId:
        self._num_calls += 1
        self.session.submit(CallId(self._num_calls), call)
        return CallId(self._num_calls)

    def final(self, call_id: CallId) -> Completion | None:
        try:
            for one in self.session.take():
                if not isinstance(one.result, Progress):
                    assert one.call_id not in self.finals, "a call completed twice"
                    self.finals[one.call_id] = one
        except LoopwrightError:
            pass
        return self.finals.get(call_id)
