"""On a GPU: no kind of row makes the host wait within a step, and what is chosen there is what the CPU would choose."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from test_device_parity import CUDA, model_of, on_device, operations, quiet

from ahead_rig import NAMES, Kinds
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.answers import Answers, Ways
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.sampling import SamplingColumns
from loopwright.engine.cuda.traced_graphs import CudaCaptures, TracedSamplers
from loopwright.engine.sampler import answer
from questions_rig import assert_same, questions, some_logits

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
    names = tuple(dict.fromkeys([name, "greedy", "a watched one"]))
    Kinds(rig, names).run(3, is_ahead=True)  # kernels are compiled
    found = Kinds(rig, names).run(NUM_STEPS, is_ahead=True, launching=no_waiting, first_watched=1)
    serial = Kinds(rig, names).run(NUM_STEPS, is_ahead=False)
    tokens = [[[one.token_id for one in row.sampled] for row in step] for step in found]
    assert tokens == [[[one.token_id for one in row.sampled] for row in step] for step in serial]
    assert len(found) == NUM_STEPS


def test_all_kinds_in_one_step_are_launched_without_waiting() -> None:
    rig = on_device(model_of("heads of 64, 4 of a group"), max_rows=32)
    Kinds(rig).run(3, is_ahead=True)
    found = Kinds(rig).run(NUM_STEPS, is_ahead=True, launching=no_waiting, first_watched=1)
    assert len(found) == NUM_STEPS


def test_questions_are_answered_on_the_gpu_as_on_the_cpu() -> None:
    asked = questions()
    logits = some_logits(len(asked), seed=2)
    logits[1, 40] = torch.nan
    with torch.inference_mode():
        on_gpu = logits.to(CUDA)
        ways = Ways(SamplingColumns(CUDA), operations().draw, operations().top, TracedSamplers(CudaCaptures(CUDA)))
        Answers(on_gpu, asked, ways)
        for _ in range(5):  # samplers become graphs
            with no_waiting():
                answers = Answers(on_gpu, asked, ways)
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
