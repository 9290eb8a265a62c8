"""The engine on a device, computed on the CPU: every architecture that fits, each feature of the seam beside the model
runner, steps that go on with what the device sampled, and what is refused."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from parity import ARCHITECTURES

from device_rig import CHOICE, MAX_ROWS, device_executor, device_rig, make_runner
from loopwright.core.batch import Batch, BlockCopy, DecodeRows, EmbedRow, ForwardRow, HeadRow, KvShift
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.errors import BadRequest, InternalError, Unavailable
from loopwright.engine.byte_model import BYTE_CONFIG, byte_model
from loopwright.engine.cuda.attention import SdpaAttention, new_places
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.decoder import DeviceDecoder
from loopwright.engine.cuda.dummy import SHAPES, dummy_model, shape_config
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.experts import Mixture
from loopwright.engine.cuda.layers import misfit
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.memory import MemoryPlan, step_tokens
from loopwright.engine.cuda.operations import TorchOperations
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.executor import create_executor
from loopwright.engine.oracle import Oracle
from runner_rig import Rig, dense_rows, log_softmax, runs_of, some_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loopwright.core.batch import RowResult
    from loopwright.engine.attention import AttentionRow
    from loopwright.engine.cuda.cache import DeviceKvCache
    from loopwright.engine.loaded_model import LoadedModel

CLOSE = {"atol": 5e-5, "rtol": 1e-5}
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=3, top_p=0.9),
    Sampling(temperature=0.7, seed=4, top_k=5, logprobs="processed"),
    Sampling(temperature=1.5, seed=9, min_p=0.02),
    Sampling(temperature=1.0, seed=11, repetition_penalty=1.5, frequency_penalty=0.3),
    Sampling(temperature=1.0, seed=12, typical_p=0.8),
    Sampling(temperature=0.9, seed=13, logit_bias={5: 4.0}, allowed=(3, 5, 7, 200)),
]


def model_of(name: str) -> LoadedModel:
    return byte_model(seed=2, **{"num_layers": 3, **ARCHITECTURES[name]})


FITTING = [name for name in ARCHITECTURES if misfit(model_of(name).config) is None]


def in_pieces(rig: Rig, tokens: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    blocks, parts, start = rig.blocks(len(tokens)), [], 0
    for size in sizes:
        row = rig.row(list(tokens[start : start + size]), kv_len=start, block_ids=blocks)
        parts.append(dense_rows(rig.rows(row)[0]))
        start += size
    return np.concatenate(parts)


@pytest.mark.parametrize("name", FITTING)
def test_every_architecture_that_fits_equals_the_oracle(name: str) -> None:
    model, tokens = model_of(name), some_tokens(60)
    expected = log_softmax(Oracle(model).logits(tokens))
    np.testing.assert_allclose(device_rig(model).logprobs(tokens), expected, **CLOSE)
    np.testing.assert_allclose(in_pieces(device_rig(model), tokens, [33, 1, 1, 5, 1, 18, 1]), expected, **CLOSE)


def test_every_architecture_fits_and_a_scale_without_a_norm_does_not() -> None:
    assert len(FITTING) == len(ARCHITECTURES)
    assert "scores are multiplied with 0.5" in str(misfit(dataclasses.replace(BYTE_CONFIG, score_scale=0.5)))
    assert "'unheard' runs on the CPU alone" in str(misfit(dataclasses.replace(BYTE_CONFIG, architecture="unheard")))


@pytest.mark.parametrize("name", ["Llama 3", "Qwen3", "Mistral: window", "Gemma 3", "Qwen3-MoE"])
def test_masks_gaps_and_windows_equal_the_reference(name: str) -> None:
    model, tokens = model_of(name), some_tokens(60)
    positions = [*range(20), *range(30, 45), *range(300, 325)]
    seen = [[(place <= own and not (own > 10 and 3 <= place < 7) and (place + own) % 5 != 1) or place == own
             for place in range(60)] for own in range(60)]  # fmt: skip
    mask = tuple(runs_of(one[: own + 1]) for own, one in enumerate(seen))
    expected = Rig(model).logprobs(tokens, positions, mask=mask)
    np.testing.assert_allclose(device_rig(model).logprobs(tokens, positions, mask=mask), expected, **CLOSE)


def both(model: LoadedModel) -> tuple[Rig, Rig]:
    return device_rig(model), Rig(model)


def step_of_everything(rig: Rig) -> tuple[list[RowResult], list[int]]:
    """Prompts, single tokens, drafts, slots, outputs, distributions, bits, copies and shifts: the answers, and the
    positions of some places in the cache."""
    tables = [rig.blocks(64) for _ in range(6)]
    rig.rows(*(rig.row(some_tokens(30, place), block_ids=table) for place, table in enumerate(tables)))
    batch = Batch(
        copies=[BlockCopy(tables[0][1], tables[5][1], 0, 0, 10)],
        shifts=[KvShift(tables[4], 3, 20, 90)],
        embeds=[EmbedRow([4, 5], [30, 31], [7, 8])],
        rows=[
            rig.row([1, 2, 3], kv_len=30, block_ids=tables[0]),
            ForwardRow(tables[1], 30, [30], [9], sampling=Sampling(top_logprobs=4), sample_position=31),
            ForwardRow(tables[2], 30, (), input_slots=[7, 8], output_slots=[9], distributions=rig.everything(2)),
            ForwardRow(tables[3], 30, [30, 31, 32], [9, 1, 2], sampling=Sampling(temperature=1.0), num_drafts=2,
                       are_drafts_forced=True, sample_position=33),
            ForwardRow(tables[4], 30, [130], [9], distributions=[DistributionRequest(entropy=True, k=7)]),
            ForwardRow(tables[5], 30, [30], [9], sampling=Sampling(temperature=1.0),
                       allowed_bits=bytes([0b10110]) + bytes(32), sample_position=31),
        ],
        heads=[HeadRow(9, [DistributionRequest(k=5)], Sampling(temperature=1.0, seed=2), 40)],
    )  # fmt: skip
    result = rig.step(batch)
    positions = rig.runner._cache.positions
    places = [positions[16 * block + 5].item() for table in tables for block in table[:2]]
    return [*result.rows, *result.heads, *result.shifts], places


def test_a_step_of_everything_equals_the_model_runners(model: LoadedModel) -> None:
    (mine, places), (theirs, expected) = (step_of_everything(rig) for rig in both(model))
    for one, other in zip(mine, theirs, strict=True):
        same_answer(one, other)
    assert places == expected
    assert places[8] == 95  # the shift's


def same_answer(mine: RowResult, theirs: RowResult) -> None:
    assert mine.error == theirs.error
    assert [one.token_id for one in mine.sampled] == [one.token_id for one in theirs.sampled]
    for one, other in zip(mine.sampled, theirs.sampled, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top_logprobs] == [token for token, _ in other.top_logprobs]
    for one, other in zip(mine.distributions, theirs.distributions, strict=True):
        assert one.ids[:20] == other.ids[:20]
        np.testing.assert_allclose(np.frombuffer(one.logprobs, "<f4"), np.frombuffer(other.logprobs, "<f4"), atol=5e-5)
        assert one.covered == pytest.approx(other.covered, abs=1e-5)


class Decoding:
    """Rows of each sampling over a rig, as control sends them: columns that stay, or rows that name their sources."""

    def __init__(self, rig: Rig, samplings: Sequence[Sampling] = SAMPLINGS) -> None:
        self.rig, self.samplings = rig, list(samplings)
        self.prompts = [some_tokens(10 + 3 * place, place) for place in range(len(self.samplings))]
        self.blocks = [rig.blocks(len(prompt)) for prompt in self.prompts]
        rows = [
            ForwardRow(blocks, 0, range(len(prompt)), prompt, sampling=sampling, sample_position=len(prompt))
            for blocks, prompt, sampling in zip(self.blocks, self.prompts, self.samplings, strict=True)
        ]
        self.tokens = [[result.sampled[0].token_id] for result in rig.rows(*rows)]
        self.logprobs: list[list[float]] = [[] for _ in self.tokens]
        self.lengths = [len(prompt) for prompt in self.prompts]
        self.columns = DecodeRows(
            self.blocks, self.lengths, self.lengths, self.samplings,
            [tokens if one.has_penalties else () for one, tokens in zip(self.samplings, self.tokens, strict=True)],
            [tokens[-1] for tokens in self.tokens], 0, [1] * len(self.tokens),
        )  # fmt: skip

    def step(self, number: int, **fields: object) -> DecodeRows:
        for blocks, length in zip(self.blocks, self.lengths, strict=True):
            if length + number == 16 * len(blocks):
                blocks += self.rig.blocks(1)
        return replace(self.columns, num_steps=number, **fields)

    def take(self, result: object) -> list[int]:
        decodes = result.decodes
        assert not decodes.errors
        for tokens, logprobs, token, logprob in zip(
            self.tokens, self.logprobs, decodes.token_ids, decodes.logprobs, strict=True
        ):
            tokens.append(token)
            logprobs.append(logprob)
        return decodes.token_ids

    def serially(self, num_steps: int) -> list[list[int]]:
        sampled = self.columns.token_ids
        for number in range(num_steps):
            sampled = self.take(self.rig.step(Batch(decodes=self.step(number, token_ids=sampled))))
        return self.tokens

    def ahead(self, num_steps: int) -> list[list[int]]:
        """Each step is launched before the one before is read."""
        before = None
        for number in range(num_steps):
            fields = {"token_ids": [0] * len(self.tokens), "sources": range(len(self.tokens))} if number else {}
            with torch.inference_mode():
                launched = self.rig.runner.launch(Batch(decodes=self.step(number, **fields)))
            if before is not None:
                self.take(before.result())
            before = launched
        self.take(before.result())
        return self.tokens


def test_decode_rows_of_every_sampling_equal_the_model_runners(model: LoadedModel) -> None:
    expected = Decoding(Rig(model))
    expected.serially(40)
    for way in ("serially", "ahead"):
        found = Decoding(device_rig(model))
        getattr(found, way)(40)
        assert found.tokens == expected.tokens
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


def test_decode_rows_of_layers_with_windows_are_decode_steps_and_equal_the_model_runners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows of two lengths, both shorter than the rows, and a prompt beside them."""
    model = byte_model(seed=5, num_layers=3, windows=(5, 20, None), local_rope_theta=500.0)
    found = []
    for rig in both(model):
        decoding, prompt, blocks = Decoding(rig, SAMPLINGS[:4]), some_tokens(40, 9), rig.blocks(40)
        if isinstance(rig.runner, DeviceRunner):
            monkeypatch.setattr(rig.runner._decoder._attention, "plan", no_plan)
        decoding.serially(20)
        monkeypatch.undo()
        row = rig.row(prompt, block_ids=blocks)
        result = rig.step(Batch(decodes=decoding.step(20, token_ids=[one[-1] for one in decoding.tokens]), rows=[row]))
        decoding.take(result)
        found.append((decoding, dense_rows(result.rows[0])))
    assert found[0][0].tokens == found[1][0].tokens
    np.testing.assert_allclose(found[0][0].logprobs, found[1][0].logprobs, atol=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], **CLOSE)


