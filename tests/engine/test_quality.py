"""Weights in levels say nearly what weights in bfloat16 say: perplexity on this project's documents."""

import pytest
from quality import MAX_LOSS, perplexity, windows

from kernels_here import needs_kernels
from loopwright.weights.store import resolve
from system_rig import SmolLM2


@pytest.mark.model
@needs_kernels
def test_levels_cost_at_most_a_hundredth_of_the_perplexity(smollm2: SmolLM2) -> None:
    texts = windows(resolve("default").path, 4)
    expected = perplexity(smollm2.model, "bfloat16", texts)
    for dtype in ("int8", "stored"):
        assert abs(perplexity(smollm2.model, dtype, texts) / expected - 1) <= MAX_LOSS
