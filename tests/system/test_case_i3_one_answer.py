"""Case I3. Plain, speculative, watched while it runs ahead, from the prefix cache, on a fork: the same request under
a grammar, a stop string, bias, penalties, or with processed log-probabilities is one answer, the one-request loop's.

A program's drafts know no grammar. There, what speculates are the tokens that the grammar forces: they ride as drafts,
and only a window of 1 runs them one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from loopwright.core.grammars import Grammar
from loopwright.core.model_info import WeightDtype
from loopwright.core.results import TopLogprobs
from loopwright.engine.byte_model import byte_model
from loopwright.engine.oracle import Oracle
from loopwright.grammar.pool import GrammarPool
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import System, WatchedExecutor, byte_oracle, byte_system, in_loop

PROMPT = "One request has one answer, whichever way it is taken"
IDS = [256, *PROMPT.encode()]
NUM_TOKENS, PAGE_SIZE = 24, 16
PATTERN = "(ab|cd)[e-h]{3} - forced - [a-z]{6}"
LETTERS = [32, *range(97, 123)]
BASE: dict[str, Any] = {"temperature": 1.0, "top_p": 0.97, "seed": 21, "top_logprobs": 2, "allowed": LETTERS}
FEATURES: dict[str, dict[str, Any]] = {
    "grammar": {"allowed": None, "grammar": PATTERN},
    "stop": {"stop": None},  # two letters of the answer
    "bias": {"logit_bias": {"101": 4.0, "32": -3.0, "120": 2.5}},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    "logprobs": {"logprobs": "processed", "top_logprobs": 5, "min_p": 0.01},
}

PROGRAM = '''
from loopwright import Context, regex

def answer(turn, text=None):
    return [turn.tokens, turn.logprobs, turn.top_logprobs, turn.text if text is None else text]

async def speculate(ctx, max_tokens, guesses, stop=None, **options):
    """Every third guess is wrong."""
    tokens, logprobs, tops, fates = [], [], [], [0, 0]
    while len(tokens) < max_tokens:
        ahead = guesses[len(tokens):][:min(5, max_tokens - len(tokens) - 1)]
        drafts = [97 + (one + 1) % 26 if (len(tokens) + place) % 3 == 2 else one for place, one in enumerate(ahead)]
        verified = await ctx.verify(drafts, **options)
        for token, logprob, top in zip(verified.tokens, verified.logprobs, verified.top_logprobs):
            tokens.append(token)
            logprobs.append(logprob)
            tops.append(top)
            text = bytes(tokens).decode()
            if stop is not None and stop in text:
                return [tokens, logprobs, tops, text.partition(stop)[0]], fates
        fates[0] += verified.num_accepted
        fates[1] += len(drafts) - verified.num_accepted
    return [tokens, logprobs, tops, bytes(tokens).decode()], fates

async def watch(ctx, window, vetoes, **options):
    """A veto without a ban takes the token back, with all that ran ahead, and the same draw is made again."""
    left = set(vetoes)
    async with ctx.watch(window=window, **options) as watched:
        async for token in watched:
            if token.index in left:
                left.remove(token.index)
                watched.veto(ban=False)
    return watched.turn

async def main(prompt, way, options: dict, guesses: list[int], window: int = 5, vetoes: list[int] = []):
    options = {name: regex(one) if name == "grammar" else one for name, one in options.items() if one is not None}
    ctx = Context()
    ctx.append(prompt)
    if way == "speculative":
        return await speculate(ctx, guesses=guesses, **options)
    options["ignore_eos"] = True
    if way == "watched":
        turn = await watch(ctx, window, vetoes, **options)
    elif way == "forked":
        other = await ctx.fork()
        other.append("and now for something else")
        aside = await other.generate(max_tokens=3)
        turn = await (await ctx.fork()).generate(**options)
    else:
        turn = await ctx.generate(**options)
    return [answer(turn), turn.cached_tokens]
'''


@dataclass(frozen=True)
class Answer:
    """What the one-request loop says."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    tops: Sequence[TopLogprobs]
    text: str


