"""The scripted executor shows paging faults as wrong tokens or as errors."""

import subprocess
import sys
from array import array
from collections.abc import Iterator

import pytest
from engine_rig import pairs

from loopwright.core.batch import Batch, BlockCopy, EmbedRow, ForwardRow, HeadRow, RowResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.samplers import SamplerRun
from loopwright.engine.scripted import ScriptedExecutor, hashed_token, scripted_tokens
from loopwright.sdk import tensor
from loopwright.sdk.token_by_token import run_eagerly
from sampler_rig import SAMPLERS, STATES, initial, started, traced

TOKENS = list(range(100, 140))


@pytest.fixture
def executor() -> Iterator[ScriptedExecutor]:
    executor = ScriptedExecutor()
    yield executor
    executor.close()


def run(executor: ScriptedExecutor, **fields) -> RowResult:
    fields.setdefault("positions", list(range(len(fields.get("token_ids", ())))))
    fields.setdefault("sampling", Sampling())
    return executor.submit(Batch(rows=[ForwardRow(**fields)])).result().rows[0]


def expected(*history: int) -> int:
    return hashed_token()(tuple(history))


def test_the_next_token_depends_on_the_history_behind_the_page_table(executor: ScriptedExecutor) -> None:
    first = run(executor, block_ids=[9, 2, 5], kv_len=0, token_ids=TOKENS)
    assert first.token_id == expected(*TOKENS)
    second = run(executor, block_ids=[9, 2, 5], kv_len=40, token_ids=[7])
    assert second.token_id == expected(*TOKENS, 7)
    assert executor.tokens_of([9, 2, 5], 41) == (*TOKENS, 7)


def test_a_wrong_block_gives_a_wrong_token(executor: ScriptedExecutor) -> None:
    run(executor, block_ids=[9, 2, 5], kv_len=0, token_ids=TOKENS)
    assert run(executor, block_ids=[2, 9, 5], kv_len=40, token_ids=[7]).token_id != expected(*TOKENS, 7)


def test_a_block_that_was_never_written_is_an_error(executor: ScriptedExecutor) -> None:
    result = run(executor, block_ids=[4], kv_len=3, token_ids=[1])
    assert result.error is not None
    assert "place 0 of blocks [4] was read but never written" in result.error.message


def test_copies_carry_tokens_and_a_lost_copy_shows(executor: ScriptedExecutor) -> None:
    run(executor, block_ids=[9, 2, 5], kv_len=0, token_ids=TOKENS)
    executor.submit(Batch(copies=[BlockCopy(5, 6, 0, 0, 8)])).result()
    assert run(executor, block_ids=[9, 2, 6], kv_len=40, token_ids=[7]).token_id == expected(*TOKENS, 7)
    assert run(executor, block_ids=[9, 2, 8], kv_len=40, token_ids=[7]).error is not None


def test_masked_tokens_are_not_part_of_the_history(executor: ScriptedExecutor) -> None:
    result = run(executor, block_ids=[1], kv_len=0, token_ids=[10, 11, 12], mask=[(0, 1), (1, 1), (0, 1, 1, 1)])
    assert result.token_id == expected(10, 12)


def test_embeds_outputs_and_heads_carry_the_history(executor: ScriptedExecutor) -> None:
    executor.submit(Batch(embeds=[EmbedRow([10, 11], [0, 1], [3, 4])])).result()
    run(executor, block_ids=[1], kv_len=0, input_slots=[3, 4], output_slots=[8], sampling=None)
    heads = executor.submit(Batch(heads=[HeadRow(8, [DistributionRequest(k=2)], Sampling())])).result().heads
    assert heads[0].token_id == expected(10, 11)
    assert pairs(heads[0].distributions[0])[0][0] == expected(10, 11)
    missing = executor.submit(Batch(heads=[HeadRow(9)])).result().heads[0]
    assert "slot 9 was read but never written" in missing.error.message


