"""What a program does to a context besides generating: scoring, cutting, windows over stops and grammars, failures."""

import json
from typing import Any

import pytest

from loopwright.compose.config import RuntimeConfig
from loopwright.engine.byte_model import BYTE_TOKENS
from system_rig import System, byte_system, in_loop
from view_model import DenseContext

NATIVE_ONLY = RuntimeConfig(allows_native=True, needs_wasm=False)
PROMPT = [256, *b"A fairly long sentence to begin with, so that it fills some pages."]


async def result_of(system: System, body: str, sandbox: str = "native", **arguments: Any) -> Any:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    parameters = ", ".join(f"{name}=None" for name in arguments)
    source = f"import asyncio\nfrom loopwright import *\nasync def main({parameters}):\n{lines}\n"
    return (await system.run(source, sandbox, **arguments)).result


def dense(*tokens: int) -> DenseContext:
    context = DenseContext()
    context.append(list(tokens))
    return context


def test_scores_are_exact_in_one_batch_and_change_nothing() -> None:
    body = """
ctx = Context()
ctx.append(ids)
scores = await ctx.score(["yes", "no", [65, 200, 3], "yes"])
turn = await ctx.generate(max_tokens=5, ignore_eos=True)
return [[one.tokens, one.logprobs, one.logprob] for one in scores], turn.tokens, ctx.num_pages
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            scores, tokens, num_pages = await result_of(system, body, ids=PROMPT)
            context = dense(*PROMPT)
            for (ids, logprobs, total), text in zip(scores, (b"yes", b"no", [65, 200, 3], b"yes"), strict=True):
                assert ids == list(text)
                assert logprobs == pytest.approx(context.score(list(text)), abs=1e-5)
                assert total == pytest.approx(sum(logprobs))
            assert tokens == context.generate(5)[0]
            assert num_pages == -(-(len(PROMPT) + 4) // 16)
            scoring = [batch for batch in batches_of(system) if any(row.distributions for row in batch.all_rows)]
            assert [batch.num_rows for batch in scoring] == [4]

    in_loop(scenario)


def test_a_run_may_score_more_often_than_it_may_have_queues() -> None:
    body = """
ctx = Context()
ctx.append("ab")
best = [max(await ctx.score(["a", "b", "c"]), key=lambda one: one.logprob).tokens for _ in range(100)]
return len({tuple(one) for one in best})
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            assert await result_of(system, body) == 1

    in_loop(scenario)


def test_a_context_that_takes_over_a_queue_knows_nothing_of_what_failed_there() -> None:
    body = """
ctx = Context()
ctx.append("ab")
await ctx.flush()
ctx._queue.post("free_pages", pages=[12345])
name = ctx._queue.name
ctx.close()
other = Context()
other.append("ab")
turn = await other.generate(max_tokens=2, ignore_eos=True)
return [other._queue.name == name, len(turn.tokens)]
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            assert await result_of(system, body) == [True, 2]

    in_loop(scenario)


def test_a_fork_may_begin_the_answer_once_for_all_branches() -> None:
    body = """
apart = Context()
apart.user("Which one?")
expected = (await apart.generate(max_tokens=4, seed=1, temperature=1.0, ignore_eos=True)).tokens
ctx = Context()
ctx.user("Which one?")
forks = [await ctx.fork(opens_turn=True) for _ in range(2)]
turns = [await fork.generate(max_tokens=4, seed=1, temperature=1.0, ignore_eos=True) for fork in forks]
plain = await (await ctx.fork()).generate(max_tokens=4, seed=1, temperature=1.0, ignore_eos=True)
return [expected, *[turn.tokens for turn in turns], plain.tokens]
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            expected, *found = await result_of(system, body)
            assert found == [expected] * 3
            prompts = [row for batch in batches_of(system) for row in batch.all_rows if row.num_tokens > 1]
            assert len(prompts) == 2, "one of each context, and none of a branch"

    in_loop(scenario)


