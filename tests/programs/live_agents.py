"""Runs the three agents beside the real default model, in the Wasm sandbox: each has to finish, with an answer.

`make agents` runs it. What a model of 135 million parameters answers is its own affair; that every agent comes to its
end, by its own rules and within its limits, is ours.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from script_rig import emitted

from loopwright.cli.demo_search import search_tool
from loopwright.core.runs import RunSpec
from loopwright.weights.store import default_store
from system_rig import Outcome, RunningRun, SmolLM2, System, program_source, system_over

TASK = "What is the mean of the numbers? Print it."


async def run(system: System, name: str, **arguments: Any) -> Outcome:
    spec = RunSpec(source=program_source(name), filename=f"{name}.py", arguments=arguments, seed=0)
    return await RunningRun(system.launcher, await system.launcher.start(spec)).outcome()


async def agents(system: System) -> dict[str, list[Outcome]]:
    """What came of each agent: a swarm is four runs, started in no order of their work."""
    with search_tool() as url:
        react = await run(system, "react", question="What river flows through Paris?", search_url=url)
    code_act = await run(system, "code_act", task=TASK, data=[3, 5, 10])
    swarm = await asyncio.gather(*(run(system, "swarm", role=role, max_tokens=48) for role in (2, 0, 3, 1)))
    return {"react": [react], "code_act": [code_act], "swarm": swarm}


def shown(name: str, outcome: Outcome) -> str:
    result = outcome.final.result if outcome.final.code == "ok" else outcome.final.error
    return f"{name}: {outcome.final.code}, {len(emitted(outcome))} events of its own\n    {str(result)[:300]!r}"


async def main() -> int:
    smollm2 = SmolLM2.load(default_store().resolve("default"))
    try:
        async with system_over(smollm2.executor, smollm2.text) as system:
            found = await agents(system)
    finally:
        smollm2.close()
    print("\n".join(shown(name, one) for name, outcomes in found.items() for one in outcomes))  # noqa: T201
    return 0 if all(one.final.code == "ok" and one.final.result for each in found.values() for one in each) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
