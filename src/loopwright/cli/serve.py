"""`loopwright serve`: one model and its programs over HTTP, until told to stop. Never handles a request itself."""

import argparse
import asyncio
import gc
import signal
import sys
from functools import partial

from loopwright.cli.progress import progress_bars
from loopwright.cli.setting_flags import add_setting_flags, load_with_flags
from loopwright.compose.config import Config
from loopwright.compose.logs import open_log
from loopwright.compose.system import Prepared, open_system, prepare
from loopwright.compose.tenants import tenants_of
from loopwright.server.app import create_app
from loopwright.server.http import listen, serve
from loopwright.server.identity import TenantOf
from loopwright.server.live_run import all_finished


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_setting_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    config = load_with_flags(arguments).config
    tenant_of = tenants_of(config.server.keys)
    open_log(config.log)
    listen(config.server.host, config.server.port).close()  # a busy port is better said before the model is loaded
    with progress_bars() as report:
        prepared = prepare(config, report)
    try:
        stopped_by = asyncio.run(_serve(config, prepared, tenant_of))
    except asyncio.CancelledError:
        stopped_by = signal.SIGTERM
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    return 0


async def _serve(config: Config, prepared: Prepared, tenant_of: TenantOf) -> signal.Signals | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # while things start; the HTTP server has its own
    async with open_system(config, prepared) as system:

        def ready(port: int) -> None:
            name, host = ", ".join(model.name for model in system.runs.models()), config.server.host
            url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
            sys.stderr.write(f"loopwright: {name} at {url} (interrupt to stop)\n")

        server = config.server
        app = create_app(
            system.runs,
            host=server.host,
            tenant_of=tenant_of,
            kept=server.responses,
            max_body_bytes=server.max_body_bytes,
        )
        gc.freeze()  # what is there now stays: to look through it for garbage would take a tenth of a second each time
        return await serve(
            app,
            server.host,
            server.port,
            ready,
            stall_s=server.stall_s,
            grace_s=server.grace_s,
            others_done=partial(all_finished, system.runs),
        )
