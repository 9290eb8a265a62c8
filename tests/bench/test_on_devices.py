"""The suites that can have a simulated device: what they make of what they measured, and that all their ways run."""

import pytest
from jinja2 import Template

from loopwright.bench import agents, mechanisms, steps
from loopwright.bench.agents import Elapsed, measure_rounds, network_gain, predicted_gain
from loopwright.bench.bare_loop import bare_loop
from loopwright.bench.decode import make_prompts
from loopwright.bench.opened import opened
from loopwright.bench.steps import HOST_US, IDLE_PERCENT, TOKENS_PER_CORE_S, Spent, measure_steps
from loopwright.bench.suite import Options
from loopwright.bench.techniques.cases import Case, make_cases
from loopwright.bench.techniques.driver import Order, follow
from loopwright.bench.techniques.endpoint import Endpoint
from loopwright.bench.techniques.suite import driving
from loopwright.compose.system import open_bench_system
from loopwright.core.batch import Batch
from loopwright.core.clock import FakeClock
from loopwright.core.errors import BadRequest, InternalError
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.oracle import Oracle
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.text.byte_tokenizer import made_up_tokenizer

ON_H200 = Options(device="h200", num_rounds=1)


@pytest.mark.parametrize("steps_ahead", ["never", "possible"])
async def test_the_bare_loop_gives_what_the_model_says(steps_ahead: str) -> None:
    executor = TorchExecutor(byte_model(), num_blocks=64, num_slots=1, num_threads=1)
    prompts = make_prompts(6, 260)
    shown = executor if steps_ahead == "possible" else _Never(executor)
    tokens = await bare_loop(shown, prompts, 20)
    executor.close()
    oracle = Oracle(byte_model())
    assert tokens == [list(oracle.generate(prompt, max_tokens=20).tokens) for prompt in prompts]


class _Never:
    """An executor that takes a step when the one before is over."""

    def __init__(self, executor: TorchExecutor) -> None:
        self._executor = executor
        self._running = None
        self.shape = ScriptedExecutor(num_blocks=64, steps_ahead="never").shape

    def submit(self, batch: Batch):
        assert self._running is None or self._running.done()
        assert not batch.decodes.sources
        self._running = self._executor.submit(batch)
        return self._running

    def close(self) -> None:
        self._executor.close()


async def test_the_bare_loop_says_when_there_is_no_room_for_it() -> None:
    executor = ScriptedExecutor(num_blocks=8)
    with pytest.raises(InternalError, match="2 texts need 9 blocks each, and there are 8"):
        await bare_loop(executor, [[1] * 128] * 2, 16)
    executor.close()


def test_a_steps_values_are_those_of_the_steps_that_many_have_more_than_few() -> None:
    values = Spent(3.0, 0.5, 1.0, 130).less(Spent(1.0, 0.1, 0.5, 30)).values(num_rows=8)
    assert values[HOST_US] == pytest.approx(4000)
    assert values[IDLE_PERCENT] == pytest.approx(75)
    assert values[TOKENS_PER_CORE_S] == pytest.approx(2000)
    assert IDLE_PERCENT not in Spent(3.0, 0.5, None, 130).less(Spent(1.0, 0.1, None, 30)).values(8)


@pytest.mark.wasm
async def test_steps_are_measured_over_control_and_over_http_with_and_without_steps_ahead() -> None:
    rows = await measure_steps(ON_H200, open_bench_system, steps.Load((2,), (3,), num_more=8))
    cases = {row.case: row for row in rows if row.metric == HOST_US.name}
    assert set(cases) == {
        f"over={over}/ahead={ahead}" for over in ("control/rows=2", "http/rows=3") for ahead in ("off", "on")
    }
    assert {row.peer for case, row in cases.items() if case.endswith("on")} == {"off"}
    assert {row.metric for row in rows} >= {"step_ms", "idle_percent", "tokens_per_core_s", "tokens_per_s"}


