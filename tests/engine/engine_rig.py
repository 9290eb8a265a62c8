"""The runners' rig, and transformers as reference, for tests of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from loopwright.engine.model_files import write_hf_folder
from runner_rig import Rig, dense, dense_rows, log_softmax, pairs, runs_of, some_tokens

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from transformers import PreTrainedModel

    from loopwright.engine.loaded_model import LoadedModel

__all__ = [
    "ANSWER", "CLOSE", "PROMPT", "Rig", "dense", "dense_rows", "log_softmax", "pairs", "runs_of", "some_tokens",
    "transformers_default_model", "transformers_logprobs", "transformers_model",
]  # fmt: skip

# <|im_start|>system … <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
PROMPT = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # The capital of France is Paris.<|im_end|>


CLOSE = {"atol": 1e-5, "rtol": 1e-6}
"""The reference class, for whole vocabularies: 1e-5, and a unit of float32 in the last place of values that reach -20.
Of tens of thousands some lie that far apart, on some processors."""


def transformers_model(model: LoadedModel, folder: Path) -> PreTrainedModel:
    write_hf_folder(model, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def transformers_default_model(path: Path) -> PreTrainedModel:
    """SmolLM2 in transformers and in float64, with the file read and its weights decoded by the gguf package.

    Two computations in float32 differ by up to 1.1e-4 here (of 2 million logits, most at log-probabilities under -20);
    each is within 1e-4 of what float64 gives."""
    stored = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in gguf.GGUFReader(path).tensors}
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    state = {
        "model.embed_tokens.weight": stored["token_embd.weight"],
        "model.norm.weight": stored["output_norm.weight"],
    }
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for layer in range(30):
        for hf_name, gguf_name in names.items():
            weight = stored[f"blk.{layer}.{gguf_name}.weight"]
            if gguf_name in ("attn_q", "attn_k"):  # this file keeps the two halves of a rotary pair side by side
                num_heads = 9 if gguf_name == "attn_q" else 3
                weight = weight.reshape(num_heads, 32, 2, 576).swapaxes(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{hf_name}.weight"] = weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.tensor(one) for name, one in state.items()})
    return model.double()


@torch.inference_mode()
def transformers_logprobs(reference: PreTrainedModel, token_ids: list[int], positions: list[int] | None = None,
                          is_visible: torch.Tensor | None = None) -> np.ndarray:  # fmt: skip
    """[num_tokens, vocab_size]. `is_visible` [num_tokens, num_tokens] replaces the causal mask.

    With plain positions, masks and windows are transformers' own. Otherwise they are made here, windows by position:
    transformers counts places, and reads a gap in the positions as a new sequence."""
    fields = {}
    if positions is not None or is_visible is not None:
        positions = list(range(len(token_ids))) if positions is None else positions
        fields = {"position_ids": torch.tensor([positions]), "attention_mask": _masks(reference, positions, is_visible)}
    output = reference(input_ids=torch.tensor([token_ids]), use_cache=False, **fields)
    return log_softmax(output.logits[0])


def _masks(
    reference: PreTrainedModel, positions: list[int], is_visible: torch.Tensor | None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """One mask, or one for each kind of layer where a model has several."""
    if is_visible is None:
        is_visible = torch.ones(len(positions), len(positions), dtype=torch.bool).tril()
    window = getattr(reference.config, "sliding_window", None)
    place = torch.tensor(positions)
    is_near = place[:, None] - place < (1 << 31 if window is None else window)
    full, sliding = (
        torch.zeros(seen.shape, dtype=reference.dtype).masked_fill(~seen, -torch.inf)[None, None]
        for seen in (is_visible, is_visible & is_near)
    )
    if reference.config.model_type in ("qwen2", "qwen3", "gemma3_text"):
        return {"full_attention": full, "sliding_attention": sliding}
    return sliding
