"""A model of some of its own layers, say as a draft of the whole: its sizes, and the names of its weights. Reads none.

Used by the loader, and by tests on models in memory. Layers keep their order; what is left out is skipped over, as the
residual stream allows (as in Zhang et al., "Draft & Verify", arXiv 2309.08168).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from loopwright.core.errors import BadRequest
from loopwright.engine.loaded_model import LoadedModel, ModelConfig

ValueT = TypeVar("ValueT")


def with_layers(config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
    """The sizes of the model with these layers alone; none means all. Raises BadRequest for one that it has not."""
    if not layers:
        return config
    if beyond := [layer for layer in layers if layer >= config.num_layers]:
        raise BadRequest(
            f"layers: {beyond[0]} is not one of the model's {config.num_layers}, which count from 0", field="model"
        )
    windows = tuple(config.windows[layer] for layer in layers) if config.windows else ()
    return dataclasses.replace(config, num_layers=len(layers), windows=windows)


def named_by_place(tensors: Mapping[str, ValueT], layers: Sequence[int], prefix: str) -> Mapping[str, ValueT]:
    """The tensors under the names of the smaller model: that of layer `layers[i]` as one of layer i. `prefix` is what
    stands before a layer's number."""
    if not layers:
        return tensors
    places = {str(layer): place for place, layer in enumerate(layers)}
    named: dict[str, ValueT] = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix):
            named[name] = tensor
            continue
        layer, dot, rest = name.removeprefix(prefix).partition(".")
        if layer in places:
            named[f"{prefix}{places[layer]}{dot}{rest}"] = tensor
    return named


def thinned(model: LoadedModel, layers: Sequence[int]) -> LoadedModel:
    """A loaded model with these layers alone; its weights are shared with the whole."""
    return dataclasses.replace(
        model,
        config=with_layers(model.config, layers),
        weights=named_by_place(model.weights, layers, "layers."),
        ropes=tuple(model.ropes[layer] for layer in layers) if layers else model.ropes,
    )
