"""The body of a worker process: `python -m loopwright.compose.worker NAME SOCKET_FOLDER CONFIG`. Started by `children`.

`model` holds control and engine; `runtime-N` holds programs. Prints one line when it serves, or why it cannot, and ends
when its standard input closes.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from loopwright.compose.children import Ready
from loopwright.compose.config import Config
from loopwright.compose.model_parts import load_tokenizer, model_text, open_model
from loopwright.compose.system import close_sandboxes, make_launcher, open_control, open_sandboxes
from loopwright.core.errors import LoopwrightError
from loopwright.transport.addresses import socket_address
from loopwright.transport.control_client import ControlClient
from loopwright.transport.control_server import ControlServer
from loopwright.transport.runs_server import RunsServer
from loopwright.weights import store


def main() -> int:
    """Serves until told to stop. Returns the exit status."""
    name, folder, config_text = sys.argv[1:4]
    config = msgspec.json.decode(config_text.encode(), type=Config)
    try:
        asyncio.run(_serve(name, Path(folder), config))
    except LoopwrightError as error:
        _print_ready(Ready(error.info()))
        return 1
    return 0


async def _serve(name: str, folder: Path, config: Config) -> None:
    async with AsyncExitStack() as stack:
        server = await (_model_server if name == "model" else _runtime_server)(stack, name, folder, config)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(lambda: _print_ready(Ready())))
            await asyncio.to_thread(_wait_for_parent)
            serving.cancel()


async def _model_server(stack: AsyncExitStack, name: str, folder: Path, config: Config) -> ControlServer:
    files = store.resolve(config.model, _no_report)
    model = await stack.enter_async_context(open_model(files, config.engine))
    control = await stack.enter_async_context(open_control(model, config.control))
    return ControlServer(control, socket_address(folder, name))


async def _runtime_server(stack: AsyncExitStack, name: str, folder: Path, config: Config) -> RunsServer:
    control = await ControlClient.connect(socket_address(folder, "model"), name=name)
    stack.callback(control.close)
    files = store.resolve(config.model, _no_report)
    text = model_text(control.models()[0], load_tokenizer(files.path))
    sandboxes = await open_sandboxes(config.runtime, _no_report)
    stack.push_async_callback(close_sandboxes, sandboxes)
    launcher = await stack.enter_async_context(make_launcher(control, text, sandboxes, config.runtime))
    return RunsServer(launcher, socket_address(folder, name))


def _wait_for_parent() -> None:
    """Blocks until the parent closes our standard input, or is gone."""
    while os.read(sys.stdin.fileno(), 4096):
        pass


def _print_ready(ready: Ready) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.flush()


def _no_report(stage: str, fraction: float | None) -> None:
    """The parent has fetched and built everything already."""


if __name__ == "__main__":
    sys.exit(main())