def test_a_bad_candidate_is_an_error_and_the_context_goes_on() -> None:
    body = """
ctx = Context()
ctx.append(ids)
errors = []
for candidates in (["fine", []], [[65], [999]]):
    try:
        await ctx.score(candidates)
    except BadRequest as error:
        errors.append(str(error))
ctx.append("!")
turn = await ctx.generate(max_tokens=5, ignore_eos=True)
ctx.close()
await Queue().allocate_pages([10**6 + number for number in range(64)])
return errors, turn.tokens
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=64, runtime=NATIVE_ONLY) as system:
            errors, tokens = await result_of(system, body, ids=PROMPT)
            assert "no tokens" in errors[0]
            assert "token 999 is not in the vocabulary" in errors[1]
            assert tokens == dense(*PROMPT, *b"!").generate(5)[0]

    in_loop(scenario)


def test_a_stop_string_and_a_grammar_reach_across_a_sliding_window() -> None:
    body = """
free, held = Context(), Context()
for ctx in (free, held):
    ctx.append(ids)
    await ctx.window(16, 1)
turn = await free.generate(max_tokens=120, stop=stop, ignore_eos=True)
again = await free.generate(max_tokens=20, ignore_eos=True)
told = await held.generate(max_tokens=90, grammar=regex("(very long and )+forced text: [a-f]{20}[0-9]+"))
return turn.tokens, turn.num_kept, again.tokens, told.tokens, told.logprobs, type(held.provenance()).__name__
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            context = dense(*PROMPT)
            context.window(16, 1)
            tokens, _ = context.fork().generate(120)
            text = bytes(token for token in tokens if token < 256)
            place = next(
                at for at in range(60, 100) if text[at : at + 3].isascii() and text.find(text[at : at + 3]) == at
            )
            stop = text[place : place + 3].decode()
            found, num_kept, again, told, logprobs, kind = await result_of(system, body, ids=PROMPT, stop=stop)
            assert found == tokens[: len(found)]
            kept = context.fork()
            kept.append(tokens[:num_kept])
            assert b"".join(BYTE_TOKENS[token] for token in tokens[:num_kept]) == text[:place]
            assert again == kept.generate(20)[0]
            assert len(told) > 64
            assert logprobs == pytest.approx(context.score(told), abs=1e-5)
            assert kind == "Approximate"

    in_loop(scenario)


@pytest.mark.parametrize("first", ["generate", "next_dist", "flush"])
def test_a_prompt_that_no_pool_could_hold_runs_under_a_window(first: str) -> None:
    body = """
ctx = Context()
ctx.append([256])
await ctx.window(20, 1)
ctx.append(ids)
if first == "next_dist":
    await ctx.next_dist()
elif first == "flush":
    await ctx.flush()
turn = await ctx.generate(max_tokens=4, ignore_eos=True)
return turn.tokens
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=21, runtime=NATIVE_ONLY) as system:  # 256 tokens at once, window and sinks
            ids = [one % 250 for one in range(3, 4000, 7)]
            context = dense(256)
            context.window(20, 1)
            context.append(ids)
            assert await result_of(system, body, ids=ids, first=first) == context.generate(4)[0]

    in_loop(scenario)


def test_a_chat_that_is_cut_goes_on_as_if_the_rest_had_never_been() -> None:
    body = """
async def chat(cut):
    ctx = Context()
    ctx.user("First question")
    first = await ctx.generate(max_tokens=8, ignore_eos=True)
    await ctx.flush()
    length = len(ctx.tokens)
    if cut:
        ctx.user("A question that is taken back")
        await ctx.generate(max_tokens=8, ignore_eos=True)
        await ctx.truncate(length)
    ctx.append("and so")
    ctx.user("Second question")
    await ctx.generate(max_tokens=8, ignore_eos=True)
    return ctx.tokens, type(ctx.provenance()).__name__
return [await chat(cut) for cut in (False, True)]
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            plain, cut = await result_of(system, body)
            assert cut == plain
            assert cut[1] == "Exact"

    in_loop(scenario)