def no_plan(*_: object) -> None:
    raise AssertionError("a decode step needs no plan")


def test_a_single_token_at_a_gap_sees_by_position_what_its_window_reaches() -> None:
    model, tokens = byte_model(seed=5, num_layers=3, windows=(5, 20, None)), some_tokens(30)
    answers = []
    for rig in both(model):
        blocks = rig.blocks(32)
        rig.rows(rig.row(tokens[:29], positions=[*range(20), *range(60, 69)], block_ids=blocks))
        row = ForwardRow(blocks, 29, [73], tokens[29:], distributions=rig.everything(1))
        answers.append(dense_rows(rig.rows(row)[0]))
    np.testing.assert_allclose(*answers, **CLOSE)


def count_passes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each pass over the layers, from now on."""
    passes: list[int] = []
    decoder = rig.runner._decoder
    run_layers = decoder._run_layers

    def counted(residual: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        passes.append(len(residual))
        return run_layers(residual, *rest, **options)

    monkeypatch.setattr(decoder, "_run_layers", counted)
    return passes


@pytest.mark.parametrize("samplings", [[Sampling()] * 4, SAMPLINGS[:4]], ids=["greedy", "drawn"])
def test_decode_rows_and_prompts_of_a_batch_share_one_pass_and_equal_the_model_runners(
    model: LoadedModel, samplings: list[Sampling], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside them a prompt in chunks, a masked row and one with drafts; then decode rows alone go on from there."""
    answers = []
    passes: list[int] = []
    for rig in both(model):
        decoding = Decoding(rig, samplings)
        passes = count_passes(rig, monkeypatch) if isinstance(rig.runner, DeviceRunner) else passes
        prompt, blocks, results = some_tokens(50, 9), rig.blocks(64), []
        mask = tuple(runs_of([place != 2 for place in range(own + 1)]) for own in range(6))
        sampled = decoding.columns.token_ids
        for number, (start, end) in enumerate([(0, 17), (17, 40), (40, 50)]):
            rows = [
                rig.row(prompt[start:end], kv_len=start, block_ids=blocks),
                rig.row(some_tokens(6, number), mask=mask),
                ForwardRow(rig.blocks(9), 0, range(3), [9, 1, 2], sampling=Sampling(), num_drafts=2, sample_position=3),
                ForwardRow(rig.blocks(9), 0, range(4), [5, 6, 7, number], sampling=samplings[1], sample_position=4),
            ]
            result = rig.step(Batch(decodes=decoding.step(number, token_ids=sampled), rows=rows))
            sampled = decoding.take(result)
            results += result.rows
        for number in (3, 4):
            sampled = decoding.take(rig.step(Batch(decodes=decoding.step(number, token_ids=sampled))))
        answers.append((decoding.tokens, results))
    assert answers[0][0] == answers[1][0]
    for mine, theirs in zip(answers[0][1], answers[1][1], strict=True):
        same_answer(mine, theirs)
    assert passes == [4 + 17 + 13, 4 + 23 + 13, 4 + 10 + 13, 4, 4]


