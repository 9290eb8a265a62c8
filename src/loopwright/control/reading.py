"""Who reads the tokens of many segments of the decode group, and which of a step's are whose. Never keeps a token.

Made by the decode group when its rows change; told by `decode_calls` after each step, at a cost that hardly grows with
the rows.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias, cast

from loopwright.control.ordering import OpenCall
from loopwright.core.batch import DecodeResult
from loopwright.core.calls import Generate
from loopwright.core.told_tokens import TokenReader, Whose

_Pick: TypeAlias = Callable[[Sequence[int] | Sequence[float]], Sequence[int] | Sequence[float]]


class Reading:
    """One reader, and its rows of the group."""

    __slots__ = ("_pick", "calls", "reader", "whose")

    def __init__(self, reader: TokenReader, calls: Sequence[OpenCall], whose: Whose, places: Sequence[int]) -> None:
        """`places` are those of the calls in the group."""
        self.reader, self.calls, self.whose = reader, calls, whose
        self._pick = _picking(places)

    def tell(self, result: DecodeResult, left_out: Collection[OpenCall]) -> bool:
        """Whether the reader took what a step sampled, but for those calls."""
        places = [place for place, call in enumerate(self.calls) if call in left_out] if left_out else ()
        if len(places) == len(self.calls):
            return True
        token_ids, logprobs = self._pick(result.token_ids), self._pick(result.logprobs)
        return self.reader.take_tokens(self.whose, cast("Sequence[int]", token_ids), logprobs, places)


def readings(
    calls: Iterable[OpenCall], readers: Iterable[tuple[TokenReader, int] | None], before: Iterable[Reading]
) -> list[Reading]:
    """What each reader has of the calls, in their order. A reader whose calls are those of before finds the very same
    names with them."""
    found: dict[TokenReader, list[tuple[int, OpenCall, int]]] = {}
    for place, (call, one) in enumerate(zip(calls, readers, strict=True)):
        if one is not None:
            found.setdefault(one[0], []).append((place, call, one[1]))
    known = {one.reader: one for one in before}
    made = []
    for reader, rows in found.items():
        places, mine, names = zip(*rows, strict=True)
        old = known.get(reader)
        whose = old.whose if old is not None and old.calls == mine else _whose(names, mine)
        made.append(Reading(reader, mine, whose, places))
    return made


def _whose(names: Sequence[int], calls: Sequence[OpenCall]) -> Whose:
    kinds = [one.call.sampling.logprobs for one in calls if isinstance(one.call, Generate)]
    return Whose(names, [one.call_id for one in calls], kinds)


def _picking(places: Sequence[int]) -> _Pick:
    """The entries of a column at these places."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)
