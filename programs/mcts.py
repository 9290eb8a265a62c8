"""Monte Carlo tree search over sentences: tries the one that promises most, judges what comes of it, and remembers.

Nodes keep their contexts, so no text is run twice; the value of a play is what a judge's distribution says. (Kocsis and
Szepesvári, 2006; for language models Hao et al., arXiv 2305.14992.)
"""

import math
from dataclasses import dataclass, field

from loopwright import Context, emit


@dataclass
class Node:
    ctx: Context
    text: str = ""
    depth: int = 0
    visits: int = 0
    value: float = 0.0
    children: list["Node"] = field(default_factory=list)

    def promise(self, parent_visits: int, curiosity: float) -> float:
        if not self.visits:
            return math.inf
        return self.value / self.visits + curiosity * math.sqrt(math.log(parent_visits) / self.visits)


async def main(
    task: str = "Plan a day by the sea in three short sentences.",
    simulations: int = 6,
    branches: int = 2,
    max_depth: int = 3,
    curiosity: float = 1.4,
    max_tokens: int = 20,
    seed: int = 1,
) -> list[str]:
    root = Node(Context(seed=seed))
    root.ctx.user(task)
    for _ in range(simulations):
        path = [root]
        while path[-1].children:
            path.append(max(path[-1].children, key=lambda node: node.promise(path[-1].visits, curiosity)))
        if path[-1].visits and path[-1].depth < max_depth:
            path[-1].children = [await child(path[-1], max_tokens) for _ in range(branches)]
            path.append(path[-1].children[0])
        value = await judge(path[-1])
        for node in path:
            node.visits, node.value = node.visits + 1, node.value + value
    return best_line(root)


async def child(parent: Node, max_tokens: int) -> Node:
    ctx = await parent.ctx.fork()
    turn = await ctx.generate(max_tokens=max_tokens, temperature=1.0, until="\n")
    return Node(ctx, turn.text.strip(), parent.depth + 1)


async def judge(node: Node) -> float:
    """How probable it is, to the model itself, that the text so far is good."""
    async with await node.ctx.fork() as ctx:
        ctx.user("Is this good so far? Answer yes or no.")
        yes, no = (score.logprob for score in await ctx.score(["yes", "no"]))
        return 1 / (1 + math.exp(no - yes))


def best_line(root: Node) -> list[str]:
    """The texts along the most visited path."""
    line, node = [], root
    while node.children:
        node = max(node.children, key=lambda one: one.visits)
        line.append(node.text)
    emit({"visits": root.visits, "value": round(root.value / root.visits, 4)})
    return line
