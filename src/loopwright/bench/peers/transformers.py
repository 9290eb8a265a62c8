"""Measures transformers in bfloat16 over the prompts of `bench.decode`: the time to one new token. Never compares.
Run in a process of its own, by `peers.measure`; what it computes with are torch's kernels, eager, with its `sdpa`.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM, GgufConfig

Model: TypeAlias = Any
"""Of whatever architecture: transformers has no type that says what one takes."""


def main(workload: dict[str, Any]) -> list[dict[str, object]]:
    model = load(workload)
    values: list[dict[str, object]] = []
    for prompt in workload["long_prompts"]:
        speeds = [len(prompt) / prefill_s(model, prompt) for _ in range(1 + int(workload["num_rounds"]))]
        values.append({"case": f"prompt={len(prompt)}", "metric": "tokens_per_s", "value": median(speeds[1:])})
    return values


def load(workload: dict[str, Any]) -> Model:
    """The model in bfloat16, on as many threads as ours has. What a GGUF file has in fewer bits is unpacked once: with
    its blocks kept, transformers would multiply in float32. Raises TypeError if a weight is in anything else."""
    torch.set_num_threads(int(workload["num_threads"]))
    path = Path(workload["model_path"])
    options: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
    if path.is_file():
        options |= {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
    model: Model = AutoModelForCausalLM.from_pretrained(path.parent if path.is_file() else path, **options)
    kinds = {one.weight.dtype for one in model.modules() if hasattr(one, "weight")}
    if kinds != {torch.bfloat16}:
        raise TypeError(f"weights are {kinds}, and not bfloat16 alone")
    return model.eval()


def prefill_s(model: Model, prompt: list[int]) -> float:
    """One forward that keeps KV and gives the last token's logits, and the highest of them: what `generate` does, less
    its books."""
    tokens = torch.tensor([prompt])
    started_s = time.monotonic()
    with torch.inference_mode():
        int(model(tokens, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
    return time.monotonic() - started_s


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