def test_truncating_frees_pages_and_a_fork_keeps_what_it_shares() -> None:
    body = """
trunk = Context()
trunk.append(ids)
fork = await trunk.fork()
sizes = []
for length in (50, 33, 17, 5):
    await trunk.truncate(length)
    sizes.append(trunk.num_pages)
    trunk.append("xyz")
    await trunk.flush()
a = await trunk.generate(max_tokens=10, ignore_eos=True)
b = await fork.generate(max_tokens=10, ignore_eos=True)
await trunk.truncate(0)
sizes.append(trunk.num_pages)
trunk.append(ids)
c = await trunk.generate(max_tokens=10, ignore_eos=True)
return sizes, a.tokens, b.tokens, c.tokens
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            sizes, short, whole, again = await result_of(system, body, ids=PROMPT)
            assert sizes == [4, 2, 1, 1, 0]
            assert short == dense(*PROMPT[:5], *b"xyz").generate(10)[0]
            assert whole == again == dense(*PROMPT).generate(10)[0]

    in_loop(scenario)


def test_hiding_without_a_free_page_is_an_error_and_changes_nothing() -> None:
    body = """
ctx = Context()
ctx.append(ids)
await ctx.flush()
full, other = ctx.num_pages, Queue()
await other.allocate_pages([10**6 + number for number in range(8 - full)])
try:
    await ctx.hide((3, 9))
except OutOfPages as error:
    refused = type(ctx.provenance()).__name__
dist = await ctx.next_dist(k=1)
await ctx.hide((16, 32))
less = ctx.num_pages
turn = await ctx.generate(max_tokens=5, ignore_eos=True)
return refused, list(dist), full - less, turn.tokens
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=8, runtime=NATIVE_ONLY) as system:
            refused, ((token, logprob),), num_freed, tokens = await result_of(system, body, ids=PROMPT)
            assert refused == "Exact"
            context = dense(*PROMPT)
            assert (token, logprob) == (
                int(context.logprobs()[-1].argmax()),
                pytest.approx(context.logprobs()[-1].max(), abs=1e-5),
            )
            context.hide(16, 32)
            assert (num_freed, tokens) == (1, context.generate(5)[0])

    in_loop(scenario)


