"""Owns what the Pie paper reports for launches, calls and programs, to be shown beside our values. Never measures.

Read by the launch, calls and size suites. Its machine has an NVIDIA L4 and programs in Rust; arXiv 2510.24051.
"""

from collections.abc import Mapping
from typing import Final

WARM_LAUNCH_MS: Final = "10–50"
"""Figure 9: one program whose binary the server has, up to 896 of them at once."""

COLD_LAUNCH_MS: Final = "35–81"
"""Figure 9: the same with the upload of its binary and its compilation."""

NUM_LIVE: Final = "896"
"""Figure 9: as many were launched at once."""

CALL_WITHOUT_QUEUE_US: Final = "<30–40"
"""Figure 10: a call that the control layer answers; 30 in the text, nearer to 40 in the plot."""

CALL_IN_QUEUE_US: Final = "10–300"
"""Figure 10: what the host adds to a call of the inference layer, growing with the programs at once."""

PROGRAM_LINES: Final[Mapping[str, int]] = {
    "completion": 38, "tree_of_thought": 198, "recursion_of_thought": 106, "graph_of_thought": 87,
    "skeleton_of_thought": 82, "prefix_caching": 45, "modular_caching": 72, "grammar_in_program": 225,
    "beam_search": 98, "watermark": 43, "output_validation": 52, "ngram_speculation": 255, "jacobi": 88,
    "attention_sink": 60, "windowed_attention": 60, "hierarchical_attention": 42, "react": 60, "code_act": 62,
    "swarm": 95,
}  # fmt: skip
"""Table 2: lines of Rust of each of its 19 programs, by the name of ours."""
