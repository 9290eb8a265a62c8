"""An interrupted verb ends with status 130, whatever fails while its work is closed."""

import asyncio
import signal

import pytest

from loopwright import cli
from loopwright.cli.interrupts import run_work
from loopwright.core.errors import LoopwrightError, Unavailable


async def interrupted(failure: BaseException | None) -> None:
    """Work that an interrupt ends, and that fails so while it closes."""
    try:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        if failure is not None:
            raise failure


async def cancelled_twice() -> None:
    """The interrupt is not the only one that cancels: asyncio then tells of no interrupt."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await interrupted(None)


@pytest.mark.parametrize(
    "failure", [None, Unavailable("gone"), OSError("gone"), BaseExceptionGroup("both", [ValueError(), OSError()])]
)
def test_an_interrupt_stays_one_whatever_fails_while_the_work_is_closed(failure: BaseException | None) -> None:
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_work(interrupted(failure))
    assert signal.getsignal(signal.SIGINT) is usual


def test_an_interrupt_of_work_that_somebody_else_cancels_too_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_work(cancelled_twice())


def test_what_was_not_interrupted_ends_as_it_does() -> None:
    async def done(error: BaseException | None = None) -> int:
        if error is not None:
            raise error
        return 5

    assert run_work(done()) == 5
    for error in (Unavailable("gone"), asyncio.CancelledError()):  # the second is what SIGTERM does to `serve`
        with pytest.raises(type(error)):
            run_work(done(error))


def test_the_command_line_says_130_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Module:
        def add_arguments(self, parser: object) -> None: ...

        def run(self, arguments: object) -> int:
            run_work(interrupted(LoopwrightError("the engine is gone")))
            return 0

    monkeypatch.setattr("importlib.import_module", lambda name: Module())
    assert cli.main(["ps"]) == 130
    assert capsys.readouterr().err == "loopwright: interrupted\n"
