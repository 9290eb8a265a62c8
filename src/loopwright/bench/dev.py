"""How long `loopwright dev` takes from a save to what the program does next. Never runs the program in this process.

It starts the real command as a user would, saves its file again and again, and reads what is printed. Run by `command`.
Cases: `reload=log`, until the first line of the program; `reload=token`, until it has a token of the warm model.
"""

import asyncio
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path

from loopwright.bench.rows import P50_MS, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import InternalError

TIMEOUT_S = 120.0  # for the model to load, the longest of it
_LINES = 3  # of what the command said last, when it fails

_PROGRAM = """
from loopwright import Context

async def main() -> None:
    print("began {number}")
    ctx = Context()
    ctx.append("Once")
    turn = await ctx.generate(max_tokens=1)
    print(f"token {number} {{len(turn.tokens)}}")
"""


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    """The command opens a system of its own, so `open_system` is not used."""
    clock, times_s = SystemClock(), dict[str, list[float]](log=[], token=[])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.py"
        path.write_text(_PROGRAM.format(number=0))
        command = ["-m", "loopwright", "dev", str(path), "--model", options.model]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=STDOUT)
        try:
            await _seen(process, "token 0 1")
            for number in range(1, options.num_rounds + 1):
                await _reload(process, path, number, clock, times_s)
        finally:
            with suppress(ProcessLookupError):  # it may have ended by itself
                process.kill()
            await process.communicate()
    rows = [measured("dev", f"reload={name}", P50_MS, [1e3 * one for one in found]) for name, found in times_s.items()]
    return Measured(rows=tuple(rows), workload={})


async def _reload(process: Process, path: Path, number: int, clock: Clock, times_s: dict[str, list[float]]) -> None:
    path.write_text(_PROGRAM.format(number=number))  # noqa: ASYNC240 (nothing else runs here)
    saved_s = clock.now_s()
    await _seen(process, f"began {number}")
    times_s["log"].append(clock.now_s() - saved_s)
    await _seen(process, f"token {number} 1")
    times_s["token"].append(clock.now_s() - saved_s)


async def _seen(process: Process, text: str) -> None:
    """Reads until a line has the text. Raises InternalError with the last lines when none comes."""
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while line := (await process.stdout.readline()).decode(errors="replace"):
                if text in line:
                    return
                lines = [*lines, line.rstrip()][-_LINES:]
    except TimeoutError:
        pass
    raise InternalError(f"loopwright dev did not say {text!r}; its last lines: {' | '.join(lines) or 'none'}")


SUITE = Suite(name="dev", title="bench dev: from a save to what the program does", measure=measure)
