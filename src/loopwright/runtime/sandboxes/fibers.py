"""Runs guests as fibers, on the thread that polls them. The one module that touches wasmtime's private bindings.

wasmtime's C library can suspend a guest inside a host call; its Python package declares those functions and does not
wrap them. Never decides when to poll, and knows no limit. Used by `wasm`; docs/adr/0002-private-wasmtime-bindings.md.
"""

# ruff: noqa: ANN401 (what ctypes hands over has no static type)

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_size_t, c_void_p, cast, string_at
from functools import cached_property
from typing import Any

import wasmtime._bindings as bindings
from wasmtime import Engine, Store, WasmtimeError, _ffi
from wasmtime.component import Component, Instance, Linker, LinkerInstance

from loopwright.core.errors import InternalError
from loopwright.runtime.sandbox import Guest
from loopwright.runtime.sandboxes.private_files import PrivateFiles
from loopwright.runtime.sandboxes.wasm_engine import (
    BLOCKED,
    HOST_INTERFACE,
    NOT_THE_PROGRAMS,
    blocked_functions,
    new_store,
    runner_memory,
)

KNOWN_VERSION = "50.0.1"

_Value = bindings.wasmtime_component_val_t
_Error = bindings.wasmtime_error_t
_STRING = _ffi.WASMTIME_COMPONENT_STRING.value
_U32 = _ffi.WASMTIME_COMPONENT_U32.value

# The declarations of the package, with void* for what we only pass on: ctypes builds no object for it then.
_Finalizer = ctypes.CFUNCTYPE(None, c_void_p)
_HostCall = ctypes.CFUNCTYPE(
    c_void_p, c_void_p, c_void_p, c_void_p, POINTER(_Value), c_size_t, POINTER(_Value), c_size_t
)  # (env, context, type, args, num_args, results, num_results) → error
_AsyncHostCall = ctypes.CFUNCTYPE(
    None, c_void_p, c_void_p, c_void_p, POINTER(_Value), c_size_t, POINTER(_Value), c_size_t,
    POINTER(c_void_p), POINTER(bindings.wasmtime_async_continuation_t),
)  # fmt: skip
_Continue = bindings.wasmtime_func_async_continuation_callback_t
_add_host_call = ctypes.CFUNCTYPE(POINTER(_Error), c_void_p, c_char_p, c_size_t, _HostCall, c_void_p, _Finalizer)(
    ("wasmtime_component_linker_instance_add_func", _ffi.dll)
)
_add_async_host_call = ctypes.CFUNCTYPE(
    POINTER(_Error), c_void_p, c_char_p, c_size_t, _AsyncHostCall, c_void_p, _Finalizer
)(("wasmtime_component_linker_instance_add_func_async", _ffi.dll))
_new_byte_vec = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_char_p)(("wasm_byte_vec_new", _ffi.dll))
_no_finalizer = _Finalizer()

_HOST_FAILED = "the host failed in a call of the guest"


class ParkedInstance:
    """An instance of the runner in a store of its own, in which nothing runs."""

    def __init__(self, store: Store, instance: Instance, files: PrivateFiles | None) -> None:
        self.store = store
        self.instance = instance
        self.files = files

    def close(self) -> None:
        """Gives its memory back, and deletes its files."""
        self.store.close()
        if self.files is not None:
            self.files.remove()


