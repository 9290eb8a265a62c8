"""Runs suites and shows what they measured: the body of `loopwright bench`. Never measures. Called by the cli.

Everything that can be refused is refused before the first measurement, which may take minutes.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rich.console import Console

from loopwright.bench import growth, peers
from loopwright.bench.devices import DEVICES
from loopwright.bench.machine import this_machine
from loopwright.bench.registry import SUBJECTS, SUITE_MODULES, load_suites
from loopwright.bench.rows import PeerValue, Row, beside_peers, write_json
from loopwright.bench.suite import DEFAULT_OPTIONS, SCALES, Measured, OpenSystem, Options, Suite
from loopwright.bench.table import render
from loopwright.core.errors import BadRequest
from loopwright.core.model_info import WeightDtype
from loopwright.weights.store import DUMMY

ON_DEVICES = ("steps", "mechanisms", "agents")  # suites that can have a simulated device
IN_PROCESSES = ("mechanisms", "agents")  # suites whose programs can run in processes of their own
EngineDevice: TypeAlias = Literal["auto", "cpu", "cuda"]
ENGINE_DEVICES: dict[str, EngineDevice] = {"cpu": "cpu", "cuda": "cuda"}  # of `--device`; the others are simulated
WIDTH_OF_A_FILE = 160  # where nobody says how wide it is: a narrow table would cut its numbers


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What `loopwright bench` was asked for."""

    suite: str
    options: Options = DEFAULT_OPTIONS
    json_path: Path | None = None
    peer_names: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `loopwright bench`."""
    parser.add_argument("suite", metavar="SUITE", help=f"{', '.join(SUITE_MODULES)} or all")
    parser.add_argument_group("suites", "\n".join(f"{name:<12}{subject}" for name, subject in SUBJECTS.items()))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there, as a JSON list")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME", help=f"compare with {' or '.join(peers.PEERS)}"
    )
    parser.add_argument("--model", default=DEFAULT_OPTIONS.model, metavar="NAME", help="the model to measure with")
    parser.add_argument(
        "--load", default="auto", choices=("auto", "dummy"), help="dummy: random weights of --shape, and no --model"
    )
    parser.add_argument("--shape", default="", metavar="NAME", help="the sizes of a dummy, as of `serve --shape`")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="growth: also draw it there, as .svg or .png")
    parser.add_argument(
        "--dtype", default="auto", choices=get_args(WeightDtype), help="how the engine keeps weights, and the peer too"
    )
    parser.add_argument(
        "--rounds", type=int, default=DEFAULT_OPTIONS.num_rounds, metavar="N", help="measure N times, report medians"
    )
    parser.add_argument(
        "--live", type=int, action="append", default=[], metavar="N", help="launch: memory of N programs that wait"
    )
    parser.add_argument(
        "--scale", choices=SCALES, help="techniques, agents: the paper's numbers, or small ones (default)"
    )
    parser.add_argument(
        "--technique", action="append", default=[], metavar="NAME", help="techniques: this one; again for another"
    )
    parser.add_argument(
        "--requests", type=int, metavar="N", help="techniques: so many requests at once, not the scale's own number"
    )
    parser.add_argument(
        "--device",
        choices=[*ENGINE_DEVICES, *DEVICES],
        help="what the engine computes on; steps, mechanisms, agents: or this simulated device in place of an engine",
    )
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="mechanisms, agents: programs run in N processes, not here"
    )


def request_from(arguments: argparse.Namespace) -> BenchRequest:
    """The request that parsed flags stand for. Raises BadRequest for a dummy without sizes, and sizes without one."""
    return BenchRequest(
        suite=arguments.suite,
        options=Options(
            model=_model(arguments),
            num_rounds=arguments.rounds,
            num_live=tuple(arguments.live),
            scale=arguments.scale,
            techniques=tuple(dict.fromkeys(arguments.technique)),
            num_requests=arguments.requests,
            plot=arguments.plot,
            device=arguments.device if arguments.device in DEVICES else None,
            num_workers=arguments.workers,
        ),
        json_path=arguments.json,
        peer_names=tuple(dict.fromkeys(arguments.peer)),
    )


def engine_device(arguments: argparse.Namespace) -> EngineDevice:
    """What parsed flags have the engine compute on."""
    return ENGINE_DEVICES.get(arguments.device, "auto")


def _model(arguments: argparse.Namespace) -> str:
    model: str = arguments.model
    is_dummy = arguments.load == "dummy"
    if is_dummy != bool(arguments.shape):
        missing, given = ("shape", "--load dummy") if is_dummy else ("load", "--shape")
        raise BadRequest(f"{given} without --{missing}", hint="--load dummy --shape llama-1b, say", field=missing)
    if is_dummy and model != DEFAULT_OPTIONS.model:
        raise BadRequest(f"--model {model} beside --load dummy", hint="give one of them", field="model")
    return f"{DUMMY}{arguments.shape}" if is_dummy else model


async def run_bench(request: BenchRequest, open_system: OpenSystem, console: Console | None = None) -> list[Row]:
    """Measures, prints a table for each suite, writes the JSON file, and returns all rows.

    Raises NotFound (suite, peer), BadRequest (rounds, a peer that measures none of it, the file's folder), Unavailable
    (a peer that is not installed or failed), and what the system raises."""
    suites, chosen = _check(request)
    out = console or Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    command_line = " ".join(["loopwright", *sys.argv[1:]])
    rows: list[Row] = []
    for suite in suites:
        measured = await suite.measure(request.options, open_system)
        peer_values = await _measure_peers(suite, measured, chosen)
        suite_rows = beside_peers(measured.rows, peer_values)
        out.print(render(suite.title, command_line, this_machine(), suite_rows))
        rows += suite_rows
        if request.json_path:  # after every suite, so that a later failure loses nothing
            write_json(request.json_path, rows)
    return rows


async def _measure_peers(suite: Suite, measured: Measured, chosen: Sequence[peers.Peer]) -> dict[str, list[PeerValue]]:
    """After our own measurement, and one by one: nothing here runs beside anything else."""
    return {
        peer.name: await peers.measure(peer, suite.name, measured.workload)
        for peer in chosen
        if suite.name in peer.suite_names
    }


def _check(request: BenchRequest) -> tuple[list[Suite], list[peers.Peer]]:
    suites = load_suites(request.suite)
    chosen = [peers.find(name) for name in request.peer_names]
    if request.options.num_rounds < 1:
        raise BadRequest(f"{request.options.num_rounds} rounds; at least 1 is needed", field="rounds")
    if request.options.num_live and request.suite != "launch":
        raise BadRequest(f"{request.suite} has no live programs", hint="--live is for launch", field="live")
    if any(num_live < 1 for num_live in request.options.num_live):
        raise BadRequest(f"{min(request.options.num_live)} live programs; at least 1 is needed", field="live")
    _check_flags(request)
    if request.options.plot is not None:
        if request.suite != "growth":
            raise BadRequest(f"{request.suite} has no plot", hint="--plot is for growth", field="plot")
        growth.require_plots(request.options.plot)
    for peer in chosen:
        if not any(suite.name in peer.suite_names for suite in suites):
            raise BadRequest(
                f"the peer {peer.name} does not measure {request.suite}",
                hint=f"it measures {', '.join(peer.suite_names)}",
                field="peer",
            )
        peers.require(peer)
    if request.json_path and not request.json_path.absolute().parent.is_dir():
        raise BadRequest(
            f"the folder of {request.json_path} does not exist",
            hint="make it first, or name another file",
            field="json",
        )
    return suites, chosen


def _check_flags(request: BenchRequest) -> None:
    options = request.options
    if options.device and request.suite not in ON_DEVICES:
        raise BadRequest(
            f"{request.suite} has no simulated device", hint=f"--device is for {', '.join(ON_DEVICES)}", field="device"
        )
    if options.num_workers and request.suite not in IN_PROCESSES:
        raise BadRequest(
            f"{request.suite} runs in one process", hint=f"--workers is for {', '.join(IN_PROCESSES)}", field="workers"
        )
    if options.num_requests is not None:
        if request.suite != "techniques":
            raise BadRequest(
                f"{request.suite} has its own numbers of requests",
                hint="--requests is for techniques",
                field="requests",
            )
        if options.num_requests < 1:
            raise BadRequest(f"{options.num_requests} requests; at least 1 is needed", field="requests")
    if request.options.techniques and request.suite != "techniques":
        raise BadRequest(f"{request.suite} has no techniques", hint="--technique is for techniques")
    if request.options.scale and request.suite not in ("techniques", "agents"):
        raise BadRequest(f"{request.suite} has one scale", hint="--scale is for techniques and agents")
