"""Contexts that are lent by name: an importer goes on as a fork would, whoever else does, and all goes in the end."""

from typing import Any

from loopwright.compose.config import RuntimeConfig
from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from system_rig import System, byte_oracle, byte_system, in_loop

OPTIONS: dict[str, Any] = {
    "runtime": RuntimeConfig(allows_native=True, needs_wasm=False),
    "control": ControlConfig(prefix_cache=False),
}
PROMPT = "The attic held a trunk of letters that nobody had opened."


async def told(system: System, body: str, **arguments: Any) -> Any:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    source = f"import asyncio\nfrom loopwright import *\nasync def main({', '.join(arguments)}):\n{lines}\n"
    return (await system.run(source, **arguments)).result


def expected(text: str, num_tokens: int) -> list[int]:
    return list(byte_oracle().generate([256, *text.encode()], Sampling(), num_tokens, ()).tokens)


LEND = """
ctx = Context()
ctx.append(prompt)
return await export_context(ctx, "attic", persistent=True)
"""


def test_several_importers_go_on_side_by_side_and_the_export_stays_as_it_was() -> None:
    body = """
async def go_on(text):
    ctx = await import_context("attic")
    ctx.append(text)
    return (await ctx.generate(max_tokens=20, ignore_eos=True)).tokens
return await asyncio.gather(*map(go_on, texts))
"""
    texts = [" Once", " Never", "", " Once"]

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            assert await told(system, LEND, prompt=PROMPT)
            for _ in range(2):
                assert await told(system, body, texts=texts) == [expected(PROMPT + text, 20) for text in texts]
            await told(system, 'await unexport_context("attic")')

    in_loop(scenario)


def test_an_importer_keeps_what_it_has_when_the_export_ends() -> None:
    body = """
ctx = await import_context("attic")
await unexport_context("attic")
try:
    await import_context("attic")
except NotFound as error:
    return error.field, (await ctx.generate(max_tokens=9, ignore_eos=True)).tokens
"""

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            assert await told(system, LEND, prompt=PROMPT)
            assert await told(system, body) == ["name", expected(PROMPT, 9)]

    in_loop(scenario)


def test_a_name_is_lent_once_and_goes_with_its_run() -> None:
    body = """
async def lend():
    ctx = Context()
    ctx.append(prompt)
    lent = await export_context(ctx, "attic")
    return lent, (await ctx.generate(max_tokens=3, ignore_eos=True)).tokens  # which goes on in either case
return await asyncio.gather(*(lend() for _ in range(4)))
"""

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            for _ in range(2):
                found = await told(system, body, prompt=PROMPT)
                assert sorted(lent for lent, _ in found) == [False, False, False, True]
                assert all(tokens == expected(PROMPT, 3) for _, tokens in found)

    in_loop(scenario)


def test_an_approximate_context_is_lent_only_as_one_and_stays_one() -> None:
    body = """
ctx = Context()
ctx.append(prompt)
await ctx.flush()
await ctx.hide((3, 20))
try:
    await export_context(ctx, "attic")
except BadRequest as error:
    refused = error.field
lent = await export_context(ctx, "attic", allow_approximate=True)
found = await import_context("attic")
same = [(await one.generate(max_tokens=9, ignore_eos=True)).tokens for one in (ctx, found)]
return refused, lent, same[0] == same[1] != list(plain), isinstance(found.provenance(), Approximate)
"""

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            found = await told(system, body, prompt=PROMPT, plain=expected(PROMPT, 9))
            assert found == ["allow_approximate", True, True, True]

    in_loop(scenario)


def test_pages_that_are_lent_without_a_context_are_not_taken_for_one() -> None:
    body = """
queue = Queue()
await queue.forward_text(pages=[], grow_from=10**6, kv_len=0, tokens=[1, 2], positions=[0, 1])
await queue.export_pages("attic", [10**6], positions=[0, 1])
try:
    await import_context("attic")
except BadRequest as error:
    return error.field
"""

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            assert await told(system, body) == "name"

    in_loop(scenario)


def test_what_follows_nothing_cannot_be_asked() -> None:
    body = """
ctx = Context()
ctx.append(prompt)
await ctx.place("", sees=[])
try:
    await ctx.next_dist()
except LoopwrightError as error:
    ctx.append("x")
    return str(error), len(await ctx.next_dist())
"""

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            message, num_listed = await told(system, body, prompt=PROMPT)
            assert "append something first" in message
            assert num_listed == 256

    in_loop(scenario)