def test_forks_that_find_no_page_leave_nothing_behind() -> None:
    body = """
ctx = Context()
ctx.append(ids)
await ctx.flush()
full, rest, other = ctx.num_pages, [10**6, 10**6 + 1], Queue()
await other.allocate_pages(rest)
errors = []
for act in (ctx.fork, lambda: ctx.score(["a"] * 3), ctx.fork):
    try:
        await act()
    except OutOfPages as error:
        errors.append("whole pool" in str(error))
other.free_pages(rest)
scores = [(await ctx.score([one]))[0].logprob for one in "abc"]
fork = await ctx.fork()
turn = await fork.generate(max_tokens=3, ignore_eos=True)
ctx.close()
fork.close()
await Queue().allocate_pages([10**7 + number for number in range(full + 2)])
return errors, scores, turn.tokens
"""

    async def scenario() -> None:
        num_pages = -(-len(PROMPT) // 16)
        async with byte_system(num_blocks=num_pages + 2, runtime=NATIVE_ONLY) as system:
            errors, scores, tokens = await result_of(system, body, ids=PROMPT)
            context = dense(*PROMPT)
            assert errors == [True] * 3
            assert scores == pytest.approx([sum(context.score([one])) for one in b"abc"], abs=1e-5)
            assert tokens == context.generate(3)[0]

    in_loop(scenario)


@pytest.mark.parametrize("num_turns", [0, 1, 2, 3, 5, 8])
def test_a_flush_that_is_cancelled_at_any_moment_leaves_the_context_right(num_turns: int) -> None:
    body = """
ctx = Context()
ctx.append(ids)
await ctx.window(20, 4)
task = asyncio.create_task(ctx.flush())
for _ in range(num_turns):
    await asyncio.sleep(0)
task.cancel()
await asyncio.gather(task, return_exceptions=True)
await ctx.hide((2, 30))
turn = await ctx.generate(max_tokens=8, ignore_eos=True)
ctx.close()
await Queue().allocate_pages([10**6 + number for number in range(32)])
return turn.tokens
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=32, runtime=NATIVE_ONLY) as system:
            tokens = await result_of(system, body, ids=PROMPT, num_turns=num_turns)
            context = dense(*PROMPT)
            context.window(20, 4)
            context.hide(2, 30)
            assert tokens == context.generate(8)[0]

    in_loop(scenario)


def test_what_cannot_be_seen_or_cut_is_refused_with_its_numbers() -> None:
    body = """
ctx = Context()
ctx.append([256, 65, 66])
messages = []
for act in (
    lambda: ctx.hide((1, 4)),
    lambda: ctx.forget(range(-1, 2)),
    lambda: ctx.attend([(2, 1)]),
    lambda: ctx.truncate(4),
    lambda: ctx.window(0),
    lambda: ctx.generate(max_tokens=1),
):
    if len(messages) == 5:
        await ctx.hide((2, 3))
    try:
        await act()
    except LoopwrightError as error:
        messages.append(str(error))
ctx.append("C")
turn = await ctx.generate(max_tokens=3, ignore_eos=True)
return messages, turn.tokens
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            messages, tokens = await result_of(system, body)
            assert messages == [
                "span: 1 … 4 is not within the context's 3 tokens",
                "span: -1 … 2 is not within the context's 3 tokens",
                "span: 2 … 1 is not within the context's 3 tokens",
                "truncate: 4 is not from 0 to the context's 3",
                "window: 0 tokens and 0 sinks; at least 1 and 0",
                "the last token, 2, is hidden, and it is the one to ask: append something first",
            ]
            context = dense(256, 65, 66)
            context.hide(2, 3)
            context.append([67])
            assert tokens == context.generate(3)[0]

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_provenance_says_what_made_a_context_approximate_until_it_is_forgotten(sandbox: str) -> None:
    body = """
ctx = Context()
ctx.append(ids)
found = [repr(ctx.provenance())]
await ctx.hide((5, 9))
found.append(repr(ctx.provenance()))
await ctx.window(16, 3)
ctx.append("more")
await ctx.flush()
found.append(repr(ctx.provenance()))
await ctx.forget((5, 9))
await ctx.window(None)
found.append(repr(ctx.provenance()))
return found
"""

    async def scenario() -> None:
        async with byte_system() as system:
            last = len(PROMPT) - 1
            hidden = f"Cause(start={last}, hidden=((5, 9),), window=None)"
            windowed = f"Cause(start={last}, hidden=(), window=(16, 16))"
            assert json.loads(json.dumps(await result_of(system, body, sandbox, ids=PROMPT))) == [
                "Exact()",
                f"Approximate(causes=({hidden},))",
                f"Approximate(causes=({hidden}, {windowed}))",
                f"Approximate(causes=({windowed.replace(str(last), str(last - 4))},))",
            ]

    in_loop(scenario)


def test_a_page_is_masked_by_hand() -> None:
    body = """
queue, asked = Queue(), {"distributions": [{"k": 260}]}
await queue.forward_text(pages=[], grow_from=100, kv_len=0, tokens=ids[:32], positions=list(range(32)))
await queue.mask_page(101, [place >= 10 for place in range(16)])
rest = {"pages": [100, 101], "grow_from": 102, "kv_len": 32, "tokens": ids[32:40], "positions": list(range(32, 40))}
answer = await queue.forward_text(**rest, **asked)
return [logprob for _, logprob in sorted(Distribution(answer["distributions"][0]))]
"""

    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            context = dense(*PROMPT[:33])
            context.hide(16, 26)
            context.append(PROMPT[33:40])
            found = await result_of(system, body, ids=PROMPT)
            assert found == pytest.approx(list(context.logprobs()[-1]), abs=1e-5, rel=1e-5)

    in_loop(scenario)


def batches_of(system: System) -> list[Any]:
    batches: list[Any] = system.executor.batches  # type: ignore[attr-defined]
    return batches
