"""Hiding, windows, forgetting and forks over the real engine equal a dense mask in the oracle, and leave no page."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from view_model import PAGE, DenseContext

from loopwright.compose.config import RuntimeConfig
from system_rig import System, WatchedExecutor, byte_system, in_loop

NATIVE_ONLY = RuntimeConfig(allows_native=True, needs_wasm=False)

# Does what it is told, by the names of methods, and tells what came of each.
PUPPET = """
from loopwright import *

async def main(orders):
    contexts, answers = [Context()], []
    for number, verb, *values in orders:
        ctx = contexts[number]
        answer = None
        if verb == "append":
            ctx.append(values[0])
        elif verb == "generate":
            turn = await ctx.generate(max_tokens=values[0], ignore_eos=True)
            answer = [list(turn.tokens), list(turn.logprobs)]
        elif verb == "next_dist":
            dist = await ctx.next_dist(k=260)
            answer = [logprob for _, logprob in sorted(dist)]
        elif verb == "verify":
            answer = list((await ctx.verify(values[0])).tokens)
        elif verb == "score":
            answer = [list(one.logprobs) for one in await ctx.score(values[0])]
        elif verb == "fork":
            contexts.append(await ctx.fork())
        elif verb == "close":
            ctx.close()
        elif verb in ("hide", "forget"):
            await getattr(ctx, verb)(range(*values))
        elif verb == "attend":
            await ctx.attend([tuple(span) for span in values[0]])
        else:
            await getattr(ctx, verb)(*values)
        answers.append([answer, type(ctx.provenance()).__name__, ctx.num_pages, len(ctx.tokens)])
    return answers
"""

Order = list[Any]


class Plan:
    """Orders for the puppet and, step by step, what a dense mask says to them."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.contexts = [DenseContext()]
        self.expected: list[Any] = []
        self.num_most_pages: list[int | None] = []  # after each order; None: it may hold any number
        self.facts: list[tuple[bool, int]] = []

    def give(self, number: int, verb: str, *values: Any) -> None:
        ctx = self.contexts[number]
        answer: Any = None
        if verb in ("next_dist", "verify", "generate", "score") and (not ctx.tokens or ctx.is_last_hidden):
            self.give(number, "append", [65, 66])
        if verb == "next_dist":
            answer = list(ctx.logprobs()[-1])
        elif verb == "verify":
            answer = ctx.generate(1)[0]
            while answer[-1:] == values[0][len(answer) - 1 :][:1]:
                answer += ctx.generate(1)[0]
        elif verb == "generate":
            answer = list(ctx.generate(values[0]))
        elif verb == "score":
            answer = [ctx.score(ids) for ids in values[0]]
        elif verb == "fork":
            self.contexts.append(ctx.fork())
        elif verb == "forget":
            ctx.forget(set(range(*values)))
        elif verb not in ("flush", "close"):
            getattr(ctx, verb)(*values)
        self.orders.append([number, verb, *values])
        self.expected.append(answer)
        is_tight = verb in ("generate", "flush", "hide", "attend", "forget", "truncate", "window") and not ctx.is_exact
        self.num_most_pages.append(-(-(ctx.num_seen + 2) // PAGE) if is_tight else None)
        self.facts.append((ctx.is_exact, len(ctx.tokens)))

    def check(self, answers: list[Any]) -> None:
        for place, (answer, provenance, num_pages, num_tokens) in enumerate(answers):
            order, expected, most = self.orders[place], self.expected[place], self.num_most_pages[place]
            assert _close(answer, expected), (place, self.orders[: place + 1], answer, expected)
            assert most is None or num_pages <= most, (place, order, num_pages, most)
            is_exact, length = self.facts[place]
            if order[1] not in ("append", "fork"):
                assert num_tokens == length, (place, order)
            if is_exact and order[1] not in ("append",):
                assert order[1] in LOOKS or provenance == "Exact", (place, order)
            if provenance == "Exact":
                assert is_exact, (place, order)


LOOKS = ("hide", "attend", "window", "flush", "next_dist", "score", "fork", "truncate", "forget", "close")


def _close(answer: Any, expected: Any) -> bool:
    if isinstance(expected, list | tuple):
        return len(answer) == len(expected) and all(map(_close, answer, expected))
    if isinstance(expected, float):
        return abs(answer - expected) < 2e-5
    return bool(answer == expected)


async def answers_to(system: System, orders: list[Order], sandbox: str = "native") -> list[Any]:
    result: list[Any] = (await system.run(PUPPET, sandbox, orders=orders)).result
    return result


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan = Plan()
    plan.give(0, "append", [256, *draw(st.binary(min_size=1, max_size=60))])
    for _ in range(draw(st.integers(1, 10))):
        number = draw(st.integers(0, len(plan.contexts) - 1))
        verb = draw(st.sampled_from(VERBS))
        length = len(plan.contexts[number].tokens)
        places = sorted(draw(st.lists(st.integers(0, length), min_size=4, max_size=4)))
        if verb == "append":
            plan.give(number, verb, list(draw(st.binary(min_size=1, max_size=40))))
        elif verb == "generate":
            plan.give(number, verb, draw(st.integers(1, 20)))
        elif verb == "verify":
            plan.give(number, verb, list(draw(st.binary(max_size=3))))
        elif verb in ("hide", "forget"):
            plan.give(number, verb, *places[1:3])
        elif verb == "attend":
            plan.give(number, verb, [places[:2], places[2:]])
        elif verb == "window":
            plan.give(number, verb, draw(st.none() | st.integers(1, 40)), draw(st.integers(0, 20)))
        elif verb == "truncate":
            plan.give(number, verb, places[3])
        elif verb == "score":
            plan.give(number, verb, [list(one) for one in draw(CANDIDATES)])
        elif verb != "fork" or len(plan.contexts) < 3:
            plan.give(number, verb)
    for number in range(len(plan.contexts)):
        plan.give(number, "next_dist")
    return plan


VERBS = (
    "append", "generate", "next_dist", "verify", "flush", "fork", "hide", "attend", "window", "forget", "truncate",
    "score",
)  # fmt: skip
CANDIDATES = st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans())
def test_any_sequence_of_views_equals_a_dense_mask(plan: Plan) -> None:
    async def scenario() -> None:
        async with byte_system(runtime=NATIVE_ONLY) as system:
            plan.check(await answers_to(system, plan.orders))

    in_loop(scenario)
