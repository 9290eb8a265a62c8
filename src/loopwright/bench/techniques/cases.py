"""What each technique is asked to do, at two scales: the Pie paper's, and one for two cores. Never runs it.

`paper` has the numbers of the scripts that the paper's Figures 6 and 8 were made with (arXiv 2510.24051, artifact);
`small` has the same ones with fewer requests, but for the tokens of recursion. Texts that the paper does not give are
ours. Read by the suite.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loopwright.bench.suite import Scale

TOOL_S = 0.1  # how long a tool takes, as in the artifact

_MUSEUM = (
    "You are the guide of a museum of clocks. It is open from nine to five and closed on Mondays. The oldest clock is "
    "a water clock from 1680; the tower clock in the yard strikes every hour, and the astronomical clock in the hall "
    "shows the planets. Visitors may touch the models on the first floor, never the originals. "
)
_ANIMALS = "You write a sentence about an animal that somebody describes to you. Be exact, kind and brief. "
_TOOLS = (
    "You answer questions with the help of tools. WebSearch takes a few words and finds pages of the public web. "
    "CodeInterpreter takes a program and says what it printed. Write a thought, then the call of one tool; you are "
    "told what came of it as an observation. When you know the answer, write it. "
)
_ROLES = ("say where the story is", "bring in a hero", "bring trouble", "end the story well")
_RULES = (
    "You solve tasks by splitting them. Write two smaller tasks that lead to the answer together, each in a line; when "
    "a task is small enough, write its answer. When you are told the answers to your tasks, join them. Be "
    "brief and exact, and never repeat a task. "
)
_JSON_ITEMS = r"""start: "[" item ("," item){32,} "]"
item: object | string | number
object: "{" pair ("," pair)* "}"
pair: string ":" value
value: object | string | number | "true" | "false" | "null"
string: /"[a-z ]{1,20}"/
number: /-?[0-9]{1,6}/
"""


_REQUESTS = {
    "completion": 16, "prefix_tree": 4, "tree_of_thought": 2, "recursion_of_thought": 2, "graph_of_thought": 2,
    "skeleton_of_thought": 4, "prefix_cache": 16, "ebnf": 16, "speculative": 16, "beam": 2, "attention_sink": 8,
    "react": 8, "code_act": 16, "swarm": 4,
}  # fmt: skip
"""At the small scale."""


@dataclass(frozen=True, slots=True)
class Case:
    """A technique at one scale. `arguments` go to the program and to the client alike, with a `number` that no other
    request has."""

    technique: str
    num_requests: int  # at once, for the throughput
    arguments: Mapping[str, Any]
    roles: int = field(default=1)  # runs of the program that make up one request

    @property
    def program(self) -> str:
        """The deployed program's name."""
        return f"bench-{self.technique.replace('_', '-')}"

    def inputs(self, number: str) -> list[dict[str, Any]]:
        """The arguments of each run of one request."""
        shared = {**self.arguments, "number": number}
        return [shared] if self.roles == 1 else [{**shared, "role": role} for role in range(self.roles)]


def make_cases(scale: Scale) -> dict[str, Case]:
    """All cases of a scale, by the technique's name."""
    return {case.technique: case for case in (_paper() if scale == "paper" else _small())}


def _paper() -> list[Case]:
    return [
        Case("completion", 128, {"max_tokens": 64}),
        Case("prefix_tree", 64, {"parts": _parts(4), "max_tokens": 32}),
        Case("tree_of_thought", 64, {**_tree(), "branches": 2, "max_tokens": 64}),
        Case("recursion_of_thought", 32, {"system": _RULES, "depth": 5, "max_tokens": 256}),
        Case("graph_of_thought", 128, {"lengths": [4, 32, 16, 8, 4, 16, 3, 32], "levels": 2, "max_tokens": 64}),
        Case("skeleton_of_thought", 128, {"points": 3, "plan_tokens": 80, "max_tokens": 80}),
        Case("prefix_cache", 128, {"system": _MUSEUM * 4, "max_tokens": 64}),
        Case("ebnf", 128, {"grammar": _JSON_ITEMS, "max_tokens": 32}),
        Case("speculative", 128, {"ngram": 2, "drafts": 4, "max_tokens": 64}),
        Case("beam", 128, {"beams": 5, "max_tokens": 64}),
        Case("attention_sink", 128, {"window": 16, "sinks": 32, "max_tokens": 128}),
        Case("react", 128, {"system": _TOOLS * 2, "calls": 8, "tool_s": TOOL_S, "max_tokens": 16}),
        Case("code_act", 128, {"system": _TOOLS, "codes": _codes(2), "max_tokens": 16}),
        Case("swarm", 32, {"roles": _roles(), "max_tokens": 96}, roles=4),
    ]


def _small() -> list[Case]:
    """The paper's arguments but for one, so many requests as two cores manage in the time."""
    paper = {case.technique: case for case in _paper()}
    shorter = {"recursion_of_thought": {"max_tokens": 48}}
    return [
        replace(case, num_requests=num_requests, arguments={**case.arguments, **shorter.get(name, {})})
        for name, num_requests in _REQUESTS.items()
        for case in (paper[name],)
    ]


def _parts(times: int) -> list[list[str]]:
    """1 × 2 × 2 × 2 parts of a prompt."""
    levels = (("a cat", "a dog"), ("young", "old"), ("happy", "sad"))
    return [
        [_ANIMALS * times],
        *([f"The animal is {word}, and you can tell. " * times for word in level] for level in levels),
    ]


def _tree() -> dict[str, Any]:
    levels = ["Propose a plan in one line.", "Carry out the plan in one line.", "Is the result right? Rate it."]
    return {"system": "You solve a task step by step.", "levels": levels}


def _codes(num: int) -> list[str]:
    return [f"result = sum(range({1000 + place}))" for place in range(num)]


def _roles() -> list[str]:
    return [f"You are one of {len(_ROLES)} writers of a story. Your part is to {part}." for part in _ROLES]