def test_the_last_layer_computes_only_what_somebody_asks_for(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt its last token; what is scored, drafted or kept in a slot; of a piece of a prompt nothing but KV."""
    rig, reference = device_rig(model), Rig(model)
    operations, sizes = rig.runner._decoder._operations, []
    gate = operations.gate
    monkeypatch.setattr(operations, "gate", lambda *args: sizes.append(len(args[0])) or gate(*args))

    def asked(rig: Rig) -> list[RowResult]:
        sizes.clear()
        long, results = rig.blocks(50), []
        piece = ForwardRow(long, 0, range(30), some_tokens(30))
        prompt = ForwardRow(rig.blocks(20), 0, range(20), some_tokens(20, 1), sampling=Sampling(), sample_position=20)
        drafted = ForwardRow(
            rig.blocks(9), 0, range(5), [1, 2, 3, 4, 5], sampling=Sampling(), num_drafts=2, sample_position=5
        )
        scored = ForwardRow(rig.blocks(9), 0, range(8), some_tokens(8, 2), distributions=[
            DistributionRequest(index=index, k=256) for index in (-1, 2, 2)
        ])  # fmt: skip
        slots = ForwardRow(rig.blocks(9), 0, range(7), some_tokens(7, 3), output_slots=[5, 6])
        whole = rig.row(some_tokens(6, 4))
        batches = [[piece], [prompt, drafted, scored, slots], [whole]]
        for rows in batches:
            results += rig.rows(*rows)
        head = HeadRow(slot=5, sampling=Sampling(), sample_position=6)
        end = ForwardRow(long, 30, range(30, 50), some_tokens(20, 5), sampling=Sampling(), sample_position=50)
        return [*results, *rig.heads(head), *rig.rows(end)]

    expected, found = asked(reference), asked(rig)
    for mine, theirs in zip(found, expected, strict=True):
        same_answer(mine, theirs)
    layers = model.config.num_layers
    each = [sizes[start : start + layers] for start in (layers - 1, 2 * layers - 1, 3 * layers - 1)]
    assert sizes[: layers - 1] == [30] * (layers - 1)  # and nothing in the last
    assert each == [[*[tokens] * (layers - 1), kept] for tokens, kept in ((40, 1 + 3 + 2 + 2), (6, 6), (20, 1))]


def test_decode_rows_beside_prompts_that_are_all_refused_run_alone(model: LoadedModel) -> None:
    found = Decoding(device_rig(model), SAMPLINGS[:2])
    bad = ForwardRow(found.rig.blocks(4), 0, range(3), [1, 2, 999_999], sampling=Sampling(), sample_position=3)
    result = found.rig.step(Batch(decodes=found.step(0), rows=[bad]))
    assert result.rows[0].error is not None
    assert [[tokens[0], token] for tokens, token in zip(found.tokens, result.decodes.token_ids, strict=True)] == [
        tokens[:2] for tokens in Decoding(Rig(model), SAMPLINGS[:2]).serially(1)
    ]


def test_rows_that_come_and_go_ahead_of_results_keep_their_tokens(model: LoadedModel) -> None:
    """A step's rows take their tokens from rows of the step before in another order, and beside a prompt."""
    samplings = SAMPLINGS[:4]
    expected = Decoding(Rig(model), samplings).serially(3)
    found = Decoding(device_rig(model), samplings)
    rig = found.rig
    with torch.inference_mode():
        first = rig.runner.launch(Batch(decodes=found.step(0), rows=[ForwardRow(rig.blocks(5), 0, range(5), [1] * 5)]))
        order = [2, 0, 3]
        picked = [[column[place] for place in order] for column in
                  (found.blocks, found.lengths, found.lengths, samplings)]  # fmt: skip
        columns = DecodeRows(*picked, [()] * 3, [0] * 3, 1, [1] * 3, order)
        second = rig.runner.launch(Batch(decodes=columns))
        single = ForwardRow(found.blocks[1], found.lengths[1] + 1, [found.lengths[1] + 1], [0], sampling=samplings[1],
                            sample_position=found.lengths[1] + 2)  # fmt: skip
        third = rig.runner.launch(
            Batch(
                decodes=replace(columns, num_steps=2, sources=range(3)),
                rows=[replace(single, token_ids=[first.result().decodes.token_ids[1]])],
            )
        )
    assert [expected[place][2] for place in order] == second.result().decodes.token_ids
    assert [expected[place][3] for place in order] == third.result().decodes.token_ids
    assert third.result().rows[0].token_id == expected[1][2]


def test_a_row_that_fails_fails_what_has_it_as_its_source_and_nobody_else(model: LoadedModel) -> None:
    rig = device_rig(model)
    good, bad = rig.blocks(20), rig.blocks(20)
    rig.rows(rig.row(some_tokens(12), block_ids=good), rig.row(some_tokens(12), block_ids=bad))
    rig.runner._cache.layers[0][bad[0], 0, 3] = torch.nan
    columns = DecodeRows([good, bad], [12, 12], [12, 12], [Sampling(), Sampling()], [(), ()], [3, 3], 0, [1, 1])
    with torch.inference_mode():
        first = rig.runner.launch(Batch(decodes=columns))
        second = rig.runner.launch(Batch(decodes=replace(columns, num_steps=1, token_ids=[0, 0], sources=range(2))))
        third = rig.runner.launch(
            Batch(rows=[ForwardRow(rig.blocks(4), 0, [0], [0], sampling=Sampling(temperature=1.0), source=place)
                        for place in (1, 0)])
        )  # fmt: skip
    assert set(first.result().decodes.errors) == set(second.result().decodes.errors) == {1}
    assert [row.error is not None for row in third.result().rows] == [True, False]


def test_a_prompt_that_fails_fails_what_has_it_as_its_source(model: LoadedModel) -> None:
    rig = device_rig(model)
    tables = [rig.blocks(9) for _ in range(2)]
    rows = [ForwardRow(table, 0, range(3), [1, 2, token], sampling=Sampling(), sample_position=3)
            for table, token in zip(tables, (999_999, 3), strict=True)]  # fmt: skip
    columns = DecodeRows(tables, [3, 3], [3, 3], [Sampling()] * 2, [()] * 2, [0, 0], 0, [0, 0], [0, 1])
    with torch.inference_mode():
        first = rig.runner.launch(Batch(rows=rows))
        second = rig.runner.launch(Batch(decodes=columns))
    assert [row.error is not None for row in first.result().rows] == [True, False]
    assert set(second.result().decodes.errors) == {0}
    expected = Oracle(model).generate([1, 2, 3], max_tokens=2).tokens
    assert (first.result().rows[1].token_id, second.result().decodes.token_ids[1]) == expected


def test_tokens_that_control_names_count_though_the_device_sampled_others(model: LoadedModel) -> None:
    found = []
    for rig in both(model):
        blocks = rig.blocks(20)
        rig.rows(rig.row(some_tokens(9), block_ids=blocks))
        columns = DecodeRows([blocks], [9], [9], [Sampling()], [()], [5], 0)
        first = rig.step(Batch(decodes=columns)).decodes.token_ids
        other = [(first[0] + 1) % 256]
        found.append(rig.step(Batch(decodes=replace(columns, num_steps=1, token_ids=other))).decodes)
    assert found[0].token_ids == found[1].token_ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-5)


