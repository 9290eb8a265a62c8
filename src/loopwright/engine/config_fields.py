"""Reads numbers of a model's config, and names the key when one is missing or absurd. Never guesses.

Called by the readers of both formats.
"""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from loopwright.core.errors import BadRequest
from loopwright.engine.loaded_model import ModelConfig

_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1024


class ConfigFields:
    """The fields of one mapping; `origin` and `prefix` are for messages and keys."""

    def __init__(self, origin: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self._origin = origin
        self._values = values
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._prefix + key in self._values

    def raw(self, key: str) -> Any:  # noqa: ANN401 — a JSON value
        return self._values.get(self._prefix + key)

    def size(self, key: str, default: int | None = None) -> int:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
            self.refuse(key, f"it must be a whole number from 1 to {_MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            self.refuse(key, "it must be a positive number")
        return float(value)

    def refuse(self, key: str, reason: str) -> NoReturn:
        raise BadRequest(f"{self._origin}: {self._prefix + key} is {self.raw(key)!r}; {reason}")

    def refuse_set(self, *keys: str) -> None:
        """Refuses each key that has a value other than null, false or nothing: we do not know what it does."""
        for key in keys:
            if self.raw(key):
                self.refuse(key, "models with it cannot be run")


def num_layers(fields: ConfigFields, key: str) -> int:
    """Bounded before anything is made for each layer."""
    number = fields.size(key)
    if number > _MAX_LAYERS:
        raise BadRequest(f"the model has {number} layers; {_MAX_LAYERS} is the most")
    return number


def yarn_attention_factor(factor: float) -> float:
    """What YaRN recommends (section 3.3) where a config does not say it."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def checked(config: ModelConfig) -> ModelConfig:
    """Raises BadRequest for sizes that do not go together."""
    if config.num_heads % config.num_kv_heads:
        raise BadRequest(f"the model has {config.num_heads} heads, no multiple of its {config.num_kv_heads} KV heads")
    if config.head_dim % 2:
        raise BadRequest(f"the model has heads of {config.head_dim}; rotary embedding needs an even size")
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "yarn" and config.rope_theta <= 1:
        raise BadRequest(f"the model has a rope theta of {config.rope_theta}; yarn needs one above 1")
    if config.experts is not None and config.experts.num_chosen > config.experts.num_experts:
        raise BadRequest(f"the model chooses {config.experts.num_chosen} of {config.experts.num_experts} experts")
    return config
