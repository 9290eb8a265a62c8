"""Sampling options as a program gives them, made into the call's fields. Never samples. Used by Context."""

from collections.abc import Sequence
from typing import Any

from loopwright.sdk.options import SamplingOptions

OPTIONS = tuple(SamplingOptions.__annotations__)
"""Those of docs/sampling.md that a program may set. What penalties count, the context knows."""


def sampling_fields(options: dict[str, Any], seed: int, tokens: Sequence[int], num_written: int) -> dict[str, Any]:
    """The fields of the ABI's Sampling. `seed` counts unless one is given; of `tokens`, which stand before, the model
    wrote the last `num_written`. Raises TypeError for an option that does not exist."""
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; sampling takes {', '.join(sorted(OPTIONS))}")
    fields = {"seed": seed} | {name: value for name, value in options.items() if value is not None}
    if fields.get("repetition_penalty", 1) != 1:
        fields["seen"] = sorted(set(tokens))
    if fields.get("presence_penalty") or fields.get("frequency_penalty"):
        fields["generated"] = list(tokens[len(tokens) - num_written :])
    if "allowed" in fields:
        fields["allowed"] = list(fields["allowed"])
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    return fields


def context_seed(run_seed: int, number: int) -> int:
    """A seed for context `number` of a run: two rounds of the splitmix64 finaliser (Steele et al., 2014), 62 bits."""
    value = (run_seed * 0x9E3779B97F4A7C15 + number + 1) & 0xFFFFFFFFFFFFFFFF
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        value = ((value ^ (value >> 30)) * multiplier) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 31)) & (2**62 - 1)