def test_a_head_whose_values_are_not_finite_is_cached_as_zeros_behind_a_key_of_nan() -> None:
    qkv = torch.ones(1, 4, 4)
    qkv[0, 3, 1] = torch.inf  # the second KV head's value
    kv = torch.zeros(1, 2, 16, 1, 4)
    turn = (torch.ones(1, 2), torch.zeros(1, 2))
    query = TorchOperations().rotate_and_store(qkv, turn, torch.tensor([5]), kv, 2, None, is_kept=True)
    assert query.isfinite().all()
    assert kv[0, 0, 5].isnan().all()
    assert not kv[0, 1, 5].any()
    torch.testing.assert_close(qkv[0, 2:], kv[0, :, 5, 0], equal_nan=True)


class OwnKeys:
    """A way to attend that reads a prompt's own keys and values where they were made, of rows without a prefix."""

    name, takes_own = "own", True

    def __init__(self, cache: DeviceKvCache) -> None:
        self._cache, self._reference = cache, SdpaAttention(cache)
        self.num_compared = 0

    def plan(self, rows: Sequence[AttentionRow], positions: torch.Tensor) -> OwnKeys:
        self._places, self._planned = torch.from_numpy(new_places(rows)), self._reference.plan(rows, positions)
        return self

    def attend(self, layer: int, query: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        kv = self._cache.layers[layer]
        block, offset = self._places // 16, self._places % 16
        assert torch.equal(own, torch.cat([kv[block, 0, offset], kv[block, 1, offset]], dim=1))
        self.num_compared += len(own)
        return self._planned.attend(layer, query, own)


def test_prompts_find_their_own_keys_and_values_as_they_are_cached(model: LoadedModel) -> None:
    """Alone, several at once, and beside rows that decode, whose keys are not among theirs."""
    ways: list[OwnKeys] = []

    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        parts = DeviceParts.make(model, num_blocks=num_blocks, device=torch.device("cpu"), dtype=torch.float32)
        ways.append(OwnKeys(parts.cache))
        decoder = DeviceDecoder(model, parts.cache, ways[-1], parts.operations, torch.float32, kinds("auto"))
        return DeviceRunner(
            model,
            dataclasses.replace(parts, attention=ways[-1], decoder=decoder),
            num_slots=num_slots,
            max_rows=MAX_ROWS,
        )

    rig, num_layers = Rig(model, make_runner=make), model.config.num_layers
    blocks = rig.blocks(40)
    rig.rows(rig.row(some_tokens(9), block_ids=blocks))
    columns = DecodeRows([blocks], [9], [9], [Sampling()], [()], [5], 0)
    rig.step(Batch(decodes=columns, rows=[rig.row(some_tokens(20, 1)), rig.row(some_tokens(33, 2))]))
    assert ways[0].num_compared == num_layers * (9 + 20 + 33)


def test_after_a_batch_that_failed_its_rows_fail_too(model: LoadedModel) -> None:
    rig = device_rig(model)
    blocks = rig.blocks(20)
    row = ForwardRow(blocks, 0, [0], [5], sampling=Sampling(), source=0)
    with pytest.raises(InternalError):
        rig.step(Batch(copies=[BlockCopy(0, 999, 0, 0, 1)]))
    assert rig.rows(row)[0].error is not None
    assert rig.rows(replace(row, source=-1))[0].error is None


def test_more_rows_than_a_step_holds_are_run_all_the_same(model: LoadedModel) -> None:
    num = MAX_ROWS + 3
    results = []
    for rig in both(model):
        tables = [rig.blocks(9) for _ in range(num)]
        rig.rows(*(rig.row(some_tokens(7, place), block_ids=tables[place]) for place in range(num)))
        columns = DecodeRows(tables, [7] * num, [7] * num, [Sampling()] * num, [()] * num, list(range(num)))
        row = ForwardRow(rig.blocks(1), 0, [0], [4], sampling=Sampling())
        result = rig.step(Batch(decodes=columns, rows=[row]))
        results.append([*result.decodes.token_ids, result.rows[0].token_id])
    assert results[0] == results[1]


def test_what_a_row_does_not_see_cannot_spoil_it(model: LoadedModel) -> None:
    rig, tokens = device_rig(model), some_tokens(24)
    blocks = rig.blocks(40)
    expected = rig.logprobs(tokens[:20])
    rig.runner._slots.vectors[3] = torch.nan
    rig.runner._slots.positions[3] = 20
    bad = ForwardRow(blocks, 20, (), input_slots=[3], distributions=rig.everything(1))
    good = rig.row(tokens[:20], block_ids=blocks)
    results = rig.rows(good, bad)
    np.testing.assert_allclose(dense_rows(results[0]), expected, **CLOSE)
    assert results[1].error is not None
    hidden = tuple(runs_of([place != 20 for place in range(21 + own + 1)]) for own in range(3))
    masked = rig.rows(rig.row(tokens[20:23], kv_len=21, block_ids=blocks, mask=hidden))[0]
    assert np.isfinite(dense_rows(masked)).all()
    assert rig.rows(rig.row(tokens[20:21], kv_len=21, block_ids=blocks))[0].error is not None


def test_the_executor_serves_steps_ahead_and_ends_futures_in_order(model: LoadedModel) -> None:
    executor = device_executor(model)
    try:
        assert executor.shape.steps_ahead == "usual"
        row = ForwardRow([3], 0, [0], [5], sampling=Sampling(), sample_position=1)
        futures = [executor.submit(Batch(rows=[row]))]
        futures += [executor.submit(Batch(rows=[replace(row, kv_len=n, positions=[n], source=0)])) for n in range(1, 6)]
        futures.append(executor.submit(Batch(copies=[BlockCopy(0, 999, 0, 0, 1)])))
        tokens = [one.result().rows[0].token_id for one in futures[:-1]]
        assert list(tokens) == list(Oracle(model).generate([5], max_tokens=6).tokens)
        with pytest.raises(InternalError):
            futures[-1].result()
    finally:
        executor.close()
    with pytest.raises(Unavailable, match="closed"):
        executor.submit(Batch())


def test_what_a_closed_executor_had_on_the_device_is_given_back(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def note(runner: DeviceRunner, report: object) -> None:
        made.extend(weakref.ref(one) for one in (*runner._cache.layers, runner._steps.buffers.table))

    monkeypatch.setattr(DeviceRunner, "capture", note)
    executor = device_executor(model)
    executor.submit(Batch(rows=[ForwardRow([3], 0, [0], [5], sampling=Sampling(), sample_position=1)])).result()
    assert all(one() is not None for one in made)
    executor.close()
    assert len(made) > 2
    assert all(one() is None for one in made)


def test_while_graphs_are_captured_it_is_told_what_the_memory_is_for(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceRunner, "capture", lambda _, report: report("capturing graphs", 0.25))
    told: list[tuple[str, float | None]] = []
    executor = DeviceExecutor(
        model, CHOICE, num_blocks=5000, num_slots=4, max_rows=MAX_ROWS, max_tokens=0,
        report=lambda stage, fraction: told.append((stage, fraction)),
    )  # fmt: skip
    executor.close()
    kv_gb = 5000 * executor.shape.block_bytes / 1e9
    assert told == [(f"capturing graphs ({kv_gb:.1f} GB of KV in 5000 blocks, steps of up to 512 tokens)", 0.25)]
    assert executor.shape.max_step_tokens == 512


def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", BYTE_CONFIG) is None
    with pytest.raises(
        Unavailable, match=r"engine\.device: 'cuda' cannot run this model: torch .* sees no CUDA device"
    ):
        choose_device("cuda", BYTE_CONFIG)


def test_with_a_gpu_the_choice_says_what_computes_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    choice = choose_device("auto", BYTE_CONFIG)
    assert choice is not None
    assert (choice.attention, choice.has_kernels) == ("sdpa", False)
    assert "FlashInfer is not installed" in choice.reason
    assert "no Triton" in choice.reason
    with pytest.raises(
        Unavailable, match=r"engine\.attention: 'flashinfer' cannot be had: FlashInfer is not installed"
    ):
        choose_device("cuda", BYTE_CONFIG, attention="flashinfer")
    with pytest.raises(Unavailable, match=r"engine\.dtype 'stored' is for the CPU"):
        choose_device("cuda", BYTE_CONFIG, "stored")
    with pytest.raises(Unavailable, match=r"engine\.deterministic: on a GPU it needs Triton"):
        choose_device("cuda", BYTE_CONFIG, is_deterministic=True)
    assert choose_device("auto", BYTE_CONFIG, is_deterministic=True) is None
    moe = model_of("Qwen3-MoE").config
    with pytest.raises(Unavailable, match="a mixture of experts needs Triton"):
        choose_device("cuda", moe)
    assert choose_device("auto", moe) is None


def test_where_flashinfer_has_no_kernel_attention_is_tritons_and_experts_have_all_their_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    gemma = dataclasses.replace(model_of("Gemma 3").config, head_dim=256, score_scale=1 / 16)
    windowed = dataclasses.replace(model_of("Mistral: window").config, head_dim=128)
    found = {one.head_dim: choose_device("cuda", one) for one in (gemma, windowed)}
    assert [(one.attention, one.has_kernels) for one in found.values() if one] == [
        ("triton", True),
        ("flashinfer", True),
    ]
    assert "heads of 64 and 128, not of 256" in str(found[256])
    assert "FlashInfer, and by Triton in layers with a window" in str(found[128])
    with pytest.raises(Unavailable, match=r"engine\.attention: 'flashinfer' cannot be had: .* not of 256"):
        choose_device("cuda", gemma, attention="flashinfer")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name == "triton" else None)
    choice = choose_device("cuda", windowed)
    assert choice is not None
    assert choice.attention == "triton"
    assert "FlashInfer is not installed" in choice.reason
    moe = model_of("Qwen3-MoE").config
    assert choose_device("cuda", moe, is_deterministic=True) is not None
    with pytest.raises(Unavailable, match=r"engine\.dtype: on a GPU experts are bfloat16 or float32; .* 'int8'"):
        choose_device("cuda", moe, "int8")


def test_the_room_for_kv_is_what_weights_and_a_step_leave() -> None:
    plan = MemoryPlan.of(SHAPES["llama-8b"], torch.bfloat16, max_rows=256, max_tokens=2048, free_bytes=140 << 30)
    assert plan.weight_bytes == 2 * 8_030_261_248  # the parameters of Llama 3.1 8B
    assert plan.block_bytes == 16 * 131072
    num_blocks = plan.num_blocks()
    assert plan.weight_bytes + plan.step_bytes + num_blocks * plan.block_bytes < plan.free_bytes
    assert num_blocks * plan.block_bytes > 0.9 * (plan.free_bytes - plan.weight_bytes - plan.step_bytes)
    assert plan.num_blocks(1000) == 1000
    experts = MemoryPlan.of(
        SHAPES["qwen3-30b-a3b"], torch.bfloat16, max_rows=256, max_tokens=8192, free_bytes=140 << 30
    )
    assert experts.weight_bytes == 2 * 30_532_122_624  # the parameters of Qwen3 30B-A3B
    small = dataclasses.replace(plan, free_bytes=16 << 30)
    with pytest.raises(Unavailable, match=r"weights 16\.06 GB, .* are more than the 17\.18 GB free"):
        small.num_blocks()


@pytest.mark.parametrize(
    ("shape", "free_gb", "num_tokens"),
    [("llama-8b", 141, 32768), ("llama-8b", 80, 16384), ("llama-8b", 24, 2048), ("llama-8b", 10, 2048),
     ("llama-1b", 141, 32768), ("llama-1b", 24, 8192), ("qwen3-30b-a3b", 94, 8192)],
)  # fmt: skip
def test_a_step_has_room_for_as_many_tokens_as_the_memory_is_good_for(
    shape: str, free_gb: int, num_tokens: int
) -> None:
    config = shape_config(shape)
    assert step_tokens(config, torch.bfloat16, max_rows=256, free_bytes=free_gb * 10**9) == num_tokens
    assert step_tokens(config, torch.bfloat16, max_rows=2000, free_bytes=10**9) >= 4000
    if free_gb > 20:  # and what is left is for KV
        free_bytes = free_gb * 10**9
        plan = MemoryPlan.of(config, torch.bfloat16, max_rows=256, max_tokens=num_tokens, free_bytes=free_bytes)
        assert plan.num_blocks() * plan.block_bytes > (free_bytes - plan.weight_bytes) / 2


def test_a_dummy_has_the_shape_that_was_asked_for() -> None:
    experts = dummy_model(shape_config("tiny-experts"), torch.device("cpu"))
    mixture = Mixture.of(experts, 1, torch.device("cpu"), torch.float32)
    assert mixture.gate_up.data_ptr() == experts.weights["layers.1.experts.0.gate_up"].data_ptr()
    assert torch.equal(mixture.down[7], experts.weights["layers.1.experts.7.down"])
    assert Mixture.of(experts, 1, torch.device("cpu"), torch.bfloat16).down.dtype == torch.bfloat16
    assert np.isfinite(device_rig(experts).logprobs([1, 2, 3])).all()
    model = dummy_model(shape_config("tiny"), torch.device("cpu"))
    assert model.weights["embedding"].shape == (512, 64)
    assert model.quantization == "dummy"
    assert np.isfinite(device_rig(model).logprobs([1, 2, 3])).all()
    with pytest.raises(BadRequest, match="there is no shape 'llama-9b'; known are llama-1b"):
        shape_config("llama-9b")


def test_a_dummy_runs_on_a_cpu_too_and_refusals_name_the_setting(tmp_path: Path) -> None:
    executor = create_executor(tmp_path, num_blocks=0, num_slots=1, num_threads=1, shape="tiny")
    executor.close()
    assert executor.shape.num_blocks == 2048
    with pytest.raises(Unavailable, match=r"engine\.attention"):
        create_executor(tmp_path, num_blocks=8, num_slots=1, shape="tiny", attention="flashinfer")
    with pytest.raises(Unavailable, match=r"engine\.deterministic"):
        create_executor(tmp_path, num_blocks=8, num_slots=1, shape="tiny", is_deterministic=True)


def test_a_dummy_for_a_gpu_that_is_not_there_is_refused_before_its_weights_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("loopwright.engine.parts.dummy_model", lambda *_, **__: pytest.fail("weights were drawn"))
    with pytest.raises(Unavailable, match=r"engine\.device"):
        create_executor(tmp_path, num_blocks=8, num_slots=1, shape="llama-8b", device="cuda")


def test_the_runner_is_made_by_the_rig(model: LoadedModel) -> None:
    shape = make_runner(model, 7, 5).shape
    assert (shape.num_blocks, shape.num_slots, shape.block_bytes) == (7, 5, 16 * 2 * 2 * 2 * 16 * 4)
