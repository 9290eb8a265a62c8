"""The techniques suite: every technique does as a program what its client does, over a real server on loopback."""

import asyncio
import inspect
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpcore
import pytest

from loopwright.bench.suite import SCALES, Options
from loopwright.bench.techniques.cases import Case, make_cases
from loopwright.bench.techniques.clients import CLIENTS
from loopwright.bench.techniques.endpoint import Endpoint
from loopwright.bench.techniques.suite import DECODE_TOKENS, METRICS, driving, measure, measure_case, serving
from loopwright.compose.system import open_bench_system
from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.runtime.program import read_program
from system_rig import byte_system, byte_text, system_over

PROGRAMS = Path(inspect.getfile(measure)).parent / "programs"

UNEXPORT = "from loopwright import unexport_context\nasync def main(): await unexport_context('bench/prefix')"


class BenchSystem:
    """What the suite needs of a system."""

    def __init__(self, system) -> None:
        self.runs, self.control = system.launcher, system.controller


TINY = {
    "completion": {"max_tokens": 4},
    "prefix_tree": {"parts": [["One."], ["A", "B"], ["C", "D"]], "max_tokens": 3},
    "tree_of_thought": {"max_tokens": 3},
    "recursion_of_thought": {"system": "Solve.", "depth": 1, "max_tokens": 3},
    "graph_of_thought": {"lengths": [2, 5, 3, 4], "levels": 1, "max_tokens": 3},
    "skeleton_of_thought": {"plan_tokens": 6, "max_tokens": 3},
    "prefix_cache": {"system": "A museum of clocks.", "max_tokens": 4},
    "ebnf": {"max_tokens": 6},
    "speculative": {"max_tokens": 6},
    "beam": {"beams": 2, "max_tokens": 3},
    "attention_sink": {"max_tokens": 16},
    "react": {"system": "Think.", "calls": 2, "tool_s": 0.0, "max_tokens": 3},
    "code_act": {"system": "Code.", "max_tokens": 3},
    "swarm": {"roles": ["Begin.", "End."], "max_tokens": 3},
}


def tiny(technique: str) -> Case:
    """The technique with the fewest tokens."""
    case = make_cases("small")[technique]
    roles = 2 if technique == "swarm" else 1
    return replace(case, num_requests=2, arguments={**case.arguments, **TINY[technique]}, roles=roles)


@pytest.mark.parametrize("scale", SCALES)
def test_program_and_client_have_the_same_parameters_which_the_case_fills(scale) -> None:
    for name, case in make_cases(scale).items():
        program = read_program((PROGRAMS / f"{name}.py").read_text(), f"{name}.py")
        _, *parameters = inspect.signature(CLIENTS[name]).parameters
        for inputs in case.inputs("1234567"):
            program.check_arguments(inputs)
            assert sorted(inputs.keys() - {"role"}) == sorted(parameters)
    assert set(make_cases(scale)) == set(CLIENTS) == {path.stem for path in PROGRAMS.glob("*.py")} == set(TINY)


DRAWN = {"tree_of_thought", "recursion_of_thought", "graph_of_thought"}
"""They draw, so each run has other texts; where the cache has all of one but a token, that counts as written."""

OTHERWISE_SPENT = {"prefix_tree", "speculative", "beam", "attention_sink"}
"""Where a row of one token is not one token written: forks run their last token again, guesses are rows of several, a
client's beams are prompts, and a prompt under a window runs in portions."""


@pytest.mark.wasm
async def test_both_sides_of_every_technique_are_measured_and_spend_the_same_tokens() -> None:
    cases = [tiny(name) for name in CLIENTS]
    async with byte_system(num_blocks=1024) as system, driving(BenchSystem(system), cases) as driver:
        for case in cases:
            rows = {row.metric: row for row in await measure_case(driver, case, 1)}
            assert list(rows) == [metric.name for metric in METRICS]
            assert {(row.case, row.peer) for row in rows.values()} == {(f"technique={case.technique}", "client")}
            assert all(row.value > 0 and row.peer_value for row in rows.values() if row.metric != DECODE_TOKENS.name)
            decoded = rows[DECODE_TOKENS.name]
            assert decoded.peer_value is not None
            slack = 2 if case.technique in DRAWN else 0
            equal = pytest.approx(decoded.peer_value, abs=slack)
            assert decoded.value == equal or case.technique in OTHERWISE_SPENT, case.technique
        await system.run(UNEXPORT)


