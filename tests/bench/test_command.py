"""`loopwright bench`: what it refuses before measuring, and what it writes."""

import argparse
import io
import json
from pathlib import Path

import pytest
from bench_fakes import FakeControl, FakeRuns, FakeSystem, opener
from rich.console import Console

from loopwright.bench import peers
from loopwright.bench.command import BenchRequest, add_arguments, engine_device, request_from, run_bench
from loopwright.bench.rows import PeerValue
from loopwright.bench.suite import Options
from loopwright.core.clock import FakeClock
from loopwright.core.errors import BadRequest, LoopwrightError, NotFound, Unavailable


def arguments_of(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


def parse(*flags: str) -> BenchRequest:
    return request_from(arguments_of(*flags))


def fake_system() -> FakeSystem:
    clock = FakeClock()
    return FakeSystem(FakeRuns(clock, 0.25), FakeControl(clock, 0.5))


async def refused(request: BenchRequest) -> LoopwrightError:
    """The error, raised before any system was opened."""
    opened: list[str] = []
    with pytest.raises(LoopwrightError) as caught:
        await run_bench(request, opener(fake_system(), opened), Console(file=io.StringIO()))
    assert opened == []
    return caught.value


def test_flags_become_a_request():
    assert parse("launch") == BenchRequest(suite="launch")
    flags = ("all", "--json", "x.json", "--peer", "llama-cpp", "--peer", "pie-server", "--peer", "llama-cpp")
    assert parse(*flags, "--model", "m.gguf", "--rounds", "2", "--live", "9") == BenchRequest(
        suite="all",
        options=Options(model="m.gguf", num_rounds=2, num_live=(9,)),
        json_path=Path("x.json"),
        peer_names=("llama-cpp", "pie-server"),
    )


async def test_an_unknown_suite_is_refused_with_the_names_of_all():
    error = await refused(BenchRequest(suite="lunch"))
    assert isinstance(error, NotFound)
    assert (error.message, error.hint) == (
        "no suite 'lunch'",
        "the suites are launch, calls, dev, decode, growth, batching, overhead, steps, mechanisms, agents, serving, "
        "techniques, memory, size and all",
    )


async def test_an_unknown_peer_is_refused_with_the_names_of_all():
    error = await refused(BenchRequest(suite="launch", peer_names=("vllm",)))
    assert isinstance(error, NotFound)
    assert "pie-server, llama-cpp" in error.hint


async def test_a_peer_that_measures_none_of_it_is_refused():
    error = await refused(BenchRequest(suite="launch", peer_names=("llama-cpp",)))
    assert isinstance(error, BadRequest)
    assert (error.message, error.hint) == ("the peer llama-cpp does not measure launch", "it measures decode")


async def test_a_peer_that_is_not_installed_is_refused_with_the_extra_that_installs_it(monkeypatch):
    missing = peers.Peer("pie-server", "loopwright.bench.peers.pie_server", "no_such_package", "peer-x", ("launch",))
    monkeypatch.setitem(peers.PEERS, "pie-server", missing)
    error = await refused(BenchRequest(suite="launch", peer_names=("pie-server",)))
    assert isinstance(error, Unavailable)
    assert (error.message, error.hint) == ("the peer pie-server is not installed", "pip install 'loopwright[peer-x]'")


async def test_no_rounds_at_all_are_refused():
    error = await refused(BenchRequest(suite="launch", options=Options(num_rounds=0)))
    assert "0 rounds" in error.message


async def test_a_flag_of_some_suites_is_refused_by_the_others():
    for options, hint in (
        (Options(scale="small"), "--scale is for techniques and agents"),
        (Options(techniques=("beam",)), "--technique is for techniques"),
        (Options(device="h200"), "--device is for steps, mechanisms, agents"),
        (Options(num_workers=2), "--workers is for mechanisms, agents"),
        (Options(num_requests=2), "--requests is for techniques"),
    ):
        error = await refused(BenchRequest(suite="launch", options=options))
        assert error.hint == hint
    request = parse("mechanisms", "--device", "l4", "--workers", "8")
    assert request.options == Options(device="l4", num_workers=8)


async def test_a_scale_and_techniques_are_for_the_techniques_suite():
    request = parse("techniques", "--scale", "paper", "--technique", "beam", "--technique", "react")
    assert request.options == Options(scale="paper", techniques=("beam", "react"))


async def test_fewer_requests_are_at_least_one():
    error = await refused(BenchRequest(suite="techniques", options=Options(num_requests=0)))
    assert (error.field, "0 requests" in error.message) == ("requests", True)


async def test_a_dummy_of_a_shape_is_a_model_and_an_engines_device_is_none_that_is_simulated():
    flags = ("--scale", "paper", "--load", "dummy", "--shape", "llama-1b", "--requests", "4")
    request = parse("techniques", *flags, "--device", "cuda")
    assert request.options == Options(model="dummy:llama-1b", scale="paper", num_requests=4)
    for given, device in ((("--device", "cuda"), "cuda"), (("--device", "l4"), "auto"), ((), "auto")):
        assert engine_device(arguments_of("steps", *given)) == device


@pytest.mark.parametrize(
    ("flags", "field"),
    [(("--load", "dummy"), "shape"), (("--shape", "tiny"), "load"),
     (("--load", "dummy", "--shape", "tiny", "--model", "other"), "model")],
)  # fmt: skip
def test_a_dummy_has_sizes_and_no_other_model(flags, field):
    with pytest.raises(BadRequest) as refusal:
        parse("techniques", *flags)
    assert refusal.value.field == field


async def test_a_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path):
    error = await refused(BenchRequest(suite="launch", json_path=tmp_path / "no" / "rows.json"))
    assert isinstance(error, BadRequest)
    assert error.field == "json"


async def test_rows_are_returned_printed_and_written(tmp_path: Path):
    opened: list[str] = []
    output = io.StringIO()
    request = BenchRequest("launch", Options(model="byte", num_rounds=1), json_path=tmp_path / "rows.json")
    rows = await run_bench(request, opener(fake_system(), opened), Console(file=output, width=200))
    assert opened == ["byte"]
    assert [row["metric"] for row in json.loads((tmp_path / "rows.json").read_text())] == [row.metric for row in rows]
    assert "launches_per_s" in output.getvalue()


async def test_a_peers_values_stand_beside_ours(monkeypatch):
    asked: list[tuple[str, str, object]] = []

    async def measure(peer, suite_name, workload):
        asked.append((peer.name, suite_name, workload["num_burst"]))
        return [PeerValue("case=sequential", "p50_ms", 500.0)]

    monkeypatch.setattr(peers, "require", lambda peer: None)
    monkeypatch.setattr(peers, "measure", measure)
    request = BenchRequest("launch", Options(num_rounds=1), peer_names=("pie-server",))
    rows = await run_bench(request, opener(fake_system(), []), Console(file=io.StringIO()))
    assert asked == [("pie-server", "launch", 512)]
    assert [(row.metric, row.peer, row.peer_value) for row in rows if "sequential" in row.case or row.peer] == [
        ("p50_ms", "pie-server", 500.0),
        ("p99_ms", None, None),
    ]
    assert rows[1].ratio == rows[1].value / 500.0
