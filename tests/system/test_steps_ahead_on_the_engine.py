"""Control and an engine on its own thread, with steps ahead: every answer is that of one step at a time."""

import pytest
from msgspec.structs import replace

from device_rig import device_executor
from disturbed_rig import VOCAB_SIZE, answers, assert_equal_answers, check_disturbed, undisturbed
from loopwright.control.config import ControlConfig
from loopwright.engine.byte_model import byte_model
from mixed_rig import Life, check_lives, lives_alone


@pytest.mark.parametrize("is_device", [False, True])
@pytest.mark.parametrize("max_rows", [256, 6])
async def test_answers_are_those_of_one_step_at_a_time(max_rows: int, is_device: bool) -> None:
    """Where rows take turns, few steps are ahead. A device has the same, and draws for many rows together."""
    config = ControlConfig(max_batch_rows=max_rows, max_batch_tokens=4 * max_rows)
    expected, _ = await answers(config)
    executor = device_executor(byte_model(vocab_size=VOCAB_SIZE), num_blocks=4096) if is_device else None
    found, stats = await answers(replace(config, steps_ahead="on"), executor)
    assert_equal_answers(found, expected)
    if max_rows == 256:  # of turns, how many are ahead is a matter of time
        assert stats.num_wasted_rows > 0, "some end by a token, while another step is ahead"


async def test_runs_that_are_suspended_stopped_or_cancelled_on_a_device_leave_every_answer_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = device_executor(byte_model(vocab_size=VOCAB_SIZE), num_blocks=13)
    await check_disturbed(executor, await undisturbed(), monkeypatch)


async def test_runs_of_every_kind_of_turn_are_on_a_device_what_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seeds = byte_model(vocab_size=VOCAB_SIZE), range(24)
    expected = await lives_alone(device_executor(model, num_blocks=400), [Life(seed) for seed in seeds])
    await check_lives(device_executor(model, num_blocks=26), seeds, expected, monkeypatch)
