"""`loopwright bench`: measures a suite and prints its table. Never measures: bench does."""

import argparse
from functools import partial

from loopwright.bench import command
from loopwright.cli.interrupts import run_work
from loopwright.compose.system import open_bench_system

add_arguments = command.add_arguments


def run(arguments: argparse.Namespace) -> int:
    opener = partial(open_bench_system, dtype=arguments.dtype, device=command.engine_device(arguments))
    run_work(command.run_bench(command.request_from(arguments), opener))
    return 0
