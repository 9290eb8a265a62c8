"""The processes that share a model with this one: starts them, sends them each step, and watches that they live.

When one dies or a step takes too long, the group is over: all its processes end, whatever waits for a collective is
woken, and every step from then on fails with what happened. Nothing is started again here. Owned by an executor.
"""

import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from loopwright.core.batch import Batch
from loopwright.core.errors import LoopwrightError, Unavailable, from_info
from loopwright.engine.ranks.collectives import Apart, Collectives
from loopwright.engine.ranks.messages import (
    Begin,
    Failed,
    FromRank,
    Loaded,
    RankSettings,
    Room,
    Serving,
    StepWriter,
    Stop,
    ToRank,
    decode_from_rank,
    encode,
)

TIMEOUT_S = 600.0
"""For one step, and for the ranks to meet: a first prompt may compile kernels. Who dies is noticed at once."""
_MEMBER = "loopwright.engine.rank_member"
_STOP_S = 10.0
_NOTICE_S = 2.0  # a process that dies is gone for its peers a little before it is for its parent
_CPU = torch.device("cpu")

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)


class RankGroup:
    """Ranks 1 … num_ranks - 1, as rank 0 sees them. `lost` gets the error if the group is over before it is closed."""

    def __init__(self, settings: RankSettings) -> None:
        """Starts them; `settings` are those of rank 0, without a `meeting`. Raises Unavailable if they cannot be."""
        self.num_ranks = settings.num_ranks
        self.lost: Future[LoopwrightError] = Future()
        self._timeout_s = settings.timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="loopwright-ranks-")
        self._meeting = Path(self._folder.name) / "meeting"
        self._collectives: Collectives | None = None
        self._writer = StepWriter()
        self._num_shared = 0
        self._began_s: list[float] = []  # when each step began that runs now
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._aborting: threading.Thread | None = None
        self._members: list[_Member] = []
        try:
            for rank in range(1, settings.num_ranks):
                own = msgspec.structs.replace(settings, rank=rank, meeting=str(self._meeting))
                self._members.append(_Member(own, self._lose))
        except OSError as error:
            self.close()
            raise Unavailable(f"a process for rank {len(self._members) + 1} cannot be started: {error}") from error
        threading.Thread(target=self._watch_steps, name="loopwright-ranks-watch", daemon=True).start()

    @property
    def collectives(self) -> Collectives:
        assert self._collectives is not None, "the group has met"
        return self._collectives

    def meet(self, room: Room, device: torch.device = _CPU) -> Room:
        """Waits until all have their weights, and connects them. Returns for what all have room, `room` being this
        rank's, on `device`. Raises what a rank failed with."""
        for member in self._members:
            loaded = self._heard(member)
            assert isinstance(loaded, Loaded), loaded
            room = room.of_both(loaded.room)
        self._send(Begin(room.num_blocks))
        self._collectives = self._connected(device)
        return room

    def await_serving(self) -> None:
        """Waits until all wait for steps. Raises what a rank failed with."""
        for member in self._members:
            serving = self._heard(member)
            assert isinstance(serving, Serving), serving

    def share(self, batch: Batch) -> None:
        """Has all ranks do this batch. Called in the step, when nothing can be wrong with it as a whole any more."""
        self._num_shared += 1
        self._send(self._writer.step(batch))

    def run(self, step: Callable[[], ResultT]) -> ResultT:
        """Runs a step, on the one thread that does. Raises Unavailable, always the same, once the group is over; a
        fault behind `share` ends it, since the other ranks may be anywhere."""
        num_shared = self._num_shared
        try:
            return self.read(step)
        except Exception as error:
            if self._num_shared == num_shared or self.lost.done():
                raise
            raise self._loss(f"a step failed between the {self.num_ranks} ranks of the model: {error}") from error

    def read(self, result: Callable[[], ResultT]) -> ResultT:
        """What waits for a step. Raises as `run` does when the group is over."""
        began_s = time.monotonic()
        self._check()
        self._began_s.append(began_s)
        try:
            return result()
        finally:
            self._began_s.remove(began_s)
            self._check()  # what was computed without the others means nothing, and what went wrong is this

    def close(self) -> None:
        """Ends all processes, and waits for them. Graphs with collectives should be gone by then. May be called
        twice."""
        self._is_closing.set()
        for member in self._members:
            member.send(encode(Stop()))
            member.close_input()
        for member in self._members:
            member.wait(_STOP_S)
        self._abort()
        if self._aborting is not None:
            self._aborting.join(_STOP_S)
        self._folder.cleanup()

    def _connected(self, device: torch.device) -> Collectives:
        """On a thread that is left behind when a rank dies meanwhile: it may wait for that one."""
        met: Future[Collectives] = Future()

        def connect() -> None:
            try:
                met.set_result(Collectives(self._meeting, 0, self.num_ranks, device, self._timeout_s))
            except Exception as error:  # noqa: BLE001 (the edge of the thread)
                met.set_exception(error)

        threading.Thread(target=connect, name="loopwright-ranks-meet", daemon=True).start()
        either: list[Future[Any]] = [met, self.lost]
        wait(either, return_when=FIRST_COMPLETED)
        self._check()
        try:
            return met.result()
        except Apart as error:
            raise self._loss(f"the {self.num_ranks} ranks of the model did not meet: {error}") from error

    def _check(self) -> None:
        if self.lost.done():
            raise self.lost.result()

    def _heard(self, member: "_Member") -> FromRank:
        message = member.heard()
        if message is None:  # it, or another whose fault ended it
            failures = [one for other in self._members for one in iter(other.heard, None) if isinstance(one, Failed)]
            if not failures:
                raise self.lost.result()
            message = failures[0]
        if isinstance(message, Failed):
            raise from_info(message.error)
        return message

    def _send(self, message: ToRank) -> None:
        payload = encode(message)
        for member in self._members:
            member.send(payload)

    def _loss(self, reason: str) -> LoopwrightError:
        """Why the group is over, for which there is `reason`, and a better one if a process has ended."""
        with suppress(TimeoutError):
            return self.lost.result(_NOTICE_S)
        self._lose(Unavailable(reason))
        return self.lost.result()

    def _lose(self, error: LoopwrightError) -> None:
        """On any thread. The first error counts."""
        with self._lock:
            if self.lost.done() or self._is_closing.is_set():
                return
            self.lost.set_result(error)
        logger.error("%s", error)
        for member in self._members:
            member.kill()
        self._abort()

    def _abort(self) -> None:
        """Wakes who waits for a collective. On a thread of its own: NCCL goes on with it until the last graph is gone
        that has its kernels, and those are the runner's."""
        with self._lock:
            if self._collectives is None or self._aborting is not None:
                return
            self._aborting = threading.Thread(
                target=_abort, args=(self._collectives,), name="loopwright-ranks-abort", daemon=True
            )
            self._aborting.start()

    def _watch_steps(self) -> None:
        """A step that takes too long waits for a rank that lives and does nothing."""
        while not self._is_closing.wait(self._timeout_s / 10) and not self.lost.done():
            oldest_s = min(self._began_s, default=None)
            if oldest_s is not None and time.monotonic() - oldest_s > self._timeout_s:
                self._lose(Unavailable(f"a step of the {self.num_ranks} ranks took more than {self._timeout_s:g} s"))


def _abort(collectives: Collectives) -> None:
    with suppress(RuntimeError):
        collectives.abort()


class _Member:
    """The process of one rank: frames go in, lines come out while it begins. A thread waits for its end."""

    def __init__(self, settings: RankSettings, lose: Callable[[LoopwrightError], None]) -> None:
        self.rank = settings.rank
        self._name = f"rank {settings.rank} of {settings.num_ranks}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MEMBER, msgspec.json.encode(settings).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the first rank, which then ends the others
        )
        self._lose = lose
        self._watch = threading.Thread(target=self._wait_for_end, name=f"loopwright-rank-{self.rank}", daemon=True)
        self._watch.start()

    def heard(self) -> FromRank | None:
        """The next thing it says; None if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._watch.join()
            return None
        return decode_from_rank(line)

    def send(self, payload: bytes) -> None:
        """To a process that is gone, it goes nowhere: who watches it has noticed."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(len(payload).to_bytes(4, "little") + payload)
            self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> None:
        """Until it has ended; kills it when that takes too long."""
        self._watch.join(timeout_s)
        self._process.kill()
        self._watch.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _wait_for_end(self) -> None:
        status = self._process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._lose(Unavailable(f"the process of {self._name} of the model {how}", hint="the server log may say why"))
