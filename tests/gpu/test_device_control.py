"""On a GPU: control with steps ahead says what it says step by step, whatever is cancelled, stopped or short of blocks.

By the deterministic class, where a row's bits do not depend on who shares its step: so tokens have to be the same.
"""

import asyncio

import pytest
from msgspec.structs import replace
from test_device_parity import model_of, quiet

from disturbed_rig import VOCAB_SIZE, answers, assert_equal_answers, check_disturbed, undisturbed
from loopwright.control.config import ControlConfig
from loopwright.engine.cuda.choice import choose_device
from loopwright.engine.cuda.executor import DeviceExecutor

MAX_ROWS = 32


def executor_with(num_blocks: int) -> DeviceExecutor:
    model = model_of("heads of 64, 3 of a group")
    assert model.config.vocab_size == VOCAB_SIZE
    choice = choose_device("cuda", model.config, is_deterministic=True)
    assert choice is not None
    return DeviceExecutor(
        model, choice, num_blocks=num_blocks, num_slots=64, max_rows=MAX_ROWS, max_tokens=256, report=quiet
    )


def test_rows_of_all_kinds_get_ahead_what_they_get_step_by_step() -> None:
    config = ControlConfig(max_batch_rows=MAX_ROWS, max_batch_tokens=256, steps_ahead="off")
    expected, _ = asyncio.run(answers(config, executor_with(4096)))
    found, stats = asyncio.run(answers(replace(config, steps_ahead="on"), executor_with(4096)))
    assert_equal_answers(found, expected)
    assert stats.num_wasted_rows > 0, "some end by a token, while another step is ahead"


def test_runs_that_are_suspended_stopped_or_cancelled_leave_every_answer_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = asyncio.run(undisturbed(executor_with(4096)))
    asyncio.run(check_disturbed(executor_with(13), expected, monkeypatch))
