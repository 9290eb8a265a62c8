"""The component that holds every program: CPython, the standard library and the sdk, with one program's source inside.

Never interprets a call; it moves strings between asyncio and the host. Built by `runner_build`; the host never
imports it.
"""

import asyncio
import asyncio.base_events
import asyncio.events
import binascii
import builtins
import functools
import gc
import importlib
import io
import json
import marshal
import math
import pkgutil
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

import rehearsal
import snapshot
import wit_world
from componentize_py_types import Err
from wit_world.imports import host as real_host

from loopwright.sdk.port import Port, set_current_port
from loopwright.sdk.program import call_main, compile_source, describe_error, load_main
from loopwright.sdk.snippet import compile_snippet, load_snippet

MISSING_MODULE_HINT = "the sandbox has only Python's standard library and loopwright"

NOT_IMPORTED = {
    *("__main__", "antigravity", "this", "__phello__"),  # do something when imported
    *("idlelib", "tkinter", "turtle", "turtledemo", "_pyrepl"),  # need a screen or a terminal
    *("ensurepip", "lib2to3", "pydoc_data", "test", "tests", "venv", "_android_support", "_ios_support"),
}

Compile: TypeAlias = Callable[[str, str], types.CodeType]
Warned: TypeAlias = list[tuple[str, str, int]]
"""What the compiler warns of, at each launch: message, name of the category, line."""

MAX_KEPT_DEPTH = 64  # of functions in functions: marshal's stack ends between 700 and 850, the compiler's behind that

NUM_REHEARSALS = 64  # the interpreter specialises what it has executed a few times

MAX_TURNS_WITHOUT_HOST = 16  # a program that only ever does `await sleep(0)` still hears from its host


RESERVE = bytearray(256 << 10)
"""Given back once a program has no memory left: what it holds may stay reachable, and to say so takes some too."""

REHEARSAL = "rehearsal"
"""Instead of a form, from the host alone: no program, but what prepares an instance for one."""

FORMS = {"program": (load_main, compile_source), "snippet": (load_snippet, compile_snippet)}
"""What a source can be: how it is loaded, and compiled."""


class Host(Protocol):
    """The imports of the world, and what stands for them while the runner is built."""

    def submit(self, op: str) -> int: ...

    def wait(self, timeout_ms: int) -> str: ...

    def log(self, stream: str, line: str) -> None: ...

    def keep(self, code: str) -> None: ...


class HostSelector:
    """Stands where asyncio's selector stands: select() is the one call that lets the host run others.

    With `can_wait` false the host cannot suspend the guest: events then come through `inbox` alone."""

    def __init__(self, host: Host, can_wait: bool) -> None:
        self.inbox: list[str] = []
        self._host = host
        self._can_wait = can_wait
        self._num_turns = 0

    def select(self, timeout: float | None) -> list[str]:
        if timeout == 0 and not self.inbox and not self.is_turn_over():
            return []
        if self._can_wait and not self.inbox:
            self.wait(timeout)
        events, self.inbox = self.inbox, []
        return events

    def is_turn_over(self) -> bool:
        self._num_turns = (self._num_turns + 1) % MAX_TURNS_WITHOUT_HOST
        return self._num_turns == 0

    def wait(self, timeout: float | None) -> None:
        if events := self._host.wait(-1 if timeout is None else min(math.ceil(max(timeout, 0) * 1000), 2**31 - 1)):
            self.inbox.append(events)

    def close(self) -> None:
        pass


class HostLoop(asyncio.base_events.BaseEventLoop):
    """asyncio, with the host's events where sockets would be."""

    def __init__(self, selector: HostSelector, port: Port) -> None:
        super().__init__()
        self._selector = selector
        self._port = port

    def _run_once(self) -> None:
        """One turn. asyncio's own looks at timers, slow callbacks and cancelled ones first, and takes twice as long."""
        if self._scheduled or self._debug:
            super()._run_once()
            return
        ready = self._ready
        self._process_events(self._selector.select(0 if ready or self._stopping else None))
        for _ in range(len(ready)):  # what they add comes in the next turn
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """As asyncio's. Where a turn itself had no memory, whoever waits for its end would wait for ever."""
        if isinstance(error := context.get("exception"), MemoryError):
            RESERVE.clear()
            raise error
        super().call_exception_handler(context)

    def _process_events(self, event_list: list[str]) -> None:
        for events in event_list:
            self._port.deliver(events)

    def _write_to_self(self) -> None:
        pass  # one thread: nobody else can wake the loop