class FiberHost:
    """Instances of one component and the fibers that run in them. A fiber may be made and polled on any thread, by one
    thread at a time."""

    def __init__(self, engine: Engine, component: Component) -> None:
        self._engine = engine
        self._component = component
        self._fibers: dict[int, Fiber] = {}  # by the address of the store's context
        self._callbacks: list[object] = []  # what C calls must not be collected
        self._continue = _Continue(lambda address: self._fibers[address].finish_wait())
        self._linker = self._new_linker(has_files=False)

    @cached_property
    def _linker_with_files(self) -> Linker:
        return self._new_linker(has_files=True)

    @cached_property
    def runner_memory(self) -> int:
        """Bytes of linear memory of an instance in which nothing has run."""
        return runner_memory(lambda max_memory: self.instantiate(max_memory).close())

    def instantiate(self, max_memory: int = -1, files: PrivateFiles | None = None) -> ParkedInstance:
        """A new instance, which owns its files. Raises WasmtimeError."""
        store = new_store(self._engine, max_memory, files)
        linker = self._linker if files is None else self._linker_with_files
        # Declared as returning an error, and returns nothing: what comes back is not a pointer.
        bindings.wasmtime_context_epoch_deadline_async_yield_and_update(store._context(), 1)
        raw, error = bindings.wasmtime_component_instance_t(), POINTER(_Error)()
        future = bindings.wasmtime_component_linker_instantiate_async(
            linker.ptr(), store._context(), self._component.ptr(), byref(raw), byref(error)
        )
        while not bindings.wasmtime_call_future_poll(future):
            pass  # suspended by a tick only
        bindings.wasmtime_call_future_delete(future)
        _check(error)
        return ParkedInstance(store, Instance._from_raw(raw), files)

    def start(
        self,
        parked: ParkedInstance,
        guest: Guest,
        arguments: tuple[str, ...],
        keep: Callable[[str], None] | None = None,
    ) -> "Fiber":
        """A fiber for `run(*arguments)` in the instance, which it owns from now on. It starts with its first poll.

        `keep` takes what the guest hands to its first call of that name; every other one traps."""
        parked.store.set_epoch_deadline(1)
        function = parked.instance.get_func(parked.store, "run")
        address = cast(parked.store._context(), c_void_p).value
        assert function is not None
        assert address is not None
        fiber = Fiber(parked, function._func, guest, arguments, lambda: self._fibers.pop(address))
        fiber.keep = keep
        self._fibers[address] = fiber
        return fiber

    def check_integrity(self) -> None:
        """Every fiber that is known is one that has not been dropped."""
        assert not any(fiber.is_dropped for fiber in tuple(self._fibers.values()))

    def close(self) -> None:
        """Frees the linker. Every fiber and parked instance must be gone."""
        assert not self._fibers
        self._linker.close()
        if "_linker_with_files" in vars(self):
            self._linker_with_files.close()

    def _new_linker(self, *, has_files: bool) -> Linker:
        linker = Linker(self._engine)
        linker.allow_shadowing = True
        linker.add_wasip2()
        with linker.root() as root:
            for interface, name in blocked_functions(has_files=has_files):
                with root.add_instance(interface) as blocked:
                    self._define(blocked, name, self._blocked)
            with root.add_instance(HOST_INTERFACE) as host:
                self._define(host, "submit", self._submit)
                self._define(host, "log", self._log)
                self._define(host, "keep", self._keep)
                self._define_async(host, "wait", self._wait)
        return linker

    def _define(self, where: LinkerInstance, name: str, call: Callable[["Fiber", Any, Any], None]) -> None:
        def enter(_env: object, context: int, _type: object, args: Any, _n: int, results: Any, _m: int) -> int | None:
            fiber = self._fibers[context]
            try:
                call(fiber, args, results)
            except WasmtimeError as error:
                return _address(error)
            except Exception as error:  # noqa: BLE001 (nothing may be raised through C; the run ends with it)
                fiber.fault = error
                return _address(WasmtimeError(_HOST_FAILED))
            return None

        callback, encoded = _HostCall(enter), name.encode()
        self._callbacks.append(callback)
        _check(_add_host_call(where.ptr(), encoded, len(encoded), callback, None, _no_finalizer))

    def _define_async(self, where: LinkerInstance, name: str, call: Callable[["Fiber", Any, Any], None]) -> None:
        def enter(
            _env: object, context: int, _type: object, args: Any, _n: int, results: Any, _m: int, failed: Any, then: Any
        ) -> None:
            fiber = self._fibers[context]
            try:
                call(fiber, args, results)
            except Exception as error:  # noqa: BLE001 (nothing may be raised through C; the run ends with it)
                fiber.fault = error
                failed[0] = _address(WasmtimeError(_HOST_FAILED))
            then.contents.callback = self._continue
            then.contents.env = context
            then.contents.finalizer = _no_finalizer

        callback, encoded = _AsyncHostCall(enter), name.encode()
        self._callbacks.append(callback)
        _check(_add_async_host_call(where.ptr(), encoded, len(encoded), callback, None, _no_finalizer))

    @staticmethod
    def _submit(fiber: "Fiber", args: Any, results: Any) -> None:
        fiber.has_submitted = True
        results[0].kind = _U32
        results[0].of.u32 = fiber.guest.submit(_text(args[0]))

    @staticmethod
    def _log(fiber: "Fiber", args: Any, _results: Any) -> None:
        fiber.guest.log(_text(args[0]), _text(args[1]))

    @staticmethod
    def _keep(fiber: "Fiber", args: Any, _results: Any) -> None:
        keep, fiber.keep = fiber.keep, None
        if keep is None:
            raise WasmtimeError(NOT_THE_PROGRAMS)
        keep(_text(args[0]))

    @staticmethod
    def _wait(fiber: "Fiber", args: Any, results: Any) -> None:
        fiber.begin_wait(args[0].of.s32, results)

    @staticmethod
    def _blocked(_fiber: "Fiber", _args: Any, _results: Any) -> None:
        raise WasmtimeError(BLOCKED)


