"""The real default model: equal to transformers and to the oracle, and sane."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from engine_rig import Rig, dense_rows, transformers_logprobs
from transformers import LlamaConfig, LlamaForCausalLM

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.oracle import Oracle

pytestmark = pytest.mark.model

# <|im_start|>system … <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
PROMPT = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # The capital of France is Paris.<|im_end|>


@pytest.fixture(scope="module")
def reference(default_model_path: Path) -> LlamaForCausalLM:
    """transformers in float64, with the file read and its weights decoded by the gguf package.

    Two computations in float32 differ by up to 1.1e-4 here (of 2 million logits, most at log-probabilities under -20);
    each is within 1e-4 of what float64 gives."""
    reader = gguf.GGUFReader(default_model_path)
    stored = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in reader.tensors}
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
            if gguf_name in ("attn_q", "attn_k"):  # GGUF keeps the two halves of a rotary pair side by side
                num_heads = 9 if gguf_name == "attn_q" else 3
                weight = weight.reshape(num_heads, 32, 2, 576).swapaxes(1, 2).reshape(weight.shape)
            state[f"model.layers.{layer}.{hf_name}.weight"] = weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.tensor(one) for name, one in state.items()})
    return model.double()


def test_logits_equal_transformers(default_model: LoadedModel, reference: LlamaForCausalLM) -> None:
    tokens = PROMPT + ANSWER
    expected = transformers_logprobs(reference, tokens)
    rig = Rig(default_model)
    block_ids = rig.blocks(len(tokens))
    prefill = dense_rows(rig.rows(rig.row(PROMPT, block_ids=block_ids))[0])
    np.testing.assert_allclose(prefill, expected[: len(PROMPT)], atol=1e-4)
    for index, token in enumerate(ANSWER, start=len(PROMPT)):
        decoded = dense_rows(rig.rows(rig.row([token], kv_len=index, block_ids=block_ids))[0])
        np.testing.assert_allclose(decoded[0], expected[index], atol=1e-4)


def test_the_oracle_says_paris(default_model: LoadedModel) -> None:
    assert list(Oracle(default_model).generate(PROMPT, max_tokens=16, stop_tokens=[2]).tokens) == ANSWER


def test_alone_and_with_eight_neighbours_equals_the_oracle(default_model: LoadedModel) -> None:
    expected = Oracle(default_model).generate(PROMPT, max_tokens=8)
    for num_neighbours in (0, 8):
        rig = Rig(default_model)
        prompts = [PROMPT, *([1, 4093, 198, 1780 + i, *([314] * (7 * i))] for i in range(num_neighbours))]
        tables = [rig.blocks(len(prompt) + 8) for prompt in prompts]
        inputs, kv_lens, output = list(prompts), [0] * len(prompts), []
        for _ in range(8):
            results = rig.rows(*(
                ForwardRow(
                    block_ids=table, kv_len=kv_len, positions=list(range(kv_len, kv_len + len(tokens))),
                    token_ids=tokens, sampling=Sampling(temperature=float(i > 0), seed=i),
                    sample_position=kv_len + len(tokens),
                )
                for i, (table, kv_len, tokens) in enumerate(zip(tables, kv_lens, inputs, strict=True))
            ))  # fmt: skip
            kv_lens = [kv_len + len(tokens) for kv_len, tokens in zip(kv_lens, inputs, strict=True)]
            inputs = [[result.token_id] for result in results]
            output.append((results[0].token_id, results[0].logprob))
        assert [token for token, _ in output] == list(expected.tokens)
        np.testing.assert_allclose([logprob for _, logprob in output], expected.logprobs, atol=1e-5)


def test_the_file_is_described(default_model: LoadedModel) -> None:
    config = default_model.config
    assert (config.architecture, config.vocab_size, config.num_layers, config.max_context) == ("llama", 49152, 30, 8192)
    assert (config.is_head_tied, default_model.quantization) == (True, "Q4_1")
