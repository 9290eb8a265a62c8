"""The rules by which programs choose, each recomputed in another way over answers that a test makes up: which node a
tree search plays, what most reasons say, which of several answers is likeliest. No model, no sandbox."""

import asyncio
import itertools
import math
import random
import sys
from dataclasses import dataclass, field
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

from system_rig import program_source


@dataclass
class FakeTurn:
    text: str
    logprobs: list[float]


@dataclass
class FakeContext:
    """A context whose forks are numbered; `turns` and `choices` are what they say, by their numbers."""

    seed: int = 0
    turns: list[FakeTurn] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    number: int = -1
    forks: list["FakeContext"] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def user(self, text: str) -> None:
        self.messages.append(text)

    async def fork(self, *, opens_turn: bool = False) -> "FakeContext":
        fork = FakeContext(self.seed, self.turns, self.choices, len(self.forks), messages=[*self.messages])
        self.forks.append(fork)
        return fork

    async def generate(self, **_: Any) -> FakeTurn:
        return self.turns[self.number] if self.turns else FakeTurn("", [])

    async def choose(self, answers: list[str]) -> str:
        assert len(self.messages) == 2  # the question to all, and then that for the answer
        return self.choices[self.number]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Executes a program of programs/ as a module; what it emits is in its list `emitted`."""

    def load(name: str) -> Any:
        module = ModuleType(f"program_{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(program_source(name), f"{name}.py", "exec"), module.__dict__)
        module.emitted = []  # type: ignore[attr-defined]
        module.emit = module.emitted.append  # type: ignore[attr-defined]
        return module

    return load


def searched(
    value_of: dict[tuple[int, ...], float], simulations: int, branches: int, max_depth: int, curiosity: float
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[int]]:
    """Upper confidence bounds on a tree of number paths: (the plays, the line of most visits, visits along it)."""
    visits: dict[tuple[int, ...], int] = {(): 0}
    totals: dict[tuple[int, ...], float] = {(): 0.0}
    plays = []

    def kids(node: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [(*node, place) for place in range(branches) if (*node, place) in visits]

    def bound(node: tuple[int, ...]) -> float:
        if visits[node] == 0:
            return math.inf
        explored = math.sqrt(math.log(visits[node[:-1]]) / visits[node])
        return totals[node] / visits[node] + curiosity * explored

    for _ in range(simulations):
        node: tuple[int, ...] = ()
        while kids(node):
            node = max(kids(node), key=bound)
        if visits[node] > 0 and len(node) < max_depth:
            for place in range(branches):
                visits[(*node, place)], totals[(*node, place)] = 0, 0.0
            node = (*node, 0)
        plays.append(node)
        for length in range(len(node) + 1):
            visits[node[:length]] += 1
            totals[node[:length]] += value_of[node]
    line: list[tuple[int, ...]] = [()]
    while kids(line[-1]):
        line.append(max(kids(line[-1]), key=lambda one: visits[one]))
    return plays, line[1:], [visits[()], round(totals[()] / visits[()], 4)]  # type: ignore[list-item]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("branches", "max_depth", "curiosity"), [(2, 3, 1.4), (3, 2, 0.2), (2, 4, 0.0), (4, 2, 5.0)])
def test_mcts_plays_what_the_bounds_say(
    loaded: Any, seed: int, branches: int, max_depth: int, curiosity: float
) -> None:
    drawn = random.Random(seed)
    lengths = range(max_depth + 1)
    value_of = {path: drawn.random() for n in lengths for path in itertools.product(range(branches), repeat=n)}
    mcts, plays = loaded("mcts"), []
    mcts.Context = FakeContext

    def path_of(node: Any) -> tuple[int, ...]:
        return tuple(map(int, node.text))

    async def child(parent: Any, max_tokens: int) -> Any:
        made = made_of.setdefault(parent.text, [])
        made.append(1)
        return mcts.Node(FakeContext(), f"{parent.text}{len(made) - 1}", parent.depth + 1)

    async def judge(node: Any) -> float:
        plays.append(path_of(node))
        return value_of[path_of(node)]

    made_of: dict[str, list[int]] = {}
    mcts.child, mcts.judge = child, judge
    options = {"simulations": 40, "branches": branches, "max_depth": max_depth, "curiosity": curiosity}
    line = asyncio.run(mcts.main(**options))
    expected_plays, expected_line, told = searched(value_of, **options)  # type: ignore[arg-type]
    assert plays == expected_plays
    assert line == ["".join(map(str, one)) for one in expected_line]
    assert mcts.emitted == [{"visits": told[0], "value": told[1]}]


def test_self_consistency_answers_what_most_paths_answer_and_of_equals_the_first(loaded: Any) -> None:
    program, answers = loaded("self_consistency"), ["yes", "no", "maybe"]
    for said in itertools.product(answers, repeat=4):
        program.emitted.clear()
        program.Context = lambda seed, said=said: FakeContext(seed, choices=list(said))
        found = asyncio.run(program.main(answers=answers, paths=4))
        most = max(said.count(one) for one in answers)
        assert found == [one for one in answers if said.count(one) == most][0]  # noqa: RUF015 (all, then the first)
        assert program.emitted == [{"votes": {one: said.count(one) for one in sorted(set(said))}}]


def test_best_of_n_keeps_the_highest_mean_and_not_the_shortest_or_the_highest_sum(loaded: Any) -> None:
    program, drawn, num_others = loaded("best_of_n"), random.Random(0), 0
    for _ in range(50):
        turns = [
            FakeTurn(f"answer {place}", [-drawn.random() for _ in range(drawn.randint(1, 6))]) for place in range(5)
        ]
        program.Context = lambda seed, turns=turns: FakeContext(seed, turns=turns)
        found = asyncio.run(program.main(n=5))
        best = max(turns, key=lambda one: fmean(one.logprobs))
        assert found == best.text
        num_others += best is not max(turns, key=lambda one: sum(one.logprobs))
    assert num_others > 10  # the means decided, and not the sums
