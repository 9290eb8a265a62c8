"""Makes a ModelConfig from a config.json. Never guesses: it names what it does not know. Called by the loader.

Source of keys and defaults: transformers' configuration class of each architecture.
"""

from collections.abc import Mapping
from typing import Any

from loopwright.core.errors import BadRequest
from loopwright.engine.config_fields import ConfigFields, checked, num_layers, yarn_attention_factor
from loopwright.engine.loaded_model import Experts, ModelConfig, RopeScaling

_ORIGIN = "config.json"
_ACTIVATIONS = {"gemma3": ("hidden_activation", "gelu_pytorch_tanh")}  # of the others: hidden_act is silu
_LAYER_TYPES = ("full_attention", "sliding_attention")
_HEAD_DIMS = {"qwen3": 128, "gemma3": 256}  # where no head_dim does not mean hidden_size / num_heads


def config_from_hf(config: Mapping[str, Any], architecture: str) -> ModelConfig:
    """`architecture` is our name for it. Raises BadRequest."""
    fields = ConfigFields(_ORIGIN, config)
    is_gemma3, is_moe = architecture == "gemma3", architecture == "qwen3moe"
    _check_activation(fields, architecture)
    fields.refuse_set("mlp_bias", "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    layers = num_layers(fields, "num_hidden_layers")
    rope, local_rope = _ropes(config, is_gemma3=is_gemma3)
    has_attention_bias = bool(config.get("attention_bias", False)) and architecture != "mistral"
    return checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=layers,
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=fields.size("head_dim", _HEAD_DIMS.get(architecture, hidden_size // num_heads)),
            max_context=fields.size("max_position_embeddings"),
            norm_epsilon=fields.number("rms_norm_eps"),
            rope_theta=rope.number("rope_theta", 1e6 if is_gemma3 else 10000.0),
            rope_scaling=_rope_scaling(rope, fields),
            is_head_tied=bool(config.get("tie_word_embeddings", is_gemma3)),
            windows=_windows(fields, architecture, layers),
            local_rope_theta=local_rope.number("rope_theta", 10000.0) if is_gemma3 else None,
            has_qkv_bias=architecture == "qwen2" or has_attention_bias,
            has_output_bias=architecture != "qwen2" and has_attention_bias,
            score_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5 if is_gemma3 else None,
            experts=_experts(fields) if is_moe else None,
        )
    )


def _check_activation(fields: ConfigFields, architecture: str) -> None:
    key, known = _ACTIVATIONS.get(architecture, ("hidden_act", "silu"))
    if fields.raw(key) not in (None, known):
        fields.refuse(key, f"only {known} is known")


def _ropes(config: Mapping[str, Any], *, is_gemma3: bool) -> tuple[ConfigFields, ConfigFields]:
    """Rope settings of the layers that see all and of those with a window; most models have one for both.

    They come as `rope_parameters`, by kind of layer where kinds differ, or from older keys at the top."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise BadRequest(f"{_ORIGIN}: rope_scaling is {nested!r}; it must be an object")
    if is_gemma3 and ("full_attention" in nested or "sliding_attention" in nested):
        return _rope(nested.get("full_attention")), _local_rope(nested.get("sliding_attention"))
    theta = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    return _rope({**theta, **nested}), _rope({"rope_theta": config.get("rope_local_base_freq")})


def _rope(settings: object) -> ConfigFields:
    if not isinstance(settings, dict | None):
        raise BadRequest(f"{_ORIGIN}: rope_parameters holds {settings!r}; it must be an object")
    rope = ConfigFields(_ORIGIN, settings or {})
    if rope.raw("partial_rotary_factor") not in (None, 1, 1.0):
        rope.refuse("partial_rotary_factor", "only whole heads can be rotated")
    return rope


def _local_rope(settings: object) -> ConfigFields:
    rope = _rope(settings)
    if rope.raw("rope_type") not in (None, "default"):
        rope.refuse("rope_type", "layers with a window know no scaling")
    return rope


def _rope_scaling(rope: ConfigFields, fields: ConfigFields) -> RopeScaling | None:
    kind = rope.raw("rope_type") or rope.raw("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "yarn":
        return _yarn(rope, fields.size("max_position_embeddings"))
    if kind != "llama3":
        rope.refuse("rope_type", "known are default, linear, llama3, yarn")
    return RopeScaling(
        "llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.size("original_max_position_embeddings"),
    )


def _yarn(rope: ConfigFields, max_context: int) -> RopeScaling:
    rope.refuse_set("mscale", "mscale_all_dim")
    if rope.raw("truncate") is False:
        rope.refuse("truncate", "only bounds that are rounded are known")
    factor = rope.number("factor")
    return RopeScaling(
        "yarn",
        factor,
        original_max_position=rope.size("original_max_position_embeddings", max_context),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor", yarn_attention_factor(factor)),
    )


def _windows(fields: ConfigFields, architecture: str, layers: int) -> tuple[int | None, ...]:
    """Every architecture has its own way to say which layers see only a window."""
    is_off = architecture.startswith("qwen") and not fields.raw("use_sliding_window")
    if architecture == "llama" or is_off or (fields.has("sliding_window") and fields.raw("sliding_window") is None):
        return ()
    window = fields.size("sliding_window", 4096)
    if architecture in ("mistral", "qwen3moe"):
        return (window,) * layers
    kinds = fields.raw("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _LAYER_TYPES for kind in kinds):
            fields.refuse("layer_types", f"it must be a list of {layers} of {' and '.join(_LAYER_TYPES)}")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if architecture == "gemma3":
        period = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", 6))
        return tuple(window if (index + 1) % period else None for index in range(layers))
    first = 28 if fields.raw("max_window_layers") is None else fields.raw("max_window_layers")
    if not isinstance(first, int):
        fields.refuse("max_window_layers", "it must be a whole number")
    return tuple(window if index >= first else None for index in range(layers))


def _experts(fields: ConfigFields) -> Experts:
    fields.refuse_set("mlp_only_layers")
    if fields.raw("decoder_sparse_step") not in (None, 1):
        fields.refuse("decoder_sparse_step", "only models with experts in every layer can be run")
    count_key = "num_experts" if fields.raw("num_experts") is not None else "num_local_experts"
    return Experts(
        num_experts=fields.size(count_key),
        num_chosen=fields.size("num_experts_per_tok"),
        intermediate_size=fields.size("moe_intermediate_size"),
        is_normalized=bool(fields.raw("norm_topk_prob")),
    )
