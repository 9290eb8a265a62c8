"""One program, the same calls, lines and result in every sandbox."""

import pytest

from loopwright.core.errors import LoopwrightError

from .conftest import Bench
from .fake_guest import FakeGuest
from .test_programs import program

PROGRAMS = {
    "calls": "return [await issue(op='echo', value=n) for n in range(5)]",
    "gather": "return await asyncio.gather(*(issue(op='later', turns=n % 3, value=n) for n in range(9)))",
    "branches": """
async def branch(n):
    first = await issue(op="echo", value=n)
    current_port().post({"op": "emit", "value": first})
    return await issue(op="echo", value=[first, n])
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(branch(n)) for n in range(4)]
current_port().log("log", "done")
return [task.result() for task in tasks]
""",
    "stream": """
stream = current_port().stream({"op": "count", "n": 4})
while (part := await stream.next_part()) is not None:
    current_port().post({"op": "emit", "value": part})
return await stream.final()
""",
    "error": "await issue(op='fail', error={'type': 'NotFound', 'code': 'bad_request', 'message': 'no such thing'})",
    "raises": "await issue(op='echo')\nraise KeyError('gone')",
}


@pytest.mark.wasm
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_in_every_sandbox(name: str, request: pytest.FixtureRequest) -> None:
    files = request.getfixturevalue("runner_files")
    native, *others = (
        observe(Bench(kind, files), program(PROGRAMS[name])) for kind in ("native", "fiber", "reentrant")
    )
    assert others == [native, native]


def observe(bench: Bench, source: str) -> tuple[object, ...]:
    """The calls, the lines, and the result or error."""
    guest = FakeGuest()
    try:
        ending = bench.run(source, guest)
    except LoopwrightError as error:
        ending = f"{type(error).__name__} {error.message}"
    return guest.ops, guest.lines, ending