def oracle_answer(feature: str, oracle: Oracle) -> tuple[Answer, dict[str, Any]]:
    """With the options that a program is given."""
    options = {**BASE, **FEATURES[feature], "max_tokens": NUM_TOKENS + (feature == "grammar") * 10}
    fields = {name: one for name, one in options.items() if name not in ("grammar", "stop", "max_tokens")}
    fields["logit_bias"] = {int(token): bias for token, bias in options.get("logit_bias", {}).items()}
    fields["allowed"] = None if options["allowed"] is None else tuple(options["allowed"])
    sampling = Sampling(**fields, seen=tuple(IDS))
    if feature == "grammar":
        generated = in_grammar(oracle, sampling, options["max_tokens"])
    else:
        generated = oracle.generate(IDS, sampling, NUM_TOKENS)
    tokens, num_tokens = generated.tokens, len(generated.tokens)
    text = bytes(tokens).decode()
    if feature == "stop":
        options["stop"] = stop = text[13:15]
        num_tokens = text.index(stop) + len(stop)
        text = text.partition(stop)[0]
    logprobs, tops = generated.logprobs[:num_tokens], generated.top_logprobs[:num_tokens]
    return Answer(tokens[:num_tokens], logprobs, tops, text), options


def in_grammar(oracle: Oracle, sampling: Sampling, max_tokens: int) -> Any:
    pool = GrammarPool(byte_tokenizer(), byte_model().config.vocab_size)
    try:
        state = pool.compile(Grammar("regex", PATTERN)).result().start()
        return oracle.generate(IDS, sampling, max_tokens, grammar=state)
    finally:
        pool.close()


def check(found: list[Any], expected: Answer) -> None:
    tokens, logprobs, tops, text = found
    assert tokens == list(expected.tokens)
    assert text == expected.text
    assert logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    for top, own in zip(tops, expected.tops, strict=True):
        assert [token for token, _ in top] == [token for token, _ in own]
        assert [one for _, one in top] == pytest.approx([one for _, one in own], abs=1e-5)


def num_forced(system: System) -> int:
    """Drafts that a grammar forced, so far."""
    assert isinstance(system.executor, WatchedExecutor)
    rows = [row for batch in system.executor.batches for row in batch.all_rows]
    return sum(row.num_drafts for row in rows if row.are_drafts_forced)


@pytest.mark.parametrize("feature", FEATURES)
def test_one_request_has_one_answer_whichever_way_it_is_taken(feature: str) -> None:
    hold_one_answer(feature, byte_oracle(), "float32")


def hold_one_answer(feature: str, oracle: Oracle, dtype: WeightDtype) -> None:
    """Every way of taking the request, over an engine of that dtype, says what the oracle says."""
    expected, options = oracle_answer(feature, oracle)

    async def scenario() -> None:
        async def take(system: System, way: str, **more: Any) -> Any:
            arguments = {"prompt": PROMPT, "way": way, "options": options, "guesses": list(expected.tokens), **more}
            return (await system.run(PROGRAM, **arguments)).result

        async with byte_system(dtype=dtype, control=ControlConfig(prefix_cache=False)) as system:
            watched, _ = await take(system, "watched", window=1)
            check(watched, expected)
            assert num_forced(system) == 0
            for way in ("plain", "forked"):
                found, num_cached = await take(system, way)
                check(found, expected)
                assert num_cached == 0
            assert (num_forced(system) > 0) == (feature == "grammar")
            for window, vetoes in ((2, [0, 1, 7]), (5, [3, 9, 10]), (64, [len(expected.tokens) - 1])):
                found, _ = await take(system, "watched", window=window, vetoes=vetoes)
                check(found, expected)
            if feature != "grammar":
                found, (num_accepted, num_rejected) = await take(system, "speculative")
                check(found, expected)
                assert num_accepted > 3
                assert num_rejected > 3
        async with byte_system(dtype=dtype) as system:
            assert (await take(system, "plain"))[1] == 0
            for way, more in (("plain", {}), ("forked", {}), ("watched", {"vetoes": [2, 5]})):
                found, num_cached = await take(system, way, **more)
                check(found, expected)
                assert num_cached == (0 if way == "forked" else len(IDS) // PAGE_SIZE * PAGE_SIZE)

    in_loop(scenario)
