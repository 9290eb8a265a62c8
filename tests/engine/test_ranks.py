"""A model that several ranks share equals the model that one has: every architecture, each feature of the seam, rows
that decode ahead. Ranks are threads here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from parity import ARCHITECTURES
from ranks_rig import CPU, rank_threads
from test_device_engine import FITTING, Decoding, same_answer, step_of_everything
from test_nobody_waits import same

from ahead_rig import NAMES, Kinds
from loopwright.core.batch import Batch, BlockCopy, DecodeRows, ForwardRow, HeadRow
from loopwright.core.calls import Sampling
from loopwright.core.samplers import SamplerNode, SamplerRun, TracedSampler, TracedState
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.operations import TorchOperations
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.steps import choose_among_ranks
from loopwright.engine.model_files import write_hf_folder
from loopwright.engine.oracle import Oracle
from loopwright.engine.ranks.collectives import Collectives
from loopwright.engine.ranks.messages import Step, StepReader, StepWriter, decode, encode
from runner_rig import Rig, log_softmax, some_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from loopwright.engine.loaded_model import LoadedModel

CLOSE = {"atol": 5e-5, "rtol": 1e-5}
BY_THREE = {"vocab_size": 261, "num_heads": 6, "num_kv_heads": 3, "intermediate_size": 96}
EVEN = {name: changes for name, changes in ARCHITECTURES.items() if byte_model(**changes).config.num_kv_heads % 2 == 0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread_each() -> None:
    torch.set_num_threads(1)


def stored(model: LoadedModel, folder: Path) -> Path:
    write_hf_folder(model, folder / "model")
    return folder / "model"


def test_most_architectures_can_be_split() -> None:
    assert {byte_model(**changes).config.architecture for changes in EVEN.values()} >= {
        "llama", "mistral", "qwen2", "qwen3", "qwen3moe",
    }  # fmt: skip


@pytest.mark.parametrize("name", EVEN)
def test_every_architecture_equals_the_oracle_on_two_ranks(name: str, tmp_path: Path) -> None:
    model, tokens = byte_model(seed=2, **{"num_layers": 3, **ARCHITECTURES[name]}), some_tokens(40)
    expected = log_softmax(Oracle(model).logits(tokens))
    path = stored(model, tmp_path)
    for kind in ("reference", "device") if name in FITTING else ("reference",):
        with rank_threads(path, tmp_path / kind, 2, kind) as rig:
            np.testing.assert_allclose(rig.logprobs(tokens), expected, **CLOSE)


@pytest.mark.parametrize("kind", ["reference", "device"])
@pytest.mark.parametrize("changes", [{}, BY_THREE | {"is_head_tied": True}], ids=["2", "3"])
def test_a_step_of_everything_equals_one_ranks(kind: str, changes: dict[str, object], tmp_path: Path) -> None:
    model = byte_model(seed=3, **changes)
    expected, expected_places = step_of_everything(Rig(model))
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 3 if changes else 2, kind) as rig:
        answers, places = step_of_everything(rig)
        again, _ = step_of_everything(rig)
    for mine, theirs in zip([*answers, *again], [*expected, *expected], strict=True):
        same_answer(mine, theirs)
    assert places == expected_places


def test_what_is_wrong_with_a_row_is_that_rows_alone(model: LoadedModel, tmp_path: Path) -> None:
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2) as rig:
        blocks = rig.blocks(32)
        good = ForwardRow(blocks[:1], 0, range(3), [1, 2, 3], sampling=Sampling(), sample_position=3)
        bad = ForwardRow(blocks[1:], 0, [0], [999], sampling=Sampling())
        nothing = ForwardRow(blocks[1:], 0, [0], [9], sampling=Sampling(), allowed_bits=bytes(33))
        result = rig.step(Batch(rows=[bad, good, nothing], heads=[HeadRow(99)]))
    assert [one.error is None for one in (*result.rows, *result.heads)] == [False, True, False, False]
    assert result.rows[1].token_id == Oracle(model).generate([1, 2, 3], max_tokens=1).tokens[0]


@pytest.mark.parametrize("way", ["serially", "ahead"])
def test_decode_rows_of_every_sampling_equal_one_ranks(way: str, model: LoadedModel, tmp_path: Path) -> None:
    expected = Decoding(Rig(model))
    expected.serially(24)
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device") as rig:
        found = Decoding(rig)
        getattr(found, way)(24)
    assert found.tokens == expected.tokens
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.parametrize(("sampling", "num_told"), [(Sampling(), 1), (Sampling(temperature=1.0, seed=5), 13)])
def test_what_was_sampled_is_told_once_a_step_unless_it_is_certain(
    sampling: Sampling, num_told: int, model: LoadedModel, tmp_path: Path
) -> None:
    """Of a prompt in any case."""
    expected = Decoding(Rig(model), [sampling])
    expected.serially(12)
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device") as rig:
        ranks = rig.runner._ranks
        told: list[torch.Tensor] = []
        tell = ranks.take_from_first
        ranks.take_from_first = lambda tensor: (told.append(tensor), tell(tensor))[1]
        found = Decoding(rig, [sampling])
        found.ahead(12)
    assert found.tokens == expected.tokens
    assert len(told) == num_told


@pytest.mark.parametrize("names", [NAMES[::4], (*NAMES[1::4], "bits"), ("greedy", "entropy", "a row of its own")])
def test_rows_of_every_kind_go_on_ahead_as_on_one(names: tuple[str, ...], model: LoadedModel, tmp_path: Path) -> None:
    """Among them rows that hear late what they may choose, and programs' samplers with what they carry."""
    expected = Kinds(Rig(model), names).run(12, is_ahead=False)
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device") as rig:
        found = Kinds(rig, names).run(12, is_ahead=True)
    for mine, theirs in zip(found, expected, strict=True):
        for name, one, other in zip(names, mine, theirs, strict=True):
            same(one, other, name)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_sums_are_the_same_whichever_way(num_ranks: int, tmp_path: Path) -> None:
    parts = torch.randn(num_ranks, 5, 32, generator=torch.Generator().manual_seed(num_ranks))

    def sum_of(rank: int) -> list[torch.Tensor]:
        ranks = Collectives(tmp_path / "meeting", rank, num_ranks, CPU, 30.0)
        return [ranks.add_up(parts[rank].clone()), ranks.all_reduced(parts[rank].clone())]

    with ThreadPoolExecutor(num_ranks) as pool:
        found = list(pool.map(sum_of, range(num_ranks)))
    for gathered, reduced in found:
        torch.testing.assert_close(gathered, parts.sum(0))
        torch.testing.assert_close(reduced, parts.sum(0))
        assert gathered.equal(found[0][0]), "the same bits on each"


