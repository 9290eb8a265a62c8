"""The sandboxes under test, each checked for leaks when its test ends. Builds the runner once a machine."""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes.native import NativeSandbox
from loopwright.runtime.sandboxes.runner_build import RunnerFiles, prepare_runner
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox

from .fake_guest import FakeGuest

WASM = [pytest.param(name, marks=pytest.mark.wasm) for name in ("fiber", "reentrant")]
EVERYWHERE = [*WASM, "native"]


@pytest.fixture(scope="session")
def runner_files() -> RunnerFiles:
    cache_dir = os.environ.get("LOOPWRIGHT_CACHE_DIR") or Path.home() / ".cache" / "loopwright"
    return prepare_runner(Path(cache_dir), lambda stage, fraction: None)


class Bench:
    """Runs coroutines that use one sandbox, each in an event loop of its own, and asks for leaks after each."""

    def __init__(self, name: str, files: RunnerFiles | None) -> None:
        self.name = name
        self._files = files

    def open(self) -> Any:
        if self.name == "native":
            return NativeSandbox()
        assert self._files is not None
        return open_wasm_sandbox(self._files, self.name)  # type: ignore[arg-type]

    def drive(self, scenario: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def hold() -> Any:
            sandbox = self.open()
            try:
                return await asyncio.wait_for(scenario(sandbox), 60)
            finally:
                assert sandbox.num_live == 0
                sandbox.check_integrity()
                assert asyncio.all_tasks() == {asyncio.current_task()}
                await sandbox.close()

        outcome = asyncio.run(hold())
        gc.collect()
        return outcome

    def run(
        self, source: str, guest: FakeGuest | None = None, limits: Limits | None = None, arguments: str = "{}"
    ) -> str:
        return self.drive(
            lambda sandbox: sandbox.run(source, "program.py", arguments, guest or FakeGuest(), limits or Limits())
        )


def _bench(request: pytest.FixtureRequest) -> Bench:
    files = None if request.param == "native" else request.getfixturevalue("runner_files")
    return Bench(request.param, files)


@pytest.fixture(params=EVERYWHERE)
def anywhere(request: pytest.FixtureRequest) -> Bench:
    return _bench(request)


@pytest.fixture(params=WASM)
def wasm(request: pytest.FixtureRequest) -> Bench:
    return _bench(request)
