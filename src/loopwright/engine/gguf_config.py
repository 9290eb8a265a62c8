"""Makes a ModelConfig from GGUF metadata. Never guesses: it names what it does not know. Called by the loader.

Source of keys and defaults: llama.cpp, `gguf-py/constants.py` and each model's loader there.
"""

from collections.abc import Collection, Mapping
from typing import Any

from loopwright.engine.config_fields import ConfigFields, checked, num_layers, yarn_attention_factor
from loopwright.engine.loaded_model import Experts, ModelConfig, RopeScaling

_GEMMA3_PATTERN = 6  # every sixth layer sees all
_GEMMA3_27B_LAYERS = 62  # the one size whose scores are scaled by hidden_size / num_heads; files do not say so


def config_from_gguf(
    metadata: Mapping[str, Any], architecture: str, vocab_size: int, tensor_names: Collection[str]
) -> ModelConfig:
    """`architecture` is our name for it. What the metadata need not say comes from the tensors: the vocabulary's size,
    whether there is a head, which biases there are. Raises BadRequest."""
    fields = ConfigFields("GGUF metadata", metadata, prefix=f"{metadata.get('general.architecture')}.")
    hidden_size = fields.size("embedding_length")
    num_heads = fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads)
    if fields.size("rope.dimension_count", head_dim) != head_dim:
        fields.refuse("rope.dimension_count", f"not the head size {head_dim}")
    if fields.size("attention.value_length", head_dim) != head_dim:
        fields.refuse("attention.value_length", f"not the key length {head_dim}")
    fields.refuse_set("attn_logit_softcapping", "final_logit_softcapping")
    is_gemma3, is_moe = architecture == "gemma3", architecture == "qwen3moe"
    layers = num_layers(fields, "block_count")
    return checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.size("feed_forward_length"),
            num_layers=layers,
            num_heads=num_heads,
            num_kv_heads=fields.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_context=fields.size("context_length"),
            norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number("rope.freq_base", 10000.0),
            rope_scaling=_rope_scaling(fields),
            is_head_tied="output.weight" not in tensor_names,
            windows=_windows(fields, layers, _GEMMA3_PATTERN if is_gemma3 else None),
            local_rope_theta=fields.number("rope.freq_base_swa", 10000.0) if is_gemma3 else None,
            has_qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensor_names,
            has_output_bias="blk.0.attn_output.bias" in tensor_names,
            score_scale=_gemma3_score_scale(fields, layers, hidden_size, num_heads) if is_gemma3 else None,
            experts=_experts(fields) if is_moe else None,
        )
    )


def _rope_scaling(fields: ConfigFields) -> RopeScaling | None:
    """Files with Llama 3 scaling carry no kind, but a tensor of factors that the loader applies."""
    kind = fields.raw("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return RopeScaling("linear", fields.number("rope.scaling.factor"))
    if kind != "yarn":
        fields.refuse("rope.scaling.type", "known are none, linear, yarn")
    fields.refuse_set("rope.scaling.yarn_log_multiplier")
    for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"):
        if fields.raw(key) not in (None, 1.0):
            fields.refuse(key, "only 1 is known")
    factor = fields.number("rope.scaling.factor")
    return RopeScaling(
        "yarn",
        factor,
        original_max_position=fields.size("rope.scaling.original_context_length", fields.size("context_length")),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor) * fields.number("rope.scaling.attn_factor", 1.0),
    )


def _windows(fields: ConfigFields, layers: int, period: int | None) -> tuple[int | None, ...]:
    """One of `period` layers sees all; None: none does. A pattern in the file may say it by layer."""
    if not fields.raw("attention.sliding_window"):
        return ()
    window = fields.size("attention.sliding_window")
    pattern = fields.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        if len(pattern) != layers:
            fields.refuse("attention.sliding_window_pattern", f"it must have {layers} entries, one for each layer")
        return tuple(window if is_local else None for is_local in pattern)
    if pattern is not None:
        period = fields.size("attention.sliding_window_pattern")
    return tuple(None if period and (index + 1) % period == 0 else window for index in range(layers))


def _gemma3_score_scale(fields: ConfigFields, layers: int, hidden_size: int, num_heads: int) -> float | None:
    if fields.raw("attention.scale") is not None:
        return fields.number("attention.scale")
    return (hidden_size / num_heads) ** -0.5 if layers == _GEMMA3_27B_LAYERS else None


def _experts(fields: ConfigFields) -> Experts:
    fields.refuse_set("expert_shared_count", "leading_dense_block_count")
    is_normalized = fields.raw("expert_weights_norm")
    return Experts(
        num_experts=fields.size("expert_count"),
        num_chosen=fields.size("expert_used_count"),
        intermediate_size=fields.size("expert_feed_forward_length"),
        is_normalized=True if is_normalized is None else bool(is_normalized),
    )