def test_a_row_that_failed_leaves_its_place_to_others(model: LoadedModel, tmp_path: Path) -> None:
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device") as rig:
        failing = Decoding(rig, [Sampling(), Sampling()])
        rig.runner._decoder.cache.layers[0][failing.blocks[0][0]] = torch.nan
        result = rig.step(Batch(decodes=failing.step(0, token_ids=failing.columns.token_ids)))
        assert set(result.decodes.errors) == {0}
        assert len(Decoding(rig, [Sampling(), Sampling()]).serially(3)[0]) == 4


class Recorded:
    """One of `num_ranks`, which hears what the others have said."""

    def __init__(self, rank: int, num_ranks: int, said: list[torch.Tensor]) -> None:
        self.rank, self.num_ranks, self._said = rank, num_ranks, said

    def side_by_side(self, part: torch.Tensor) -> torch.Tensor:
        if len(self._said) < self.num_ranks:
            self._said.append(part)
            return torch.cat([part] * self.num_ranks, dim=1)
        return torch.cat(self._said, dim=1)


def test_of_equal_logits_the_lowest_id_is_chosen_whosever_it_is() -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    logits[0, [3, 4, 9]] = 5.0  # the first of them is the first rank's last
    logits[1, [6, 10]] = 7.0
    logits[2, [8, 11]] = 9.0
    logits[3, 7] = torch.nan
    operations, said, outputs = TorchOperations(), [], torch.zeros(3, 5, dtype=torch.int32)
    for rank in (0, 1, 2, 1):  # the last one hears all
        own, part = DecodeBuffers.make(5, 1, 0, CPU), logits[:, 4 * rank : 4 * rank + 4].contiguous()
        operations.end_greedy(own, 5, part)
        choose_among_ranks(Recorded(rank, 3, said), own.outputs, part, outputs)
    assert outputs[0, :3].tolist() == [3, 6, 8]
    assert outputs[0, 4] == logits[4].argmax()
    assert outputs[2].tolist() == [0, 0, 0, 1, 0]
    expected = logits.log_softmax(-1).amax(-1)[[0, 1, 2, 4]]
    np.testing.assert_allclose(outputs[1].view(torch.float32)[[0, 1, 2, 4]], expected, atol=1e-5)


