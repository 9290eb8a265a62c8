"""`loopwright serve`: one model and its programs over HTTP, until told to stop. Never handles a request itself."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from loopwright.cli.interrupts import run_work
from loopwright.cli.progress import Report, progress_bars
from loopwright.cli.setting_flags import add_setting_flags, load_with_flags
from loopwright.compose.api import check_api_workers, serve_http
from loopwright.compose.config import Config
from loopwright.compose.logs import open_log
from loopwright.compose.system import Prepared, open_system, prepare
from loopwright.compose.tenants import tenants_of
from loopwright.server.http import listen
from loopwright.server.live_run import all_finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_setting_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    config = load_with_flags(arguments).config
    check_api_workers(config)
    tenants_of(config.server.keys)  # a wrong key is better said before the model is loaded
    open_log(config.log)
    listen(config.server.host, config.server.port).close()  # a busy port is better said before the model is loaded
    with ExitStack() as bars:  # closed once it serves
        report = bars.enter_context(progress_bars())
        prepared = prepare(config, report)
        try:
            stopped_by = run_work(_serve(config, prepared, report, bars.close))
        except asyncio.CancelledError:
            stopped_by = signal.SIGTERM
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    return 0


async def _serve(
    config: Config, prepared: Prepared, report: Report, started: Callable[[], None]
) -> signal.Signals | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # while things start; the HTTP server has its own
    async with open_system(config, prepared, report) as system:

        def ready(port: int) -> None:
            started()
            name, host = ", ".join(model.name for model in system.runs.models()), config.server.host
            url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
            sys.stderr.write(f"loopwright: {name} at {url} (interrupt to stop)\n")

        return await serve_http(config, system, ready, partial(all_finished, system.runs))
