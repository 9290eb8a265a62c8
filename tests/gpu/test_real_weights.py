"""SmolLM2's real weights on a GPU: tokens and log-probabilities beside the float32 reference, within the noise floor.

Needs the model in the cache folder (`loopwright model pull default`), or any folder or GGUF file of a model in
LOOPWRIGHT_TEST_GPU_MODEL; nothing is fetched. The prompt is text, as ids of SmolLM2's tokenizer.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from loopwright.core.batch import Batch, DecodeRows
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.loader import load_model
from loopwright.weights import store
from runner_rig import Rig, dense_rows

MAX_NOISE = 0.016  # root mean square of the error of log-probabilities over their spread; bf16 on a CPU: 0.012
MAX_GAP = 0.15  # by how much the reference may like another token more
NUM_TOKENS, NUM_ROWS = 48, 3
PROMPT = [
    504, 33059, 40061, 761, 5454, 260, 1142, 20797, 327, 11591, 929, 30, 5081, 9053, 384, 4150, 1187, 260, 7302, 282,
    260, 3426, 28, 260, 7761, 338, 4180, 28, 284, 582, 2775, 338, 384, 761, 441, 6182, 30, 1848, 3163, 384, 4150, 42,
]  # fmt: skip


@pytest.fixture(scope="module")
def real_model() -> LoadedModel:
    named = os.environ.get("LOOPWRIGHT_TEST_GPU_MODEL")
    found = [Path(named)] if named else [one.path for one in store.list_models() if one.name.startswith("SmolLM2")]
    if not found or not found[0].exists():
        pytest.skip(f"no SmolLM2 in {store.cache_folder()}, and LOOPWRIGHT_TEST_GPU_MODEL names no model")
    return load_model(found[0])


def rig_of(model: LoadedModel, device: str, *, is_reference: bool) -> Rig:
    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        choice = None if is_reference or device == "cpu" else choose_device("cuda", model.config)
        with torch.inference_mode():
            parts = DeviceParts.make(
                model, num_blocks=num_blocks, device=torch.device(device),
                dtype=torch.float32 if is_reference else torch.bfloat16,
                attention="sdpa" if choice is None else choice.attention,
                has_kernels=choice is not None and choice.has_kernels,
            )  # fmt: skip
            runner = DeviceRunner(model, parts, num_slots=num_slots, max_rows=NUM_ROWS)
            runner.capture(lambda stage, fraction: None)
        return runner

    return Rig(model, num_blocks=64, make_runner=make)


def greedy(rig: Rig) -> list[list[int]]:
    """Of rows whose prompts are the text without its last words, decoded together."""
    prompts = [PROMPT[: len(PROMPT) - 3 * row] for row in range(NUM_ROWS)]
    tables = [rig.blocks(len(prompt) + NUM_TOKENS) for prompt in prompts]
    rig.rows(*(rig.row(prompt[:-1], block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
    lengths, sampled = [len(prompt) - 1 for prompt in prompts], [prompt[-1] for prompt in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    for number in range(NUM_TOKENS):
        columns = DecodeRows(
            tables, lengths, lengths, [Sampling()] * NUM_ROWS, [()] * NUM_ROWS, sampled, number, [0] * NUM_ROWS
        )
        sampled = list(rig.step(Batch(decodes=columns)).decodes.token_ids)
        for mine, token in zip(tokens, sampled, strict=True):
            mine.append(token)
    return tokens


def check_beside_the_reference(model: LoadedModel, device: str) -> None:
    rig, reference = rig_of(model, device, is_reference=False), rig_of(model, device, is_reference=True)
    expected = reference.logprobs(PROMPT)
    found = rig.logprobs(PROMPT)
    assert float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std()) < MAX_NOISE
    for row, mine in enumerate(greedy(rig)):
        prompt = PROMPT[: len(PROMPT) - 3 * row]
        logprobs = dense_rows(reference.rows(reference.row([*prompt, *mine[:-1]]))[0])[len(prompt) - 1 :]
        gap = logprobs.max(1) - logprobs[np.arange(NUM_TOKENS), mine]
        assert gap.max() < MAX_GAP, f"row {row}: token {int(gap.argmax())} is {gap.max():.3f} below the likeliest"
        assert (gap == 0).mean() > 0.9


def test_real_weights_give_the_references_tokens_within_the_noise_floor(real_model: LoadedModel) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    check_beside_the_reference(real_model, "cuda")
