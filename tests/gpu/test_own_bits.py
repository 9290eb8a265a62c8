"""On a GPU: weights in fewer bits beside the same numbers in float32, and rows whose bits are their own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_device_parity import CUDA, MAX_NOISE, model_of, noise, quiet

from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.model_info import WeightDtype
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.executor import create_executor
from loopwright.engine.loaded_model import LoadedModel
from runner_rig import Rig, dense_rows, runs_of, some_tokens


def rig_of(
    model: LoadedModel, dtype: WeightDtype, *, is_reference: bool = False, is_deterministic: bool = True,
    has_graphs: bool = True,
) -> Rig:  # fmt: skip
    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        with torch.inference_mode():
            parts = DeviceParts.make(
                model, num_blocks=num_blocks, device=CUDA, dtype=torch.float32 if is_reference else torch.bfloat16,
                attention="triton" if is_deterministic else "sdpa", has_kernels=not is_reference,
                kind_of=kinds(dtype), is_deterministic=is_deterministic,
            )  # fmt: skip
            runner = DeviceRunner(model, parts, num_slots=num_slots, max_rows=64)
            if has_graphs and not is_reference:
                runner.capture(quiet)
        return runner

    return Rig(model, num_blocks=1024, make_runner=make)


@pytest.mark.parametrize(
    ("dtype", "is_deterministic"), [("fp8", False), ("int8", False), ("int4", False), ("int4", True)]
)
def test_fewer_bits_are_within_the_noise_of_their_own_numbers(dtype: WeightDtype, is_deterministic: bool) -> None:
    """Prompts of 300 tokens, of 100 and of 5, and steps of 1, 20 and 50 rows: each takes another tiling. What cuBLAS
    multiplies, that of 300, is rounded once more."""
    model, tokens = model_of("biases"), some_tokens(300)
    rig = rig_of(model, dtype, is_deterministic=is_deterministic, has_graphs=False)
    expected = rig_of(model, dtype, is_reference=True, is_deterministic=False).logprobs(tokens)
    for size in (300, 100, 5):
        assert noise(rig.logprobs(tokens[:size]), expected[:size]) < 1.5 * MAX_NOISE
    for num_rows in (1, 20, 50):
        tables = [rig.blocks(20) for _ in range(num_rows)]
        rig.rows(*(rig.row(tokens[:9], block_ids=table) for table in tables))
        found = rig.rows(*(rig.row(tokens[9:10], kv_len=9, block_ids=table) for table in tables))
        assert (
            noise(np.concatenate([dense_rows(one) for one in found]), np.tile(expected[9], (num_rows, 1)))
            < 1.5 * MAX_NOISE
        )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("heads of 64, 3 of a group", "bfloat16"), ("heads of 128, 4 of a group", "int4"), ("head norms", "int8"),
     ("a window", "bfloat16"), ("Gemma 3", "bfloat16"), ("experts", "bfloat16")],
)  # fmt: skip
def test_a_row_has_its_own_bits(name: str, dtype: WeightDtype) -> None:
    """In pieces, beside others, as decode steps, masked by a mask that hides nothing; at any batch, in graphs."""
    rig, tokens = rig_of(model_of(name), dtype), some_tokens(600)
    cold, blocks = rig.logprobs(tokens), rig.blocks(600)
    pieces = [
        dense_rows(rig.rows(rig.row(tokens[:30]), rig.row(tokens[start:end], kv_len=start, block_ids=blocks))[1])
        for start, end in ((0, 7), (7, 300), (300, 590))
    ]  # fmt: skip
    for place in range(590, 600):
        row = rig.row(tokens[place : place + 1], kv_len=place, block_ids=blocks)
        pieces.append(dense_rows(rig.rows(row, rig.row(tokens[:2]), rig.row(tokens[:1]))[0]))
    np.testing.assert_array_equal(np.concatenate(pieces), cold)
    mask = tuple(runs_of([True] * (own + 1)) for own in range(60))
    np.testing.assert_array_equal(rig.logprobs(tokens[:60], mask=mask), cold[:60])
    tables = [rig.blocks(64) for _ in range(64)]
    rig.rows(*(rig.row(some_tokens(3 + row % 50, row), block_ids=table) for row, table in enumerate(tables)))
    asked, found = [DistributionRequest(k=1, logits=True)], set()
    for size in (1, 2, 7, 20, 32, 33, 48, 64):
        rows = [*range(64)][64 - size :]
        result = rig.rows(
            *(ForwardRow(tables[row], 3 + row % 50, [3 + row % 50], [7], distributions=asked if row == 63 else (),
                         sampling=None if row == 63 else Sampling()) for row in rows)
        )  # fmt: skip
        found.add(result[-1].distributions[0].logits)
    assert len(found) == 1


@pytest.mark.parametrize(("dtype", "is_deterministic"), [("int4", True), ("fp8", False)])
def test_an_executor_of_random_weights_has_the_dtype_and_the_class(dtype: WeightDtype, is_deterministic: bool) -> None:
    executor = create_executor(
        Path(), num_blocks=64, num_slots=1, shape="tiny", device="cuda", dtype=dtype, max_rows=4,
        is_deterministic=is_deterministic,
    )  # fmt: skip
    try:
        assert (executor.dtype, executor.exactness) == (dtype, "deterministic" if is_deterministic else "fast")
        row = ForwardRow([3], 0, range(5), [1, 2, 3, 4, 5], sampling=Sampling())
        results = [executor.submit(Batch(rows=[row])).result().rows[0] for _ in range(2)]
        assert results[0].error is None
        assert results[0] == results[1]
    finally:
        executor.close()