class LineStream(io.TextIOBase):
    """sys.stdout and sys.stderr: each finished line goes to the host."""

    def __init__(self, host: Host, stream: str) -> None:
        self._host = host
        self._stream = stream
        self._unfinished: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, rest = text.split("\n")
        for line in lines:
            log(self._host, self._stream, "".join(self._unfinished) + line)
            self._unfinished.clear()
        if rest:
            self._unfinished.append(rest)
        return len(text)

    def end(self) -> None:
        if self._unfinished:
            self.write("\n")


def log(host: Host, stream: str, line: str) -> None:
    host.log(stream, line.encode("utf-8", "replace").decode())  # a lone surrogate does not cross the boundary


class Run:
    """One program's run in this instance."""

    def __init__(self, host: Host, can_wait: bool) -> None:
        self.host = host
        random.seed()  # the snapshot has one state for all
        self.selector = HostSelector(host, can_wait)
        self.port = Port(host.submit, functools.partial(log, host))
        set_current_port(self.port)
        self.loop = HostLoop(self.selector, self.port)
        self.streams = (LineStream(host, "stdout"), LineStream(host, "stderr"))
        sys.stdout, sys.stderr = self.streams
        time.sleep = self.sleep

    def sleep(self, seconds: float) -> None:
        """time.sleep: holds this program up, and nobody else."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.selector.wait(left)

    async def execute(self, form: str, source: str, filename: str, arguments: str, code: str) -> str:
        load, compile_form = FORMS[form]
        try:
            main = load(source, filename, functools.partial(self.compiled, code, compile_form))
            return await call_main(main, arguments)
        except MemoryError:
            RESERVE.clear()
            raise
        finally:
            self.port.drop_deferred()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)
            for stream in self.streams:
                stream.end()

    def compiled(self, code: str, compile_form: Compile, source: str, filename: str) -> types.CodeType:
        """The source's code object: what the host has kept of an earlier run, or made now and handed to the host.

        Nothing of the program has run yet, so it can have had no hand in what other runs will execute."""
        if code:
            module, said = marshal.loads(binascii.a2b_base64(code))
        else:
            module, said = compiled_now(compile_form, source, filename)
            self.host.keep(as_text(module, said))
        for message, category, line in said:
            warnings.warn_explicit(message, getattr(builtins, category), filename, line)
        return module


def compiled_now(compile_form: Compile, source: str, filename: str) -> tuple[types.CodeType, Warned]:
    with warnings.catch_warnings(record=True) as caught:
        module = compile_form(source, filename)
    return module, [(str(one.message), one.category.__name__, one.lineno) for one in caught]


def as_text(module: types.CodeType, said: Warned) -> str:
    """Marshalled, in base64; "" for functions nested so deeply that the stack may not do for that."""
    return "" if is_deep(module) else binascii.b2a_base64(marshal.dumps((module, said)), newline=False).decode()


def is_deep(module: types.CodeType) -> bool:
    level = [module]
    for _ in range(MAX_KEPT_DEPTH):
        level = [one for code in level for one in code.co_consts if isinstance(one, types.CodeType)]
        if not level:
            return False
    return True


class SteppedRun:
    """A run for a host that cannot suspend the guest: it is entered again and again, and returns whenever it waits."""

    def __init__(self, form: str, source: str, filename: str, arguments: str, code: str) -> None:
        self._filename = filename
        self._run = Run(real_host, can_wait=False)
        self._task = self._run.loop.create_task(self._run.execute(form, source, filename, arguments, code))

    def step(self, events: str) -> str:
        loop, selector = self._run.loop, self._run.selector
        if events:
            selector.inbox.append(events)
        asyncio.events._set_running_loop(loop)
        try:
            return json.dumps(self._turns(loop, selector))
        except BaseException as error:  # noqa: BLE001 (as in WitWorld.run)
            return json.dumps(["error", describe(error, self._filename)])
        finally:
            asyncio.events._set_running_loop(None)

    def _turns(self, loop: HostLoop, selector: HostSelector) -> list[object]:
        while not self._task.done():
            if not loop._ready and not selector.inbox:
                left_s = loop._scheduled[0]._when - loop.time() if loop._scheduled else None
                if left_s is None or left_s > 0:
                    return ["wait", left_s]
            loop._run_once()
            if loop._ready and selector.is_turn_over():
                return ["wait", 0]
        return ["ok", self._task.result()]


class WitWorld(wit_world.WitWorld):
    """What the component exports. `start` and `resume` are for a host that cannot suspend the guest."""

    stepped: ClassVar[SteppedRun]  # each call of an export makes a new WitWorld

    def run(self, form: str, source: str, filename: str, arguments: str, code: str) -> str:
        if form == REHEARSAL:
            PLAYER.play(rehearsal.TYPICAL, 1, real_host)
            READY.append(Run(real_host, can_wait=True))
            return ""
        run = READY.pop() if READY else Run(real_host, can_wait=True)
        try:
            return run.loop.run_until_complete(run.execute(form, source, filename, arguments, code))
        except BaseException as error:  # noqa: BLE001 (the program's end, whatever it is, is data for the host)
            raise Err(describe(error, filename)) from None

    def start(self, form: str, source: str, filename: str, arguments: str, code: str) -> str:
        WitWorld.stepped = SteppedRun(form, source, filename, arguments, code)
        return WitWorld.stepped.step("")

    def resume(self, events: str) -> str:
        return WitWorld.stepped.step(events)


def describe(error: BaseException, filename: str) -> str:
    RESERVE.clear()
    return describe_error(error, filename, missing_module_hint=MISSING_MODULE_HINT)


def import_standard_library() -> None:
    """Only what is imported now exists later: an instance has no files."""
    for name in sorted(sys.stdlib_module_names - NOT_IMPORTED):
        import_if_possible(name)
    for name in sorted(sys.stdlib_module_names & sys.modules.keys()):
        import_submodules(name)


def import_submodules(package: str) -> None:
    for found in pkgutil.iter_modules(getattr(sys.modules[package], "__path__", ())):
        if found.name not in NOT_IMPORTED and import_if_possible(f"{package}.{found.name}"):
            import_submodules(f"{package}.{found.name}")


def import_if_possible(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 (what cannot be imported here cannot be imported by a program either)
        return False
    return name in sys.modules


def execute(host: Host, source: str, arguments: str, code: str) -> None:
    """One run of a rehearsal."""
    run = Run(host, can_wait=True)
    run.loop.run_until_complete(run.execute("program", source, "rehearsal.py", arguments, code))


PLAYER = rehearsal.Player(execute)
READY: list[Run] = []  # made behind the rehearsal, for the program that comes


def rehearse(num_times: int) -> None:
    """In the order that leaves the latest traces by what most programs do."""
    PLAYER.play(rehearsal.BROAD, num_times)
    PLAYER.play(rehearsal.TYPICAL, num_times)


with warnings.catch_warnings(action="ignore"):
    import_standard_library()
importlib.import_module("loopwright")
EXECUTED = snapshot.executed_by(functools.partial(rehearse, 4))
FILLING = snapshot.fill_holes()
SCATTERED = snapshot.gather(EXECUTED)
rehearse(NUM_REHEARSALS)
gc.collect()
EVERYTHING = snapshot.everything()
ADDRESSES = snapshot.addresses_of(EVERYTHING)
MORE_FILLING = snapshot.fill_holes()
gc.freeze()  # what every instance shares is never looked at by its collector, so its pages stay shared
