"""The executor's thread: order, faults, end; and the oracle through it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_rig import some_tokens

from loopwright.core.batch import Batch, BlockCopy, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.core.errors import InternalError, Unavailable
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor, create_executor
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_files import write_gguf
from loopwright.engine.oracle import Oracle


@pytest.fixture
def executor(model: LoadedModel) -> Iterator[TorchExecutor]:
    executor = TorchExecutor(model, num_blocks=32, num_slots=8, num_threads=1)
    yield executor
    executor.close()


def row(tokens: list[int], kv_len: int = 0) -> ForwardRow:
    end = kv_len + len(tokens)
    return ForwardRow(
        block_ids=[3, 1, 7], kv_len=kv_len, positions=list(range(kv_len, end)), token_ids=tokens,
        sampling=Sampling(), sample_position=end,
    )  # fmt: skip


def test_generation_through_the_executor_equals_the_oracle(executor: TorchExecutor, model: LoadedModel) -> None:
    tokens = some_tokens(20)
    inputs, kv_len, output = tokens, 0, []
    for _ in range(10):
        [result] = executor.submit(Batch(rows=[row(inputs, kv_len)])).result().rows
        kv_len += len(inputs)
        inputs = [result.token_id]
        output.append(result.token_id)
    assert output == list(Oracle(model).generate(tokens, max_tokens=10).tokens)


def test_batches_run_in_the_order_they_came(executor: TorchExecutor, model: LoadedModel) -> None:
    tokens = some_tokens(12)
    futures = [executor.submit(Batch(rows=[row([token], index)])) for index, token in enumerate(tokens)]
    last = [future.result() for future in futures][-1]
    assert last.rows[0].token_id == Oracle(model).generate(tokens, max_tokens=1).tokens[0]


def test_a_fault_of_a_step_fails_its_future_and_the_executor_lives_on(executor: TorchExecutor) -> None:
    with pytest.raises(InternalError, match="leaves its blocks"):
        executor.submit(Batch(copies=[BlockCopy(0, 99, 0, 0, 1)])).result()
    with pytest.raises(InternalError, match=r"the step failed: AttributeError: .+"):
        executor.submit(Batch(rows=[None])).result()
    assert executor.submit(Batch(rows=[row([1])])).result().rows[0].error is None


def test_after_close_a_submit_is_refused_and_the_thread_is_gone(model: LoadedModel) -> None:
    before = threading.active_count()
    executor = TorchExecutor(model, num_blocks=8, num_slots=0)
    last = executor.submit(Batch(rows=[row([1])]))
    executor.close()
    executor.close()
    assert last.result().rows[0].error is None
    assert threading.active_count() == before
    with pytest.raises(Unavailable, match="closed"):
        executor.submit(Batch())


def test_a_cancelled_future_is_skipped(executor: TorchExecutor) -> None:
    gate = threading.Event()
    executor.submit(Batch()).add_done_callback(lambda _: gate.wait(10))  # holds the executor's thread
    skipped = executor.submit(Batch(copies=[BlockCopy(0, 99, 0, 0, 1)]))
    was_cancelled = skipped.cancel()
    gate.set()
    assert was_cancelled
    assert executor.submit(Batch()).result().rows == ()


def test_an_executor_is_made_from_a_file(tmp_path: Path) -> None:
    model = byte_model(seed=9)
    write_gguf(model, tmp_path / "model.gguf")
    executor = create_executor(tmp_path / "model.gguf", num_blocks=32, num_slots=4, num_threads=1)
    assert (executor.shape.num_blocks, executor.quantization, executor.config.architecture) == (32, "F32", "llama")
    [result] = executor.submit(Batch(rows=[row([1, 2, 3])])).result().rows
    assert result.token_id == Oracle(model).generate([1, 2, 3], max_tokens=1).tokens[0]
    executor.close()


def test_an_unknown_attention_back_end_is_refused_when_it_starts(model: LoadedModel) -> None:
    with pytest.raises(Unavailable, match="known are sdpa"):
        TorchExecutor(model, num_blocks=8, num_slots=0, attention="magic")