def test_matrices_of_fewer_bits_are_split_as_others_are(tmp_path: Path) -> None:
    """Where a rank's inputs are whole groups, its scales are those of the whole matrix."""
    model = byte_model(seed=3, num_heads=16, num_kv_heads=4, intermediate_size=256, is_head_tied=True)
    tokens = some_tokens(40)

    def alone(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
        parts = DeviceParts.make(
            model, num_blocks=num_blocks, device=CPU, dtype=torch.float32, kind_of=kinds("int8")
        )  # fmt: skip
        return DeviceRunner(model, parts, num_slots=num_slots, max_rows=8)

    expected = Rig(model, make_runner=alone).logprobs(tokens)
    assert abs(expected - log_softmax(Oracle(model).logits(tokens))).max() > 1e-3
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device", dtype="int8") as rig:
        np.testing.assert_allclose(rig.logprobs(tokens), expected, **CLOSE)


def sampler_row(state: dict[str, float], blocks: list[int]) -> ForwardRow:
    """The token is what the state says, and the state counts."""
    graph = TracedSampler(
        (SamplerNode("state", name="n"), SamplerNode("constant", value=1.0), SamplerNode("add", (0, 1))),
        result=0, states=(TracedState("n", is_vector=False, next=2),),
    )  # fmt: skip
    return ForwardRow(
        blocks, 3, [3], [7], sampling=Sampling(), sample_position=4, sampler=SamplerRun(graph, state)
    )  # fmt: skip


def test_a_programs_sampler_runs_on_every_rank(model: LoadedModel, tmp_path: Path) -> None:
    with rank_threads(stored(model, tmp_path), tmp_path / "meeting", 2, "device") as rig:
        blocks = rig.blocks(16)
        rig.rows(rig.row([1, 2, 3], block_ids=blocks))
        first = rig.rows(sampler_row({"n": 40.0}, blocks))[0]
        assert (first.token_id, first.error) == (40, None)
        second = sampler_row({"n": 0.0}, blocks)
        second = SamplerRun(second.sampler.graph, second.sampler.initial, first.sampler_state)
        row = ForwardRow(blocks, 4, [4], [40], sampling=Sampling(), sample_position=5, sampler=second)
        assert rig.rows(row)[0].token_id == 41


def through(writer: StepWriter, batch: Batch) -> Step:
    message = decode(encode(writer.step(batch)))
    assert isinstance(message, Step)
    return message


def test_rows_that_decode_are_sent_once_and_then_what_changed() -> None:
    writer, reader = StepWriter(), StepReader()
    blocks, generated, samplings = [[4], [5, 6]], [[1], []], [Sampling(frequency_penalty=0.5), Sampling()]
    rows = DecodeRows(blocks, [15, 20], [15, 20], samplings, generated, [1, 2], 0, [1, 1])
    first = reader.batch(through(writer, Batch(decodes=rows)))
    assert first.decodes.rows() == rows.rows()
    for number in range(1, 40):
        if number % 16 == 1:
            blocks[0].append(100 + number)
        generated[0].append(number)
        sources = range(2) if number % 3 else ()
        later = DecodeRows(
            blocks, rows.kv_lens, rows.positions, samplings, generated, [number, 3], number, rows.num_generated, sources
        )
        message = through(writer, Batch(decodes=later))
        read = reader.batch(message)
        assert read.decodes.rows() == later.rows()
        assert isinstance(read.decodes.sources, range) == isinstance(sources, range)
        assert read.decodes.block_ids is first.decodes.block_ids, "what is kept from step to step is told by that"
        assert len(encode(message)) < 200, "it does not grow with the texts"
    other = DecodeRows([[9]], [3], [3], [Sampling()], [[]], [1])
    assert reader.batch(through(writer, Batch(decodes=other))).decodes.rows() == other.rows()
    last = Batch(copies=[BlockCopy(1, 2, 0, 0, 3)], shifts=[], embeds=[], rows=[], heads=[])
    assert reader.batch(through(writer, last)) == last
