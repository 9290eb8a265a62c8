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
