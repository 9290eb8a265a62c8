"""Says whether fibers can run here: wasmtime's version, the layout of its structures, a round trip of a small guest.

Never runs a program. Asked once, when the Wasm sandbox is opened; docs/adr/0002-private-wasmtime-bindings.md.
"""

from collections.abc import Callable
from importlib.metadata import version

from wasmtime import Engine
from wasmtime.component import Component

from loopwright.runtime.sandboxes.fibers import KNOWN_VERSION, LAYOUT, FiberHost, layout
from loopwright.runtime.sandboxes.wasm_engine import HOST_INTERFACE


def why_not(engine: Engine) -> str | None:
    """Why fibers cannot run here, or None: checks the version, the layouts, and a round trip through a small guest."""
    if (installed := version("wasmtime")) != KNOWN_VERSION:
        return f"fibers are known to work with wasmtime {KNOWN_VERSION}, and {installed} is installed"
    wrong = [name for name, found in layout().items() if found != LAYOUT[name]]
    if wrong:
        found = ", ".join(f"{name} {layout()[name]} instead of {LAYOUT[name]}" for name in wrong)
        return f"wasmtime's values have another layout than expected: {found}"
    if (said := _round_trip(engine)) != _EXPECTED:
        return f"a round trip through wasmtime's fibers gave {said!r} instead of {_EXPECTED!r}"
    return None


_EXPECTED = (["submit héllo", "suspended 7", "returned"], (True, "wörld"))


class _Echo:
    """The host of the round trip."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def submit(self, op: str) -> int:
        self.steps.append(f"submit {op}")
        return 7

    def log(self, stream: str, line: str) -> None: ...

    def take_events(self) -> str:
        return ""

    def set_waker(self, wake: Callable[[], None] | None) -> None: ...


def _round_trip(engine: Engine) -> tuple[list[str], tuple[bool, str]]:
    """run(text) submits the text, waits with the handle as its timeout, and returns what the wait gave."""
    echo = _Echo()
    host = FiberHost(engine, Component(engine, _ROUND_TRIP))
    fiber = host.start(host.instantiate(), echo, ("héllo",))
    while not fiber.poll():
        if fiber.waits_ms is not None:
            echo.steps.append(f"suspended {fiber.waits_ms}")
            fiber.answer("wörld")
    echo.steps.append("returned")
    outcome = fiber.outcome()
    fiber.drop().close()
    host.close()
    return echo.steps, outcome


_ROUND_TRIP = f"""
(component
  (import "{HOST_INTERFACE}" (instance $host
    (export "submit" (func (param "op" string) (result u32)))
    (export "wait" (func (param "timeout-ms" s32) (result string)))))
  (core module $memory
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 1024))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      global.get $top
      (global.set $top (i32.add (global.get $top) (local.get 3)))))
  (core instance $memory (instantiate $memory))
  (core func $submit (canon lower (func $host "submit") (memory (core memory $memory "memory"))))
  (core func $wait (canon lower (func $host "wait")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $main
    (import "host" "submit" (func $submit (param i32 i32) (result i32)))
    (import "host" "wait" (func $wait (param i32 i32)))
    (func (export "run") (param i32 i32) (result i32)
      (call $wait (call $submit (local.get 0) (local.get 1)) (i32.const 12))  ;; 12: address and length of the string
      (i32.const 8)))                                                         ;; 8: the tag of result.ok, which is 0
  (core instance $main (instantiate $main
    (with "host" (instance (export "submit" (func $submit)) (export "wait" (func $wait))))))
  (func (export "run") (param "source" string) (result (result string (error string)))
    (canon lift (core func $main "run")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc")))))
"""