def test_bias_and_allowed_turn_the_choice(executor: ScriptedExecutor) -> None:
    forced = expected(1)
    fields = {"block_ids": [1], "kv_len": 0, "token_ids": [1]}
    assert run(executor, sampling=Sampling(allowed=(forced, 0)), **fields).token_id == forced
    assert run(executor, sampling=Sampling(allowed=(forced + 2, forced + 1)), **fields).token_id == forced + 1
    assert run(executor, sampling=Sampling(logit_bias={forced: -100.0}), **fields).token_id == 0


def test_scripts_are_told_apart_by_their_prompt() -> None:
    executor = ScriptedExecutor(scripted_tokens({(1, 2): [50, 51], (1, 2, 3): [60]}, end=257))
    assert run(executor, block_ids=[0], kv_len=0, token_ids=[1, 2]).token_id == 50
    assert run(executor, block_ids=[0], kv_len=2, token_ids=[50]).token_id == 51
    assert run(executor, block_ids=[0], kv_len=3, token_ids=[51]).token_id == 257
    assert run(executor, block_ids=[1], kv_len=0, token_ids=[1, 2, 3]).token_id == 60
    assert run(executor, block_ids=[2], kv_len=0, token_ids=[9]).error is not None
    executor.close()


def test_held_batches_wait_until_released(executor: ScriptedExecutor) -> None:
    executor.hold()
    futures = [executor.submit(Batch(rows=[ForwardRow([i], 0, [0], [i])] * (i + 1))) for i in range(2)]
    assert not any(future.done() for future in futures)
    executor.release()
    assert [len(future.result(timeout=10).rows) for future in futures] == [1, 2]
    assert executor.mean_rows == 1.5


def test_a_wrong_row_is_its_own_error(executor: ScriptedExecutor) -> None:
    assert run(executor, block_ids=[0], kv_len=0, token_ids=[260]).error.field == "token_ids"


def test_the_scripted_executor_needs_no_torch() -> None:
    code = "import sys, loopwright.engine.scripted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_traced_sampler_gives_the_token_and_the_state_that_the_function_gives(
    executor: ScriptedExecutor, name: str
) -> None:
    graph, state = traced(SAMPLERS[name], STATES.get(name)), started(STATES.get(name), 260)
    carried, tokens = SamplerRun(graph, initial(STATES.get(name))), [7]
    for position in range(1, 5):
        result = run(
            executor, block_ids=[1], kv_len=position - 1, token_ids=tokens[-1:], positions=[position - 1],
            sampling=Sampling(seed=4), sample_position=position, sampler=carried,
        )  # fmt: skip
        logits = [0.0] * 260
        logits[expected(*tokens)] = 10.0
        chosen, state = run_eagerly(SAMPLERS[name], state, logits, 4, position)
        wanted = int(chosen) if isinstance(chosen, float) else chosen.index(max(chosen))
        assert result.error is None
        assert result.token_id == wanted
        assert result.sampler_state is not None
        assert result.sampler_state.values().keys() == state.keys()
        for key, value in result.sampler_state.values().items():
            assert (list(array("d", value)) if isinstance(value, bytes) else value) == state[key]
        carried = SamplerRun(graph, carried.initial, result.sampler_state)
        tokens.append(wanted)


def test_a_sampler_that_takes_what_a_mask_forbids_fails_its_row_alone(executor: ScriptedExecutor) -> None:
    graph = traced(lambda scores: tensor.argmax(scores) + 300.0)
    fields = {"block_ids": [1], "kv_len": 0, "token_ids": [7], "sampler": SamplerRun(graph, {})}
    result = run(executor, **fields)
    assert result.error is not None
    assert result.error.field == "sampler"
    graph = traced(lambda scores: tensor.where(tensor.ids() == 5, 1.0, 0.0))
    only = run(executor, **{**fields, "sampler": SamplerRun(graph, {})}, sampling=Sampling(allowed=(5, 9)))
    assert only.token_id == 5
    assert (
        run(executor, **{**fields, "sampler": SamplerRun(graph, {})}, sampling=Sampling(allowed=(8, 9))).token_id == 8
    )
