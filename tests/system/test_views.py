"""Hiding, windows, forgetting and forks over the real engine equal a dense mask in the oracle, and leave no page."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopwright.compose.config import RuntimeConfig
from system_rig import System, WatchedExecutor, byte_system, in_loop
from view_model import PAGE, DenseContext

NATIVE_ONLY = RuntimeConfig(allows_native=True, needs_wasm=False)
NUM_BLOCKS = 128

# Does what it is told, by the names of methods, and tells what came of each. At the end it takes every page there is.
PUPPET = """
from loopwright import *

async def main(orders, num_pages):
    contexts, answers = [Context()], []
    for number, verb, *values in orders:
        ctx = contexts[number]
        answer = None
        if verb == "append":
            ctx.append(values[0])
        elif verb == "generate":
            turn = await ctx.generate(max_tokens=values[0], ignore_eos=True)
            answer = [turn.tokens, turn.logprobs]
        elif verb == "next_dist":
            answer = [logprob for _, logprob in sorted(await ctx.next_dist(k=260))]
        elif verb == "verify":
            answer = (await ctx.verify(values[0])).tokens
        elif verb == "score":
            answer = [one.logprobs for one in await ctx.score(values[0])]
        elif verb == "fork":
            contexts.append(await ctx.fork())
        elif verb in ("hide", "forget"):
            await getattr(ctx, verb)(range(*values))
        elif verb == "place":
            assert await ctx.place(values[0], sees=values[1]) == (len(ctx.tokens) - len(values[0]), len(ctx.tokens))
        else:
            await getattr(ctx, verb)(*values)
        answers.append([answer, type(ctx.provenance()).__name__, ctx.num_pages, len(ctx.tokens)])
    for ctx in contexts:
        ctx.close()
    await Queue().allocate_pages([10**6 + number for number in range(num_pages)])
    return answers
