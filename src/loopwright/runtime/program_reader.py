"""Reads programs without holding the event loop up: large ones in a process of their own. Never executes one.

Parsing holds the interpreter's lock, so that no thread would help; and what breaks the parser breaks only that process.
Owned by the launcher; run as a module, this is the process.
"""

import asyncio
import resource
import sys
from collections import OrderedDict

import msgspec

from loopwright.core.errors import ErrorInfo, ProgramRejected, from_info
from loopwright.core.runs import Parameter
from loopwright.runtime.program import MAX_READ_PROGRAMS, Metadata, Program, check_size, read_program

MAX_CHARS_HERE = 16 << 10
"""What is parsed on the event loop: 4 ms of ordinary code, 8 of the densest."""

MAX_READ_S = 20.0
MAX_READ_MB = 4096  # of the process's address space

_Key = tuple[str, str, str]  # source, filename, entry


class _Read(msgspec.Struct, frozen=True):
    """What the process found, or what is wrong."""

    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    metadata: Metadata = Metadata()
    error: ErrorInfo | None = None


class ProgramReader:
    """Remembers the last large programs. They are read one at a time: who sends many keeps others waiting that send
    large ones, and nobody else."""

    def __init__(self) -> None:
        self._read: OrderedDict[_Key, Program] = OrderedDict()  # the last used one comes last
        self._turn = asyncio.Lock()

    async def read(self, source: str, filename: str, entry: str = "main") -> Program:
        """As `read_program`."""
        if len(source) <= MAX_CHARS_HERE:
            return read_program(source, filename, entry)
        check_size(source, filename)
        key = (source, filename, entry)
        async with self._turn:
            program = self._read.pop(key, None) or await _read_elsewhere(*key)
            self._read[key] = program
        while len(self._read) > MAX_READ_PROGRAMS:
            self._read.popitem(last=False)
        return program


async def _read_elsewhere(source: str, filename: str, entry: str) -> Program:
    try:
        question = msgspec.json.encode((source, filename, entry))
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ProgramRejected(f"{filename} cannot be parsed: {error}") from None
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdin=pipe, stdout=pipe, stderr=nothing
    )
    try:
        async with asyncio.timeout(MAX_READ_S):
            answer, _ = await process.communicate(question)
    except TimeoutError:
        raise ProgramRejected(f"{filename} takes longer than {MAX_READ_S:g} s to parse") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ProgramRejected(f"{filename} cannot be parsed: the parser ended with exit code {process.returncode}")
    read = msgspec.json.decode(answer, type=_Read)
    if read.error is not None:
        raise from_info(read.error)
    return Program(source, filename, read.description, read.parameters, read.metadata, entry)


def main() -> None:
    """The process: reads one program from its standard input, and writes what it found."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_READ_MB << 20, MAX_READ_MB << 20))
    source, filename, entry = msgspec.json.decode(sys.stdin.buffer.read(), type=_Key)
    try:
        program = read_program(source, filename, entry)
    except ProgramRejected as error:
        read = _Read(error=error.info())
    else:
        read = _Read(program.description, program.parameters, program.metadata)
    sys.stdout.buffer.write(msgspec.json.encode(read))


if __name__ == "__main__":
    main()
