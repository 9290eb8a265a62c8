"""Several models on one server: each answers as it would alone, with an engine and a control layer of its own."""

import pytest

from loopwright.core.calls import Sampling
from loopwright.core.errors import BadRequest, NotFound
from loopwright.core.events import Emit
from loopwright.core.runs import RunSpec
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.runtime.served_models import ServedModels
from models_rig import Served, serving, two_byte_models
from system_rig import (
    RunningRun,
    WatchedExecutor,
    byte_oracle,
    in_loop,
)

HEAD = """
# /// program
# permissions = { models = ["beta"], children = ["@self"] }
# ///
import asyncio
from loopwright import *
"""
PROMPT = "The quick brown fox"
IDS = [256, *PROMPT.encode()]


def expected(seed: int, ids: list[int], num_tokens: int) -> list[int]:
    return list(byte_oracle(seed).generate(ids, Sampling(), num_tokens, ()).tokens)


def program(body: str, head: str = HEAD) -> str:
    main = "\n".join("    " + line for line in body.strip().splitlines())
    return f"{head}\nasync def main():\n{main}\n"


async def refused(served: Served, body: str, head: str = HEAD) -> tuple[str, str, str]:
    error = (await served.run(program(body, head))).final.error
    assert error is not None
    return error.type, error.message, error.hint


def test_contexts_of_two_models_side_by_side_each_equal_their_own_oracle() -> None:
    body = f"""
contexts = [Context(model=name) for name in ("", "beta", "alpha", "beta")]
async def go_on(ctx):
    ctx.append({PROMPT!r})
    first = await ctx.generate(max_tokens=20, ignore_eos=True)
    fork = await ctx.fork()
    return [first.tokens, (await fork.generate(max_tokens=5, ignore_eos=True)).tokens]
return await asyncio.gather(*map(go_on, contexts))
"""

    async def scenario() -> None:
        async with two_byte_models() as served:
            found = (await served.run(program(body))).result
            wholes = [expected(seed, IDS, 25) for seed in (0, 1)]
            assert wholes[0] != wholes[1]
            assert [first + later for first, later in found] == [wholes[0], wholes[1], wholes[0], wholes[1]]

    in_loop(scenario)


def test_whoever_starts_a_run_chooses_its_own_model_which_needs_no_permission() -> None:
    body = f"""
ctx = Context()
ctx.append({PROMPT!r})
turn = await ctx.generate(max_tokens=10, ignore_eos=True)
return [turn.tokens, (await model()).name]
"""

    async def scenario() -> None:
        async with two_byte_models() as served:
            outcome = await served.run(program(body, "from loopwright import *\n"), model="beta")
            assert outcome.result == [expected(1, IDS, 10), "beta"]
            assert outcome.events[0].model == "beta"  # type: ignore[union-attr]
            assert (await served.num_steps())["alpha"] == 0

    in_loop(scenario)


def test_chat_goes_to_the_model_that_it_names() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            texts = []
            for name in ("alpha", "beta"):
                before = await served.num_steps()
                options = {"max_tokens": 8, "sampling": {"temperature": 0.0}}
                arguments = {"messages": [{"role": "user", "content": "hi"}], "options": options}
                spec = RunSpec(program="chat", arguments=arguments, sandbox="native", model=name)
                texts.append((await RunningRun(served.launcher, await served.launcher.start(spec)).outcome()).text)
                after = await served.num_steps()
                assert [one for one in after if after[one] > before[one]] == [name]
            assert texts[0] != texts[1]

    in_loop(scenario)


def test_a_model_that_is_not_served_is_not_found_and_those_that_are_get_named() -> None:
    message = "model: 'gamma' is not served; served: alpha, beta"

    async def scenario() -> None:
        async with two_byte_models() as served:
            for body in (
                'await model("gamma")',
                'ctx = Context(model="gamma")\nctx.append("x")\nawait ctx.generate()',
                'ctx = Context(model="gamma")\nctx.append([1])\nawait ctx.generate()',
                'await Queue(model="gamma").synchronize()',
                'await tokenize("x", model="gamma")',
            ):
                kind, told, _ = await refused(served, body)
                assert (kind, told) == ("NotFound", message), body
            with pytest.raises(NotFound, match="gamma"):
                await served.launcher.start(RunSpec(source="async def main(): pass", sandbox="native", model="gamma"))

    in_loop(scenario)


