"""The native kernels: each instruction set and each kind of weight beside float32 torch over the same weights, and a
row's bits, which nothing but the row decides."""

from __future__ import annotations

import dataclasses
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from engine_rig import Rig, dense_rows, runs_of, some_tokens
from parity import ARCHITECTURES

from kernels_here import needs_kernels
from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, KvShift, Sampled
from loopwright.core.calls import Sampling
from loopwright.engine.byte_model import BYTE_CONFIG, byte_model
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.model_runner import SCRATCH_BYTES, NativeSettings
from loopwright.engine.native import build
from loopwright.engine.native.cache import NativeKvCache
from loopwright.engine.native.decoder import misfit
from loopwright.engine.native.packing import GROUP, PANEL, PackedMatrix, pack
from loopwright.weights.store import cache_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.engine.loaded_model import LoadedModel
    from loopwright.engine.native.compiler import InstructionSet
    from loopwright.engine.native.structs import WeightType

SETS = build.processor_sets()
CASES = [(one, kind) for one in SETS for kind in ("bf16", "q8", "q4")]
FITTING = [name for name, fields in ARCHITECTURES.items() if "head_dim" not in fields or fields["head_dim"] == 32]
FITTING = [name for name in FITTING if "experts" not in ARCHITECTURES[name]]
# Root mean square of the error of all log-probabilities over their spread. Activations are rounded to 8 bits in bf16,
# and to 1/127 of the largest of 32 in levels.
MAX_NOISE: dict[WeightType, float] = {"bf16": 0.01, "q8": 0.03, "q4": 0.03, "q4_0": 0.03}
LENGTHS = [(0, 40), (17, 1), (90, 1), (31, 1), (16, 7), (0, 1), (15, 1), (20, 7), (33, 1), (50, 40)]

pytestmark = needs_kernels


def native(
    instructions: InstructionSet, kind: WeightType, num_threads: int = 1, scratch_bytes: int = SCRATCH_BYTES
) -> NativeSettings:
    return NativeSettings(build.load_kernels(cache_folder(), instructions), lambda _: kind, num_threads, scratch_bytes)


def best(num_threads: int = 1) -> NativeSettings:
    return native(SETS[0], "bf16", num_threads)


def rounded(model: LoadedModel, kind: WeightType) -> LoadedModel:
    """The model with the weights that the kernels keep: by numpy, and by the formulas of GGUF's types."""
    kinds = {name: "bf16" if name == "embedding" else kind for name in model.weights}  # looked up, not multiplied
    return dataclasses.replace(model, weights={name: _rounded(one, kinds[name]) for name, one in model.weights.items()})


