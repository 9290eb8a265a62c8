"""Sampler functions that tests trace, and the loop that runs them on plain numbers. Never runs the engine.

The functions use every operation; whole-system tests send their source to a program.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loopwright.core.calls import Sampling
from loopwright.core.samplers import TracedSampler
from loopwright.engine.oracle import Oracle
from loopwright.sdk import tensor
from loopwright.sdk.token_by_token import Eager, drawn, run_eagerly, uniform
from loopwright.sdk.tracing import state_fields, trace


def greedy(scores):
    return tensor.argmax(scores)


def plain_draw(scores):
    return tensor.draw(tensor.exp(scores - tensor.highest(scores)))


def nucleus(scores):
    weights = tensor.softmax(scores / 0.8)
    kept = tensor.where(tensor.mass_before(weights) < 0.9, weights, 0.0)
    return tensor.draw(kept)


def top_five(scores):
    return tensor.where(scores >= tensor.kth(scores, 5), scores, float("-inf"))


def ranks(scores):
    return tensor.where(tensor.mass_before(1, by=scores) < 7, scores, float("-inf"))


def presence(scores, state):
    """Scores out; a vector is carried that counts what was chosen greedily, and a number."""
    lowered = scores - 1.5 * state["counts"] + tensor.at({10: -2.0, 32: 0.25})
    favourite = tensor.argmax(lowered)
    counts = state["counts"] + tensor.one_hot(favourite)
    return lowered, {"counts": counts, "num": state["num"] + 1}


def mirostat(scores, state):
    """Mirostat 2 (Basu et al., arXiv 2007.14966): keeps the surprise of its own tokens near 2 nats."""
    logprobs = scores - tensor.logsumexp(scores)
    kept = (-logprobs <= state["mu"]) | (scores == tensor.highest(scores))
    weights = tensor.where(kept, tensor.exp(logprobs), 0)
    token = tensor.draw(weights)
    surprise = tensor.log(tensor.total(weights)) - logprobs[token]
    return token, {"mu": state["mu"] - 0.3 * (surprise - 2.0)}


def odd_places(scores, state):
    """Everything else: position, uniform, ids, comparisons, minimum, a vector that is copied."""
    is_late = (tensor.position() > 5) & (tensor.uniform() < 0.7)
    lowered = tensor.where(is_late | (tensor.ids() != 3), scores, tensor.minimum(scores, state["last"]))
    near = tensor.maximum(1 - tensor.exp(-scores) / 100, -5) + scores * ~(scores == 0)
    return tensor.where(is_late, lowered, near), {"last": scores}


STATES: dict[str, dict[str, Any]] = {
    "presence": {"counts": tensor.filled(0.0), "num": 0.0},
    "mirostat": {"mu": 4.0},
    "odd_places": {"last": tensor.filled(0.5)},
}
SAMPLERS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (greedy, plain_draw, nucleus, top_five, ranks, presence, mirostat, odd_places)
}  # fmt: skip


def traced(function: Callable[..., Any], state: dict[str, Any] | None = None, vocab_size: int = 260) -> TracedSampler:
    """The function as control decodes it."""
    return msgspec.json.decode(msgspec.json.encode(trace(function, state or {}, vocab_size)), type=TracedSampler)


def initial(state: dict[str, Any] | None, vocab_size: int = 260) -> dict[str, float | bytes]:
    fields = msgspec.json.encode(state_fields(state or {}, vocab_size))
    return msgspec.json.decode(fields, type=dict[str, float | bytes])


def source_of(name: str) -> str:
    """The function as a program writes it, with what it begins with as STATE."""
    state = {key: f"tensor.filled({one.value})" if isinstance(one, tensor.Filled) else repr(one)
             for key, one in STATES.get(name, {}).items()}  # fmt: skip
    items = ", ".join(f"{key!r}: {one}" for key, one in state.items())
    return f"{inspect.getsource(SAMPLERS[name])}\nSTATE = {{{items}}}\n"


def started(state: dict[str, Any] | None, vocab_size: int) -> dict[str, Any]:
    """A state as run_eagerly carries it."""
    eager = Eager(vocab_size, 0, 0)
    return {name: eager.tensor(one).payload for name, one in (state or {}).items()}


def loop(
    oracle: Oracle, prompt: Sequence[int], name: str, sampling: Sampling, num_tokens: int, ends: Sequence[int] = ()
) -> tuple[list[int], list[float], dict[str, Any]]:
    """The one-request loop with the function run as Python: tokens, raw log-probabilities, last state."""
    tokens, logprobs, state = list(prompt), [], started(STATES.get(name), 260)
    while len(logprobs) < num_tokens and (not logprobs or tokens[-1] not in ends):
        logits = oracle.logits(tokens)[-1].double()
        scores = _allowed(logits.tolist(), sampling.allowed)
        result, state = run_eagerly(SAMPLERS[name], state, scores, sampling.seed, len(tokens))
        token = int(result) if isinstance(result, float) else _choice(_allowed(result, sampling.allowed), sampling,
                                                                       len(tokens))  # fmt: skip
        tokens.append(token)
        logprobs.append(float(logits.log_softmax(0)[token]))
    return tokens[len(prompt) :], logprobs, state


def _choice(scores: list[float], sampling: Sampling, position: int) -> int:
    if sampling.temperature == 0:
        return scores.index(max(scores))
    eager = Eager(len(scores), 0, 0)
    running = tensor.running_in(eager)
    try:
        vector = eager.tensor(scores)
        weights = tensor.exp((vector - tensor.highest(vector)) / sampling.temperature).payload
    finally:
        tensor.stop_running(running)
    return drawn(weights, uniform(sampling.seed, position))


def _allowed(scores: list[float], allowed: Sequence[int] | None) -> list[float]:
    return [one if allowed is None or token in allowed else float("-inf") for token, one in enumerate(scores)]
