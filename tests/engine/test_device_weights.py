"""Weights in fewer bits on a device: what is kept, what it takes, that the decoder computes with it, who refuses."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from device_rig import CHOICE, CPU, device_executor
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.core.errors import Unavailable
from loopwright.core.model_info import WeightDtype
from loopwright.engine.byte_model import BYTE_CONFIG, byte_model
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.dummy import SHAPES, dummy_model
from loopwright.engine.cuda.judged import judged
from loopwright.engine.cuda.matrices import FEWER_BITS, Matrix, MatrixKind, kinds, matrix_bytes
from loopwright.engine.cuda.memory import MemoryPlan
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.native.choice import choose
from loopwright.engine.oracle import Oracle
from loopwright.engine.parts import choose_part
from loopwright.engine.ranks.messages import RankSettings

KINDS: tuple[MatrixKind, ...] = ("fp8", "int8", "int4")
MAX_ERRORS = {"fp8": 0.03, "int8": 0.009, "int4": 0.09}  # root mean square over that of normal numbers


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.02


def kept(weight: Tensor, kind: MatrixKind) -> Matrix:
    return Matrix.of(weight, kind, CPU, torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4096, 576, 100, 7])
def test_what_is_kept_is_near_and_takes_what_was_planned(kind: MatrixKind, size: int) -> None:
    weight = numbers(64, size)
    weight[3], weight[4], weight[5, 1:] = 0, 0.3, 0
    matrix = kept(weight, kind)
    error = matrix.weights() - weight
    assert error[6:].square().mean().sqrt() / 0.02 < MAX_ERRORS[kind]
    assert not error[3].any()
    assert error[4].abs().max() < 0.3 / 100
    assert matrix.nbytes == matrix_bytes(kind, 64, size, torch.bfloat16)
    assert matrix.num_outputs == 64


def test_numbers_on_a_grid_of_16_levels_by_32_are_kept_as_they_are() -> None:
    """As a file of 4 bits has them: scales and offsets of its own."""
    generator = torch.Generator().manual_seed(2)
    levels = torch.randint(0, 16, (8, 6, 32), generator=generator).float()
    levels[..., :2] = torch.tensor([0.0, 15.0])  # a file's scale comes of the range of its group
    scales = torch.rand(8, 6, 1, generator=generator).bfloat16().float() * 0.01
    offsets = -scales * (5 + 5 * torch.rand(8, 6, 1, generator=generator))
    weight = (levels * scales + offsets).flatten(1)
    error = (kept(weight, "int4").weights() - weight).abs().amax(1) / scales.amax((1, 2))
    assert error.max() < 0.1  # of a level


def test_the_largest_of_a_group_is_one_of_its_levels() -> None:
    weight = numbers(16, 256)
    matrix = kept(weight, "int8")
    levels = matrix.values.view(torch.int8).int()
    assert (levels.abs().view(16, 2, 128).amax(-1) >= 126).all()
    assert levels.min() >= -127


def with_numbers(model: LoadedModel, dtype: WeightDtype) -> LoadedModel:
    """The model with the numbers that a device keeps of it. Its head is not its embedding, which is kept whole."""
    kind_of = kinds(dtype)
    names = {"head": "head"} | {name: name for name, one in model.weights.items() if one.dim() == 2}
    del names["embedding"]
    found = {name: kept(model.weights[name], kind_of(name)).weights() for name in names}
    return dataclasses.replace(model, weights={**model.weights, **found})


@pytest.mark.parametrize("dtype", FEWER_BITS)
def test_a_device_computes_with_what_it_keeps(dtype: WeightDtype) -> None:
    model = byte_model(seed=7, is_head_tied=False, has_qkv_bias=True)
    expected = Oracle(with_numbers(model, dtype)).generate([5, 6, 7], max_tokens=12).tokens
    choice = dataclasses.replace(CHOICE, fewer_bits=dtype)
    executor = device_executor(model, choice=choice)
    try:
        assert executor.dtype == dtype
        row = ForwardRow([3, 8], 0, range(3), [5, 6, 7], sampling=Sampling())
        found = [executor.submit(Batch(rows=[row])).result().rows[0].token_id]
        for place in range(3, 14):
            row = ForwardRow([3, 8], place, [place], [found[-1] or 0], sampling=Sampling())
            found.append(executor.submit(Batch(rows=[row])).result().rows[0].token_id)
    finally:
        executor.close()
    assert tuple(found) == tuple(expected)


def test_a_head_that_is_the_embedding_is_kept_beside_it_and_steps_read_fewer_bytes() -> None:
    model = byte_model(seed=7, is_head_tied=True, hidden_size=128, head_dim=32)
    whole, small = (
        device_executor(model, choice=dataclasses.replace(CHOICE, fewer_bits=dtype)) for dtype in (None, "int4")
    )
    try:
        bytes_of = {name: one.shape for name, one in model.weights.items() if one.dim() == 2 and name != "embedding"}
        matrices = sum(matrix_bytes("int4", *shape, torch.float32) for shape in bytes_of.values())
        head = matrix_bytes("int8", *model.weights["embedding"].shape, torch.float32)
        assert small.step_weight_bytes == matrices + head
        assert whole.step_weight_bytes > 4 * small.step_weight_bytes
    finally:
        whole.close()
        small.close()


def test_the_plan_counts_what_is_kept() -> None:
    def plan(dtype: WeightDtype, shape: str = "llama-8b") -> MemoryPlan:
        return MemoryPlan.of(
            SHAPES[shape], torch.bfloat16, kinds(dtype), max_rows=256, max_tokens=2048, free_bytes=40 << 30
        )

    whole = plan("bfloat16")
    assert whole == plan("auto")
    for dtype, most in (("fp8", 0.6), ("int8", 0.6), ("int4", 0.41)):
        assert plan(dtype).weight_bytes < most * whole.weight_bytes
        assert plan(dtype).num_blocks() > plan("bfloat16").num_blocks()
    embedding = 2 * 128256 * 2048
    assert plan("int8", "llama-1b").weight_bytes > plan("bfloat16", "llama-1b").weight_bytes / 2 + embedding / 2


def test_random_weights_that_nobody_holds_are_the_same_whenever_they_are_asked_for() -> None:
    held, drawn = (dummy_model(SHAPES["tiny"], CPU, is_held=is_held) for is_held in (True, False))
    assert list(drawn.weights) == list(held.weights)
    for name, one in held.weights.items():
        assert torch.equal(drawn.weights[name], one)
    assert drawn.weights["embedding"] is not drawn.weights["embedding"]
    assert "layers.0.qkv_bias" not in drawn.weights
    for model in (held, drawn):
        executor = device_executor(model, choice=dataclasses.replace(CHOICE, fewer_bits="int8"))
        executor.close()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return monkeypatch


def test_a_choice_names_the_dtype_and_what_it_was_judged(gpu: pytest.MonkeyPatch) -> None:
    found = {dtype: choose_device("auto", BYTE_CONFIG, dtype) for dtype in FEWER_BITS}
    for dtype, choice in found.items():
        assert choice is not None
        assert choice.weights == dtype
        assert choice.dtype == torch.bfloat16
        assert f"bfloat16, weights in {judged(dtype)}, attention by" in choice.reason
    assert "int4, which FAILED the quality gate" in judged("int4")
    assert judged("int8") == "int8"
    gpu.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(Unavailable, match=r"engine\.dtype 'fp8' needs compute capability 8\.9; a GPU has less"):
        choose_device("cuda", BYTE_CONFIG, "fp8")
    gpu.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"engine\.dtype 'int4' needs Triton"):
        choose_device("cuda", BYTE_CONFIG, "int4")


def test_a_gpu_is_deterministic_with_kernels_and_bfloat16_or_says_which_setting_is_in_the_way(
    gpu: pytest.MonkeyPatch,
) -> None:
    for dtype in ("auto", "int4"):
        choice = choose_device("cuda", BYTE_CONFIG, dtype, is_deterministic=True)
        assert choice is not None
        assert (choice.attention, choice.is_deterministic) == ("triton", True)
        assert choice.reason.endswith("attention by Triton; deterministic")
    plain = choose_device("cuda", BYTE_CONFIG)
    assert plain is not None
    assert not plain.is_deterministic
    for asked, reason in (
        (("float32", "auto"), r"bfloat16 and fewer bits; engine\.dtype is 'float32'"),
        (("auto", "flashinfer"), r"attention is Triton's then; engine\.attention is 'flashinfer'"),
    ):
        with pytest.raises(Unavailable, match=rf"engine\.deterministic: on a GPU .*{reason}"):
            choose_device("cuda", BYTE_CONFIG, *asked, is_deterministic=True)
        assert choose_device("auto", BYTE_CONFIG, *asked, is_deterministic=True) is None


def test_several_gpus_are_not_deterministic(gpu: pytest.MonkeyPatch) -> None:
    settings = RankSettings(
        rank=0, num_ranks=2, path="", layers=(), shape="tiny", meeting="", timeout_s=1.0, device="cuda", dtype="auto",
        attention="auto", num_threads=1, num_blocks=0, num_slots=1, max_rows=8, max_tokens=64,
    )  # fmt: skip
    with pytest.raises(Unavailable, match=r"engine\.deterministic: NCCL adds up what 2 GPUs have"):
        choose_part(settings, BYTE_CONFIG, is_deterministic=True)


@pytest.mark.parametrize("dtype", ["fp8", "int4"])
def test_the_cpu_refuses_what_only_a_gpu_has(dtype: WeightDtype) -> None:
    with pytest.raises(Unavailable, match=f"engine.dtype: '{dtype}' is for a GPU"):
        choose(dtype, BYTE_CONFIG)


def test_one_number_that_is_not_finite_spoils_its_group_alone() -> None:
    weight = numbers(4, 256)
    weight[1, 200] = torch.nan
    found = kept(weight, "int8").weights()
    assert np.isfinite(found[[0, 2, 3]].numpy()).all()
    assert np.isfinite(found[1, :128].numpy()).all()
