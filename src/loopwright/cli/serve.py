"""`loopwright serve`: one model and its programs over HTTP, until interrupted."""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from loopwright.cli.progress import progress_bars
from loopwright.compose.config import Config, EngineConfig, RuntimeConfig, ServerConfig, default_num_workers
from loopwright.compose.system import open_system
from loopwright.server.app import create_app
from loopwright.server.http import listen, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="default", help="a model's name, GGUF file, folder or Hub id")
    parser.add_argument("--host", default=ServerConfig().host, help="the address to bind (default: %(default)s)")
    parser.add_argument("--port", type=int, default=ServerConfig().port, help="default: %(default)s; 0 is any free one")
    parser.add_argument(
        "--processes", default="auto", metavar="auto|N", help="1 is one process; N > 1 adds N - 1 runtime workers"
    )
    parser.add_argument("--num-blocks", type=int, default=EngineConfig().num_blocks, help="KV blocks of 16 tokens")
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine (default: one a core)")
    parser.add_argument("--programs-dir", help="where deployed programs are kept (default: ~/.local/state/loopwright)")


def run(arguments: argparse.Namespace) -> int:
    programs_dir = arguments.programs_dir or str(_state_folder() / "programs")
    config = Config(
        model=arguments.model,
        num_runtime_workers=_num_workers(arguments.processes),
        engine=EngineConfig(num_blocks=arguments.num_blocks, num_threads=arguments.threads),
        runtime=RuntimeConfig(programs_dir=programs_dir),
        server=ServerConfig(host=arguments.host, port=arguments.port),
    )
    listen(config.server.host, config.server.port).close()  # a busy port is better said before the model is loaded
    asyncio.run(_serve(config))
    return 0


async def _serve(config: Config) -> None:
    async with AsyncExitStack() as stack:
        with progress_bars() as report:
            system = await stack.enter_async_context(open_system(config, report))

        def ready(port: int) -> None:
            name = system.runs.models()[0].name
            sys.stderr.write(f"loopwright: {name} at http://{config.server.host}:{port}/v1 (interrupt to stop)\n")

        await serve(create_app(system.runs, host=config.server.host), config.server.host, config.server.port, ready)


def _num_workers(processes: str) -> int:
    if processes == "auto":
        return default_num_workers(os.cpu_count() or 1)
    if not processes.isdigit() or int(processes) < 1:
        sys.stderr.write(f"loopwright serve: error: --processes is auto or a number from 1, not {processes!r}\n")
        raise SystemExit(2)
    return int(processes) - 1


def _state_folder() -> Path:
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "loopwright"
