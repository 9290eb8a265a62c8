"""Case D1. Log-probabilities are raw or processed, as the program names it and the turn repeats: both equal a reference
log-softmax of the model's logits to 1e-5, at two temperatures, with bias, nucleus, penalties and a grammar on. The
logits are asked for step by step, and are the oracle's to the same."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from system_rig import byte_oracle, byte_system, in_loop

PROMPT = "The quick brown fox"
PROMPT_IDS = [256, *PROMPT.encode()]
NUM_TOKENS = 10
ALLOWED = (97, 98, 99, 100, 101, 102)

GENERATE = """
from loopwright import Context, regex
async def main(prompt: str, num_tokens: int, options: dict, pattern: str | None):
    ctx, look = Context(), Context()
    ctx.append(prompt)
    look.append(prompt)
    stream = ctx.stream(
        max_tokens=num_tokens, ignore_eos=True, grammar=None if pattern is None else regex(pattern), **options
    )
    streamed = [token async for chunk in stream for token in chunk.tokens]
    turn, logits = stream.turn, []
    for token in turn.tokens:
        logits.append(list((await look.next_dist(k=1, logits=True)).logits))
        look.accept(token)
    return [turn.tokens, turn.logprobs, turn.top_logprobs, turn.logprob_kind, streamed, logits]
"""

CONSTRAINTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bias": {"logit_bias": {"97": 5.0, "98": 4.0, "99": -7.0}},
    "top-p": {"top_p": 0.7},
    "allowed": {"allowed": list(ALLOWED)},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "grammar": {},
    "all": {"logit_bias": {"97": 1.5, "102": -0.5}, "top_p": 0.8, "frequency_penalty": 0.7, "presence_penalty": -0.3},
}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_both_kinds_equal_a_reference_log_softmax(constraint: str) -> None:
    pattern = "[a-f]+" if constraint in ("grammar", "all") else None

    async def scenario() -> None:
        async with byte_system() as system:
            for temperature, kind in itertools.product((0.5, 1.0), ("raw", "processed")):
                asked = {"temperature": temperature, "logprobs": kind, "top_logprobs": 4, "seed": 3}
                options = CONSTRAINTS[constraint] | asked
                arguments = {"prompt": PROMPT, "num_tokens": NUM_TOKENS, "options": options, "pattern": pattern}
                outcome = await system.run(GENERATE, **arguments)
                tokens, logprobs, tops, named, streamed, logits = outcome.result
                assert (named, streamed, len(tokens)) == (kind, tokens, NUM_TOKENS)
                assert_the_models_own(logits, tokens)
                mask = ALLOWED if pattern else options.get("allowed")
                expected = [
                    one_place(np.array(row), tokens[:place], {**options, "allowed": mask})
                    for place, row in enumerate(logits)
                ]
                np.testing.assert_allclose(
                    logprobs, [row[t] for row, t in zip(expected, tokens, strict=True)], atol=1e-5
                )
                for row, top in zip(expected, tops, strict=True):
                    order = [i for i in np.argsort(-row, kind="stable").tolist() if row[i] > -np.inf][:4]
                    assert [token for token, _ in top] == order
                    np.testing.assert_allclose([logprob for _, logprob in top], row[order], atol=1e-5)

    in_loop(scenario)


def assert_the_models_own(logits: list[list[float]], tokens: list[int]) -> None:
    expected = byte_oracle().logits([*PROMPT_IDS, *tokens[:-1]])[len(PROMPT_IDS) - 1 :].double().numpy()
    found = [log_softmax(np.array(row)) for row in logits]
    np.testing.assert_allclose(found, [log_softmax(row) for row in expected], atol=1e-5, rtol=1e-6)


def one_place(logits: NDArray[np.float64], generated: list[int], options: dict[str, Any]) -> NDArray[np.float64]:
    """The log-probabilities of one place, each step in the open: [vocab_size]."""
    if options["logprobs"] == "raw":
        return log_softmax(logits)
    penalty = options.get("repetition_penalty", 1.0)
    for token in {*PROMPT_IDS, *generated}:
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    for token in set(generated):
        logits[token] -= options.get("presence_penalty", 0.0)
        logits[token] -= options.get("frequency_penalty", 0.0) * generated.count(token)
    for token, bias in options.get("logit_bias", {}).items():
        logits[int(token)] += bias
    if options["allowed"] is not None:
        logits[[i for i in range(len(logits)) if i not in options["allowed"]]] = -np.inf
    logprobs = log_softmax(logits / options["temperature"])
    mass = 0.0
    for token in np.argsort(-logprobs, kind="stable").tolist():
        is_kept = mass < options.get("top_p", 1.0) or options.get("top_p", 1.0) == 1
        mass += float(np.exp(logprobs[token]))
        if not is_kept:
            logprobs[token] = -np.inf
    return log_softmax(logprobs)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = logits - np.logaddexp.reduce(logits)
    return result
