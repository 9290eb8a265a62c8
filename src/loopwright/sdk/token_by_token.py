"""A segment whose sampler runs as Python, once for each token: what `sampler_fallback=True` allows. Never traces.

Called by Context. Slow on purpose: it asks for the logits of every token, and computes on lists. The tokens are those
of the engine running the same function.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.resources import detokenize
from loopwright.sdk.tensor import Filled, Tensor, running_in, stop_running
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.tracing import Sampler, outcome_of
from loopwright.sdk.turn import Turn

OPTIONS = ("max_tokens", "ignore_eos", "temperature", "seed", "allowed")
"""Options of `stream` that this honours; any other is refused by its name."""

_INFINITY = float("inf")
_MASK_64 = (1 << 64) - 1


class Eager:
    """Implements tensor.Evaluator: payloads are floats, and lists of floats."""

    def __init__(self, vocab_size: int, seed: int, position: int) -> None:
        self._vocab_size = vocab_size
        self.position = position
        self.uniform = uniform(seed, position)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def sparse(self, entries: Sequence[tuple[int, float]]) -> list[float]:
        vector = [0.0] * self._vocab_size
        for token, value in entries:
            vector[token] += value
        return vector

    def tensor(self, value: Any) -> Tensor:  # noqa: ANN401 (float, Filled, or a sequence)
        if isinstance(value, Filled):
            value = [float(value.value)] * self._vocab_size
        if isinstance(value, int | float):
            return Tensor(self, float(value), False)
        return Tensor(self, list(value), True)

    def number(self, tensor: Tensor, why: str) -> float:
        if tensor.is_vector:
            raise TypeError(f"a vector is not one number: {why}")
        return float(tensor.payload)

    def numbers(self, tensor: Tensor, why: str) -> list[float]:
        return list(tensor.payload)

    def apply(self, op: str, *inputs: Tensor, **fields: Any) -> Tensor:  # noqa: ANN401 (per operation)
        if (by_id := _BY_ID.get(op)) is not None:
            return self._by_id(by_id, inputs)
        return self.tensor(_OTHERS[op](self, fields, *(one.payload for one in inputs)))

    def _by_id(self, operation: Callable[..., float], inputs: Sequence[Tensor]) -> Tensor:
        if not any(one.is_vector for one in inputs):
            return self.tensor(operation(*(one.payload for one in inputs)))
        columns = [one.payload if one.is_vector else [one.payload] * self._vocab_size for one in inputs]
        return self.tensor([operation(*row) for row in zip(*columns, strict=True)])


def run_eagerly(
    function: Sampler, state: Mapping[str, Any], scores: Sequence[float], seed: int, position: int
) -> tuple[float | list[float], dict[str, Any]]:
    """(token or scores, next state) of the function on numbers; scores [vocab_size]."""
    eager = Eager(len(scores), seed, position)
    running = running_in(eager)
    try:
        values = {name: eager.tensor(value) for name, value in state.items()}
        given = eager.tensor(scores)
        result, carried = outcome_of(function(given, values) if state else function(given), state)
        result = result.payload if isinstance(result, Tensor) else float(result)
        for name, one in carried.items():
            value = one.payload if isinstance(one, Tensor) else float(one)
            is_filled = values[name].is_vector and isinstance(value, float)
            carried[name] = [value] * len(scores) if is_filled else value
        return result, carried
    finally:
        stop_running(running)


async def generate_token_by_token(
    log: TokenLog, kv: ContextKv, model: Mapping[str, Any], options: Mapping[str, Any]
) -> Turn:
    """What `generate` gives, with a sampler that Python runs. The options are those of `generate`, with a seed. Raises
    BadRequest for one that it cannot honour."""
    for name in sorted(options.keys() - {"sampler", "state", *OPTIONS}):
        raise BadRequest(
            f"{name}: a sampler that runs token by token does not honour it; it takes {', '.join(OPTIONS)}", field=name
        )
    seed, allowed = options["seed"], options.get("allowed")
    function: Sampler = options["sampler"]
    carried: Mapping[str, Any] = dict(options.get("state") or {})
    ends = () if options.get("ignore_eos") else tuple(model["eos_ids"])
    max_context, max_tokens = model["max_context"], options.get("max_tokens", 256)
    num_before, tokens, logprobs, reason = len(log), list[int](), list[float](), "length"
    while reason == "length" and len(tokens) < (max_tokens or max_context):
        if tokens and num_before + len(tokens) >= max_context:
            break
        payload = await kv.ask([], distributions=[{"k": 1, "logits": True}])
        dist, position = Distribution(payload["distributions"][0]), num_before + len(tokens)
        logits = list(dist.logits or ())
        scores = logits if allowed is None else _masked(logits, allowed)
        result, carried = run_eagerly(function, carried, scores, seed, position)
        token = _chosen(result, allowed, options.get("temperature") or 0.0, uniform(seed, position), len(logits))
        tokens.append(token)
        logprobs.append(min(0.0, logits[token] - (logits[dist.ids[0]] - dist.logprobs[0])))
        if token in ends:
            reason = "stop_token"
        else:
            log.extend_written([token])
    num_kept = len(tokens) - (reason == "stop_token")
    text = (await detokenize(tokens[:num_kept], model=model["name"]))["text"] if num_kept else ""
    log.transcript.write(text)
    return Turn(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        num_kept=num_kept,
        reason=reason,
        stop=None if reason == "length" else tokens[-1],
        num_prompt_tokens=num_before,
        sampler_state=dict(carried),
    )


def uniform(seed: int, position: int) -> float:
    """The engine's number in [0, 1) of a seed and a position (SplitMix64; Steele, Lea, Flood, 2014)."""
    state = (_mix(seed & _MASK_64) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    return float((_mix(state) >> 11) * 2.0**-53)


def drawn(weights: Sequence[float], number: float) -> int:
    """The first index whose cumulative weight exceeds number · total."""
    sums = _running_sums(weights)
    total = sums[-1]
    if min(weights) < 0 or not 0 < total < _INFINITY:
        raise BadRequest("sampler: draw: weights must be finite, none negative, and not all 0", field="sampler")
    for index, one in enumerate(sums):
        if one > number * total:
            return index
    return sums.index(total)


def _chosen(
    result: float | list[float], allowed: Sequence[int] | None, temperature: float, number: float, vocab_size: int
) -> int:
    """The token that the engine would take from what the sampler gave."""
    if isinstance(result, float):
        token = _token_id(result, vocab_size)
        if temperature:
            raise BadRequest("temperature: the sampler gives the token itself, so it would do nothing")
        if allowed is not None and token not in allowed:
            raise BadRequest(f"sampler: token {token} is not one of the {len(allowed)} allowed", field="sampler")
        return token
    scores = result if allowed is None else _masked(result, allowed)
    top = max(scores)
    if not -_INFINITY < top < _INFINITY or any(one != one for one in scores):
        raise BadRequest(f"sampler: the highest score of what is allowed is {top}", field="sampler")
    if temperature == 0:
        return scores.index(top)
    return drawn([math.exp((one - top) / temperature) for one in scores], number)


def _masked(scores: Sequence[float], allowed: Sequence[int]) -> list[float]:
    kept = set(allowed)
    return [one if token in kept else -_INFINITY for token, one in enumerate(scores)]


def _token_id(number: float, vocab_size: int) -> int:
    if number != number or number not in (number // 1,) or not 0 <= number < vocab_size:
        raise BadRequest(f"sampler: {number:g} is not a token id from 0 to {vocab_size - 1}", field="sampler")
    return int(number)


def _running_sums(values: Sequence[float]) -> list[float]:
    sums, total = [], 0.0
    for one in values:
        total += one
        sums.append(total)
    return sums


def _mass_before(weights: Sequence[float], by: Sequence[float]) -> list[float]:
    before, mass = [0.0] * len(weights), 0.0
    for index in sorted(range(len(by)), key=lambda one: (-by[one], one)):
        before[index] = mass
        mass += weights[index]
    return before


def _divided(one: float, other: float) -> float:
    if other == 0:
        is_negative = math.copysign(1, one) != math.copysign(1, other)
        return float("nan") if one == 0 or one != one else (-_INFINITY if is_negative else _INFINITY)
    return one / other


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return _INFINITY


def _log(value: float) -> float:
    if value == 0:
        return -_INFINITY
    return math.log(value) if value > 0 else float("nan")


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)


_BY_ID: dict[str, Callable[..., float]] = {
    "add": lambda one, other: one + other,
    "subtract": lambda one, other: one - other,
    "multiply": lambda one, other: one * other,
    "divide": _divided,
    "maximum": max,
    "less": lambda one, other: float(one < other),
    "equal": lambda one, other: float(one == other),
    "where": lambda condition, one, other: one if condition != 0 else other,
    "exp": _exp,
    "log": _log,
}

_OTHERS: dict[str, Callable[..., float | list[float]]] = {
    "constant": lambda _, fields: fields["value"],
    "sparse": lambda eager, fields: eager.sparse(fields["entries"]),
    "ids": lambda eager, _: [float(token) for token in range(eager.vocab_size)],
    "position": lambda eager, _: eager.position,
    "uniform": lambda eager, _: eager.uniform,
    "sum": lambda _eager, _fields, vector: _running_sums(vector)[-1],
    "max": lambda _eager, _fields, vector: max(vector),
    "argmax": lambda _eager, _fields, vector: vector.index(max(vector)),
    "take": lambda eager, _, vector, token: vector[_token_id(token, eager.vocab_size)],
    "kth": lambda _, fields, vector: sorted(vector, reverse=True)[fields["k"] - 1],
    "mass_before": lambda _eager, _fields, weights, by: _mass_before(weights, by),
    "draw": lambda eager, _, weights: drawn(weights, eager.uniform),
}
