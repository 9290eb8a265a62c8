"""What `make quality` found of each way of keeping weights, so that a server can say it. Never measures.

Figures are of the default model, those of int4 as if its file had 16 bits. `tests/engine/quality.py` measures, and
fails if this does not hold any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loopwright.core.model_info import WeightDtype


@dataclass(frozen=True, slots=True)
class Judgement:
    """`loss` is by how much the perplexity rises over bfloat16's."""

    is_passed: bool
    loss: float


JUDGEMENTS: Mapping[WeightDtype, Judgement] = {
    "fp8": Judgement(is_passed=False, loss=0.016),
    "int8": Judgement(is_passed=True, loss=-0.002),
    "int4": Judgement(is_passed=False, loss=0.186),
}


def judged(dtype: WeightDtype) -> str:
    """The dtype, and a warning if it failed."""
    found = JUDGEMENTS.get(dtype)
    if found is None or found.is_passed:
        return dtype
    return f"{dtype}, which FAILED the quality gate (perplexity {found.loss:+.1%} on the default model)"
