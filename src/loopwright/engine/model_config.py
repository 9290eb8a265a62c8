"""Makes a ModelConfig from GGUF metadata or from a config.json. Never guesses: it names what it does not know.

Called by the loader.
"""

from collections.abc import Mapping
from typing import Any

from loopwright.core.errors import BadRequest
from loopwright.engine.loaded_model import ModelConfig, RopeScaling

_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1024


def config_from_gguf(metadata: Mapping[str, Any], vocab_size: int, is_head_tied: bool) -> ModelConfig:
    """`vocab_size` and `is_head_tied` come from the tensors; the metadata need not have them. Raises BadRequest."""
    architecture = str(metadata.get("general.architecture"))
    fields = _Fields("GGUF metadata", metadata, prefix=f"{architecture}.")
    hidden_size = fields.size("embedding_length")
    num_heads = fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads)
    if fields.size("rope.dimension_count", head_dim) != head_dim:
        fields.refuse("rope.dimension_count", f"not the head size {head_dim}")
    if fields.size("attention.value_length", head_dim) != head_dim:
        fields.refuse("attention.value_length", f"not the key length {head_dim}")
    return _checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.size("feed_forward_length"),
            num_layers=fields.size("block_count"),
            num_heads=num_heads,
            num_kv_heads=fields.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_context=fields.size("context_length"),
            norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number("rope.freq_base", 10000.0),
            rope_scaling=_gguf_rope_scaling(fields),
            is_head_tied=is_head_tied,
        )
    )


def config_from_hf(config: Mapping[str, Any], architecture: str) -> ModelConfig:
    """From a config.json of the Llama family; `architecture` is our name for it. Raises BadRequest."""
    fields = _Fields("config.json", config)
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            fields.refuse(name, "only models without biases can be run")
    if config.get("hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "only silu is known")
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    rope = _hf_rope(config)
    return _checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=fields.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=fields.size("head_dim", hidden_size // num_heads),
            max_context=fields.size("max_position_embeddings"),
            norm_epsilon=fields.number("rms_norm_eps"),
            rope_theta=rope.number("rope_theta", 10000.0),
            rope_scaling=_hf_rope_scaling(rope),
            is_head_tied=bool(config.get("tie_word_embeddings", False)),
        )
    )


class _Fields:
    """Reads numbers out of a mapping, and names the key when one is missing or absurd."""

    def __init__(self, origin: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self._origin = origin
        self._values = values
        self._prefix = prefix

    def raw(self, key: str) -> Any:  # noqa: ANN401 — a JSON value
        return self._values.get(self._prefix + key)

    def size(self, key: str, default: int | None = None) -> int:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
            self.refuse(key, f"it must be a whole number from 1 to {_MAX_SIZE}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            self.refuse(key, "it must be a positive number")
        return float(value)

    def refuse(self, key: str, reason: str) -> None:
        raise BadRequest(f"{self._origin}: {self._prefix + key} is {self.raw(key)!r}; {reason}")


def _gguf_rope_scaling(fields: _Fields) -> RopeScaling | None:
    """Files with Llama 3 scaling carry no kind, but a tensor of factors that the loader applies."""
    kind = fields.raw("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind != "linear":
        fields.refuse("rope.scaling.type", "only linear is known")
    return RopeScaling("linear", fields.number("rope.scaling.factor"))


def _hf_rope(config: Mapping[str, Any]) -> _Fields:
    """Rope settings, from `rope_parameters` (new) or from `rope_theta` and `rope_scaling` (old)."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise BadRequest(f"config.json: rope_scaling is {nested!r}; it must be an object")
    theta = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    return _Fields("config.json", {**theta, **nested})


def _hf_rope_scaling(rope: _Fields) -> RopeScaling | None:
    kind = rope.raw("rope_type") or rope.raw("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind != "llama3":
        rope.refuse("rope_type", "known are default, linear, llama3")
    return RopeScaling(
        "llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.size("original_max_position_embeddings"),
    )


def _checked(config: ModelConfig) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise BadRequest(f"the model has {config.num_heads} heads, no multiple of its {config.num_kv_heads} KV heads")
    if config.num_layers > _MAX_LAYERS:
        raise BadRequest(f"the model has {config.num_layers} layers; {_MAX_LAYERS} is the most")
    if config.head_dim % 2:
        raise BadRequest(f"the model has heads of {config.head_dim}; rotary embedding needs an even size")
    return config