class Fiber:
    """One call of the guest's `run`: polled until it has returned, suspended in between.

    After a poll that did not finish it, the guest either waits for events (`waits_ms` is its timeout in milliseconds,
    negative for none) or was interrupted by a tick (`waits_ms` is None). Each call of its sets `has_submitted`."""

    def __init__(
        self,
        parked: ParkedInstance,
        function: Any,
        guest: Guest,
        arguments: tuple[str, ...],
        forget: Callable[[], object],
    ) -> None:
        self.guest = guest
        self.waits_ms: int | None = None
        self.has_submitted = False
        self.fault: Exception | None = None
        self.is_dropped = False
        self.keep: Callable[[str], None] | None = None
        self._parked = parked
        self._forget = forget
        self._answer: str | None = None
        self._wait_results: Any = None  # where the guest's wait wants its string
        self._function = function  # these four must stay where they are until the call is over
        self._args = (_Value * len(arguments))()
        self._result = _Value()
        self._error = POINTER(_Error)()
        for value, argument in zip(self._args, arguments, strict=True):
            _put_text(value, argument)
        self._future = bindings.wasmtime_component_func_call_async(
            byref(function), parked.store._context(), self._args, len(arguments),
            byref(self._result), 1, byref(self._error),
        )  # fmt: skip

    @property
    def files(self) -> PrivateFiles | None:
        """The files of the run, if it may have any."""
        return self._parked.files

    def poll(self) -> bool:
        """Runs the guest until it waits, is interrupted, or returns: then true."""
        return bool(bindings._wasmtime_call_future_poll(self._future))

    def answer(self, events: str) -> None:
        """Ends the guest's wait: its next poll goes on with these events."""
        assert self.waits_ms is not None
        self._answer = events

    def outcome(self) -> tuple[bool, str]:
        """After the last poll: (whether it succeeded, its result or error).

        Raises WasmtimeError when the guest trapped, InternalError when the host failed in a call."""
        if self._error:
            error = WasmtimeError._from_ptr(self._error)
            self._error = POINTER(_Error)()
            if self.fault is not None:
                raise InternalError(f"a call of the guest failed: {self.fault!r}") from self.fault
            raise error
        value = self._result.of.result
        outcome = bool(value.is_ok), _text(value.val.contents)
        bindings.wasmtime_component_val_delete(byref(self._result))
        return outcome

    def drop(self) -> ParkedInstance:
        """Ends the guest wherever it is. The instance, which nothing runs in any more, is the caller's to close."""
        bindings.wasmtime_call_future_delete(self._future)
        for value in self._args:
            bindings.wasmtime_component_val_delete(byref(value))
        self._forget()
        self.is_dropped = True  # after it is forgotten: another thread may be checking
        return self._parked

    def begin_wait(self, timeout_ms: int, results: Any) -> None:
        """Called when the guest waits: it goes on at once if events are there."""
        self.waits_ms = timeout_ms
        self._wait_results = results
        self._answer = self.guest.take_events() or None

    def finish_wait(self) -> bool:
        """Called by each poll of a waiting guest: whether it can go on."""
        if self._answer is None:
            return False
        _put_text(self._wait_results[0], self._answer)
        self._answer = self._wait_results = self.waits_ms = None
        return True


LAYOUT: dict[str, int | tuple[int, ...]] = {
    "tags of string, u32, s32, result": (12, 6, 5, 19),
    "value": (32, 0, 8),
    "string": (16, 0, 8),
    "result": (16, 0, 8),
    "continuation": (24, 0, 8, 16),
    "instance": 16,
    "function": 32,
}
"""What the C header of KNOWN_VERSION says: of each structure its size and the offsets of its fields, in bytes."""


def layout() -> dict[str, int | tuple[int, ...]]:
    """As LAYOUT, of the bindings that are installed."""
    union = _fields(_fields(_Value)["of"])
    tags = (_STRING, _U32, _ffi.WASMTIME_COMPONENT_S32.value, _ffi.WASMTIME_COMPONENT_RESULT.value)
    return {
        "tags of string, u32, s32, result": tags,
        "value": _measured(_Value),
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


def _text(value: Any) -> str:
    data = value.of.string
    return string_at(data.data, data.size).decode() if data.size else ""


def _put_text(value: Any, text: str) -> None:
    encoded = text.encode()
    value.kind = _STRING
    _new_byte_vec(byref(value.of.string), len(encoded), encoded)


def _address(error: WasmtimeError) -> int | None:
    """The error as C takes it; it is C's to free."""
    return cast(error._consume(), c_void_p).value


def _check(error: Any) -> None:
    if error:
        raise WasmtimeError._from_ptr(error)