def test_another_model_than_the_runs_own_needs_a_permission() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            for body in (
                'ctx = Context(model="beta")\nctx.append("x")\nawait ctx.generate()',
                'await Queue(model="beta").synchronize()',
            ):
                kind, message, hint = await refused(served, body, head="from loopwright import *\n")
                assert (kind, message) == (
                    "PermissionDenied",
                    "the program may not use the model 'beta'; permitted: nothing",
                )
                assert hint == 'add to the program\'s metadata: permissions = { models = ["beta"] }'
            assert await served.num_steps() == {"alpha": 0, "beta": 0}

    in_loop(scenario)


def test_pages_belong_to_a_model_and_queues_to_one_of_them() -> None:
    body = """
a, b = Queue(), Queue(model="beta")
await a.allocate_pages([1, 2])
await b.allocate_pages([1])
found = []
for act in (
    lambda: b.share_pages([2], [3]),
    lambda: b.issue("create_queue", model="alpha"),
    lambda: a.issue("create_queue", model="beta"),
):
    try:
        await act()
    except (BadRequest, NotFound) as error:
        found.append(error.message)
held = [(await resources.debug_query(model=name))["num_pages"] for name in ("alpha", "beta")]
return [found, held, [one.name for one in await models()], (await model("beta")).name]
"""

    async def scenario() -> None:
        async with two_byte_models() as served:
            found, held, names, named = (await served.run(program(body))).result
            assert "page 2 is not bound" in found[0]
            assert ["exists already, on beta" in found[1], "exists already, on alpha" in found[2]] == [True, True]
            assert (held, names, named) == ([2, 1], ["alpha", "beta"], "beta")

    in_loop(scenario)


def test_watched_segments_and_children_stay_with_their_model() -> None:
    body = f"""
ctx = Context(model="beta")
ctx.append({PROMPT!r})
seen = []
async with ctx.watch(max_tokens=12, ignore_eos=True) as watched:
    async for token in watched:
        seen.append(token.id)
child = await spawn(go_on, context=ctx)
return [ctx.tokens, seen, await child.wait()]
"""
    head = (
        HEAD
        + """
async def go_on():
    ctx = await parent_context()
    return (await ctx.generate(max_tokens=6, ignore_eos=True)).tokens
"""
    )

    async def scenario() -> None:
        async with two_byte_models() as served:
            outcome = await served.run(program(body, head))
            whole = expected(1, IDS, 18)
            assert outcome.result == [IDS + whole[:12], whole[:12], whole[12:]]
            assert (await served.num_steps())["alpha"] == 0

    in_loop(scenario)


def test_a_step_of_one_model_waits_for_nobody_at_the_other() -> None:
    """Scripted engines: alpha's is held, and beta's programs end all the same."""
    executors = {
        name: ScriptedExecutor(lambda row, token=token: token) for name, token in (("alpha", 97), ("beta", 98))
    }
    body = """
async def go_on(name):
    ctx = Context(model=name)
    ctx.append("x")
    text = (await ctx.generate(max_tokens=4)).text
    emit(name)
    return text
return await asyncio.gather(go_on("alpha"), go_on("beta"))
"""

    async def scenario() -> None:
        held = WatchedExecutor(executors["alpha"])
        async with serving({"alpha": held, "beta": executors["beta"]}) as served:
            held.hold()
            source = program(body)
            run_id = await served.launcher.start(RunSpec(source=source, sandbox="native"))
            async for event in served.launcher.events(run_id):
                if isinstance(event, Emit):
                    assert event.value == "beta"
                    break
            held.release()
            assert (await RunningRun(served.launcher, run_id).outcome()).result == ["aaaa", "bbbb"]

    in_loop(scenario)
    for executor in executors.values():
        executor.close()


def test_the_stats_of_each_model_are_told() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            body = f'ctx = Context(model="beta")\nctx.append({PROMPT!r})\nawait ctx.generate(max_tokens=2)'
            await served.run(program(body))
            stats = await served.launcher.stats()
            assert stats.num_steps == 0
            assert stats.others["beta"].num_steps > 0

    in_loop(scenario)


def test_two_models_of_one_name_are_refused() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            (one, *_) = served.launcher._models.all()
            with pytest.raises(BadRequest, match="one name stands for two models: alpha, alpha"):
                ServedModels([one, one])

    in_loop(scenario)
