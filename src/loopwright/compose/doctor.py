"""Looks at this machine: what would compute here, in how many processes, and why nothing better. Changes nothing but
the cache, where kernels that had to be compiled stay. Asked by `loopwright doctor`."""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from loopwright.compose.config import Config, num_cores
from loopwright.core.errors import LoopwrightError
from loopwright.engine.native.build import PROCESSOR, load_kernels, processor_sets
from loopwright.engine.native.compiler import find_compiler
from loopwright.runtime.sandboxes.fiber_check import why_not
from loopwright.runtime.sandboxes.wasm_engine import new_engine
from loopwright.weights.store import cache_folder, list_models

_PACKAGES = ("torch", "wasmtime", "llguidance", "tokenizers")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing of this machine. `advice` says what would make it better; empty where nothing would."""

    what: str
    found: str
    advice: str = ""


def examine(config: Config) -> Iterator[Finding]:
    """One finding after the other; the kernels may take the seconds that compiling them takes."""
    yield Finding("machine", f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}")
    yield Finding("cores", f"{num_cores()} that this process may use")
    workers = config.num_runtime_workers
    layout = f"{workers} runtime processes, one for each model, one for HTTP" if workers else "one for everything"
    yield Finding("processes of a server", layout)
    limit = f"; {PROCESSOR} is {os.environ[PROCESSOR]}" if os.environ.get(PROCESSOR) else ""
    yield Finding("instruction sets", (", ".join(processor_sets()) or "none that the kernels know") + limit)
    yield Finding("compiler", find_compiler() or "none")
    yield _gpu(config)
    if config.engine.tensor_parallel > 1:
        yield _ranks(config)
    yield _kernels(config)
    reason = why_not(new_engine())
    yield Finding("sandbox", "fibers" if reason is None else f"re-entrant calls, which are slower: {reason}")
    yield Finding("cache folder", str(cache_folder()))
    names = ", ".join(one.name for one in list_models())
    yield Finding("models", names or "none", "" if names else "loopwright model pull default")
    yield Finding("packages", ", ".join(f"{name} {version(name)}" for name in _PACKAGES))


def _gpu(config: Config) -> Finding:
    from loopwright.engine.cuda.choice import describe_gpu  # noqa: PLC0415 (needs torch)

    engine = config.engine
    if engine.device == "cpu":
        return Finding("GPU", "not used: engine.device says so")
    try:
        found = describe_gpu(engine.dtype, engine.attention, is_deterministic=engine.deterministic)
    except LoopwrightError as error:
        return Finding("GPU", str(error), error.hint)
    if found is None:
        return Finding("GPU", f"none that torch {version('torch')} sees")
    return Finding("GPU", f"{found}; computes the models that it can run, and the engine of the next line the others")


def _ranks(config: Config) -> Finding:
    from loopwright.engine.parts import describe_ranks  # noqa: PLC0415 (needs torch)

    try:
        found = describe_ranks(config.engine.tensor_parallel, config.engine.device)
    except LoopwrightError as error:
        return Finding("tensor parallel", str(error), error.hint)
    return Finding("tensor parallel", f"{found}; the models that can be split so")


def _kernels(config: Config) -> Finding:
    wanted = config.engine.instructions
    if config.engine.dtype == "float32":
        return Finding("engine", "torch, float32: engine.dtype says so", "set engine.dtype = 'auto'")
    try:
        kernels = load_kernels(cache_folder(), None if wanted == "auto" else wanted)
    except LoopwrightError as error:
        return Finding("engine", f"torch, float32: {error}", error.hint or "")
    why = "the best that the processor has" if wanted == "auto" else "engine.instructions says so"
    return Finding(
        "engine", f"native kernels for {kernels.instructions}, {why}, {kernels.origin}; models that do not fit: torch"
    )
