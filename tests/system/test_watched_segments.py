"""`Context.watch` over the real engine and the byte model: equal to a program that takes every token by itself."""

import msgspec
import pytest

from loopwright.core.calls import Sampling
from sampler_rig import source_of
from system_rig import System, byte_oracle, byte_system, in_loop

PROMPT = "The quick brown fox jumps over"
IDS = [256, *PROMPT.encode()]
SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]


async def result_of(system: System, body: str, sandbox: str = "native", prelude: str = "", **arguments: object) -> list:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    parameters = ", ".join(f"{name}=None" for name in arguments)
    head = f"from loopwright import *\n{prelude}\nasync def main({parameters}):\n    ctx = Context(seed=5)\n"
    source = f'{head}    ctx.append("The quick brown fox jumps over")\n{lines}\n'
    return (await system.run(source, sandbox, **arguments)).result


def looked_at(num_tokens: int, is_banned, **sampling: object) -> list[int]:
    """The one-request loop that draws each token again, without those that were vetoed in its place."""
    oracle, tokens = byte_oracle(), list(IDS)
    settings = Sampling(**sampling)  # type: ignore[arg-type]
    while len(tokens) < len(IDS) + num_tokens:
        banned: set[int] = set()
        while True:
            allowed = tuple(one for one in settings.allowed or range(260) if one not in banned)
            one = msgspec.structs.replace(settings, allowed=allowed, generated=tuple(tokens[len(IDS) :]))
            token = oracle.generate(tokens, one, 1).tokens[0]
            if not is_banned(token) or len(banned) == 3:
                break
            banned.add(token)
        tokens.append(token)
    return tokens[len(IDS) :]


WATCH = """
num_vetoes, seen = 0, []
async with ctx.watch(window=window, max_tokens=24, ignore_eos=True, **options) as watched:
    async for token in watched:
        seen = [*seen[: token.index], token.id]
        if token.id % 3 == 0 and num_vetoes < 3:
            watched.veto()
            num_vetoes += 1
        else:
            num_vetoes = 0
turn = watched.turn
after = await ctx.generate(max_tokens=4, ignore_eos=True)
return [turn.tokens, seen, turn.logprobs, turn.reason, ctx.tokens, after.tokens]
"""


@pytest.mark.parametrize("window", [1, 2, 8, 64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.3},
        {"temperature": 1.0, "allowed": list(range(97, 123)), "logit_bias": {"99": 2.0}},
    ],
    ids=["greedy", "drawn", "penalties", "allowed"],
)
def test_a_watched_segment_equals_the_loop_that_looks_at_every_token(window: int, options: dict) -> None:
    fields = {**options, "logit_bias": {int(one): bias for one, bias in options.get("logit_bias", {}).items()}}
    if "allowed" in fields:
        fields["allowed"] = tuple(fields["allowed"])
    expected = looked_at(24, lambda token: token % 3 == 0, seed=5, **fields)

    async def scenario() -> None:
        async with byte_system() as system:
            tokens, seen, logprobs, reason, context, after = await result_of(
                system, WATCH, window=window, options=options
            )
            assert tokens == seen == expected
            logits = byte_oracle().logits([*IDS, *expected]).double().log_softmax(-1)
            own = [float(logits[len(IDS) - 1 + place, token]) for place, token in enumerate(expected)]
            assert logprobs == pytest.approx(own, abs=1e-5)
            assert reason == "length"
            assert after == list(byte_oracle().generate([*IDS, *expected], Sampling(), 4).tokens)
            assert context == [*IDS, *expected, *after]

    in_loop(scenario)


@pytest.mark.wasm
def test_watching_works_the_same_in_the_sandbox() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            arguments = {"window": 4, "options": {"temperature": 0.9}}
            tokens, seen, *_ = await result_of(system, WATCH, "wasm", **arguments)
            assert tokens == seen == looked_at(24, lambda token: token % 3 == 0, seed=5, temperature=0.9)

    in_loop(scenario)


def test_a_veto_without_a_ban_makes_the_same_draw_again() -> None:
    body = """
ids = []
async with ctx.watch(window=5, max_tokens=8, temperature=1.0, ignore_eos=True) as watched:
    async for token in watched:
        ids.append([token.index, token.id])
        if ids.count([token.index, token.id]) < 3:
            watched.veto(ban=False)
return [ids, watched.turn.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            ids, tokens = await result_of(system, body)
            expected = list(byte_oracle().generate(IDS, Sampling(seed=5, temperature=1.0), 8).tokens)
            assert tokens == expected
            assert ids == [[index, token] for index, token in enumerate(expected) for _ in range(3)]

    in_loop(scenario)


def test_looking_without_a_veto_gives_the_segment_as_it_is_and_its_text() -> None:
    body = """
async with ctx.watch(window=4, max_tokens=12, stop=stop, ignore_eos=True) as watched:
    seen = [token.id async for token in watched]
return [seen, watched.turn.tokens, watched.turn.text, watched.turn.reason]
"""
    tokens = list(byte_oracle().generate(IDS, Sampling(), 12).tokens)
    text = bytes(tokens).decode(errors="replace")
    stop = next(one for one in text[2:] if one not in text[:2] and one.isascii())

    async def scenario() -> None:
        async with byte_system() as system:
            seen, got, shown, reason = await result_of(system, body, stop=stop)
            end = tokens.index(ord(stop)) + 1
            assert seen == got == tokens[:end]
            assert (shown, reason) == (text.partition(stop)[0], "stop")

    in_loop(scenario)


def test_leaving_the_block_keeps_what_was_looked_at_and_frees_what_ran_ahead() -> None:
    body = """