@pytest.mark.wasm
async def test_every_mechanism_runs_and_stands_beside_the_bare_loop() -> None:
    load = mechanisms.Load(num_texts=2, num_more=3, num_rounds=1)
    clock = FakeClock()
    async with opened(ON_H200, open_bench_system) as system:
        before = await system.control.stats()
        found = await mechanisms.tpots_s(mechanisms.engine_side(system, load), clock, load)
        between = await system.control.stats()
        told = await mechanisms.told_s(mechanisms.program_side(system.runs, clock, load), load)
        after = await system.control.stats()
    assert after.num_decode_tokens > between.num_decode_tokens > before.num_decode_tokens
    assert all(seconds > 0 for values in told.values() for seconds in values)
    rows = mechanisms.rows_of({**{name: [0.003] for name in found | told}, "bare": [0.002]}, load)
    assert {row.case for row in rows} == {f"mechanism={name}/n=2" for name in found | told}
    assert {row.ratio for row in rows if row.metric == "tpot_ms" and "=bare/" not in row.case} == {1.5}
    assert {round(row.value, 6) for row in rows if row.metric == "added_ms"} == {1.0}


async def test_workers_and_a_simulated_device_exclude_each_other() -> None:
    with pytest.raises(BadRequest, match="in this process"):
        await mechanisms.measure(Options(device="h200", num_workers=2), open_bench_system)
    with pytest.raises(BadRequest, match="in this process"):
        await agents.measure(Options(device="h200", num_workers=2), open_bench_system)


def test_the_predicted_gain_is_a_clients_round_trips_beside_a_programs_one() -> None:
    near = Elapsed(program=[2.0], client=[2.0])
    assert predicted_gain(near, 8, 0.0) == 1.0
    assert predicted_gain(near, 8, 0.1) == pytest.approx(2.8 / 2.1)
    dear = Elapsed(program=[2.0], client=[3.0])
    assert predicted_gain(dear, 8, 0.1) == pytest.approx(3.8 / 2.1)
    assert network_gain(dear, 8, 0.1) == pytest.approx(2.8 / 2.1)


def test_agents_have_a_row_for_each_distance_with_what_was_predicted_beside() -> None:
    case = make_cases("paper")["react"]
    besides = {
        side: [{metric: value for metric in agents.BESIDES}] for side, value in (("program", 2.0), ("client", 4.0))
    }
    found = {ms: Elapsed([2.0, 4.0], [3.0, 5.0], besides) for ms in agents.ROUND_TRIPS_MS}
    values = {(row.case, row.metric): row for row in agents.rows_of(case, found)}
    assert values["round_trip_ms=20/agents=128", "gain"].value == pytest.approx((1.5 + 1.25) / 2)
    assert values["round_trip_ms=100/agents=128", "predicted_gain"].value == pytest.approx(4.8 / 3.1)
    assert values["round_trip_ms=0/agents=128", "prefill_tokens"].ratio == 0.5
    assert values["round_trip_ms=0/agents=128", "requests_per_s"].value == pytest.approx((64 + 32) / 2)


@pytest.mark.wasm
async def test_agents_run_as_programs_and_as_clients() -> None:
    arguments = {"system": "Think.", "calls": 2, "tool_s": 0.0, "max_tokens": 3}
    case = Case("react", 3, arguments)
    async with opened(ON_H200, open_bench_system, prefix_cache=True) as system, driving(system, [case], 2) as driver:
        await agents.warm_up(driver, case)
        found = await measure_rounds(driver, case, (0, 1), num_rounds=1)
        stats = await system.control.stats()
    assert [(len(one.program), len(one.client)) for one in found.values()] == [(1, 1), (1, 1)]
    assert stats.num_decode_tokens >= 18 * 2 * (3 - 1), "eighteen runs of two turns of three tokens"


async def test_an_order_says_how_far_its_clients_are() -> None:
    api = Endpoint("http://nowhere", "model")
    await follow(Order("react", [], round_trip_s=0.25), [api])
    assert api.round_trip_s == 0.25


def test_a_model_of_random_weights_writes_out_chats() -> None:
    template = made_up_tokenizer(512).chat_template
    assert template is not None
    written = Template(template, keep_trailing_newline=True).render(
        messages=[{"role": "user", "content": "x"}], add_generation_prompt=True
    )
    assert written == "user: x\nassistant: "


def test_what_such_a_model_has_written_is_the_same_tokens_when_it_is_read_again() -> None:
    tokenizer = made_up_tokenizer(1000)
    ids = [104, 105, 300, 999, 10, 260, 33]
    text = tokenizer.decode(ids)
    assert text == "hi w300 w999\n w260!"
    assert tokenizer.encode(text) == ids
    for other in (" w259", " w1000", " w0300", " w", " w12345678901", "é w3\u0661"):
        assert tokenizer.encode(other) == list(other.encode()), "no word of the vocabulary"
