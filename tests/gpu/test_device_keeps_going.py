"""On a GPU: no kind of row makes the host wait within a step, and what is chosen there is what the CPU would choose."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from test_device_parity import CUDA, model_of, on_device, operations, quiet

from ahead_rig import NAMES, Kinds
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.answers import Ways, answers_of
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.sampling import SamplingColumns
from loopwright.engine.cuda.traced_graphs import CudaCaptures, TracedSamplers
from loopwright.engine.sampler import answer
from questions_rig import assert_same, questions, some_logits
from runner_rig import runs_of, some_tokens

NUM_STEPS = 21


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever would make the host wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_any_kind_is_launched_without_waiting_and_gets_what_it_gets_step_by_step(name: str) -> None:
    rig = on_device(model_of("heads of 64, 4 of a group"), max_rows=8)
    names = tuple(dict.fromkeys([name, "greedy", "a row of its own"]))
    Kinds(rig, names).run(3, is_ahead=True)  # kernels are compiled
    found = Kinds(rig, names).run(NUM_STEPS, is_ahead=True, launching=no_waiting, first_watched=1)
    serial = Kinds(rig, names).run(NUM_STEPS, is_ahead=False)
    tokens = [[[one.token_id for one in row.sampled] for row in step] for step in found]
    assert tokens == [[[one.token_id for one in row.sampled] for row in step] for step in serial]
    assert len(found) == NUM_STEPS


@pytest.mark.parametrize("name", ["sampler mirostat", "sampler plain_draw", "sampler greedy"])
def test_a_step_whose_rows_have_one_sampler_is_a_graph_that_puts_its_tokens_itself(name: str) -> None:
    rig = on_device(model_of("heads of 64, 4 of a group"), max_rows=8)
    Kinds(rig, (name,)).run(8, is_ahead=True)  # it is captured
    found = Kinds(rig, (name,)).run(NUM_STEPS, is_ahead=True, launching=no_waiting, first_watched=1)
    samplers = rig.runner._ways.samplers
    assert any(one.whole is not None and one.graph is not None for one in samplers._kept.values())
    samplers._kept.clear()
    samplers._capture = None
    serial = Kinds(rig, (name,)).run(NUM_STEPS, is_ahead=False)
    for (one,), (other,) in zip(found, serial, strict=True):
        assert one.sampled[0].token_id == other.sampled[0].token_id
        assert one.sampled[0].logprob == pytest.approx(other.sampled[0].logprob, abs=1e-4)
        assert one.sampler_state.values() == pytest.approx(other.sampler_state.values(), abs=1e-6)


def test_all_kinds_in_one_step_are_launched_without_waiting() -> None:
    rig = on_device(model_of("heads of 64, 4 of a group"), max_rows=32)
    Kinds(rig).run(3, is_ahead=True)
    found = Kinds(rig).run(NUM_STEPS, is_ahead=True, launching=no_waiting, first_watched=1)
    assert len(found) == NUM_STEPS


@pytest.mark.parametrize("name", ["heads of 128, 4 of a group", "windows everywhere", "Gemma 3", "experts"])
def test_masks_drafts_and_slots_are_launched_without_waiting(name: str) -> None:
    """Beside a row that decodes; of models that FlashInfer has kernels for all of them have a mask."""
    rig = on_device(model_of(name), max_rows=8)
    mask = tuple(runs_of([place % 5 != 2 or place == own for place in range(own + 1)]) for own in range(20, 24))
    is_ours = name in ("windows everywhere", "Gemma 3")
    for is_watched in (False, True):  # kernels are compiled in the first
        tables = [rig.blocks(40) for _ in range(5)]
        rig.rows(*(rig.row(some_tokens(20, place), block_ids=table) for place, table in enumerate(tables)))
        rows = [
            ForwardRow(tables[0], 20, [20], [9], sampling=Sampling(), sample_position=21),
            ForwardRow(tables[1], 20, range(20, 24), [9, 1, 2, 3], sampling=Sampling(), num_drafts=3, mask=mask,
                       sample_position=24),
            ForwardRow(tables[2], 20, [20], [9], mask=mask[:1], sampling=Sampling(), sample_position=21,
                       output_slots=[9]),
        ]  # fmt: skip
        if is_ours:
            rows.append(ForwardRow(tables[3], 20, [20, 21], [4, 5], sampling=Sampling(), sample_position=22))
        with torch.inference_mode(), no_waiting() if is_watched else nullcontext():
            launched = rig.runner.launch(Batch(rows=rows))
        results = launched.result().rows
    assert [one.error for one in results] == [None] * len(rows)


def test_questions_are_answered_on_the_gpu_as_on_the_cpu() -> None:
    asked = questions()
    logits = some_logits(len(asked), seed=2)
    logits[1, 40] = torch.nan
    with torch.inference_mode():
        on_gpu = logits.to(CUDA)
        ways = Ways(SamplingColumns(CUDA), operations().draw, operations().top, TracedSamplers(CudaCaptures(CUDA)))
        answers_of(on_gpu, asked, ways)
        for _ in range(5):  # samplers become graphs
            with no_waiting():
                answers = answers_of(on_gpu, asked, ways)
            assert_same(answers.results(), answer(logits, asked))


def test_a_closed_executor_gives_its_memory_back() -> None:
    model = model_of("heads of 64, 4 of a group")
    choice = choose_device("cuda", model.config)
    assert choice is not None
    torch.cuda.empty_cache()  # what other tests left would be used first
    before = torch.cuda.memory_reserved()
    executor = DeviceExecutor(model, choice, num_blocks=20_000, num_slots=4, max_rows=8, max_tokens=64, report=quiet)
    kv_bytes = executor.shape.num_blocks * executor.shape.block_bytes
    executor.submit(Batch(rows=[ForwardRow([3], 0, [0], [5], sampling=Sampling(), sample_position=1)])).result()
    assert torch.cuda.memory_reserved() - before > kv_bytes
    executor.close()
    assert torch.cuda.memory_reserved() - before < kv_bytes / 2
