"""Measures transformers' `generate` in bfloat16 over the prompts of `bench.decode`: the time to one new token. Never
compares. Run in a process of its own, by `peers.measure`; what it computes with are torch's kernels, eager.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM

Model: TypeAlias = Any
"""Of whatever architecture: transformers has no type that says what `generate` takes."""


def main(workload: dict[str, Any]) -> list[dict[str, object]]:
    model = load(workload)
    values: list[dict[str, object]] = []
    for prompt in workload["long_prompts"]:
        speeds = [len(prompt) / prefill_s(model, prompt) for _ in range(1 + int(workload["num_rounds"]))]
        values.append({"case": f"prompt={len(prompt)}", "metric": "tokens_per_s", "value": median(speeds[1:])})
    return values


def load(workload: dict[str, Any]) -> Model:
    """The model in bfloat16, on as many threads as ours has."""
    torch.set_num_threads(int(workload["num_threads"]))
    path = Path(workload["model_path"])
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    model: Model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
    return model.eval()


def prefill_s(model: Model, prompt: list[int]) -> float:
    tokens = torch.tensor([prompt])
    started_s = time.monotonic()
    with torch.inference_mode():
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=1, do_sample=False)
    return time.monotonic() - started_s


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
