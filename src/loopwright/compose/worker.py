"""The body of a worker process: `python -m loopwright.compose.worker NAME SOCKET_FOLDER CONFIG`. Started by `children`.

`model` holds control and engine; `runtime-N` holds programs; `api-N` speaks HTTP. Prints one line when it serves, or
why it cannot, and ends when its standard input closes. Never reads it.
"""

import asyncio
import gc
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from loopwright.compose.api import ApiServer
from loopwright.compose.children import (
    EXCHANGE,
    Ready,
    Starting,
    is_api_worker,
    is_model_worker,
    model_number,
    model_worker,
)
from loopwright.compose.config import Config
from loopwright.compose.logs import open_log
from loopwright.compose.model_parts import load_tokenizer, model_text, open_model
from loopwright.compose.one_error import one_error
from loopwright.compose.otel_spans import open_spans
from loopwright.compose.system import close_sandboxes, make_launcher, open_control, open_sandboxes
from loopwright.core.errors import LoopwrightError
from loopwright.core.no_collecting import collect_seldom
from loopwright.runtime.served_models import ServedModel
from loopwright.runtime.toolbox import open_toolbox
from loopwright.transport.addresses import socket_address
from loopwright.transport.control_server import ControlServer
from loopwright.transport.exchange_client import ExchangeClient
from loopwright.transport.kept_control import KeptControl
from loopwright.transport.runs_server import RunsServer
from loopwright.weights import store

LAST_WORDS_S = 0.5  # for runs to hear why their engine is lost
LOAD_S = 3600.0  # how long a model may take to load; the parent watches whether it still does


def main() -> int:
    """Serves until told to stop. Returns the exit status."""
    collect_seldom()
    name, folder, config_text = sys.argv[1:4]
    config = msgspec.json.decode(config_text.encode(), type=Config)
    open_log(config.log)
    try:
        asyncio.run(_serve(name, Path(folder), config))
    except LoopwrightError as error:
        _print_ready(Ready(error.info()))
        return 1
    except asyncio.CancelledError:
        return 0
    return 0


async def _serve(name: str, folder: Path, config: Config) -> None:
    _end_with_parent()
    with one_error():
        async with AsyncExitStack() as stack:
            server: ControlServer | RunsServer | ApiServer
            if is_api_worker(name):
                server = ApiServer(config, folder)
            elif is_model_worker(name):
                server = await _model_server(stack, name, folder, config)
            else:
                server = await _runtime_server(stack, name, folder, config)
            gc.freeze()  # what is there now stays: a step of hundreds of rows need not wait until it is looked through
            await server.serve(lambda: _print_ready(Ready()))


def _end_with_parent() -> None:
    """Cancels this task once the parent closes our standard input, or is gone: that makes it readable."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        loop.remove_reader(sys.stdin.fileno())
        task.cancel()

    loop.add_reader(sys.stdin.fileno(), end)


async def _model_server(stack: AsyncExitStack, name: str, folder: Path, config: Config) -> ControlServer:
    files = store.resolve(config.model_names[model_number(name)])
    model = await stack.enter_async_context(
        open_model(files, config.engine, limits=config.control, report=_print_stage)
    )
    control = await stack.enter_async_context(open_control(model, config.control))
    if model.lost is not None:
        serving = asyncio.current_task()
        assert serving is not None
        model.lost.add_done_callback(partial(_end_soon, asyncio.get_running_loop(), serving))
    return ControlServer(control, socket_address(folder, name))


def _end_soon(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[object], _: object) -> None:
    """An engine that is lost comes back with another process. Called on any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.call_later(LAST_WORDS_S, serving.cancel))


async def _runtime_server(stack: AsyncExitStack, name: str, folder: Path, config: Config) -> RunsServer:
    sandboxes = await open_sandboxes(config.runtime, store.no_progress)  # while the model loads
    stack.push_async_callback(close_sandboxes, sandboxes)
    served: list[ServedModel] = []
    for number, model in enumerate(config.model_names):
        tokenizer = load_tokenizer(store.resolve(model))
        address = socket_address(folder, model_worker(number))
        control = await KeptControl.connect(address, name=name, timeout_s=LOAD_S)
        stack.push_async_callback(control.close)
        served.append(ServedModel(model_text(control.models()[0], tokenizer), control))
    exchange = await ExchangeClient.connect(socket_address(folder, EXCHANGE))
    stack.callback(exchange.close)
    first, *more = served
    tools = await stack.enter_async_context(open_toolbox(config.tools))
    launcher = make_launcher(
        first.control,
        first.text,
        sandboxes,
        config.runtime,
        exchange,
        more=more,
        tools=tools,
        spans=stack.enter_context(open_spans(config.telemetry)),
    )
    await stack.enter_async_context(launcher)
    return RunsServer(launcher, socket_address(folder, name))


def _print_stage(stage: str, fraction: float | None) -> None:
    _print_ready(Starting(stage, fraction))


def _print_ready(said: Ready | Starting) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    exit_status = main()
    sys.stdout.flush()
    os._exit(exit_status)  # a thread that still loads the model need not be waited for, nor survives the interpreter
