"""What a rank loads: of each weight its part, from every kind of file, and which models cannot be split."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from parity import ARCHITECTURES
from test_dequantize import random_blocks

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda.dummy import SHAPES, dummy_model
from loopwright.engine.cuda.memory import MemoryPlan
from loopwright.engine.dequantize import _LAYOUTS, dequantize, dequantize_columns
from loopwright.engine.executor import create_executor
from loopwright.engine.loader import load_model, read_config
from loopwright.engine.model_files import write_gguf, write_hf_folder
from loopwright.engine.shards import Shard, check_split, local_config, sharded_specs

if TYPE_CHECKING:
    from pathlib import Path

    from loopwright.engine.loaded_model import LoadedModel

FAMILIES = ("Llama 2", "Llama: biases", "Qwen2.5: yarn", "Qwen3", "Qwen3-MoE", "Mistral: window")


def part_of(model: LoadedModel, shard: Shard) -> dict[str, torch.Tensor]:
    """Cut out of the whole model in memory."""
    parts = {}
    for one in sharded_specs(model.config, shard):
        whole, start, pieces = model.weights[one.spec.name], 0, []
        for cut in one.cuts:
            piece = whole[start : start + cut.num_rows]
            pieces.append(piece[cut.rows] if whole.ndim == 1 else piece[cut.rows, cut.columns])
            start += cut.num_rows
        parts[one.spec.name] = torch.zeros(one.spec.shape) if one.is_elsewhere else torch.cat(pieces)
    return parts


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rank_loads_its_part_of_each_weight(name: str, tmp_path: Path) -> None:
    model = byte_model(seed=2, **{"num_layers": 3, **ARCHITECTURES[name]})
    write_hf_folder(model, tmp_path / "hf", num_files=2)
    write_gguf(model, tmp_path / "model.gguf")
    for path in (tmp_path / "hf", tmp_path / "model.gguf"):
        for rank in range(2):
            loaded = load_model(path, shard=Shard(rank, 2))
            expected = part_of(model, Shard(rank, 2))
            assert loaded.weights.keys() == expected.keys()
            for weight, part in expected.items():
                assert torch.equal(loaded.weights[weight], part), (path, weight)
            assert loaded.config.num_kv_heads == model.config.num_kv_heads // 2


def test_the_parts_of_two_ranks_are_the_whole() -> None:
    """All weights but norms and the embedding are on one rank each: by their sums."""
    model = byte_model(seed=2, has_qkv_bias=True, has_output_bias=True)
    first, second = (part_of(model, Shard(rank, 2)) for rank in range(2))
    for name, whole in model.weights.items():
        if name == "embedding" or name.endswith("norm"):
            assert torch.equal(first[name], whole)
            assert torch.equal(second[name], whole)
        else:
            assert first[name].sum() + second[name].sum() == pytest.approx(float(whole.sum()), abs=1e-3), name


@pytest.mark.parametrize("kind", _LAYOUTS)
def test_columns_of_every_stored_kind_are_those_of_the_whole(kind: str) -> None:
    """Also where a block holds columns of two ranks."""
    size, num_rows = max(4, _LAYOUTS[kind].block_size), 300
    if _LAYOUTS[kind].block_size == 1:
        values = np.random.default_rng(2).normal(0, 1, (num_rows, 3 * size)).astype(np.float32)
        blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    else:
        blocks = random_blocks(kind, num_rows * 3)
    whole = np.empty((num_rows, 3 * size), np.float32)
    dequantize("t", kind, blocks.reshape(-1), whole)
    for columns in (slice(0, size), slice(size, 3 * size), slice(size // 2, 2 * size + 1)):
        out = np.empty((num_rows, columns.stop - columns.start), np.float32)
        dequantize_columns("t", kind, blocks.reshape(num_rows, -1), columns, 3 * size, out)
        np.testing.assert_array_equal(out, whole[:, columns])


@pytest.mark.parametrize(
    ("num_ranks", "changes", "named", "possible"),
    [
        (2, {"num_heads": 9, "num_kv_heads": 3, "intermediate_size": 96, "vocab_size": 258}, ["9 que", "3 KV"], "1, 3"),
        (4, {}, ["2 KV heads"], "1, 2"),
        (2, {"intermediate_size": 129}, ["129 as intermediate size"], "1"),
        (2, {"vocab_size": 261}, ["261 tokens in its vocabulary"], "1"),
        (3, {"num_heads": 8, "num_kv_heads": 4}, ["8 query", "4 KV", "128 as", "260 tokens"], "1, 2, 4"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_split_so_is_refused_with_the_numbers(
    num_ranks: int, changes: dict[str, int], named: list[str], possible: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        check_split(byte_model(**changes).config, num_ranks)
    message = refused.value.message
    assert message.startswith(f"engine.tensor_parallel: {num_ranks} ranks cannot share this model evenly")
    assert [one for one in named if one not in message] == []
    assert message.count(", ") == len(named), "and nothing else"
    assert refused.value.hint == f"it can be split by {possible}"
    assert refused.value.field == "engine.tensor_parallel"


def test_smollm2_is_refused_by_two_before_a_weight_is_loaded(
    default_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for called in ("loopwright.engine.parts.load_model", "loopwright.engine.executor.RankGroup"):
        monkeypatch.setattr(called, lambda *_, **__: pytest.fail("it is refused before"))
    with pytest.raises(BadRequest, match="2 ranks cannot share this model evenly, which has 9 query heads, 3 KV heads"):
        create_executor(default_model_path, num_blocks=8, num_slots=1, num_ranks=2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "bfloat16"}, "engine.dtype"),
        ({"dtype": "int8"}, "engine.dtype"),
        ({"dtype": "auto", "is_deterministic": True}, "engine.deterministic"),
        ({"dtype": "auto", "attention": "flashinfer"}, "engine.attention"),
        ({"dtype": "auto", "device": "cuda"}, "engine.device"),
    ],
)
def test_what_ranks_on_a_cpu_do_not_have_is_refused(
    options: dict[str, object], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("loopwright.engine.executor.RankGroup", lambda *_: pytest.fail("it is refused before"))
    write_hf_folder(byte_model(), tmp_path / "model")
    with pytest.raises(Unavailable) as refused:
        create_executor(tmp_path / "model", num_blocks=8, num_slots=1, num_ranks=2, **options)
    assert refused.value.field == field


def test_more_ranks_than_gpus_are_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    with pytest.raises(Unavailable, match=r"engine\.tensor_parallel: 2 ranks need as many GPUs, and torch sees 1"):
        create_executor(tmp_path, num_blocks=8, num_slots=1, shape="llama-8b", device="cuda", dtype="auto", num_ranks=2)


def test_a_config_is_read_without_its_weights(tmp_path: Path) -> None:
    model = byte_model()
    write_gguf(model, tmp_path / "model.gguf")
    assert read_config(tmp_path / "model.gguf") == load_model(tmp_path / "model.gguf").config
    assert read_config(tmp_path / "model.gguf", [1]).num_layers == 1


def test_the_parts_of_a_dummy_are_cut_out_of_the_whole_one() -> None:
    whole = dummy_model(SHAPES["tiny"])
    for rank in range(2):
        mine = dummy_model(SHAPES["tiny"], shard=Shard(rank, 2))
        for name, part in part_of(whole, Shard(rank, 2)).items():
            assert torch.equal(mine.weights[name], part), name


def test_a_rank_of_two_has_room_for_more_than_twice_the_kv() -> None:
    config = SHAPES["llama-8b"]
    plans = [
        MemoryPlan.of(
            local_config(config, num_ranks),
            torch.bfloat16,
            max_rows=256,
            max_tokens=8192,
            free_bytes=40 << 30,
            num_ranks=num_ranks,
        )
        for num_ranks in (1, 2)
    ]
    assert plans[1].block_bytes * 2 == plans[0].block_bytes
    assert plans[1].weight_bytes == pytest.approx(plans[0].weight_bytes / 2 + 128256 * 4096, rel=1e-3)
    assert plans[1].num_blocks() > 2 * plans[0].num_blocks()
    small = dataclasses.replace(plans[1], free_bytes=8 << 30)
    with pytest.raises(Unavailable, match=r"weights 8\.56 GB, a step .* are more than the 8\.59 GB free"):
        small.num_blocks()
