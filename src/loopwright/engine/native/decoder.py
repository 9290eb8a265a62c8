"""A loaded model on the native kernels: packs its weights once, then a few calls a step. Never stores KV itself.

Implements what the model runner asks of a model. `fits` says which models it can run.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow, visible_places
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.native import structs
from loopwright.engine.native.answers import NativeAnswers
from loopwright.engine.native.build import Kernels
from loopwright.engine.native.cache import NativeKvCache
from loopwright.engine.native.packing import PackedMatrix, interleaved, pack
from loopwright.engine.native.structs import WeightType

_MAX_HEAD_DIM = 512
_MAX_CONTEXT = 1024 * 512  # parts of attention


def misfit(config: ModelConfig) -> str | None:
    """Why the kernels cannot run a model of these sizes; None if they can."""
    if config.experts is not None:
        return "a mixture of experts"
    for name, size in (("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size),
                       ("head_dim", config.head_dim)):  # fmt: skip
        if size % 16:
            return f"{name} {size} is not a multiple of 16"
    if config.head_dim > _MAX_HEAD_DIM:
        return f"head_dim {config.head_dim} is above {_MAX_HEAD_DIM}"
    if config.max_context > _MAX_CONTEXT:
        return f"a context of {config.max_context} is above {_MAX_CONTEXT}"
    return None


class NativeDecoder:
    """Two calls a step are most of it, and three smaller ones. Never called from two threads at once."""

    def __init__(
        self,
        model: LoadedModel,
        kernels: Kernels,
        cache: NativeKvCache,
        *,
        weight_type: Callable[[str], WeightType],
        num_threads: int,
        scratch_bytes: int,
    ) -> None:
        """`weight_type` says how the weight of a name is kept, `scratch_bytes` how much memory tokens may
        take that go through a layer together: as many do as fit. A single one takes what it needs."""
        config, weights = model.config, model.weights
        assert misfit(config) is None, misfit(config)
        self._library = kernels.library
        self._config = config
        self._embedding_scale = config.hidden_size**0.5 if config.architecture == "gemma3" else 1.0
        self._final_norm = weights["final_norm"].float().contiguous()
        head = "embedding" if config.is_head_tied else "head"
        self._head = pack(weights[head], weight_type(head))
        # What the head keeps in bf16 is the embedding too: a second copy would be a fifth of a small model.
        is_shared = config.is_head_tied and self._head.kind == "bf16"
        self._embedding = None if is_shared else weights["embedding"].bfloat16()
        self._kept: list[PackedMatrix | Tensor] = []  # what the structs point to
        self._layers = (structs.Layer * config.num_layers)(
            *(self._layer(model, index, cache, weight_type) for index in range(config.num_layers))
        )
        self._model = structs.Model(
            **{name: getattr(config, name) for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim")},
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            is_gelu=config.architecture == "gemma3",
            epsilon=config.norm_epsilon,
            query_scale=1.0 if config.score_scale is None else config.score_scale * config.head_dim**0.5,
            layers=self._layers,
            positions=cache.positions.data_ptr(),
            block_stride=cache.block_stride,
        )
        self._cache = cache
        self._workspace = self._library.workspace_new(num_threads, scratch_bytes)
        weakref.finalize(self, self._library.workspace_free, self._workspace)
        self.answers = NativeAnswers(self._library, self._workspace, config.vocab_size)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of packed weights, all of which a step reads."""
        matrices = [one for one in self._kept if isinstance(one, PackedMatrix)]
        return sum(one.nbytes for one in (*matrices, self._head))

    @property
    def scratch_bytes_taken(self) -> int:
        """What the kernels have taken so far, and what answers keep."""
        return int(self._library.workspace_bytes(self._workspace)) + self.answers.kept_bytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] → [num_tokens, hidden_size]."""
        if self._embedding is None:
            token_ids = token_ids.contiguous()
            vectors = torch.empty(len(token_ids), self._config.hidden_size)
            self._library.embed(
                ctypes.addressof(self._head.struct),
                token_ids.data_ptr(),
                len(token_ids),
                self._embedding_scale,
                vectors.data_ptr(),
            )
            return vectors
        vectors = torch.nn.functional.embedding(token_ids, self._embedding).float()
        return vectors if self._embedding_scale == 1 else vectors.mul_(self._embedding_scale)

    def forward(self, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow]) -> Tensor:
        """Runs all layers over the tokens of `rows`, one after the other: [num_tokens, hidden_size], overwritten."""
        plan = _Plan.of(rows, positions)
        self._library.forward(
            ctypes.addressof(self._model), ctypes.addressof(plan.step), hidden.data_ptr(), self._workspace
        )
        return hidden

    def normalize(self, hidden: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → the same."""
        hidden = hidden.contiguous()
        vectors = torch.empty_like(hidden)
        self._library.normalize_all(
            hidden.data_ptr(),
            len(hidden),
            self._final_norm.data_ptr(),
            self._config.hidden_size,
            self._config.norm_epsilon,
            vectors.data_ptr(),
        )
        return vectors

    def logits(self, normalized: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → float32 [num_tokens, vocab_size]."""
        normalized = normalized.contiguous()
        logits = torch.empty(len(normalized), self._config.vocab_size)
        self._library.logits(
            ctypes.addressof(self._head.struct),
            normalized.data_ptr(),
            len(normalized),
            logits.data_ptr(),
            self._workspace,
        )
        return logits

    def _layer(
        self, model: LoadedModel, index: int, cache: NativeKvCache, kind: Callable[[str], WeightType]
    ) -> structs.Layer:
        weights, prefix, rope = model.weights, f"layers.{index}.", model.ropes[index]

        def matrix(name: str, weight: Tensor | None = None) -> structs.Matrix:
            stored = weights[prefix + name] if weight is None else weight
            packed = pack(stored, kind(prefix + name), weights.get(f"{prefix}{name}_bias"))
            self._kept.append(packed)
            return packed.struct

        def vector(tensor: Tensor | None) -> int | None:
            if tensor is None:
                return None
            self._kept.append(kept := tensor.float().contiguous())
            return kept.data_ptr()

        names = ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm", "query_norm", "key_norm")
        return structs.Layer(
            qkv=matrix("qkv"),
            output=matrix("attention_output"),
            gate_up=matrix("gate_up", interleaved(weights[f"{prefix}gate_up"])),
            down=matrix("down"),
            **{name: vector(weights.get(prefix + name)) for name in names},
            keys=cache.keys[index].data_ptr(),
            values=cache.values[index].data_ptr(),
            frequencies=vector(rope.frequencies),
            magnitude=rope.magnitude,
            window=model.config.window(index) or 0,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A step's tokens for the kernels, with the arrays that `step` points into."""

    step: structs.Step
    arrays: tuple[object, ...]

    @classmethod
    def of(cls, rows: Sequence[AttentionRow], positions: Tensor) -> "_Plan":
        lengths = np.array([row.num_tokens for row in rows], np.int32)
        row_of = np.repeat(np.arange(len(rows), dtype=np.int32), lengths)
        first = np.cumsum(lengths) - lengths
        own = np.arange(len(row_of), dtype=np.int32) - np.repeat(first - [row.kv_len for row in rows], lengths).astype(
            np.int32
        )
        used = [row.block_ids[: (row.kv_len + row.num_tokens - 1) // BLOCK_SIZE + 1] for row in rows]
        block_starts = np.cumsum([0, *map(len, used)]).astype(np.int32)
        blocks = np.concatenate([np.asarray(one, np.int32) for one in used])
        places = blocks[block_starts[row_of] + own // BLOCK_SIZE] * BLOCK_SIZE + own % BLOCK_SIZE
        numbers = {"rows": row_of, "places": places, "own_places": own, "blocks": blocks, "block_starts": block_starts,
                   "token_positions": positions.numpy().astype(np.int32)}  # fmt: skip
        if any(row.mask is not None for row in rows):
            numbers["shown_starts"], numbers["shown"] = _shown(rows, len(row_of))
        step = structs.Step(num_tokens=len(row_of), **{name: array.ctypes.data for name, array in numbers.items()})
        return cls(step, tuple(numbers.values()))


def _shown(rows: Sequence[AttentionRow], num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits by block of what each masked token sees, and where each token's begin (-1: it sees all)."""
    starts = np.full(num_tokens, -1, np.int64)
    bits: list[np.ndarray] = []
    token = size = 0
    for row in rows:
        num_blocks = -(-(row.kv_len + row.num_tokens) // BLOCK_SIZE)
        for runs in row.mask or ():
            starts[token] = size
            seen = visible_places(runs, num_blocks * BLOCK_SIZE)
            bits.append(np.packbits(seen, bitorder="little").view(np.uint16))
            size += num_blocks
            token += 1
        if row.mask is None:
            token += row.num_tokens
    return starts, np.concatenate(bits)
