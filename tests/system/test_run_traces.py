"""The trace of a run: every call from issue to observation, token by token, and never another answer."""

import msgspec
import pytest

from loopwright.runtime.tracing import Completed, Inputs, Issued, Observed, Sampled, Trace
from system_rig import byte_system, in_loop

WRITER = """
from loopwright import Context, choice, emit, resources
async def main():
    ctx = Context(seed=3)
    ctx.append("the beginning of a longer text")
    first = await ctx.generate(max_tokens=5, temperature=1.0, ignore_eos=True, allowed=range(97, 123))
    second = await ctx.generate(grammar=choice(["yes", "yet"]), emit=True)
    dist = await ctx.next_dist(k=2)
    emit("done")
    queue = resources.Queue()
    await queue.allocate_pages([900])
    raw = await queue.issue("generate", pages=[900], grow_from=901, kv_len=0, tokens=[65], positions=[0], max_tokens=3)
    return [first.tokens, second.tokens, second.text, list(dist.ids), raw["tokens"]]
"""


@pytest.mark.parametrize("sandbox", [pytest.param("wasm", marks=pytest.mark.wasm), "native"])
def test_a_trace_shows_what_was_asked_masked_sampled_and_cached_and_changes_no_answer(sandbox: str) -> None:
    async def scenario() -> None:
        traces: list[Trace] = []
        async with byte_system() as system:
            plain = await system.run(WRITER, sandbox)
        async with byte_system(trace=traces.append) as system:
            again = await system.run(WRITER, sandbox)
            assert again.result == plain.result
            assert again.text == plain.text

        first, second, text, _, raw = again.result
        assert text in ("yes", "yet")
        issued = {one.handle: one for one in traces if isinstance(one, Issued)}
        segments = [one.handle for one in issued.values() if one.op in ("segment", "generate")]
        sampled = [[one for one in traces if isinstance(one, Sampled) and one.handle == handle] for handle in segments]
        assert [[one.token for one in tokens] for tokens in sampled] == [first, second, raw]
        assert [one.index for tokens in sampled for one in tokens] == [
            *range(len(first)), *range(len(second)), *range(len(raw)),
        ]  # fmt: skip
        assert "".join(one.text for one in sampled[0]) == bytes(first).decode()
        assert [one.num_allowed for one in sampled[0]] == [None] * 5  # the call's own `allowed` is in its masks
        assert [one.num_allowed for one in sampled[1]] == [1, 1, 2]  # y, e forced; s or t chosen
        assert issued[segments[0]].masks == ("26 of 260 tokens allowed",)
        assert issued[segments[1]].masks == ("grammar choice",)
        completed = {one.handle: one for one in traces if isinstance(one, Completed)}
        assert completed[segments[0]].inputs == Inputs(num_in_context=0, num_cached=0, num_run=31)
        after = completed[segments[1]].inputs
        assert after == Inputs(num_in_context=35, num_cached=0, num_run=1)  # the last token had not run
        assert completed[segments[1]].result["reason"] == "grammar_end"

    in_loop(scenario)


def test_a_second_run_shows_what_came_from_the_prefix_cache() -> None:
    async def scenario() -> None:
        traces: list[Trace] = []
        async with byte_system(trace=traces.append) as system:
            await system.run(WRITER)
            traces.clear()
            await system.run(WRITER)
        first = next(one for one in traces if isinstance(one, Completed) and one.op == "segment")
        assert first.inputs == Inputs(num_in_context=0, num_cached=16, num_run=15)

    in_loop(scenario)


FAILING = """
import asyncio
from loopwright import BadRequest, Context, http, resources
async def main():
    try:
        await http.get("http://127.0.0.1:9/")
    except Exception as error:
        pass
    queue = resources.Queue()
    try:
        await queue.issue("no_such_call")
    except BadRequest:
        pass
    ctx = Context()
    ctx.append("x")
    stream = ctx.stream(max_tokens=200, ignore_eos=True)
    async for chunk in stream:
        break
    del stream
    await queue.issue("synchronize")
"""


def test_every_call_that_is_waited_for_is_observed_once_in_the_order_of_time() -> None:
    async def scenario() -> None:
        traces: list[Trace] = []
        async with byte_system(trace=traces.append) as system:
            (await system.run(FAILING)).result  # noqa: B018 (fails if the run did)
        assert [one.at_s for one in traces] == sorted(one.at_s for one in traces)
        observed = [one for one in traces if isinstance(one, Observed)]
        errors = {one.op: one.answer for one in observed if one.is_error}
        assert errors["http"]["type"] == "PermissionDenied"
        assert errors["no_such_call"]["type"] == "BadRequest"
        completed = [one for one in traces if isinstance(one, Completed)]
        assert [one.op for one in completed].count("synchronize") == 1
        handles = [one.handle for one in observed]
        assert len(handles) == len(set(handles))
        wanted = {one.handle for one in traces if isinstance(one, Issued) and one.call.get("answer", True)}
        assert set(handles) <= wanted
        for one in observed:
            assert one.wait_s >= 0
        assert all(msgspec.json.encode(one) for one in traces)  # what --trace writes

    in_loop(scenario)
