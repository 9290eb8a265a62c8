"""A child with a context of its parent goes on from it as a fork would: nothing is run again, and both go apart."""

from typing import Any

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from system_rig import System, byte_oracle, byte_system, in_loop

SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]
NO_CACHE = ControlConfig(prefix_cache=False)  # so that only what is handed over can save work

HEAD = """
# /// program
# permissions = { children = ["@self"] }
# ///
import asyncio
from loopwright import *

async def go_on(text: str = "", num_tokens: int = 12):
    ctx = await parent_context()
    ctx.append(text)
    turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
    return {"tokens": turn.tokens, "all": ctx.tokens, "view": repr(ctx.provenance())}

async def ask(text: str):
    ctx = await parent_context()
    ctx.user(text)
    return {"tokens": (await ctx.generate(max_tokens=12, ignore_eos=True)).tokens, "all": ctx.tokens}

async def cut(num_tokens: int):
    ctx = await parent_context()
    await ctx.truncate(num_tokens)
    return (await ctx.generate(max_tokens=20, ignore_eos=True)).tokens

async def ignore():
    return "did not look"
"""


async def result_of(system: System, body: str, sandbox: str = "native", **arguments: Any) -> Any:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    parameters = ", ".join(f"{name}=None" for name in arguments)
    source = f"{HEAD}\nasync def main({parameters}):\n{lines}\n"
    return (await system.run(source, sandbox, **arguments)).result


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    return list(byte_oracle().generate(prompt, Sampling(), num_tokens, ()).tokens)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_children_go_on_from_their_parents_kv_and_run_none_of_it_again(sandbox: str) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 4
    body = """
ctx = Context()
ctx.append(prompt)
await ctx.flush()
kids = [await spawn(go_on, text=text, context=ctx) for text in texts]
mine = await ctx.generate(max_tokens=12, ignore_eos=True)
return [mine.tokens, [(await kid.wait())["tokens"] for kid in kids], (await resources.exported_pages())["exports"]]
"""
    texts = ["a", "b", ""]

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            mine, theirs, exports = await result_of(system, body, sandbox, prompt=prompt, texts=texts)
            ids = [256, *prompt.encode()]
            assert mine == expected(ids, 12)
            assert theirs == [expected([*ids, *text.encode()], 12) for text in texts]
            assert exports == []
            stats = await system.controller.stats()
            assert stats.num_prefill_tokens <= len(ids) + 2 * 2  # a last token, and what follows

    in_loop(scenario)


@pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 31, 32, 33])
def test_where_pages_end_does_not_matter_and_both_go_apart(num_tokens: int) -> None:
    ids = [256, *(97 + number % 26 for number in range(num_tokens - 1))]
    body = """
ctx = Context()
ctx.append(ids)
child = await spawn(go_on, context=ctx, num_tokens=40)
async def go_apart():
    ctx.append([120])
    return (await ctx.generate(max_tokens=40, ignore_eos=True)).tokens
mine, found = await asyncio.gather(go_apart(), child.wait())
second = await (await spawn(go_on, context=ctx, num_tokens=5)).wait()
return [mine, found, second["tokens"]]
"""

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            mine, theirs, second = await result_of(system, body, ids=ids)
            assert mine == expected([*ids, 120], 40)
            assert theirs["tokens"] == expected(ids, 40)
            assert theirs["all"] == [*ids, *theirs["tokens"]]
            assert second == expected([*ids, 120, *mine], 5)

    in_loop(scenario)


def test_a_child_that_cuts_into_a_shared_page_writes_to_a_copy() -> None:
    ids = [256, *range(97, 97 + 39)]
    body = """
ctx = Context()
ctx.append(ids)
await ctx.flush()
found = await (await spawn(cut, num_tokens=21, context=ctx)).wait()
return [found, (await ctx.generate(max_tokens=20, ignore_eos=True)).tokens]
"""

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            assert await result_of(system, body, ids=ids) == [expected(ids[:21], 20), expected(ids, 20)]

    in_loop(scenario)


