"""What a sampler computes with: numbers, and vectors of one number for each token id. Never runs anything itself.

Used by the functions that a program gives to `generate` as `sampler`. Every operation goes to whoever runs the
function: tracing notes it for the engine, and the token-by-token loop computes it here. Everything is float64.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from loopwright.sdk.argument_check import checked

Operand: TypeAlias = "Tensor | float | bool"


class Evaluator(Protocol):
    """Who runs a sampler's operations. Payloads are its own."""

    def apply(self, op: str, *inputs: "Tensor", **fields: Any) -> "Tensor":  # noqa: ANN401 (per operation)
        """The operation's value."""
        ...

    def number(self, tensor: "Tensor", why: str) -> float:
        """The value as a Python number. `why` is what the program did; raises Untraceable where there is none yet."""
        ...

    def numbers(self, tensor: "Tensor", why: str) -> list[float]:
        """A vector as Python numbers; likewise."""
        ...

    @property
    def vocab_size(self) -> int: ...


_evaluator: ContextVar[Evaluator] = ContextVar("loopwright_evaluator")


class Tensor:
    """A number or a vector. Operators work as on numbers, id by id; comparisons give 1 and 0, which `&`, `|` and `~`
    combine. `vector[token]` is one number of a vector."""

    __slots__ = ("evaluator", "is_vector", "payload")
    __hash__ = None  # type: ignore[assignment] # == gives a tensor

    def __init__(self, evaluator: Evaluator, payload: Any, is_vector: bool) -> None:  # noqa: ANN401 (the evaluator's)
        self.evaluator = evaluator
        self.payload = payload
        self.is_vector = is_vector

    def __add__(self, other: Operand) -> "Tensor":
        return _apply("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> "Tensor":
        return _apply("subtract", self, other)

    def __rsub__(self, other: Operand) -> "Tensor":
        return _apply("subtract", other, self)

    def __mul__(self, other: Operand) -> "Tensor":
        return _apply("multiply", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> "Tensor":
        return _apply("divide", self, other)

    def __rtruediv__(self, other: Operand) -> "Tensor":
        return _apply("divide", other, self)

    def __neg__(self) -> "Tensor":
        return _apply("subtract", 0.0, self)

    def __lt__(self, other: Operand) -> "Tensor":
        return _apply("less", self, other)

    def __gt__(self, other: Operand) -> "Tensor":
        return _apply("less", other, self)

    def __le__(self, other: Operand) -> "Tensor":
        return ~_apply("less", other, self)

    def __ge__(self, other: Operand) -> "Tensor":
        return ~_apply("less", self, other)

    def __eq__(self, other: Operand) -> "Tensor":  # type: ignore[override]
        return _apply("equal", self, other)

    def __ne__(self, other: Operand) -> "Tensor":  # type: ignore[override]
        return ~_apply("equal", self, other)

    def __and__(self, other: Operand) -> "Tensor":
        return _apply("multiply", self, other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> "Tensor":
        return _apply("maximum", self, other)

    __ror__ = __or__

    def __invert__(self) -> "Tensor":
        return _apply("equal", self, 0.0)

    def __getitem__(self, token: Operand) -> "Tensor":
        if not self.is_vector:
            raise TypeError("a number has no elements; only a vector has one for each token id")
        if isinstance(token, slice):
            raise TypeError("a vector is not sliced: it has a number for each token id; use where")
        return _apply("take", self, token)

    def __len__(self) -> int:
        if not self.is_vector:
            raise TypeError("a number has no length")
        return self.evaluator.vocab_size

    def __bool__(self) -> bool:
        return self.evaluator.number(self, "a branch (if, while, and, or, not) on its value; use where") != 0

    def __float__(self) -> float:
        return self.evaluator.number(self, "its value as a Python number; use the functions of loopwright.tensor")

    def __int__(self) -> int:
        return int(float(self))

    def __index__(self) -> int:
        return int(self.evaluator.number(self, "its value as a Python index"))

    def __iter__(self) -> Iterator[float]:
        if not self.is_vector:
            raise TypeError("a number is not iterable")
        return iter(self.evaluator.numbers(self, "a loop over its values; operators work on all ids at once"))


@dataclass(frozen=True, slots=True)
class Filled:
    """A vector that has the same value for each token id, to begin a state with."""

    value: float = 0.0


@checked
def filled(value: float = 0.0) -> Filled:
    """A state that begins as a vector of this value."""
    return Filled(value)


@checked
def where(condition: Operand, one: Operand, other: Operand) -> Tensor:
    """`one` where the condition is not 0, else `other`."""
    return _apply("where", condition, one, other)


@checked
def maximum(one: Operand, other: Operand) -> Tensor:
    return _apply("maximum", one, other)


@checked
def minimum(one: Operand, other: Operand) -> Tensor:
    return -_apply("maximum", -_tensor(one), -_tensor(other))


@checked
def exp(value: Operand) -> Tensor:
    return _apply("exp", value)


@checked
def log(value: Operand) -> Tensor:
    return _apply("log", value)


@checked
def total(vector: Tensor) -> Tensor:
    """The sum of a vector, from the first id to the last."""
    return _apply("sum", vector)


@checked
def highest(vector: Tensor) -> Tensor:
    """The largest number of a vector."""
    return _apply("max", vector)


@checked
def argmax(vector: Tensor) -> Tensor:
    """The id of the largest number; of equal ones, the lowest."""
    return _apply("argmax", vector)


@checked
def kth(vector: Tensor, k: int) -> Tensor:
    """The k-th largest number of a vector; `k` is a Python int."""
    return _evaluator.get().apply("kth", vector, k=int(k))


@checked
def mass_before(weights: Operand, by: Tensor | None = None) -> Tensor:
    """For each id, the sum of the weights of the ids before it when they are put in order: those with more of `by`
    (the weights themselves, if not given) first, of equal ones the lowest id. So `mass_before(p) < 0.9` is a nucleus,
    and `mass_before(1, by=scores)` is each id's rank, from 0."""
    weights = _tensor(weights)
    by = weights if by is None else by
    if not weights.is_vector:
        weights = where(by == by, weights, weights)
    return _apply("mass_before", weights, by)


@checked
def draw(weights: Tensor) -> Tensor:
    """One id, with chances in proportion to the weights, by the draw that belongs to (seed, position). Of one seed and
    position it is always the same draw, and the one that a temperature makes."""
    return _apply("draw", weights)


def uniform() -> Tensor:
    """The number from 0 to below 1 that belongs to (seed, position): what `draw` goes by."""
    return _evaluator.get().apply("uniform")


def position() -> Tensor:
    """Where the token will stand."""
    return _evaluator.get().apply("position")


def ids() -> Tensor:
    """The vector of each token's own id: 0, 1, 2 …"""
    return _evaluator.get().apply("ids")


@checked
def at(values: Mapping[int, float]) -> Tensor:
    """A vector that is 0 but for these ids. Ids and values are Python numbers, known before."""
    return _evaluator.get().apply("sparse", entries=tuple((int(one), float(value)) for one, value in values.items()))


@checked
def one_hot(token: Operand) -> Tensor:
    """A vector that is 1 at this id and 0 elsewhere."""
    return ids() == token


@checked
def logsumexp(vector: Tensor) -> Tensor:
    top = highest(vector)
    return top + log(total(exp(vector - top)))


@checked
def softmax(vector: Tensor) -> Tensor:
    weights = exp(vector - highest(vector))
    return weights / total(weights)


def running_in(evaluator: Evaluator) -> Any:  # noqa: ANN401 (a context variable's token)
    """From now on operations go to `evaluator`; give what this returns to `stop_running`."""
    return _evaluator.set(evaluator)


def stop_running(token: Any) -> None:  # noqa: ANN401 (see above)
    _evaluator.reset(token)


def _apply(op: str, *operands: Operand) -> Tensor:
    return _evaluator.get().apply(op, *(_tensor(one) for one in operands))


def _tensor(operand: Operand) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, int | float):
        return _evaluator.get().apply("constant", value=float(operand))
    raise TypeError(f"{type(operand).__name__} is neither a tensor nor a number")
