"""What a step found for many sessions that one reader has, told at once. Never says what a token means.

Control gives it to a reader of many sessions, as the server of a model worker is, in place of a Progress or a
Completion for each.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from loopwright.core.calls import LogprobKind
from loopwright.core.ids import CallId
from loopwright.core.results import Distribution


class Whose(NamedTuple):
    """Entry i of each is of row i: what the reader calls the session, the segment, and the kind of its
    log-probabilities."""

    names: Sequence[int]
    call_ids: Sequence[CallId]
    kinds: Sequence[LogprobKind]


class ToldLists(NamedTuple):
    """What calls complete with that a step answered, each with one distribution, as columns. `names` are what the
    reader calls the sessions. If control measures, the calls' times are columns, too; `ended_s` is the step's."""

    names: Sequence[int]
    call_ids: Sequence[CallId]
    kv_lens: Sequence[int]
    nums_pages: Sequence[int]
    lists: Sequence[Distribution]
    issued_s: Sequence[float]
    started_s: Sequence[float]
    ended_s: float


class TokenReader(Protocol):
    """Reads many sessions."""

    def take_tokens(
        self, whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float], left_out: Sequence[int]
    ) -> bool:
        """Takes the next token of each of these segments, but of those at the places `left_out`. What their sessions
        had before was told before. `whose` is the very same from step to step as long as the rows are. False: nothing
        was taken, and each session gets a Progress."""
        ...

    def take_lists(self, told: ToldLists) -> bool:
        """Takes what these calls completed with. Their sessions had nothing to be told before. False: nothing was
        taken, and each session gets a Completion."""
        ...


@runtime_checkable
class ReadTogether(Protocol):
    """A session whose reader may have tokens of several at once."""

    def when_tokens(self, reader: TokenReader, name: int) -> None:
        """From now on `reader` gets what plain segments show of themselves, with what others have; it calls this
        session by `name`. All else is told as before."""
        ...
