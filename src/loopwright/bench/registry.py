"""The suites by name. Never runs one, and imports one only when it is asked for. Called by `command`."""

from importlib import import_module

from loopwright.bench.suite import Suite
from loopwright.core.errors import NotFound

SUITE_MODULES = {
    "launch": "loopwright.bench.launch",
    "calls": "loopwright.bench.calls",
    "dev": "loopwright.bench.dev",
    "decode": "loopwright.bench.decode",
    "growth": "loopwright.bench.growth",
    "batching": "loopwright.bench.batching",
    "overhead": "loopwright.bench.overhead",
    "steps": "loopwright.bench.steps",
    "mechanisms": "loopwright.bench.mechanisms",
    "agents": "loopwright.bench.agents",
    "serving": "loopwright.bench.serving",
    "techniques": "loopwright.bench.techniques.suite",
    "memory": "loopwright.bench.memory",
    "size": "loopwright.bench.size",
}
"""Each module has a `SUITE`."""

SUBJECTS = {
    "launch": "programs from launch to return, and how many can live",
    "calls": "what a call costs a program",
    "dev": "from a save to what the program does next",
    "decode": "tokens a second, without programs and HTTP",
    "growth": "a decode step by sequences and by their contexts",
    "batching": "requests a second of each batching policy",
    "overhead": "host time of a step and of a call, engine excluded",
    "steps": "host time of a step, with steps ahead and without",
    "mechanisms": "what a token costs by who decides about it",
    "agents": "agents with tools, as programs and as clients",
    "serving": "what the HTTP side costs",
    "techniques": "each technique as a program, and by a client",
    "memory": "memory of a server: ready, and after many streams",
    "size": "lines of code, by layer and by example program",
}
"""What each measures, for people."""


def load_suites(name: str) -> list[Suite]:
    """The suite of that name, or every suite for "all". Raises NotFound."""
    if name == "all":
        return [_load(one) for one in SUITE_MODULES]
    return [_load(name)]


def _load(name: str) -> Suite:
    if name not in SUITE_MODULES:
        raise NotFound(f"no suite {name!r}", hint=f"the suites are {', '.join(SUITE_MODULES)} and all", field="suite")
    suite = import_module(SUITE_MODULES[name]).SUITE
    assert isinstance(suite, Suite), f"{SUITE_MODULES[name]}.SUITE is a {type(suite).__name__}"
    return suite
