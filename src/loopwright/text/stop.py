"""Finds stop strings in a stream of bytes. Never decodes text and never holds bytes back itself: it says how many to.

Called by control, which ends a segment at a match, and by TextStream, which keeps stops away from the reader.

The rule, the same however the bytes are split into tokens: bytes are read one at a time, and the first stop to be
complete wins; of stops complete at the same byte, the longest, which starts first. (The stop that starts first in the
text would be another rule: a stream could not apply it without waiting for bytes that may never come.)
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.core.errors import BadRequest

MAX_STOP_BYTES = 16384
"""All stops of one matcher together: an automaton has a state for each of their bytes."""

_ROOT = 0


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop that is complete. `start` is its first byte, counted from the first byte ever pushed."""

    stop: str
    start: int


class StopMatcher:
    """One stream's progress through the automaton of its stops (Aho and Corasick, CACM 18(6), 1975).

    Time is linear in the bytes pushed, whatever the stops. Raises BadRequest for an empty stop, for one that UTF-8
    cannot write, and for stops of more than MAX_STOP_BYTES together."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _Automaton(stops)
        self._state = _ROOT
        self._num_pushed = 0
        self._match: StopMatch | None = None

    @property
    def num_held(self) -> int:
        """How many of the last bytes pushed may be the start of a stop: the longest suffix that is a proper prefix of
        any stop. 0 after a match."""
        return 0 if self._match else self._automaton.depths[self._state]

    def finish(self) -> StopMatch | None:
        """Nothing that was held back can be a whole stop."""
        return self._match

    def push(self, token_bytes: bytes) -> StopMatch | None:
        """Reads the next bytes and returns the match, once there is one. What comes after a match is not read."""
        if self._match:
            return self._match
        automaton = self._automaton
        next_states, fallbacks, matched = automaton.next_states, automaton.fallbacks, automaton.matched
        state, offset, end = self._state, 0, len(token_bytes)
        while offset < end:
            if state == _ROOT:
                found = automaton.find_start(token_bytes, offset)
                if found is None:
                    break
                offset = found.start()
            byte = token_bytes[offset]
            offset += 1
            while (following := next_states[state].get(byte)) is None and state != _ROOT:
                state = fallbacks[state]
            state = _ROOT if following is None else following
            if (stop := matched[state]) is not None:
                start = self._num_pushed + offset - len(stop.encode())
                self._match = StopMatch(stop, start)
                return self._match
        self._state = state
        self._num_pushed += len(token_bytes)
        return None


class _Automaton:
    """Every proper prefix of every stop is a state; the state reached is the longest prefix that the text ends with."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.next_states: list[dict[int, int]] = [{}]
        self.depths = [0]  # bytes of the prefix that a state stands for
        self.matched: list[str | None] = [None]  # the longest stop that the state's prefix ends with
        for stop, stop_bytes in zip(stops, _encode(stops), strict=True):
            self._add(stop, stop_bytes)
        starts = b"".join(map(re.escape, {one.to_bytes() for one in self.next_states[_ROOT]}))
        self.find_start = re.compile(
            b"[" + starts + b"]" if starts else b"(?!)"
        ).search  # what no stop begins with is skipped
        self.fallbacks = self._link()  # the longest proper suffix of a state's prefix that is a state

    def _add(self, stop: str, stop_bytes: bytes) -> None:
        state = _ROOT
        for byte in stop_bytes:
            if byte not in self.next_states[state]:
                self.next_states[state][byte] = len(self.next_states)
                self.next_states.append({})
                self.depths.append(self.depths[state] + 1)
                self.matched.append(None)
            state = self.next_states[state][byte]
        self.matched[state] = stop

    def _link(self) -> list[int]:
        fallbacks = [_ROOT] * len(self.next_states)
        waiting = deque(self.next_states[_ROOT].values())
        while waiting:  # breadth first: the fallback of a state is shorter, so it is complete
            state = waiting.popleft()
            if self.matched[state] is None:
                self.matched[state] = self.matched[fallbacks[state]]
            for byte, child in self.next_states[state].items():
                shorter = fallbacks[state]
                while byte not in self.next_states[shorter] and shorter != _ROOT:
                    shorter = fallbacks[shorter]
                fallbacks[child] = self.next_states[shorter].get(byte, _ROOT)
                waiting.append(child)
        return fallbacks


def _encode(stops: Sequence[str]) -> list[bytes]:
    try:
        encoded = [stop.encode() for stop in stops]
    except UnicodeEncodeError as error:
        raise BadRequest(f"a stop string is not valid Unicode: {error.reason}", field="stop") from error
    if not all(encoded):
        raise BadRequest(f"stop[{encoded.index(b'')}] is empty", field="stop", hint="leave it out")
    num_bytes = sum(map(len, encoded))
    if num_bytes > MAX_STOP_BYTES:
        raise BadRequest(
            f"the stop strings have {num_bytes} bytes together; the limit is {MAX_STOP_BYTES}", field="stop"
        )
    return encoded
