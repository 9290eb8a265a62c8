"""Batches that come while those before them run: rows that name who samples their tokens get what they would later."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from device_rig import device_executor
from loopwright.core.batch import Batch, BlockCopy, DecodeRows, ForwardRow, RowResult
from loopwright.core.calls import Sampling
from loopwright.core.errors import InternalError
from loopwright.core.executor import Executor
from loopwright.core.samplers import SamplerRun, SamplerState, StateValue
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.scripted import ScriptedExecutor
from sampler_rig import SAMPLERS, STATES, initial, traced

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
SAMPLINGS = [
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.7, seed=4, presence_penalty=1.5, frequency_penalty=0.5),
    Sampling(),
]
NUM_STEPS = 6


@pytest.fixture(params=["scripted", "torch", "device"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    makers: dict[str, Callable[[], Executor]] = {
        "scripted": ScriptedExecutor,
        "torch": lambda: TorchExecutor(byte_model(), num_blocks=16, num_slots=4),
        "device": lambda: device_executor(byte_model(), num_blocks=16, num_slots=4),
    }
    executor = makers[request.param]()
    yield executor
    executor.close()


def prompt_rows(**fields) -> list[ForwardRow]:
    return [
        ForwardRow(block_ids=[place], kv_len=0, positions=range(len(prompt)), token_ids=prompt, sampling=sampling,
                   sample_position=len(prompt), **fields)
        for place, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]  # fmt: skip


def columns(tokens: Sequence[list[int]], num_steps: int, **fields) -> DecodeRows:
    """The rows after the prompts, when the group had `num_steps`; `tokens` are the lists that control adds to."""
    starts = [len(prompt) for prompt in PROMPTS]
    generated = [one if sampling.has_penalties else () for one, sampling in zip(tokens, SAMPLINGS, strict=True)]
    fields.setdefault("token_ids", [one[-1] if one else 0 for one in tokens])
    return DecodeRows([[0], [1], [2]], starts, starts, SAMPLINGS, generated, num_steps=num_steps,
                      num_generated=[0, 0, 0], **fields)  # fmt: skip


def test_rows_have_what_was_written_before_their_source_whatever_control_adds() -> None:
    """Control adds the source's token to the very list while the step waits; of a text's first token, too."""
    tokens: list[list[int]] = [[], [], []]
    for number in range(2):
        rows = columns(tokens, number, token_ids=[0, 0, 0], sources=range(3)).rows()
        written = [list(one) for one in tokens]
        for one in tokens:
            one.append(7)
        for row, sampling, before in zip(rows, SAMPLINGS, written, strict=True):
            assert list(row.generated) == (before if sampling.has_penalties else [])


def one_by_one(executor: Executor) -> list[list[int]]:
    """What each text gets when each step waits for the last one."""
    first = executor.submit(Batch(rows=prompt_rows())).result()
    tokens = [[row.sampled[0].token_id] for row in first.rows]
    for number in range(NUM_STEPS):
        result = executor.submit(Batch(decodes=columns(tokens, number))).result()
        for mine, token in zip(tokens, result.decodes.token_ids, strict=True):
            mine.append(token)
    return tokens


def test_rows_that_name_the_last_step_get_what_they_would_get_after_it(executor: Executor) -> None:
    expected = one_by_one(executor)
    tokens: list[list[int]] = [[], [], []]
    steps = [executor.submit(Batch(rows=prompt_rows()))]
    for number in range(NUM_STEPS):
        steps.append(executor.submit(Batch(decodes=columns(tokens, number, sources=range(3)))))
        result = steps[number].result()
        sampled = [row.token_id for row in result.rows] or result.decodes.token_ids
        for mine, token in zip(tokens, sampled, strict=True):
            mine.append(token)  # while the next step waits, or runs
    for mine, token in zip(tokens, steps[-1].result().decodes.token_ids, strict=True):
        mine.append(token)
    assert tokens == expected


def test_a_source_is_any_row_of_the_step_before_and_a_row_without_one_has_its_token(executor: Executor) -> None:
    first, second, third = (tokens[:3] for tokens in one_by_one(executor))
    executor.submit(Batch(rows=prompt_rows()[:2]))
    rows = partial(columns, [[], [second[0]], []], 0)
    executor.submit(Batch(decodes=_only(rows(sources=[0, 1, -1]), 0, 1), rows=prompt_rows()[2:]))
    last = _only(columns([[first[0]], [second[0]], []], 1, token_ids=[first[1], 0, 0], sources=[-1, 1, 2]), 0, 1)
    after = executor.submit(
        Batch(decodes=last, rows=[_row_of(columns([[], [], []], 0, sources=[-1, -1, 2]), 2)])
    ).result()
    assert [*after.decodes.token_ids, after.rows[0].token_id] == [first[2], second[2], third[1]]


def test_a_row_whose_source_failed_fails_alone_and_so_it_does_after_a_step_that_failed(executor: Executor) -> None:
    good, bad, _ = prompt_rows()
    tokens = one_by_one(executor)
    executor.submit(Batch(rows=[good, replace(bad, positions=(1,))]))
    rows = _only(columns([[], [], []], 0, sources=[0, 1, -1]), 0, 1)
    result = executor.submit(Batch(decodes=rows)).result()
    assert (list(result.decodes.errors), result.decodes.token_ids[0]) == ([1], tokens[0][1])
    fault = executor.submit(Batch(copies=[BlockCopy(99_999, 0, 0, 0, 1)], rows=[good]))
    result = executor.submit(
        Batch(decodes=_only(columns([[], [], []], 0, sources=[0, -1, -1]), 0), rows=[good])
    ).result()
    with pytest.raises(InternalError):
        fault.result()
    assert (list(result.decodes.errors), result.rows[0].token_id) == ([0], tokens[0][0])


def test_the_state_of_a_sampler_goes_from_row_to_row(executor: Executor) -> None:
    run = SamplerRun(traced(SAMPLERS["presence"], STATES["presence"]), initial(STATES["presence"]))
    first = Batch(rows=[replace(prompt_rows()[0], sampler=run)])

    def later(number: int, before: RowResult | None) -> Batch:
        row = _row_of(columns([[] if before is None else [before.token_id], [], []], number - 1), 0)
        state = None if before is None else before.sampler_state
        return Batch(rows=[replace(row, source=0 if before is None else -1, sampler=replace_state(run, state))])

    serial = [executor.submit(first).result().rows[0]]
    for number in range(1, 5):
        serial.append(executor.submit(later(number, serial[-1])).result().rows[0])
    ahead = [executor.submit(one) for one in (first, *(later(number, None) for number in range(1, 5)))]
    results = [one.result().rows[0] for one in ahead]
    assert [one.token_id for one in results] == [one.token_id for one in serial]
    assert [_values(one) for one in results] == [_values(one) for one in serial]
    assert _values(results[-1])["num"] == 5.0


def replace_state(run: SamplerRun, state: SamplerState | None) -> SamplerRun:
    return SamplerRun(run.graph, run.initial, state)


def _values(result: RowResult) -> dict[str, StateValue]:
    assert result.sampler_state is not None
    return result.sampler_state.values()


def _only(rows: DecodeRows, *places: int) -> DecodeRows:
    names = ("block_ids", "kv_lens", "positions", "samplings", "generated", "token_ids", "num_generated", "sources")
    return replace(rows, **{name: [getattr(rows, name)[place] for place in places] for name in names})


def _row_of(rows: DecodeRows, place: int) -> ForwardRow:
    return rows.rows()[place]