def _rounded(weight: torch.Tensor, kind: WeightType) -> torch.Tensor:
    if weight.dim() == 1:
        return weight
    if kind == "bf16" or weight.shape[1] % GROUP:
        return weight.bfloat16().float()
    groups = weight.numpy().reshape(-1, GROUP)
    if kind == "q8":
        scale = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
        return torch.from_numpy(np.rint(groups / scale) * scale).view(weight.shape)
    low = groups.min(1, keepdims=True)
    scale = ((groups.max(1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    return torch.from_numpy(np.clip(np.rint((groups - low) / scale), 0, 15) * scale + low).view(weight.shape)


def model_of(name: str, **changes: object) -> LoadedModel:
    return byte_model(seed=2, **{"num_layers": 3, **ARCHITECTURES[name], **changes})


def noise(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


def in_pieces(rig: Rig, tokens: Sequence[int], sizes: Sequence[int], blocks: list[int] | None = None) -> np.ndarray:
    blocks = blocks or rig.blocks(len(tokens))
    parts, start = [], 0
    for size in sizes:
        row = rig.row(list(tokens[start : start + size]), kv_len=start, block_ids=blocks)
        parts.append(dense_rows(rig.rows(row)[0]))
        start += size
    return np.concatenate(parts)


def mixed_batch(rig: Rig) -> list[np.ndarray]:
    """Prompts, chunks and single tokens after prefixes of any length, in one step."""
    sequences = [some_tokens(kv_len + size, seed) for seed, (kv_len, size) in enumerate(LENGTHS)]
    tables = [rig.blocks(len(one)) for one in sequences]
    rows = []
    for (kv_len, _), sequence, table in zip(LENGTHS, sequences, tables, strict=True):
        if kv_len:
            rig.rows(rig.row(sequence[:kv_len], block_ids=table))
        rows.append(rig.row(sequence[kv_len:], kv_len=kv_len, block_ids=table))
    return [dense_rows(result) for result in rig.rows(*rows)]


@pytest.mark.parametrize("name", FITTING)
def test_every_architecture_that_fits_equals_the_reference(name: str) -> None:
    model, tokens = model_of(name), some_tokens(75)
    assert misfit(model.config) is None
    expected = Rig(rounded(model, "bf16")).logprobs(tokens)
    found = in_pieces(Rig(model, native=best(2)), tokens, [33, 1, 1, 5, 16, 1, 18])
    assert noise(found, expected) < MAX_NOISE["bf16"]


@pytest.mark.parametrize(("instructions", "kind"), CASES)
def test_every_instruction_set_and_weight_equals_the_reference(instructions: InstructionSet, kind: WeightType) -> None:
    model = model_of("Llama: biases", vocab_size=300, num_kv_heads=1)  # neither is whole panels
    rig, reference = Rig(model, native=native(instructions, kind)), Rig(rounded(model, kind))
    for found, expected in zip(mixed_batch(rig), mixed_batch(reference), strict=True):
        assert noise(found, expected) < MAX_NOISE[kind]


@pytest.mark.parametrize("name", ["Llama 3", "Qwen3", "Gemma 3", "Mistral: window"])
def test_masks_gaps_and_windows_equal_the_reference(name: str) -> None:
    model, tokens = model_of(name), some_tokens(60)
    positions = [*range(20), *range(30, 45), *range(300, 325)]
    seen = [[(place <= own and not (own > 10 and 3 <= place < 7) and (place + own) % 5 != 1) or place == own
             for place in range(60)] for own in range(60)]  # fmt: skip
    mask = tuple(runs_of(one[: own + 1]) for own, one in enumerate(seen))
    expected = Rig(rounded(model, "bf16")).logprobs(tokens, positions, mask=mask)
    assert noise(Rig(model, native=best()).logprobs(tokens, positions, mask=mask), expected) < MAX_NOISE["bf16"]
    plain = Rig(rounded(model, "bf16")).logprobs(tokens, positions)
    assert noise(plain, expected) > 10 * MAX_NOISE["bf16"]  # the mask does count


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 256])
def test_every_head_size_and_a_context_of_several_parts_equal_the_reference(head_dim: int) -> None:
    model = byte_model(seed=3, head_dim=head_dim, num_heads=5, num_kv_heads=1)
    tokens, size = some_tokens(1100), [700, 399, 1]  # parts have 512 places
    found = in_pieces(Rig(model, native=best(2)), tokens, size)
    expected = in_pieces(Rig(rounded(model, "bf16")), tokens, size)
    assert noise(found, expected) < MAX_NOISE["bf16"]


@pytest.mark.parametrize(("instructions", "kind"), CASES)
def test_the_bits_of_a_row_are_its_own(instructions: InstructionSet, kind: WeightType) -> None:
    """Alone, in pieces, beside others, and on any number of threads."""
    model, tokens = model_of("SmolLM2: tied, 3 heads of 1"), some_tokens(70)
    whole = in_pieces(Rig(model, native=native(instructions, kind)), tokens, [70])
    for num_threads, sizes in ((1, [1] * 70), (3, [33, 1, 36]), (2, [64, 6])):
        np.testing.assert_array_equal(
            in_pieces(Rig(model, native=native(instructions, kind, num_threads)), tokens, sizes), whole
        )
    rig = Rig(model, native=native(instructions, kind, 2))
    for num_others in range(1, 14):
        rows = [rig.row(some_tokens(1 + i % 3, seed=i)) for i in range(num_others)]
        rows.insert(num_others // 2, mine := rig.row(tokens))
        results = rig.rows(*rows)
        np.testing.assert_array_equal(dense_rows(results[rows.index(mine)]), whole)
        rig = Rig(model, native=native(instructions, kind, 2), seed=num_others)


# Tokens that forks share, how many of their own each has, and how many forks. Parts have 512 places, blocks 16.
FORKS = [(96, 5, 2), (80, 1, 5), (512, 3, 3), (528, 17, 9), (1100, 2, 4)]


@pytest.mark.parametrize("heads", [(3, 1), (4, 4), (14, 1)], ids=lambda heads: f"{heads[0]} heads of {heads[1]}")
@pytest.mark.parametrize(
    ("instructions", "num_threads"), [*((one, 1) for one in SETS[:1]), *((one, 2) for one in SETS)]
)
def test_forks_that_read_a_prefix_together_have_the_bits_of_each_alone(
    heads: tuple[int, int], instructions: InstructionSet, num_threads: int
) -> None:
    """Beside strangers, forks of forks, and one of several tokens; in an order that mixes them."""
    model = byte_model(seed=5, num_heads=heads[0], num_kv_heads=heads[1], head_dim=32, num_layers=2)
    rig = Rig(model, num_blocks=640, native=native(instructions, "bf16", num_threads))
    rows = [row for case in FORKS for row in forks(rig, *case)]
    random.Random(1).shuffle(rows)
    together = rig.rows(*rows)
    for row, result in zip(rows, together, strict=True):
        np.testing.assert_array_equal(dense_rows(result), dense_rows(rig.rows(row)[0]))


def forks(rig: Rig, num_shared: int, num_own: int, num_forks: int) -> list[ForwardRow]:
    """Rows that go on from one prefix with tokens of their own: every third with three, one behind a mask, and one that
    shares only the first three quarters."""
    prefix = some_tokens(num_shared, seed=num_shared)
    shared = rig.blocks(num_shared)
    rig.rows(rig.row(prefix, block_ids=shared))
    rows = []
    for number in range(num_forks):
        kept = num_shared // 16 * (3 if number == 1 else 4) // 4
        own = some_tokens(num_own + 3, seed=number)
        blocks = [*shared[:kept], *rig.blocks(num_own + 19)]
        kv_len = kept * 16 + num_own
        rig.rows(rig.row(own[:num_own], kv_len=kept * 16, block_ids=blocks))
        num_new = 3 if number % 3 == 2 else 1
        mask = tuple(runs_of([place % 7 != 3 for place in range(kv_len + 1)]) for _ in range(num_new))
        fields = {"mask": mask} if number == 3 else {}
        rows.append(rig.row(own[num_own:][:num_new], kv_len=kv_len, block_ids=blocks, **fields))
    return rows


@pytest.mark.parametrize(("instructions", "kind"), CASES)
def test_drafts_change_no_bit_of_a_text(instructions: InstructionSet, kind: WeightType) -> None:
    """Tokens and log-probabilities are those of one token after the other, beside vectors of any number."""
    rig, prompt = Rig(model_of("Llama 3"), num_blocks=256, native=native(instructions, kind, 2)), some_tokens(21)
    sampling = Sampling(temperature=1.0, seed=4, frequency_penalty=0.3)

    def row(tokens: list[int], kv_len: int, table: list[int], **fields: Any) -> ForwardRow:
        end = kv_len + len(tokens)
        return ForwardRow(table, kv_len, range(kv_len, end), tokens, sampling=sampling, sample_position=end, **fields)

    table, one_by_one, tokens = rig.blocks(48), list[Sampled](), list(prompt)
    for _ in range(14):
        kv_len = len(tokens) - 1 if one_by_one else 0
        [found] = rig.rows(row(tokens[kv_len:], kv_len, table, generated=tokens[21:]))
        one_by_one += found.sampled
        tokens.append(one_by_one[-1].token_id)
    for num_drafts in (1, 2, 4, 5, 12):
        drafts = tokens[21 : 21 + num_drafts]
        wrong = [*drafts[:-1], (drafts[-1] + 1) % 256]
        rows = [row([*prompt, *mine], 0, rig.blocks(48), num_drafts=num_drafts) for mine in (drafts, wrong)]
        right, rejected = rig.rows(*rows)
        assert list(right.sampled) == one_by_one[: num_drafts + 1]
        assert list(rejected.sampled) == one_by_one[:num_drafts]


@pytest.mark.parametrize("kind", ["bf16", "q8", "q4"])
def test_memory_beside_weights_and_kv_is_bounded_and_the_bits_are_the_same(kind: WeightType) -> None:
    model, tokens = byte_model(seed=6, head_dim=64, num_heads=4, num_kv_heads=2), some_tokens(1300)
    free, found = 1 << 30, {}
    for limit in (free, 1 << 20, 1):
        rig = Rig(model, num_blocks=200, native=native(SETS[0], kind, 2, scratch_bytes=limit))
        found[limit] = mixed_batch(rig), in_pieces(rig, tokens, [1030, 270])
        taken = rig.runner._model.scratch_bytes_taken
        assert taken > 1 << 20 if limit == free else taken <= max(limit, 20 << 10)  # a token's, and the head's inputs
    for limit in (1 << 20, 1):
        for expected, other in zip(found[free][0], found[limit][0], strict=True):
            np.testing.assert_array_equal(other, expected)
        np.testing.assert_array_equal(found[limit][1], found[free][1])


@pytest.mark.parametrize("name", ["SmolLM2: tied, 3 heads of 1", "Gemma 3"])
def test_an_embedding_is_looked_up_in_the_weights_of_the_head(name: str) -> None:
    model = model_of(name, vocab_size=300)
    assert model.config.is_head_tied
    ids = torch.tensor([299, 0, 31, 32, 63, 64, 299])
    scale = model.config.hidden_size**0.5 if name == "Gemma 3" else 1.0
    expected = model.weights["embedding"].bfloat16().float()[ids] * scale
    assert torch.equal(Rig(model, native=best()).runner._model.embed(ids), expected)


def test_slots_stand_for_tokens() -> None:
    model, tokens = model_of("Llama 3"), some_tokens(20)
    rig = Rig(model, native=best())
    expected = rig.logprobs(tokens)
    slots = list(range(7, 27))
    embeds = {"token_ids": tokens, "positions": list(range(20)), "slots": slots}
    row = ForwardRow(
        block_ids=rig.blocks(20), kv_len=0, positions=(), input_slots=slots, distributions=rig.everything(20)
    )
    result = rig.step(Batch(embeds=[EmbedRow(**embeds)], rows=[row])).rows[0]
    np.testing.assert_array_equal(dense_rows(result), expected)


def test_a_copied_prefix_is_the_prefix() -> None:
    model, tokens = model_of("Llama 3"), some_tokens(30)
    rig = Rig(model, native=best())
    source, target = rig.blocks(30), rig.blocks(30)
    expected = in_pieces(rig, tokens, [21, 9], source)[21:]
    copies = [BlockCopy(source[0], target[0], 0, 0, 16), BlockCopy(source[1], target[1], 0, 0, 5)]
    result = rig.step(Batch(copies=copies, rows=[rig.row(tokens[21:], kv_len=21, block_ids=target)])).rows[0]
    np.testing.assert_array_equal(dense_rows(result), expected)


def test_a_shifted_prefix_is_one_that_was_computed_there() -> None:
    model, tokens = model_of("Llama 3.1: llama3 scaling"), some_tokens(40)
    found = {}
    for name, rig in (("native", Rig(model, native=best())), ("torch", Rig(rounded(model, "bf16")))):
        blocks = rig.blocks(40)
        rig.rows(rig.row(tokens[:30], block_ids=blocks))
        rig.step(Batch(shifts=[KvShift(blocks, 3, 20, 90)]))
        found[name] = dense_rows(rig.rows(rig.row(tokens[30:], kv_len=30, block_ids=blocks))[0])
    assert noise(found["native"], found["torch"]) < MAX_NOISE["bf16"]


def test_what_a_row_does_not_see_cannot_spoil_it() -> None:
    """NaN keys and values behind a mask, behind the end and beside it; a row that sees them fails, and no other."""
    model, tokens = model_of("Llama 3"), some_tokens(24)
    rig = Rig(model, native=best())
    expected = rig.logprobs(tokens[:20])
    blocks = rig.blocks(40)
    rig.runner._slots.vectors[3] = torch.nan  # as an embedding that a program wrote may be
    rig.runner._slots.positions[3] = 20
    bad = ForwardRow(block_ids=blocks, kv_len=20, positions=(), input_slots=[3], distributions=rig.everything(1))
    good = rig.row(tokens[:20], block_ids=blocks)
    results = rig.rows(good, bad)
    np.testing.assert_array_equal(dense_rows(results[0]), expected)
    assert results[1].error is not None
    hidden = tuple(runs_of([place != 20 for place in range(21 + own + 1)]) for own in range(3))
    masked = rig.rows(rig.row(tokens[20:23], kv_len=21, block_ids=blocks, mask=hidden))[0]
    assert masked.error is None
    assert np.isfinite(dense_rows(masked)).all()
    seen = rig.rows(rig.row(tokens[20:21], kv_len=21, block_ids=blocks))[0]
    assert seen.error is not None


@pytest.mark.parametrize(("kind", "quantization"), [("q8", "Q8_0"), ("q4", "Q4_1"), ("q4_0", "Q4_0")])
def test_stored_levels_survive_being_packed(kind: WeightType, quantization: str) -> None:
    weight = np.random.default_rng(0).normal(size=(70, 96)).astype(np.float32)
    qtype = gguf.GGMLQuantizationType[quantization]
    stored = gguf.dequantize(gguf.quantize(weight, qtype), qtype)
    np.testing.assert_allclose(unpacked(pack(torch.from_numpy(stored), kind), kind)[:70], stored, atol=1e-6)


def unpacked(packed: PackedMatrix, kind: WeightType) -> np.ndarray:
    """The weights as matrices.h documents their layout: [outputs padded to panels, inputs]."""
    weights, scales, *offsets = (tensor.numpy() for tensor in packed.tensors)
    if kind == "q8":
        levels = weights.astype(np.float32) - 128  # [panels, inputs / 4, 32, 4]
    else:
        levels = np.concatenate([weights & 15, weights >> 4], axis=3).astype(np.float32)  # [panels, inputs / 8, 32, 8]
    levels = levels.swapaxes(1, 2).reshape(len(weights) * PANEL, -1, GROUP)

    def by_group(values: np.ndarray) -> np.ndarray:
        return values.swapaxes(1, 2).reshape(len(levels), -1, 1).astype(np.float32)

    return (levels * by_group(scales) + (by_group(offsets[0]) if offsets else 0)).reshape(len(levels), -1)


@pytest.mark.parametrize("kind", ["bf16", "q8"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_embeddings_are_those_of_the_file_in_bf16_and_kept_once_where_the_head_has_them(
    kind: WeightType, is_tied: bool
) -> None:
    model = byte_model(seed=5)
    embedding = model.weights["embedding"]
    weights = dict(model.weights) if is_tied else {**model.weights, "head": embedding.flip(0)}
    config = dataclasses.replace(model.config, is_head_tied=is_tied)
    decoder = Rig(
        dataclasses.replace(model, config=config, weights=weights), native=native(SETS[0], kind)
    ).runner._model
    tokens = torch.randperm(config.vocab_size)
    torch.testing.assert_close(decoder.embed(tokens), embedding.bfloat16()[tokens].float(), rtol=0, atol=0)
    assert (decoder._embedding is None) == (is_tied and kind == "bf16")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_blocks_in_use_take_no_more_memory_than_theirs() -> None:
    """By layer, each of 30 would have had pages of two megabytes of its own."""
    config = dataclasses.replace(BYTE_CONFIG, num_layers=30, num_kv_heads=3, head_dim=64)
    cache = NativeKvCache(config, 2048)
    num_used, before = 40, resident_bytes()
    for one in (*cache.keys, *cache.values):
        one[:num_used] = 1
    assert resident_bytes() - before < num_used * BLOCK_SIZE * cache.token_bytes + (6 << 20)


def resident_bytes() -> int:
    """Of memory that lies in no file."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10
