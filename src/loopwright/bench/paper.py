"""Owns what the Pie paper reports for launches and calls, as it is shown beside our own values. Never measures.

Read by the launch and calls suites. Its machine has an NVIDIA L4 and programs in Rust; arXiv 2510.24051.
"""

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