"""

ASKS = ("next_dist", "verify", "generate", "score")
SHRINKS = ("generate", "flush", "hide", "attend", "forget", "truncate", "window")


class Plan:
    """Orders for the puppet and, step by step, what a dense mask says to them."""

    def __init__(self, *orders: Any) -> None:
        self.contexts = [DenseContext()]
        self.orders: list[list[Any]] = []
        self.expected: list[tuple[Any, bool, int, int | None]] = []  # answer, exact, tokens, pages at most
        for order in orders:
            self.give(*order)

    def give(self, number: int, verb: str, *values: Any) -> None:
        ctx = self.contexts[number]
        if verb in ASKS and (not ctx.tokens or ctx.is_last_hidden):
            self.give(number, "append", [65, 66])
        answer = self._answer(ctx, verb, values)
        self.orders.append([number, verb, *values])
        max_pages = -(-(ctx.num_seen + 1) // PAGE) if verb in SHRINKS and not ctx.is_exact else None
        self.expected.append((answer, ctx.is_exact, len(ctx.tokens), max_pages))

    def check(self, answers: list[Any]) -> None:
        for place, (answer, provenance, num_pages, num_tokens) in enumerate(answers):
            expected, is_exact, length, max_pages = self.expected[place]
            so_far = self.orders[: place + 1]
            assert _is_close(answer, expected), so_far
            assert max_pages is None or num_pages <= max_pages, (so_far, num_pages, max_pages)
            if so_far[-1][1] != "append":  # which has done nothing yet
                assert num_tokens == length, so_far
                assert provenance == ("Exact" if is_exact else "Approximate"), so_far

    def _answer(self, ctx: DenseContext, verb: str, values: tuple[Any, ...]) -> Any:
        if verb == "next_dist":
            return list(ctx.logprobs()[-1])
        if verb == "generate":
            return list(ctx.generate(values[0]))
        if verb == "verify":
            return ctx.verify(values[0])
        if verb == "score":
            return [ctx.score(ids) for ids in values[0]]
        if verb == "fork":
            self.contexts.append(ctx.fork())
        elif verb == "forget":
            ctx.forget(set(range(*values)))
        elif verb != "flush":
            getattr(ctx, verb)(*values)
        return None


def _is_close(answer: Any, expected: Any) -> bool:
    if isinstance(expected, list | tuple):
        return len(answer) == len(expected) and all(map(_is_close, answer, expected))
    if isinstance(expected, float):
        return abs(answer - expected) < 1e-5 * max(1, abs(expected))
    return bool(answer == expected)


async def answers_to(system: System, plan: Plan, sandbox: str = "native") -> list[Any]:
    outcome = await system.run(PUPPET, sandbox, orders=plan.orders, num_pages=system.executor.shape.num_blocks)
    answers: list[Any] = outcome.result
    return answers


BYTES = st.binary(min_size=1, max_size=40).map(list)
DRAWN_VALUES: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "append": st.tuples(BYTES),
    "generate": st.tuples(st.integers(1, 20)),
    "next_dist": st.just(()),
    "verify": st.tuples(st.binary(max_size=3).map(list)),
    "score": st.tuples(st.lists(st.binary(min_size=1, max_size=5).map(list), min_size=1, max_size=3)),
    "flush": st.just(()),
    "fork": st.just(()),
    "window": st.tuples(st.none() | st.integers(1, 40), st.integers(0, 20)),
    "truncate": st.just(()),
    "hide": st.just(()),
    "forget": st.just(()),
    "attend": st.just(()),
    "place": st.tuples(BYTES, st.booleans()),
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan = Plan((0, "append", [256, *draw(BYTES), *draw(BYTES)]))
    for _ in range(draw(st.integers(1, 10))):
        number = draw(st.integers(0, len(plan.contexts) - 1))
        verb = draw(st.sampled_from(tuple(DRAWN_VALUES)))
        values = draw(DRAWN_VALUES[verb])
        length = len(plan.contexts[number].tokens)
        first, second, third, fourth = sorted(draw(st.lists(st.integers(0, length), min_size=4, max_size=4)))
        if verb in ("hide", "forget"):
            values = (first, second) if draw(st.booleans()) else (second, third)
        elif verb == "attend":
            values = ([(first, second), (third, fourth)],)
        elif verb == "place":
            values = (values[0], [(first, second), (third, fourth)] if values[1] else None)
        elif verb == "truncate":
            values = (fourth,)
        if verb != "fork" or len(plan.contexts) < 3:
            plan.give(number, verb, *values)
    for number in range(len(plan.contexts)):
        plan.give(number, "next_dist")
    return plan


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans())
def test_any_sequence_of_views_equals_a_dense_mask(plan: Plan) -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            plan.check(await answers_to(system, plan))

    in_loop(scenario)


TEXT = [256, *b"The attic held a trunk of letters that nobody had opened since the war, tied with blue string."]
EVERY_VERB = (
    (0, "append", TEXT), (0, "hide", 20, 50), (0, "generate", 20), (0, "fork"), (1, "attend", [(0, 5), (60, 90)]),
    (1, "generate", 5), (0, "window", 24, 4), (0, "generate", 40), (0, "score", [[65, 66], [67]]),
    (0, "truncate", 130), (0, "verify", [1, 2]), (1, "forget", 30, 70), (1, "generate", 5), (0, "window", None, 0),
    (0, "next_dist"), (0, "place", [65, 66, 67], [(0, 9), (40, 60)]), (0, "fork"), (0, "place", [68] * 20, []),
    (0, "generate", 5), (0, "attend", [(20, 90)]), (0, "generate", 5), (2, "place", [69], [(3, 5)]), (2, "generate", 5),
)  # fmt: skip


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_one_program_of_every_verb_equals_a_dense_mask(sandbox: str) -> None:
    plan = Plan(*EVERY_VERB)

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS) as system:
            plan.check(await answers_to(system, plan, sandbox))

    in_loop(scenario)


CUTS = ((0, "truncate", 30), (0, "forget", 30, len(TEXT)), (0, "forget", 28, 60))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_view_outlives_a_cut_to_before_it_began_and_a_fork_is_not_touched(cut: tuple[Any, ...]) -> None:
    orders = (
        (0, "append", TEXT), (0, "fork"), (0, "flush"), (0, "hide", 3, 20), cut, (0, "next_dist"), (0, "generate", 9),
        (1, "generate", 3), (1, "truncate", 20), (1, "generate", 3),
    )  # fmt: skip
    plan = Plan(*orders)

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            plan.check(await answers_to(system, plan))

    in_loop(scenario)


def test_what_is_hidden_leaves_the_page_list_and_decoding_needs_no_mask() -> None:
    plan = Plan((0, "append", [*TEXT, *TEXT[1:]]), (0, "flush"), (0, "hide", 20, 150), (0, "generate", 30))

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            answers = await answers_to(system, plan)
            plan.check(answers)
            num_tokens = len(plan.orders[0][2])
            num_kept = num_tokens - 130
            assert [num_pages for _, _, num_pages, _ in answers[1:3]] == [-(-num_tokens // PAGE), -(-num_kept // PAGE)]
            assert isinstance(system.executor, WatchedExecutor)
            batches = system.executor.batches
            rows = [row for batch in batches for row in batch.all_rows if row.sampling is not None]
            assert [row.kv_len for row in rows] == list(range(num_kept - 1, num_kept + 29))
            assert all(row.mask is None for row in rows)
            assert sum(copy.size for batch in batches for copy in batch.copies) < 2 * PAGE  # of 60 that stay

    in_loop(scenario)


def test_a_hidden_span_of_whole_pages_costs_no_copy_and_leaves_a_fork_its_own_view() -> None:
    plan = Plan((0, "append", TEXT), (0, "fork"), (0, "hide", PAGE, 3 * PAGE), (0, "generate", 10), (1, "generate", 10))

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            plan.check(await answers_to(system, plan))
            assert isinstance(system.executor, WatchedExecutor)
            copies = [copy for batch in system.executor.batches for copy in batch.copies]
            assert len(copies) == 1  # of the fork's last page

    in_loop(scenario)


def test_a_windowed_segment_holds_few_tokens_in_its_rows_and_none_of_them_is_masked() -> None:
    plan = Plan((0, "append", TEXT[:10]), (0, "window", 32, 4), (0, "generate", 200), (0, "generate", 20))

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            answers = await answers_to(system, plan)
            plan.check(answers)
            assert answers[2][2] <= 1 + 3  # pages: one of sinks, and the last 32 tokens lie in three
            assert isinstance(system.executor, WatchedExecutor)
            rows = [row for batch in system.executor.batches for row in batch.all_rows if row.num_tokens == 1]
            assert all(row.mask is None and row.kv_len < 4 * PAGE for row in rows)

    in_loop(scenario)


def test_forgetting_runs_what_follows_again_and_nothing_before() -> None:
    plan = Plan((0, "append", TEXT), (0, "flush"), (0, "hide", 40, 50), (0, "forget", 40, 50), (0, "generate", 5))

    async def scenario() -> None:
        async with byte_system(num_blocks=NUM_BLOCKS, runtime=NATIVE_ONLY) as system:
            plan.check(await answers_to(system, plan))
            assert plan.expected[3][1]  # exact again
            assert isinstance(system.executor, WatchedExecutor)
            rows = [row for batch in system.executor.batches for row in batch.all_rows]
            assert [row.positions[0] for row in rows[1:]] == list(range(40, 40 + 1)) + list(range(85, 89))

    in_loop(scenario)
