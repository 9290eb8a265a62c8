"""What calls mean: one after the other, in the order of their issue, over plain lists. Knows no batch, block or wait.

Every answer and every failure of control must be this machine's, whatever ran ahead, beside or late. Pages and embeds
are cells that names point to; a failed call taints what it should have written, until everything is cleared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.core.calls import (
    CopyPage,
    EmbedText,
    Forward,
    ForwardText,
    QueueCall,
    Sample,
    ShiftKv,
    Synchronize,
)
from loopwright.core.ids import QueueName

from .fake_executor import VOCAB_SIZE, choose, mix, shifted

BLOCK_SIZE = 4


@dataclass(eq=False)
class Cell:
    """A page's places, or an embed as a cell of one place."""

    values: list[object]
    is_tainted: bool = False


@dataclass(frozen=True)
class Expected:
    """What a call completes with: an answer (kv_len and token, None where there is none), or one of some errors."""

    answer: tuple[int, int | None] | None = None
    errors: frozenset[str] = frozenset()


class Refused(Exception):
    """The call can be seen to be wrong when it is issued."""


class Unwritten(Exception):
    """The call reads what nobody wrote."""


@dataclass
class SerialMachine:
    """Names, cells and poisoned queues of one run."""

    pages: dict[int, Cell] = field(default_factory=dict)
    embeds: dict[int, Cell] = field(default_factory=dict)
    poisoned: set[QueueName] = field(default_factory=set)

    def clear(self) -> None:
        """Every queue is cleared, once everything that failed has failed."""
        self.poisoned.clear()
        for cell in (*self.pages.values(), *self.embeds.values()):
            cell.is_tainted = False

    def issue(self, call: QueueCall) -> Expected:
        """Does the call and says what it completes with."""
        reads, writes = self._cells(call)
        reasons: set[str] = set()
        if call.queue in self.poisoned or any(cell.is_tainted for cell in reads):  # type: ignore[union-attr]
            reasons.add("Poisoned")
        try:
            answer = self._run(call, is_dry=bool(reasons))
        except (Refused, Unwritten) as error:
            reasons |= {"BadRequest", "NotFound"} if isinstance(error, Refused) else {"BadRequest"}
        if not reasons:
            for cell in writes:
                cell.is_tainted = cell.is_tainted and len(cell.values) > 1  # an embed is written whole
            return Expected(answer)
        self.poisoned.add(call.queue)  # type: ignore[union-attr]
        for cell in writes:
            cell.is_tainted = True
        return Expected(errors=frozenset(reasons))

    def _cells(self, call: QueueCall) -> tuple[list[Cell], list[Cell]]:
        """What the call reads and writes, of what is bound."""
        match call:
            case EmbedText():
                return [], _bound(self.embeds, call.embeds)
            case Sample():
                return _bound(self.embeds, (call.embed,)), []
            case CopyPage():
                return _bound(self.pages, (call.source,)), _bound(self.pages, (call.target,))
            case ShiftKv():
                touched = _bound(self.pages, call.pages[call.start // BLOCK_SIZE :])
                return touched, touched
            case Forward() | ForwardText():
                num_read = -(-call.kv_len // BLOCK_SIZE)
                inputs = _bound(self.embeds, call.inputs if isinstance(call, Forward) else ())
                outputs = _bound(self.embeds, call.outputs if isinstance(call, Forward) else ())
                written = _bound(self.pages, call.pages[call.kv_len // BLOCK_SIZE :])
                return [*_bound(self.pages, call.pages[:num_read]), *inputs], [*written, *outputs]
            case _:
                return [], []

    def _run(self, call: QueueCall, *, is_dry: bool) -> tuple[int, int | None]:
        """The answer of a call whose effects take place, unless it is only looked at."""
        match call:
            case EmbedText():
                self._embed(call, is_dry)
            case Sample():
                (cell,) = self._find(self.embeds, (call.embed,))
                return 0, None if is_dry else choose(_written(cell.values)[0], call.sampling, call.position)  # type: ignore[arg-type]
            case CopyPage():
                self._copy(call, is_dry)
            case ShiftKv():
                self._shift(call, is_dry)
            case Forward():
                return self._forward(call, is_dry), None
            case ForwardText():
                return self._forward_text(call, is_dry)
            case _:
                assert isinstance(call, Synchronize)
        return 0, None

    def _embed(self, call: EmbedText, is_dry: bool) -> None:
        cells = self._find(self.embeds, call.embeds)
        _check(max(call.tokens) < VOCAB_SIZE)
        for cell, *value in zip(cells, call.tokens, call.positions, strict=True):
            cell.values[0] = cell.values[0] if is_dry else tuple(value)

    def _forward(self, call: Forward, is_dry: bool) -> int:
        cells, outputs = self._find(self.embeds, call.inputs), self._find(self.embeds, call.outputs)
        places = self._places(call.pages, call.kv_len, len(cells))
        if not is_dry:
            inputs = [value for cell in cells for value in _written(cell.values)]
            hiddens = _run_tokens(places, call.kv_len, inputs)  # type: ignore[arg-type]
            for cell, hidden in zip(reversed(outputs), reversed(hiddens), strict=False):
                cell.values[0] = hidden
        return call.kv_len + len(cells)

    def _forward_text(self, call: ForwardText, is_dry: bool) -> tuple[int, int | None]:
        _check(max(call.tokens) < VOCAB_SIZE)
        places = self._places(call.pages, call.kv_len, len(call.tokens))
        assert call.sampling is not None
        if is_dry:
            return 0, None
        hiddens = _run_tokens(places, call.kv_len, list(zip(call.tokens, call.positions, strict=True)))
        return call.kv_len + len(call.tokens), choose(hiddens[-1], call.sampling, call.positions[-1] + 1)

    def _copy(self, call: CopyPage, is_dry: bool) -> None:
        (source,), (target,) = self._find(self.pages, (call.source,)), self._find(self.pages, (call.target,))
        _check(source is not target and self._num_names(target) == 1)
        if not is_dry:
            copied = _written(source.values[call.source_offset : call.source_offset + call.size])
            target.values[call.target_offset : call.target_offset + call.size] = copied

    def _shift(self, call: ShiftKv, is_dry: bool) -> None:
        places = self._places(call.pages, call.start, call.size)
        if not is_dry:
            moved = places[call.start : call.start + call.size]
            for value, (values, offset) in zip(_written([v[o] for v, o in moved]), moved, strict=True):
                values[offset] = shifted(value, call.delta)  # type: ignore[arg-type]

    def _places(self, names: Sequence[int], start: int, num: int) -> list[tuple[list[object], int]]:
        """The places of a page list of which `num` from `start` on are to be written."""
        cells = self._find(self.pages, names)
        _check(start + num <= len(cells) * BLOCK_SIZE)
        written = cells[start // BLOCK_SIZE : -(-(start + num) // BLOCK_SIZE)]
        _check(all(self._num_names(cell) == 1 for cell in written))
        return [(cell.values, offset) for cell in cells for offset in range(BLOCK_SIZE)]

    def _find(self, table: dict[int, Cell], names: Sequence[int]) -> list[Cell]:
        _check(all(name in table for name in names))
        return [table[name] for name in names]

    def _num_names(self, cell: Cell) -> int:
        return sum(one is cell for one in self.pages.values())


def _run_tokens(places: list[tuple[list[object], int]], kv_len: int, inputs: Sequence[tuple[int, int]]) -> list[int]:
    seen = _written([values[offset] for values, offset in places[:kv_len]])
    hiddens = []
    for number, (token, position) in enumerate(inputs):
        hiddens.append(mix(token, position, *seen, mix(token, position)))  # type: ignore[arg-type]
        seen.append(hiddens[-1])
        values, offset = places[kv_len + number]
        values[offset] = hiddens[-1]
    return hiddens


def _written(values: Sequence[object]) -> list[object]:
    if any(value is None for value in values):
        raise Unwritten
    return list(values)


def _bound(table: dict[int, Cell], names: Sequence[int]) -> list[Cell]:
    return [table[name] for name in names if name in table]


def _check(is_right: bool) -> None:
    if not is_right:
        raise Refused
