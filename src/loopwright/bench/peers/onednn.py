"""Measures the matrices of a prompt alone, in bfloat16, through torch and its oneDNN: what an engine that computes with
it can reach at best, for it has attention, norms and sampling to do besides. Never compares. Run in a process of its
own, by `peers.measure`.
"""

import json
import sys
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor

from loopwright.bench.peers.transformers import load


def main(workload: dict[str, Any]) -> list[dict[str, object]]:
    layers = load(workload).model.layers
    matrices = [one.weight for one in layers.modules() if isinstance(one, torch.nn.Linear)]
    values: list[dict[str, object]] = []
    for prompt in workload["long_prompts"]:
        speeds = [len(prompt) / multiply_s(matrices, len(prompt)) for _ in range(1 + int(workload["num_rounds"]))]
        values.append({"case": f"prompt={len(prompt)}", "metric": "tokens_per_s", "value": median(speeds[1:])})
    return values


def multiply_s(matrices: list[Tensor], num_tokens: int) -> float:
    """Each matrix [num_outputs, num_inputs] times as many vectors as the prompt has tokens."""
    inputs = {one.shape[1]: torch.randn(num_tokens, one.shape[1]).bfloat16() for one in matrices}
    started_s = time.monotonic()
    with torch.inference_mode():
        for one in matrices:
            torch.nn.functional.linear(inputs[one.shape[1]], one)
    return time.monotonic() - started_s


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
