"""A program that watches a segment, and a driver that mixes its looks with the steps of the engine. Never checks.

Used by the tests of watched segments.
"""

from loopwright.core.calls import Generate
from loopwright.core.results import Progress
from loopwright.core.watch_calls import Acknowledge, Veto

from .fake_executor import mix
from .fake_grammars import Places
from .rig import Rig, RigRun
from .step_by_step import Verdict


class Watcher:
    """The program: keeps the tokens that came, and looks at them when the test says so."""

    def __init__(self, run: RigRun, call: Generate, verdict: Verdict) -> None:
        self.run = run
        self.call_id = run.submit(call)
        self.ahead: list[int] = []
        self.max_ahead = 0
        self._verdict = verdict
        self._num_seen = self._num_acknowledged = self._num_vetoes = self._num_parts = 0
        self._num_vetoes_here = 0
        self.has_left = False

    def take(self) -> None:
        self.run.final(self.call_id)
        parts = self.run.parts.get(self.call_id, [])
        for part in parts[self._num_parts :]:
            assert isinstance(part, Progress)
            if part.num_vetoes == self._num_vetoes:
                assert part.first == self._num_seen + len(self.ahead)
                self.ahead += part.tokens
        self._num_parts = len(parts)
        self.max_ahead = max(self.max_ahead, self._num_seen + len(self.ahead) - self._num_acknowledged)

    def look(self, acknowledges: bool) -> None:
        """At the next token, if it is there."""
        self.take()
        if self.has_left or not self.ahead:
            return self.acknowledge()
        verdict = self._verdict(self._num_seen, self.ahead[0], self._num_vetoes_here)
        if verdict == "keep":
            self.ahead.pop(0)
            self._num_seen += 1
            self._num_vetoes_here = 0
            if acknowledges:
                self.acknowledge()
        elif verdict == "leave":
            self.acknowledge()
            self.run.session.interrupt(self.call_id)
            self.has_left = True
        else:
            handle = int(self.call_id)
            done = self.run.now(Veto(handle=handle, index=self._num_seen, ban=verdict == "ban"))
            assert done.error is None, done.error
            self._num_acknowledged = self._num_seen
            self._num_vetoes += 1
            self._num_vetoes_here += 1
            self.ahead = []
        return None

    def acknowledge(self) -> None:
        if not self.has_left and self._num_seen > self._num_acknowledged:
            assert self.run.now(Acknowledge(handle=int(self.call_id), num_tokens=self._num_seen)).error is None
            self._num_acknowledged = self._num_seen


def verdict_of(seed: int, veto_share: int, leaves_at: int | None, places: Places | None) -> Verdict:
    """A verdict that depends on nothing but what is looked at."""

    def verdict(index: int, token: int, num_vetoes: int) -> str:
        if index == leaves_at:
            return "leave"
        if num_vetoes > 2 or mix(seed, index, token, num_vetoes) % 100 >= veto_share:
            return "keep"
        if places is not None and len(places.choices[index]) <= num_vetoes + 1:
            return "veto"
        return "ban" if mix(seed, index, num_vetoes) % 4 else "veto"

    return verdict


def drive(rig: Rig, watcher: Watcher, moves: list[str]) -> None:
    """The moves in turn, then looking and stepping until the segment is over."""
    for move in [*moves, *["complete", "look", "step"] * 400]:
        if move == "begin":
            rig.begin()
        elif move == "complete" and rig.running:
            rig.end()
        elif move == "step":
            rig.step()
        elif move == "look":
            watcher.look(acknowledges=False)
        elif move == "ack":
            watcher.acknowledge()
        rig.controller.check_integrity()
        if watcher.run.final(watcher.call_id) is not None and not rig.running:
            return
    raise AssertionError("the segment never ended")
