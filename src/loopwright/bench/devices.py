"""Owns what a step costs on the devices that are simulated, and where each number is from. Never measures.

Read by the batching suite. docs/batching.md says how the tables were made.
"""

from typing import Final

from loopwright.core.step_costs import StepCosts

L4: Final = StepCosts(
    row_s=((1, 8.3e-3), (32, 18.75e-3), (128, 19.03e-3)),
    token_s=33e-6,
    light_s=0.1e-3,
)
"""The paper's machine with its 1B model. 1 row: 2.5 GB of weights at 300 GB/s. 32: time per token of its Table 4.
128: 64 tokens each at the 105.12 requests/s of its text completion. A prompt's token: 2.5 GFLOP at 60 % of 121 TFLOP/s.
"""

H200: Final = StepCosts(
    row_s=((1, 1.26e-3), (32, 1.44e-3), (128, 2.13e-3), (256, 2.98e-3)),
    token_s=4e-6,
    light_s=0.02e-3,
)
"""The same model in CUDA graphs at a context of 512, as we measured them. A prompt's token: 2.5 GFLOP at 80 % of
754 TFLOP/s."""

DEVICES: Final = {"l4": L4, "h200": H200}

PAPER_REQUESTS_PER_S: Final = {"eager": 5.61, "k-only": 30.09, "t-only": 78.11, "adaptive": 84.85}
"""Table 5 of the Pie paper: 128 programs on an L4, K = 8, T = 16 ms."""
