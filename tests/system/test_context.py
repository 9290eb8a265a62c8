"""Context over the real engine and the byte model: whatever a program does, tokens equal the one-request loop's."""

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest

from loopwright.core.calls import Sampling
from system_rig import System, byte_oracle, byte_system, in_loop

PROMPT = "The quick brown fox jumps over"
SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]


def ids_of(text: str) -> list[int]:
    return [256, *text.encode()]  # the byte model starts every context with its BOS


def expected(prompt: list[int], num_tokens: int, **sampling: object) -> list[int]:
    return list(byte_oracle().generate(prompt, Sampling(**sampling), num_tokens, ()).tokens)  # type: ignore[arg-type]


async def result_of(system: System, body: str, sandbox: str = "native", **arguments: object) -> object:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    parameters = ", ".join(f"{name}=None" for name in arguments)
    source = f"import asyncio\nfrom loopwright import *\nasync def main({parameters}):\n{lines}\n"
    return (await system.run(source, sandbox, **arguments)).result


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_generate_equals_the_oracle_greedy_and_seeded(sandbox: str) -> None:
    body = """
ctx = Context()
ctx.append(prompt)
greedy = await ctx.generate(max_tokens=40, ignore_eos=True)
other = Context(seed=5)
other.append(prompt)
drawn = await other.generate(max_tokens=40, temperature=0.9, top_p=0.9, ignore_eos=True)
return [greedy.tokens, drawn.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            greedy, drawn = await result_of(system, body, sandbox, prompt=PROMPT)  # type: ignore[misc]
            assert greedy == expected(ids_of(PROMPT), 40)
            assert drawn == expected(ids_of(PROMPT), 40, temperature=0.9, top_p=0.9, seed=5)

    in_loop(scenario)


@pytest.mark.parametrize(("max_tokens", "why"), [(60, "stop"), (2, "length")])
def test_a_context_has_the_text_that_a_segment_went_until_whatever_ended_it(max_tokens: int, why: str) -> None:
    full = bytes(token for token in expected(ids_of(PROMPT), 60) if token < 256)
    until = next(pair for pair in map(bytes, pairwise(full[2:])) if max(pair) < 128).decode()

    async def scenario() -> None:
        async with byte_system() as system:
            body = """
ctx = Context()
ctx.append(prompt)
turn = await ctx.generate(max_tokens=max_tokens, until=until, ignore_eos=True)
after = await ctx.generate(max_tokens=20, ignore_eos=True)
by_hand = Context()
by_hand.append(prompt)
other = await by_hand.generate(max_tokens=max_tokens, stop=until, ignore_eos=True)
by_hand.append(until)
await by_hand.flush()
return [turn.reason, turn.text == other.text, ctx.tokens[:-20] == by_hand.tokens, ctx.tokens, after.tokens]
"""
            arguments = {"prompt": PROMPT, "until": until, "max_tokens": max_tokens}
            reason, same_text, same_tokens, tokens, after = await result_of(system, body, **arguments)  # type: ignore[misc]
            assert (same_text, same_tokens) == (True, True)
            assert reason == why
            assert tokens[:-20][-len(until.encode()) :] == list(until.encode())
            assert after == expected(tokens[:-20], 20)

    in_loop(scenario)


@pytest.mark.parametrize("until", ["", 3])
def test_a_segment_goes_until_no_empty_text(until: object) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            body = """
ctx = Context()
ctx.append("a")
try:
    await ctx.generate(until=until, max_tokens=1)
except BadRequest as error:
    return [error.field, str(error)]
"""
            field, message = await result_of(system, body, until=until)  # type: ignore[misc]
            assert field == "until"
            assert repr(until) in message

    in_loop(scenario)


def test_a_context_that_goes_on_after_a_stop_string_holds_exactly_the_text_before_it() -> None:
    full = bytes(token for token in expected(ids_of(PROMPT), 60) if token < 256)
    stop = full[10:12].decode("latin-1")

    async def scenario() -> None:
        async with byte_system() as system:
            body = """
ctx = Context()
ctx.append(prompt)
turn = await ctx.generate(max_tokens=60, stop=stop, ignore_eos=True)
ctx.append(" and then")
after = await ctx.generate(max_tokens=20, ignore_eos=True)
return [turn.reason, turn.text, ctx.tokens, after.tokens]
"""
            reason, text, tokens, after = await result_of(system, body, prompt=PROMPT, stop=stop)  # type: ignore[misc]
            kept = tokens[: len(tokens) - 20]
            assert kept == [*ids_of(PROMPT), *text.encode(), *b" and then"] or "\ufffd" in text
            assert after == expected(kept, 20)
            assert reason in ("stop", "length")

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_stream_joins_to_the_turn_and_leaving_it_early_keeps_the_context_whole(sandbox: str) -> None:
    body = """
