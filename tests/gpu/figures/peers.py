"""What others measured, elsewhere and with their own programs: read beside our figures, and no ratio of the same run.

Milliseconds from token to token, prompt 128, output 128, greedy, random weights of Llama 3's sizes, by batch.
"""

BATCHES = (1, 32, 128, 256)

VLLM = "vLLM 0.25.1, offline, one H200, measured elsewhere"
VLLM_TPOT_MS = {"llama-1b": (1.83, 2.34, 3.76, 4.81), "llama-8b": (4.87, 5.51, 7.20, 10.93)}
VLLM_PREFILL_PER_S = {"llama-8b": 44_000}

GOALS = "goal"
GOAL_TPOT_MS = {"llama-1b": (1.15, 1.35, 1.9, 2.7), "llama-8b": (4.5, 5.1, 6.6, 9.8)}
GOAL_PREFILL_PER_S = {"llama-8b": 46_000}


def beside(shape: str, batch: int) -> str:
    """The goal and vLLM's figure, for a cell."""
    if shape not in GOAL_TPOT_MS or batch not in BATCHES:
        return ""
    place = BATCHES.index(batch)
    return f"{GOAL_TPOT_MS[shape][place]:g} / {VLLM_TPOT_MS[shape][place]:g}"
