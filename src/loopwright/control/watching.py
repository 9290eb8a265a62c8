"""Owns a watched segment: how far it may run ahead of the program that watches it, and how it goes back.

Never sends anything, and never frees a page: watched_calls does. Made when a Generate with `watch` is issued.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loopwright.control.segments import Outlook, SegmentFeed
from loopwright.core.batch import RowResult
from loopwright.core.calls import Generate
from loopwright.core.errors import BadRequest, ErrorInfo, LoopwrightError
from loopwright.core.results import Progress
from loopwright.core.watch_calls import Acknowledge, Veto, Watch


@dataclass(frozen=True, slots=True)
class _Rollback:
    """A veto that waits for the row that runs."""

    index: int
    bans: bool


class WatchedFeed(SegmentFeed):
    """A segment that waits when its window is full, and keeps what it was at every token that may still be vetoed.

    What it did ahead of the program must not show: a token, an end or an error counts only once all before it are
    acknowledged. Going back to token i takes the tokens behind it, their KV, what penalties count, the grammar and stop
    strings, and the sampler's state together; randomness needs nothing, for it is keyed by position. The token before
    the vetoed one runs again: its place in the KV cache gets what it has."""

    __slots__ = (
        "_banned",
        "_error",
        "_is_ended",
        "_is_stale",
        "_num_acknowledged",
        "_num_vetoes",
        "_rollback",
        "_vocab_size",
        "_window",
    )

    def __init__(self, call: Generate, watch: Watch, token_bytes: Sequence[bytes], max_context: int) -> None:
        super().__init__(call, token_bytes, max_context)
        self._window, self._vocab_size = watch.window, len(token_bytes)
        self._num_acknowledged = self._num_vetoes = 0
        self._rollback: _Rollback | None = None
        self._is_ended = False  # by a reason of its own
        self._is_stale = False  # the row whose result comes next goes on from what does not stand
        self._error: ErrorInfo | None = None  # what it fails with, once all is acknowledged
        self._banned: dict[int, set[int]] = {}  # tokens that were vetoed, by index
        self.is_shown = True

    @property
    def is_paused(self) -> bool:
        is_full = self.room(len(self.tokens)) <= 0
        return self.has_ended_itself or (is_full and self._rollback is None)

    def room(self, num_tokens: int) -> int:
        """How many more its program lets it have when it has so many."""
        return self._window - (num_tokens - self._num_acknowledged)

    @property
    def is_settled(self) -> bool:
        """Whether it has ended and the program has seen all of it."""
        return self.has_ended_itself and self._rollback is None and self._num_acknowledged == len(self.tokens)

    @property
    def has_shrunk(self) -> bool:
        """Whether the row that ran last left it with less than it would have had if its token went on."""
        return not self.sampled or self.has_ended_itself

    @property
    def error(self) -> ErrorInfo | None:
        return self._error

    def acknowledge(self, call: Acknowledge) -> None:
        """The program has seen so many tokens. Raises BadRequest for more than there are."""
        if call.num_tokens > (num_tokens := self._num_standing):
            raise BadRequest(f"num_tokens: {call.num_tokens} of {num_tokens} tokens", field="num_tokens")
        self._num_acknowledged = max(self._num_acknowledged, call.num_tokens)
        while len(self.carried) > self._num_states:
            self.carried.popleft()  # what stood before a token that nobody vetoes any more

    @property
    def has_ended_itself(self) -> bool:
        """Whether it runs no further than it has, unless its program has it go back."""
        return self._is_ended or self._error is not None

    def check_veto(self, call: Veto) -> None:
        """Raises BadRequest for a token that is not there, or was acknowledged."""
        if not self._num_acknowledged <= call.index < self._num_standing:
            raise BadRequest(
                f"index: token {call.index} cannot be vetoed: {self._num_acknowledged} of {self._num_standing} tokens "
                f"are acknowledged",
                field="index",
            )

    def veto(self, call: Veto, *, is_running: bool) -> None:
        """Goes back to before a token, which was checked; when the row that runs is over, if there is one."""
        self.acknowledge(Acknowledge(handle=call.handle, num_tokens=call.index))
        self._rollback = _Rollback(call.index, call.ban)
        if not is_running:
            self.go_back()

    def advance(self, result: RowResult) -> bool:
        """As every segment; but it is over only when it was interrupted, and then keeps what was acknowledged."""
        if self._is_stale or self._rollback is not None:
            self.sampled = ()
            self._drop_row_ahead()
            self.go_back()
        elif result.error is not None:
            self._error, self.sampled = result.error, ()
            self._drop_row_ahead()
        else:
            try:
                self._is_ended = super().advance(result) and not self.is_interrupted
            except LoopwrightError as error:
                self._error = error.info()
            if self._is_ended or self._error is not None:
                self._drop_row_ahead()
            self._merge_states()
        return self.is_interrupted

    def leave_group(self) -> None:
        """A steady one that may have rows under way which do not count: what these are put into is not its own."""
        self.tokens, self.logprobs, self.tops = list(self.tokens), list(self.logprobs), list(self.tops)
        self.carried = deque(self.carried)
        if self._call.sampling.has_penalties:
            self._generated = self.tokens

    def end_here(self) -> None:
        """A steady one has ended by a reason of its own."""
        self._is_ended = True
        self._settle()

    def end_unsure(self) -> None:
        super().end_unsure()
        self._merge_states()

    @property
    def outlook(self) -> Outlook:
        if self._is_stale or self._rollback is not None or self.has_ended_itself:
            return "unknown"
        outlook = super().outlook
        is_full = self.room(len(self.tokens) + 1) <= 0
        return "paused" if outlook in ("steady", "row") and is_full else outlook

    @property
    def first_position_left(self) -> int:
        """A veto has the token before the first that is not acknowledged run again."""
        return min(super().first_position_left, self._call.positions[-1] + self._num_acknowledged)

    @property
    def num_final(self) -> int:
        """All but the last of the prompt, which runs again after a veto of the first token, may be taken back."""
        return min(self.kv_len, self.start_kv_len + self._num_prompt - 1)

    def fail(self, info: ErrorInfo) -> None:
        """It cannot run on."""
        self._error, self.sampled = info, ()
        while len(self.carried) > self._num_states:
            self.carried.pop()
        self._settle()

    def cut_to_seen(self) -> None:
        """Drops what the program has not acknowledged; for the end of an interrupted segment."""
        self._rollback = None
        if self.tokens or self._num_vetoes:  # else not even the prompt may be through
            self._keep_first(self._num_acknowledged)

    def progress(self) -> Progress | None:
        return self._progress(len(self.sampled)) if self.sampled else None

    def last_token(self) -> Progress:
        return self._progress(1)

    def _progress(self, num_tokens: int) -> Progress:
        first = len(self.tokens) - num_tokens
        return Progress(
            tuple(self.tokens[first:]),
            tuple(self.logprobs[first:]),
            self.top_logprobs(first),
            logprob_kind=self._call.sampling.logprobs,
            first=first,
            num_vetoes=self._num_vetoes,
            num_allowed=self.num_allowed,
        )

    @property
    def _num_standing(self) -> int:
        """Tokens that no veto has taken back."""
        return len(self.tokens) if self._rollback is None else self._rollback.index

    def _drop_row_ahead(self) -> None:
        """The result after this one does not count either."""
        self._is_stale, self._has_row_ahead = self._has_row_ahead, False
        self.give_up_ahead()

    def go_back(self) -> bool:
        """Does what a veto waits to have done, when nothing of the segment runs. Whether there was one."""
        if self._rollback is None:
            return False
        index, bans = self._rollback.index, self._rollback.bans
        self._rollback = None
        self._num_vetoes += 1
        self._banned = {place: tokens for place, tokens in self._banned.items() if place <= index}
        if bans:
            self._banned.setdefault(index, set()).add(self.tokens[index])
        self._keep_first(index)
        try:
            self._restore_grammar()
            last = (self.tokens or self._call.tokens)[-1]
            self._kv_len = self.start_kv_len + self._num_prompt + index - 1  # without the last, which runs again
            self._continue((last,), (self._call.positions[-1] + index,))
        except LoopwrightError as error:
            self._error = error.info()
        return True

    def _keep_first(self, num_tokens: int) -> None:
        """Leaves only the first tokens, and KV for all of them but the last."""
        for _ in range(len(self.tokens) - num_tokens if self.carried else 0):
            self.carried.pop()
        del self.tokens[num_tokens:], self.logprobs[num_tokens:], self.tops[num_tokens:]
        if self._stops is not None:
            self._stops.go_back(self.tokens)
        self._kv_len = self.start_kv_len + self._num_prompt + max(num_tokens - 1, 0)
        self._num_run = self.num_inputs
        self.is_steady = False
        self._is_ended, self._error, self._reason = False, None, "interrupted"
        self.sampled = ()

    def _restore_grammar(self) -> None:
        """Brings it to where the tokens are."""
        if self._grammar is not None:
            self._state, self._chain = self._grammar.start(), None
            for token in self.tokens:
                self._state.accept(token)

    def _continue(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        banned = self._banned.get(len(self.tokens), set())
        self._sampling = self._call.sampling
        self._may_force = not banned
        if self._state is None:
            self._allowed_bits = None
        super()._continue(tokens, positions)
        self.is_steady = self.is_steady and bool(self.tokens) and not banned
        if banned:
            self._ban(banned)

    @property
    def _num_states(self) -> int:
        """What its sampler carries before each token that may be vetoed, and behind the last."""
        return len(self.tokens) - self._num_acknowledged + 1

    def _merge_states(self) -> None:
        """If no token was taken, what its sampler carries now is what it carries before the same one."""
        if len(self.carried) > self._num_states:
            last = self.carried.pop()
            self.carried[-1] = last

    def _settle(self) -> None:
        """It runs nothing more, unless a veto has it go back."""
        if self.is_steady:
            self._kv_len = self.kv_len
            self.is_steady, self._num_run = False, self.num_inputs

    def _ban(self, banned: set[int]) -> None:
        """Leaves out tokens of the place after the last input."""
        num_tokens, allowed = self._vocab_size, self._call.sampling.allowed
        bits = (1 << num_tokens) - 1
        if self._allowed_bits is not None:
            bits = int.from_bytes(self._allowed_bits, "little")
        elif allowed is not None:
            bits = sum(1 << token for token in set(allowed))
        bits &= ~sum(1 << token for token in banned)
        if not bits:
            raise BadRequest(
                f"veto: all that may stand at token {len(self.tokens)} was vetoed, {len(banned)} tokens", field="veto"
            )
        self._allowed_bits = bits.to_bytes(-(-num_tokens // 8), "little")
        self._sampling = msgspec.structs.replace(self._call.sampling, allowed=None)  # it is in the bits

    def _num_forcible(self, position: int) -> int:
        room = self._window - (len(self.tokens) - self._num_acknowledged)
        return max(0, min(super()._num_forcible(position), room - 1))
