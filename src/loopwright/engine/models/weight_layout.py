"""The weights that architectures have in common, with their names in both formats. Never reads or runs one.

Called by the architectures' `weights`. Sources of the names: transformers' modules, llama.cpp's `gguf-py/constants.py`.
"""

from collections.abc import Callable, Iterable, Sequence

from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models.weight_spec import StoredPart, WeightPart, WeightSpec


def decoder_weights(
    config: ModelConfig, layer_weights: Callable[["LayerLayout"], Iterable[WeightSpec]], layout: "Layout"
) -> tuple[WeightSpec, ...]:
    """Every weight of a decoder: embedding, final norm, head unless tied, and the layers'."""
    hidden, vocab = config.hidden_size, config.vocab_size
    top = [
        _matrix("embedding", hidden, [_part(vocab, "model.embed_tokens.weight", "token_embd.weight")]),
        WeightSpec("final_norm", (hidden,), (layout.norm_part(hidden, "model.norm.weight", "output_norm.weight"),)),
    ]
    if not config.is_head_tied:
        top.append(_matrix("head", hidden, [_part(vocab, "lm_head.weight", "output.weight")]))
    layers = (layer_weights(LayerLayout(config, index, layout)) for index in range(config.num_layers))
    return (*top, *(spec for layer in layers for spec in layer))


class Layout:
    """What the files of an architecture do in their own way.

    GGUF files of Llama keep the rows of a rotary pair side by side, as we do; those of the others, and all Hugging
    Face folders, keep halves. `hf_norm_offset` is what a Hugging Face folder leaves out of each norm's weight."""

    def __init__(self, *, has_paired_gguf: bool = False, hf_norm_offset: float = 0.0) -> None:
        self.has_paired_gguf = has_paired_gguf
        self.hf_norm_offset = hf_norm_offset

    def norm_part(self, size: int, hf_name: str, gguf_name: str, num_heads: int = 0) -> WeightPart:
        return WeightPart(
            size, StoredPart(hf_name, num_heads, self.hf_norm_offset), StoredPart(gguf_name, self.gguf_heads(num_heads))
        )

    def gguf_heads(self, num_heads: int) -> int:
        return 0 if self.has_paired_gguf else num_heads


class LayerLayout:
    """The weights of one layer. Names are given without their prefix and without `.weight`."""

    def __init__(self, config: ModelConfig, index: int, layout: Layout) -> None:
        self.config = config
        self._layout = layout
        self._ours, self._hf, self._gguf = f"layers.{index}.", f"model.layers.{index}.", f"blk.{index}."

    def norm(self, name: str, hf_name: str, gguf_name: str) -> WeightSpec:
        size = self.config.hidden_size
        part = self._layout.norm_part(size, f"{self._hf}{hf_name}.weight", f"{self._gguf}{gguf_name}.weight")
        return WeightSpec(self._ours + name, (size,), (part,))

    def head_norm(self, name: str, hf_name: str, gguf_name: str) -> WeightSpec:
        """A norm over each head by itself, before it is rotated: its weights are in the order of the head's rows."""
        size = self.config.head_dim
        part = self._layout.norm_part(size, f"{self._hf}{hf_name}.weight", f"{self._gguf}{gguf_name}.weight", 1)
        return WeightSpec(self._ours + name, (size,), (part,))

    def head_norms(self) -> list[WeightSpec]:
        return [
            self.head_norm("query_norm", "self_attn.q_norm", "attn_q_norm"),
            self.head_norm("key_norm", "self_attn.k_norm", "attn_k_norm"),
        ]

    def attention(self) -> list[WeightSpec]:
        """Query, key and value as one matrix, the output matrix, and the biases that the config has."""
        config = self.config
        hidden, query_rows = config.hidden_size, config.num_heads * config.head_dim
        specs = [
            _matrix(f"{self._ours}qkv", hidden, self._qkv("weight")),
            self.matrix("attention_output", query_rows, (hidden, "self_attn.o_proj", "attn_output")),
        ]
        if config.has_qkv_bias:
            specs.append(_vector(f"{self._ours}qkv_bias", self._qkv("bias")))
        if config.has_output_bias:
            bias = _part(hidden, f"{self._hf}self_attn.o_proj.bias", f"{self._gguf}attn_output.bias")
            specs.append(_vector(f"{self._ours}attention_output_bias", [bias]))
        return specs

    def gated_mlp(self) -> list[WeightSpec]:
        hidden, size = self.config.hidden_size, self.config.intermediate_size
        return [
            self.matrix("gate_up", hidden, (size, "mlp.gate_proj", "ffn_gate"), (size, "mlp.up_proj", "ffn_up")),
            self.matrix("down", size, (hidden, "mlp.down_proj", "ffn_down")),
        ]

    def expert_mlp(self, number: int, count: int, size: int) -> list[WeightSpec]:
        """One of `count` experts: tensors of its own in Hugging Face folders, a slice of all experts' in GGUF files."""

        def part(num_rows: int, name: str, gguf_name: str) -> WeightPart:
            gguf = StoredPart(f"{self._gguf}{gguf_name}.weight", expert=(number, count))
            return WeightPart(num_rows, StoredPart(f"{self._hf}mlp.experts.{number}.{name}.weight"), gguf)

        hidden, ours = self.config.hidden_size, f"{self._ours}experts.{number}."
        gate_up = [part(size, "gate_proj", "ffn_gate_exps"), part(size, "up_proj", "ffn_up_exps")]
        return [
            _matrix(f"{ours}gate_up", hidden, gate_up),
            _matrix(f"{ours}down", size, [part(hidden, "down_proj", "ffn_down_exps")]),
        ]

    def matrix(self, name: str, num_inputs: int, *parts: tuple[int, str, str]) -> WeightSpec:
        """Parts are rows, the Hugging Face name and the GGUF name."""
        stored = [
            _part(num_rows, f"{self._hf}{hf_name}.weight", f"{self._gguf}{gguf_name}.weight")
            for num_rows, hf_name, gguf_name in parts
        ]
        return _matrix(self._ours + name, num_inputs, stored)

    def _qkv(self, suffix: str) -> list[WeightPart]:
        config = self.config
        parts = [("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)]
        return [
            WeightPart(
                num_heads * config.head_dim,
                StoredPart(f"{self._hf}self_attn.{letter}_proj.{suffix}", num_heads if letter != "v" else 0),
                StoredPart(
                    f"{self._gguf}attn_{letter}.{suffix}",
                    self._layout.gguf_heads(num_heads) if letter != "v" else 0,
                ),
            )
            for letter, num_heads in parts
        ]


def _part(num_rows: int, hf_name: str, gguf_name: str) -> WeightPart:
    return WeightPart(num_rows, StoredPart(hf_name), StoredPart(gguf_name))


def _matrix(name: str, num_inputs: int, parts: Sequence[WeightPart]) -> WeightSpec:
    return WeightSpec(name, (sum(part.num_rows for part in parts), num_inputs), tuple(parts))


def _vector(name: str, parts: Sequence[WeightPart]) -> WeightSpec:
    return WeightSpec(name, (sum(part.num_rows for part in parts),), tuple(parts))
