"""`loopwright serve`: one model and its programs over HTTP, until told to stop. Never handles a request itself."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from loopwright.cli.progress import progress_bars
from loopwright.compose.config import (
    Config,
    EngineConfig,
    RuntimeConfig,
    ServerConfig,
    default_num_workers,
    num_cores,
)
from loopwright.compose.system import Prepared, open_system, prepare
from loopwright.server.app import create_app
from loopwright.server.http import listen, serve

PROCESSES_HELP = """1: everything in one process. N > 1: a model process and N - 1 runtime processes, beside this one,
which serves HTTP. auto: 1 up to 4 cores; above, a runtime process for every two cores, at most 8 (default: auto)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", help="a model's name, GGUF file, folder or Hub id; again for each further model"
    )
    parser.add_argument("--host", default=ServerConfig().host, help="the address to bind (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=ServerConfig().port, help="0 is any free one (default: %(default)s)"
    )
    parser.add_argument("--processes", default="auto", metavar="auto|N", type=_num_workers, help=PROCESSES_HELP)
    parser.add_argument(
        "--num-blocks",
        type=_positive,
        metavar="N",
        default=EngineConfig().num_blocks,
        help="KV blocks of 16 tokens (default: %(default)s)",
    )
    parser.add_argument("--threads", type=_positive, metavar="N", default=0, help="of the engine (default: one a core)")
    parser.add_argument(
        "--programs-dir", metavar="FOLDER", help="where deployed programs are kept (default: ~/.local/state/loopwright)"
    )
    parser.add_argument(
        "--state-dir", metavar="FOLDER", help="where named stores are kept (default: ~/.local/state/loopwright)"
    )


def run(arguments: argparse.Namespace) -> int:
    model, *more_models = arguments.model or ["default"]
    config = Config(
        model=model,
        more_models=tuple(more_models),
        num_runtime_workers=arguments.processes,
        engine=EngineConfig(num_blocks=arguments.num_blocks, num_threads=arguments.threads),
        runtime=RuntimeConfig(
            programs_dir=arguments.programs_dir or str(_state_folder() / "programs"),
            state_dir=arguments.state_dir or str(_state_folder() / "state"),
        ),
        server=ServerConfig(host=arguments.host, port=arguments.port),
    )
    listen(config.server.host, config.server.port).close()  # a busy port is better said before the model is loaded
    with progress_bars() as report:
        prepared = prepare(config, report)
    try:
        stopped_by = asyncio.run(_serve(config, prepared))
    except asyncio.CancelledError:
        stopped_by = signal.SIGTERM
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    return 0


async def _serve(config: Config, prepared: Prepared) -> signal.Signals | None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # while things start; the HTTP server has its own
    async with open_system(config, prepared) as system:

        def ready(port: int) -> None:
            name, host = ", ".join(model.name for model in system.runs.models()), config.server.host
            url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
            sys.stderr.write(f"loopwright: {name} at {url} (interrupt to stop)\n")

        app = create_app(system.runs, host=config.server.host)
        return await serve(app, config.server.host, config.server.port, ready)


def _num_workers(word: str) -> int:
    """How many runtime processes --processes means."""
    if word == "auto":
        return default_num_workers(num_cores())
    return _positive(word) - 1


def _positive(word: str) -> int:
    if word.isdecimal() and int(word) >= 1:
        return int(word)
    raise argparse.ArgumentTypeError(f"{word!r} is no number from 1")


def _state_folder() -> Path:
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "loopwright"