@pytest.mark.parametrize(
    "change",
    [
        "ctx.hide((3, 9))",
        "ctx.window(20, sinks=4)",
        "ctx.attend([(0, 8), (20, 60)])",
        "ctx.forget((5, 25))",
        "ctx.truncate(21)",
    ],
)
def test_views_provenance_and_order_of_pages_go_with_it(change: str) -> None:
    body = f"""
ctx = Context()
ctx.append("The quick brown fox jumps over the lazy dog. Twice over, in fact.")
await ctx.flush()
await {change}
ctx.append("And")
await ctx.generate(max_tokens=3, ignore_eos=True)
fork = await ctx.fork()
fork.append("!")
turn = await fork.generate(max_tokens=20, ignore_eos=True)
own = {{"tokens": turn.tokens, "all": fork.tokens, "view": repr(fork.provenance())}}
return [own, await (await spawn(go_on, text="!", num_tokens=20, context=ctx)).wait()]
"""

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            own, childs = await result_of(system, body)
            assert childs == own
            if "hide" in change or "window" in change or "attend" in change:
                assert childs["view"].startswith("Approximate")

    in_loop(scenario)


def test_a_chat_goes_on_where_its_parent_left_it() -> None:
    body = """
from loopwright.sdk.handover import take_over
from loopwright.sdk.handover import hand_over, take_over
ctx = Context()
ctx.system("Be brief.")
ctx.user("Hello")
await ctx.generate(max_tokens=5, ignore_eos=True)
fork = await ctx.fork()
fork.user("And now?")
own = {"tokens": (await fork.generate(max_tokens=12, ignore_eos=True)).tokens, "all": fork.tokens}
found = [await (await spawn(ask, text="And now?", context=ctx)).wait()]
await ctx.truncate(len(ctx.tokens) - 3)  # into the open turn: its mark has to have gone along as well
data = await hand_over(ctx, "unused")
again = await take_over(data, seed=None, priority=0)
told = Context()
told._log.transcript.announce([{"name": "look", "description": "", "parameters": {}}])
tools = (await take_over(await hand_over(told, "unused"), seed=None, priority=0))._log.transcript.tools
assert tools == told._log.transcript.tools != []
return [own, *found, ctx._log.marks == again._log.marks, ctx._log.transcript == again._log.transcript]
"""

    async def scenario() -> None:
        async with byte_system(control=NO_CACHE) as system:
            own, childs, *are_same = await result_of(system, body)
            assert childs == own
            assert are_same == [True, True]

    in_loop(scenario)


def test_what_the_child_does_not_take_is_given_back_when_it_ends() -> None:
    body = """
ctx = Context()
ctx.append("a" * 40)
ended = await (await spawn(ignore, context=ctx)).wait()
try:
    await spawn(go_on, context=ctx, nonsense=1)
except BadRequest as error:
    refused = error.field
return [ended, refused, (await resources.exported_pages())["exports"]]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            assert await result_of(system, body) == ["did not look", "nonsense", []]

    in_loop(scenario)


def test_a_context_is_handed_over_once_and_only_to_who_was_given_one() -> None:
    body = """
async def told(program, **options):
    try:
        return await (await spawn(program, **options)).wait()
    except ChildFailed as error:
        return [type(error.error).__name__, error.error.message]
ctx = Context()
ctx.append("abc")
return [await told(go_on), await told(twice, context=ctx)]
"""
    twice = "async def twice():\n    await parent_context()\n    await parent_context()\n"

    async def scenario() -> None:
        async with byte_system() as system:
            source = f"{HEAD}\n{twice}\nasync def main():\n" + "\n".join(
                "    " + line for line in body.strip().splitlines()
            )
            message = "this run has no context of its parent, or has taken it already"
            assert (await system.run(source)).result == [["BadRequest", message]] * 2

    in_loop(scenario)
