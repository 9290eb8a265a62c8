"""What a program gives up, or has too much of, is over or named: nothing counts on in silence."""

import pytest

from system_rig import byte_system, in_loop

GIVES_UP = """
# /// program
# permissions = { http = ["127.0.0.1:*"] }
# limits = { max_open_calls = 4 }
# ///
import asyncio
from loopwright import http, tokenize
async def main():
    for _ in range(8):
        asking = asyncio.create_task(http.get("http://127.0.0.1:1/"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return len(await tokenize("abc"))
"""

MANY = """
from loopwright import Context
async def main():
    kept = [Context() for _ in range(257)]
    kept[-1].append("a")
    await kept[-1].generate(max_tokens=1)
"""

NO_SUCH_PORT = """
# /// program
# permissions = { http = ["127.0.0.1:*"] }
# ///
from loopwright import http
async def main():
    await http.get("http://127.0.0.1:99999/")
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_request_that_is_given_up_before_it_began_does_not_stay_open(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(GIVES_UP, sandbox)).result == 3

    in_loop(scenario)


def test_a_context_too_many_is_told_of_the_limit() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            error = (await system.run(MANY)).final.error
            assert error is not None
            assert (error.type, error.message[:19]) == ("LimitExceeded", "the run has 256 que")

    in_loop(scenario)


def test_a_port_that_cannot_be_is_a_bad_url() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            error = (await system.run(NO_SUCH_PORT)).final.error
            assert error is not None
            assert (error.type, error.field) == ("BadRequest", "url")
            assert "99999" in error.message

    in_loop(scenario)