@pytest.mark.wasm
async def test_a_technique_of_the_papers_scale_runs_on_random_weights_with_fewer_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = Options("dummy:tiny", num_rounds=1, scale="paper", techniques=("ebnf",), num_requests=2)
    rows = {row.metric: row for row in (await measure(options, partial(open_bench_system, device="cpu"))).rows}
    assert rows["requests_per_s"].value > 0
    assert rows["round_s"].value > rows["latency_s"].value
    tokens = (rows["decode_tokens"].value, rows["decode_tokens"].peer_value)
    assert tokens[0] == pytest.approx(tokens[1], abs=2)
    ratio, seconds = rows["requests_per_s"].ratio, rows["round_s"]
    said = f"ebnf (2 at once): {ratio:.2f} of the client's requests/s; {seconds.value:.1f} s a round"
    assert said in capsys.readouterr().err


def test_no_text_of_the_json_grammar_is_over_before_the_tokens_are() -> None:
    """Both sides write as many tokens, whatever the model says: an item and its comma are two at least."""
    case = make_cases("paper")["ebnf"]
    assert 'item ("," item){32,}' in case.arguments["grammar"]
    assert case.arguments["max_tokens"] <= 2 * 32


SAME_WORK = sorted(
    set(CLIENTS)
    - DRAWN
    - {"attention_sink", "beam"}  # a client has no window, and all but one token are equally probable here
)


@pytest.mark.wasm
async def test_program_and_client_come_to_the_same_end() -> None:
    """Beside a model whose next letter depends on all letters before it."""

    def next_token(history: tuple[int, ...]) -> int:
        return 97 + sum(place * token for place, token in enumerate(history)) % 26

    engine = ScriptedExecutor(next_token, num_blocks=1024)
    cases = {name: tiny(name) for name in SAME_WORK}
    async with (
        system_over(engine, byte_text(engine)) as system,
        serving(BenchSystem(system), list(cases.values())) as url,
        Endpoint(url, "byte") as api,
    ):
        for name, case in cases.items():
            inputs = case.inputs("1234567")
            *_, ours = await asyncio.gather(*(api.run(case.program, arguments) for arguments in inputs))
            arguments = {key: value for key, value in inputs[0].items() if key != "role"}
            assert ours == await CLIENTS[name](api, **arguments), name
        await system.run(UNEXPORT)
    engine.close()


async def test_a_client_that_fails_is_an_error_and_no_measurement() -> None:
    case = replace(tiny("completion"), arguments={"max_tokens": 0})
    async with byte_system() as system, driving(BenchSystem(system), [case]) as driver:
        with pytest.raises(Unavailable, match="the client of completion failed"):
            await driver.ask(case, "client", 1)


async def test_a_technique_that_does_not_exist_is_refused_before_a_system_is_opened() -> None:
    def never(model: str, *, prefix_cache: bool = False):
        raise AssertionError

    with pytest.raises(BadRequest, match="no technique 'tree'"):
        await measure(Options(techniques=("tree",)), never)


async def test_a_connection_that_the_server_closed_when_it_was_used_again_is_replaced() -> None:
    num_closed = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_closed
        await reader.readuntil(b"\r\n\r\n")
        if num_closed < num_to_close:
            num_closed += 1
            writer.transport.abort()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for num_to_close in (1, 3):
            async with Endpoint(url, "byte") as api:
                if num_to_close == 1:
                    assert await api.post("/x", {}) == {}
                else:
                    with pytest.raises((httpcore.ReadError, httpcore.RemoteProtocolError)):
                        await api.post("/x", {})