ctx = Context()
ctx.append(prompt)
stream = ctx.stream(max_tokens=30, ignore_eos=True)
chunks = [chunk async for chunk in stream]
joined = "".join(chunk.text for chunk in chunks)
count = 0
async for chunk in ctx.stream(max_tokens=1000, ignore_eos=True):
    count += len(chunk.tokens)
    if count >= 5:
        break
last = await ctx.generate(max_tokens=8, ignore_eos=True)
return [joined == stream.turn.text, sum(len(c.tokens) for c in chunks), ctx.tokens, last.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            same, count, tokens, last = await result_of(system, body, sandbox, prompt=PROMPT)  # type: ignore[misc]
            assert same
            assert count == 30
            prompt = ids_of(PROMPT)
            assert 30 + 5 + 8 <= len(tokens) - len(prompt) < 30 + 1000
            assert tokens == [*prompt, *expected(prompt, len(tokens) - len(prompt))]
            assert last == tokens[-8:]

    in_loop(scenario)


def test_next_dist_tells_entropy_logits_and_what_a_mask_leaves() -> None:
    body = """
ctx = Context()
ctx.append(prompt)
dist = await ctx.next_dist(k=2, must_include=[9], allowed=[101, 32, 97], entropy=True, logits=True)
whole = await ctx.next_dist(k=1, entropy=True)
listed = [[token, max(logprob, -1e9)] for token, logprob in dist]  # JSON knows no infinity
return [listed, dist.entropy, dist.allowed_mass, dist.truncated, list(dist.logits), whole.entropy, whole.logits]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            found = await result_of(system, body, prompt=PROMPT)
            pairs, entropy, mass, truncated, logits, whole_entropy, no_logits = found  # type: ignore[misc]
            own = byte_oracle().logits(ids_of(PROMPT))[-1].double().numpy()
            np.testing.assert_allclose(logits, own, atol=1e-4)
            logprobs = np.array(logits) - np.logaddexp.reduce(logits)
            ids = sorted([32, 97, 101], key=lambda one: -logprobs[one])
            masked = logprobs[ids] - np.logaddexp.reduce(logprobs[ids])
            assert [token for token, _ in pairs] == [*ids[:2], 9]
            assert [logprob for _, logprob in pairs] == pytest.approx([*masked[:2], -1e9], abs=1e-5)
            assert entropy == pytest.approx(-float((np.exp(masked) * masked).sum()), abs=1e-5)
            assert mass == pytest.approx(float(np.exp(logprobs[ids]).sum()), abs=1e-5)
            assert whole_entropy == pytest.approx(-float((np.exp(logprobs) * logprobs).sum()), abs=1e-5)
            assert (truncated, no_logits) == (True, None)

    in_loop(scenario)


def test_penalties_count_what_the_model_wrote_since_the_program_wrote() -> None:
    """So a loop of short generations equals one long one, and a new question forgives the old answer."""
    body = """
options = {"temperature": 1.0, "seed": 4, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "ignore_eos": True}
whole, pieces = Context(), Context()
for ctx in (whole, pieces):
    ctx.append(prompt)
long = await whole.generate(max_tokens=20, **options)
parts = []
for size in (1, 7, 1, 11):
    parts += (await pieces.generate(max_tokens=size, **options)).tokens
fork = await pieces.fork()
forked = await fork.generate(max_tokens=5, **options)
pieces.append(" and then")
after = await pieces.generate(max_tokens=5, **options)
return [long.tokens, parts, forked.tokens, after.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            whole, parts, forked, after = await result_of(system, body, prompt=PROMPT)  # type: ignore[misc]
            given = {"temperature": 1.0, "seed": 4, "frequency_penalty": 1.5, "repetition_penalty": 1.3}
            start = ids_of(PROMPT)
            assert whole == parts == expected(start, 20, **given, seen=tuple(start))
            longer = [*start, *whole]
            assert forked == expected(longer, 5, **given, seen=tuple(start), generated=tuple(whole))
            again = [*longer, *b" and then"]
            assert after == expected(again, 5, **given, seen=tuple(again))

    in_loop(scenario)


def test_verified_tokens_join_an_open_turn_and_bad_drafts_leave_the_context_as_it_was() -> None:
    body = """
ctx = Context(seed=1)
ctx.user("hi")
first = await ctx.verify([], temperature=1.0)
try:
    await ctx.verify([999], temperature=1.0)
except BadRequest as error:
    message = str(error)
second = await ctx.verify([first.tokens[0], 1], temperature=1.0)
ctx.user("and")
turn = await ctx.generate(max_tokens=4, ignore_eos=True)
return [first.tokens, second.tokens, message, ctx.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            first, second, message, tokens = await result_of(system, body)  # type: ignore[misc]
            assert "token 999 is not in the vocabulary" in message
            tokenizer, template = system.text.tokenizer, system.text.chat_template
            assert template is not None
            said = tokenizer.decode([*first, *second])
            assert said in tokenizer.decode(tokens)
            opened = template.render_delta([{"role": "user", "content": "hi"}], 0, False, True)
            assert tokens[: len(opened)] == opened
            assert tokens[len(opened) :][: len(first) + len(second)] == [*first, *second]
            sampling = {"temperature": 1.0, "seed": 1}
            assert [*first, *second] == expected(opened, len(first) + len(second), **sampling)

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_forks_go_their_own_way_and_equal_runs_of_their_own(sandbox: str) -> None:
    body = """
trunk = Context()
trunk.append(prompt)
forks = [await trunk.fork() for _ in range(4)]
for number, fork in enumerate(forks):
    fork.append(f" way {number}")
turns = await asyncio.gather(*(fork.generate(max_tokens=20, ignore_eos=True) for fork in forks))
deep = await forks[0].fork()
deep_turn = await deep.generate(max_tokens=20, ignore_eos=True)
trunk_turn = await trunk.generate(max_tokens=20, ignore_eos=True)
return [[turn.tokens for turn in turns], deep_turn.tokens, trunk_turn.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            forks, deep, trunk = await result_of(system, body, sandbox, prompt=PROMPT)  # type: ignore[misc]
            for number, tokens in enumerate(forks):
                assert tokens == expected([*ids_of(PROMPT), *f" way {number}".encode()], 20)
            assert deep == expected([*ids_of(PROMPT), *b" way 0", *forks[0]], 20)
            assert trunk == expected(ids_of(PROMPT), 20)

    in_loop(scenario)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33])
def test_a_fork_at_any_place_of_a_page_leaves_both_sides_right(length: int) -> None:
    body = """
trunk = Context()
trunk.append(ids)
await trunk.flush()
dist = await trunk.next_dist(k=4)
fork = await trunk.fork()
again = await fork.next_dist(k=4)
a = await trunk.generate(max_tokens=20, ignore_eos=True)
b = await fork.generate(max_tokens=20, ignore_eos=True)
return [list(dist.ids) == list(again.ids), a.tokens, b.tokens]
"""

    async def scenario() -> None:
        ids = [256, *range(1, length)]
        async with byte_system() as system:
            same, trunk, fork = await result_of(system, body, ids=ids)  # type: ignore[misc]
            assert same
            assert trunk == fork == expected(ids, 20)

    in_loop(scenario)


def test_next_dist_is_exact_and_a_loop_of_it_equals_generate() -> None:
    body = """
ctx = Context()
ctx.append(prompt)
first = await ctx.next_dist(k=5, must_include=[0, 7])
whole = await ctx.next_dist(k=260)
chosen = []
for _ in range(12):
    dist = await ctx.next_dist(k=1)
    ctx.accept(dist.ids[0])
    chosen.append(dist.ids[0])
return [list(first), [first.covered, first.tail_mass, first.truncated], sum(whole.probabilities().values()), chosen]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            pairs, facts, total, chosen = await result_of(system, body, prompt=PROMPT)  # type: ignore[misc]
            logits = np.asarray(byte_oracle().logits(ids_of(PROMPT))[-1], dtype=np.float64)
            logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            for token, logprob in pairs:
                assert logprob == pytest.approx(logprobs[token], abs=1e-5)
            assert [token for token, _ in pairs][:5] == list(np.argsort(-logprobs, kind="stable")[:5])
            assert {0, 7} <= {token for token, _ in pairs}
            covered = sum(math.exp(logprobs[token]) for token, _ in pairs)
            assert facts == [pytest.approx(covered, abs=1e-5), pytest.approx(1 - covered, abs=1e-5), True]
            assert total == pytest.approx(1)
            assert chosen == expected(ids_of(PROMPT), 12)

    in_loop(scenario)


def test_renormalising_beyond_the_bound_is_an_error_and_never_silent() -> None:
    body = """
ctx = Context()
ctx.append("a")
dist = await ctx.next_dist(k=2)
try:
    dist.probabilities(max_tv=1e-6)
except BoundaryHit as error:
    return [str(error), sum(dist.probabilities(max_tv=1.0).values())]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            message, total = await result_of(system, body)  # type: ignore[misc]
            assert "max_tv is 1e-06" in message
            assert total == pytest.approx(1)

    in_loop(scenario)


def test_choose_takes_the_most_likely_way_at_each_parting_and_continues_from_it() -> None:
    body = """
ctx = Context()
ctx.append(prompt)
picked = await ctx.choose([" north", " south", " somewhere"])
turn = await ctx.generate(max_tokens=10, ignore_eos=True)
return [picked, ctx.tokens, turn.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            picked, tokens, after = await result_of(system, body, prompt=PROMPT)  # type: ignore[misc]
            prompt = [*ids_of(PROMPT), *b" "]
            (first,) = expected(prompt, 1, allowed=(ord("n"), ord("s")))
            assert picked[1] == chr(first)
            assert tokens[: -len(after)] == [*ids_of(PROMPT), *picked.encode()]
            assert after == expected([*ids_of(PROMPT), *picked.encode()], 10)

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_context_survives_a_cancelled_generate(sandbox: str) -> None:
    body = """
ctx = Context()
ctx.append(prompt)
try:
    async with asyncio.timeout(0.05):
        await ctx.generate(max_tokens=3000, ignore_eos=True)
except TimeoutError:
    pass
after = await ctx.generate(max_tokens=5, ignore_eos=True)
return [ctx.tokens, after.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            tokens, after = await result_of(system, body, sandbox, prompt=PROMPT)  # type: ignore[misc]
            assert tokens[-5:] == after
            prompt = ids_of(PROMPT)
            assert tokens == [*prompt, *expected(prompt, len(tokens) - len(prompt))]

    in_loop(scenario)


def test_chat_roles_make_the_same_tokens_in_any_portions() -> None:
    body = """
ctx = Context()
ctx.system("Be brief.")
ctx.user("Hi")
if flushes:
    await ctx.flush()
first = await ctx.generate(max_tokens=6, ignore_eos=True)
ctx.user("More")
if flushes:
    await ctx.flush()
second = await ctx.generate(max_tokens=6, ignore_eos=True)
return [first.tokens, second.tokens, ctx.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            at_once = await result_of(system, body, flushes=False)
            in_portions = await result_of(system, body, flushes=True)
            assert at_once == in_portions
            first, second, tokens = at_once  # type: ignore[misc]
            opening = [256, 258, *b"system\nBe brief.", 259, 10, 258, *b"user\nHi", 259, 10, 258, *b"assistant\n"]
            middle = [259, 10, 258, *b"user\nMore", 259, 10, 258, *b"assistant\n"]
            assert tokens == [*opening, *first, *middle, *second]
            assert first == expected(opening, 6)
            assert second == expected([*opening, *first, *middle], 6)

    in_loop(scenario)


def test_misuse_of_a_context_is_an_error_that_says_what_to_do() -> None:
    body = """
ctx = Context()
errors = []
try:
    await ctx.generate()
except LoopwrightError as error:
    errors.append(str(error))
ctx.append("abc")
task = asyncio.create_task(ctx.generate(max_tokens=50, ignore_eos=True))
await asyncio.sleep(0)
try:
    await ctx.flush()
except LoopwrightError as error:
    errors.append(str(error))
await task
try:
    await ctx.generate(temprature=1)
except TypeError as error:
    errors.append(str(error))
try:
    await ctx.generate(temperature=-1)
except BadRequest as error:
    errors.append(str(error))
try:
    ctx.messages([{"role": "user", "text": "hi"}])
except BadRequest as error:
    errors.append(str(error))
turn = await ctx.generate(max_tokens=3, ignore_eos=True)
ctx.close()
try:
    await ctx.flush()
except LoopwrightError as error:
    errors.append(str(error))
return [errors, len(turn.tokens)]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            errors, count = await result_of(system, body)  # type: ignore[misc]
            words = ("empty", "busy", "temprature", "temperature", "a message has role, text, and no content", "closed")
            for word, text in zip(words, errors, strict=True):
                assert word in text
            assert count == 3

    in_loop(scenario)


def test_contexts_of_many_runs_at_once_equal_their_solo_runs() -> None:
    body = """
ctx = Context(seed=number)
ctx.append(f"{number} bottles of")
turn = await ctx.generate(max_tokens=30, temperature=float(number % 2), ignore_eos=True)
return turn.tokens
"""

    async def scenario() -> None:
        async with byte_system() as system:
            together = await asyncio.gather(*(result_of(system, body, number=number) for number in range(12)))
            for number, tokens in enumerate(together):
                prompt = ids_of(f"{number} bottles of")
                assert tokens == expected(prompt, 30, temperature=float(number % 2), seed=number)

    in_loop(scenario)