async with ctx.watch(window=40, max_tokens=200, top_logprobs=2, ignore_eos=True) as watched:
    async for token in watched:
        if token.index == 6:
            break
kept = ctx.tokens
after = await ctx.generate(max_tokens=3, ignore_eos=True)
return [watched.turn.tokens, watched.turn.reason, len(kept), len(token.top_logprobs), after.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            tokens, reason, num_kept, num_top, after = await result_of(system, body)
            expected = list(byte_oracle().generate(IDS, Sampling(), 10).tokens)
            assert (tokens, after) == (expected[:7], expected[7:])
            assert (reason, num_kept, num_top) == ("interrupted", len(IDS) + 7, 2)

    in_loop(scenario)


def test_a_veto_takes_back_a_stop_string_a_grammar_and_a_samplers_state_with_the_token() -> None:
    body = """
turns = []
for options in ({"stop": stop}, {"grammar": regex("[a-c]{4}|[x-z]{12}")}, {"sampler": presence, "state": STATE}):
    own = await ctx.fork()
    vetoes = 0
    async with own.watch(window=16, max_tokens=12, temperature=0.9, seed=5, ignore_eos=True, **options) as watched:
        async for token in watched:
            if token.index == 2 and vetoes < 2:
                vetoes += 1
                watched.veto()
    turns.append([watched.turn.text, watched.turn.reason, watched.turn.tokens, watched.turn.sampler_state.get("num")])
return turns
"""
    plain = list(byte_oracle().generate(IDS, Sampling(seed=5, temperature=0.9), 12).tokens)
    stop = bytes(plain[2:4]).decode("ascii", errors="ignore") or "zz"

    async def scenario() -> None:
        async with byte_system() as system:
            stopped, formed, sampled = await result_of(system, body, prelude=source_of("presence"), stop=stop)
            assert stopped[2][:2] == plain[:2]
            assert stopped[2][2] != plain[2]
            assert stopped[1] == "length"
            assert formed[1] == "grammar_end"
            assert len(formed[0]) in (4, 12)
            assert sampled[3] == len(sampled[2]) == 12.0

    in_loop(scenario)


def test_the_text_of_a_watched_segment_is_not_sent_while_it_may_be_taken_back() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            body = """
try:
    await ctx._segments.whole(emit=True, options={"watch": 4})
except BadRequest as error:
    return [error.field]
"""
            assert await result_of(system, body) == ["emit"]

    in_loop(scenario)


def test_a_veto_has_a_token_to_take_back_or_is_refused_where_it_stands() -> None:
    body = """
told = []
async with ctx.watch(max_tokens=4, ignore_eos=True) as watched:
    try:
        watched.veto()
    except LoopwrightError as error:
        told.append(error.message)
    async for token in watched:
        if not told[1:]:
            watched.veto()
            try:
                watched.veto()
            except LoopwrightError as error:
                told.append(error.message)
return [told, len(watched.turn.tokens)]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            told, num_tokens = await result_of(system, body)
            assert [message[:26] for message in told] == ["there is no token to veto:"] * 2
            assert num_tokens == 4

    in_loop(scenario)


UNTIL = """
async def watched(ctx, **options):
    num_vetoes = 0
    async with ctx.watch(window=window, max_tokens=max_tokens, ignore_eos=True, **options) as watched:
        async for token in watched:
            if token.id % 3 == 0 and num_vetoes < 3:
                watched.veto()
                num_vetoes += 1
            else:
                num_vetoes = 0
    return watched.turn

by_hand = await ctx.fork()
turn = await watched(ctx, until=until)
other = await watched(by_hand, stop=until)
by_hand.append(until)
await ctx.flush()
await by_hand.flush()
after = await ctx.generate(max_tokens=4, ignore_eos=True, seed=1)
by_hand_after = await by_hand.generate(max_tokens=4, ignore_eos=True, seed=1)
same = [turn.text == other.text, ctx.tokens == by_hand.tokens, after.tokens == by_hand_after.tokens]
return [same, turn.reason, turn.text, ctx.tokens]
"""


@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize(("max_tokens", "why"), [(24, "stop"), (3, "length")])
def test_a_watched_segment_goes_until_a_text_and_its_context_has_it(window: int, max_tokens: int, why: str) -> None:
    tokens = looked_at(24, lambda token: token % 3 == 0)
    place = next(place for place in range(4, 23) if max(tokens[place : place + 2]) < 128)
    until = bytes(tokens[place : place + 2]).decode()
    full = bytes(token for token in tokens if token < 256)
    kept = full[: full.index(until.encode())] if why == "stop" else full[:3]

    async def scenario() -> None:
        async with byte_system() as system:
            body = UNTIL.replace("window=window", f"window={window}").replace(
                "max_tokens=max_tokens", f"max_tokens={max_tokens}"
            )
            same, reason, text, ids = await result_of(system, body, until=until)
            assert (same, reason) == ([True, True, True], why)
            assert text.encode() == kept.decode(errors="replace").encode()
            assert bytes(ids[-4 - len(until) : -4]).decode() == until

    in_loop(scenario)
