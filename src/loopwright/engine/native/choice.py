"""Decides whether a model runs on the native kernels, and how its weights are kept. Never loads either.

Called by the executor. `auto` falls back to torch and says why; what was asked for by name is had or refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loopwright.core.errors import Unavailable
from loopwright.core.model_info import Exactness, WeightDtype
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.native.build import Kernels, load_kernels
from loopwright.engine.native.compiler import InstructionSet
from loopwright.engine.native.decoder import misfit
from loopwright.engine.native.structs import WeightType
from loopwright.weights.store import cache_folder

_OF_A_GPU: tuple[WeightDtype, ...] = ("fp8", "int4")
_STORED: Mapping[str, WeightType] = {"Q4_0": "q4_0", "Q4_1": "q4", "F32": "bf16", "F16": "bf16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What computes: `kernels`, or torch in float32 where there are none. `reason` is for people."""

    dtype: WeightDtype
    kernels: Kernels | None
    reason: str

    @property
    def exactness(self) -> Exactness:
        return "reference" if self.kernels is None else "deterministic"


def choose(dtype: WeightDtype, config: ModelConfig, instructions: InstructionSet | None = None) -> Choice:
    """Raises Unavailable when `dtype` was asked for by name and needs kernels that cannot be had."""
    if dtype == "float32":
        return Choice("float32", None, "torch, float32, as asked for")
    if dtype in _OF_A_GPU:
        raise Unavailable(
            f"engine.dtype: {dtype!r} is for a GPU; on the CPU are float32, bfloat16, int8 and stored",
            field="engine.dtype",
        )
    try:
        if (why := misfit(config)) is not None:
            raise Unavailable(f"the native kernels do not fit this model: {why}")
        kernels = load_kernels(cache_folder(), instructions)
    except Unavailable as error:
        if dtype != "auto" or instructions is not None:
            raise Unavailable(
                f"engine.dtype: {dtype!r} needs the native kernels, and {error}", hint=error.hint, field="engine.dtype"
            ) from error
        return Choice("float32", None, f"torch, float32: {error}")
    known: WeightDtype = "bfloat16" if dtype == "auto" else dtype
    return Choice(known, kernels, f"native kernels for {kernels.instructions}, {kernels.origin}; weights in {known}")


def weight_types(dtype: WeightDtype, model: LoadedModel) -> Callable[[str], WeightType]:
    """How the weight of a name is kept. Of "stored", what is neither 4 bits nor a float is kept in 8 bits."""
    if dtype == "stored":
        return lambda name: _STORED.get(model.stored_as.get(name, model.quantization), "q8")
    return lambda _: "q8" if dtype == "int8" else "bf16"
