"""Says whether fibers can run here: the version of wasmtime, the layout of its structures, a round trip of a small guest.

Never runs a program. Asked once, when the Wasm sandbox is opened; docs/adr/0002-private-wasmtime-bindings.md.
"""

# ruff: noqa: ANN401 (what ctypes hands over has no static type)

import ctypes
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import wasmtime._bindings as bindings
from wasmtime import Engine, _ffi
from wasmtime.component import Component

from loopwright.runtime.sandboxes.fibers import STRING, U32, FiberHost, Value
from loopwright.runtime.sandboxes.wasm_engine import HOST_INTERFACE

KNOWN_VERSION = "50.0.1"


def why_not(engine: Engine) -> str | None:
    """Why fibers cannot run here, or None: checks the version, the layouts, and a round trip through a small guest."""
    if (installed := version("wasmtime")) != KNOWN_VERSION:
        return f"fibers are known to work with wasmtime {KNOWN_VERSION}, and {installed} is installed"
    wrong = [name for name, found in _layout().items() if found != _LAYOUT[name]]
    if wrong:
        found = ", ".join(f"{name} {_layout()[name]} instead of {_LAYOUT[name]}" for name in wrong)
        return f"wasmtime's values have another layout than expected: {found}"
    if (said := _round_trip(engine)) != _EXPECTED:
        return f"a round trip through wasmtime's fibers gave {said!r} instead of {_EXPECTED!r}"
    return None


_LAYOUT: dict[str, int | tuple[int, ...]] = {
    "tags of string, u32, s32, result": (12, 6, 5, 19),
    "value": (32, 0, 8),
    "string": (16, 0, 8),
    "result": (16, 0, 8),
    "continuation": (24, 0, 8, 16),
    "instance": 16,
    "function": 32,
}
"""What the C header of KNOWN_VERSION says: of each structure its size and the offsets of its fields, in bytes."""


def _layout() -> dict[str, int | tuple[int, ...]]:
    """The same, of the bindings that are installed."""
    union = _fields(_fields(Value)["of"])
    tags = (STRING, U32, _ffi.WASMTIME_COMPONENT_S32.value, _ffi.WASMTIME_COMPONENT_RESULT.value)
    return {
        "tags of string, u32, s32, result": tags,
        "value": _measured(Value),
        "string": _measured(union["string"]),
        "result": _measured(union["result"]),
        "continuation": _measured(bindings.wasmtime_async_continuation_t),
        "instance": ctypes.sizeof(bindings.wasmtime_component_instance_t),
        "function": ctypes.sizeof(bindings.wasmtime_component_func_t),
    }


def _measured(kind: Any) -> tuple[int, ...]:
    return ctypes.sizeof(kind), *(getattr(kind, name).offset for name in _fields(kind))


def _fields(kind: Any) -> dict[str, Any]:
    """The type of each field of a structure or union, by name."""
    return {name: field_type for name, field_type, *_ in kind._fields_}


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
