"""What a model is once loaded: its sizes and its float32 weights under our own names. Never reads or runs one.

Made by the loader and the byte model; read by the models, the model runner and the oracle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. Only `factor` counts for "linear".

    Sources: "llama3" is the Llama 3.1 release, as `rope_type: llama3` in config.json; "yarn" is "YaRN: Efficient
    Context Window Extension of Large Language Models", section 3, with its attention factor on both query and key."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position: int = 8192  # llama3 and yarn: what the model was trained for before it was stretched
    beta_fast: float = 32.0  # yarn: turns over the original length from which a pair is left as it is
    beta_slow: float = 1.0  # yarn: turns up to which a pair is stretched by the whole factor
    attention_factor: float = 1.0  # yarn: what rotated queries and keys are multiplied with


@dataclass(frozen=True, slots=True)
class Experts:
    """Sizes of a mixture of experts, the same in every layer."""

    num_experts: int
    num_chosen: int  # experts that run for one token
    intermediate_size: int  # of one expert
    is_normalized: bool  # the weights of a token's chosen experts sum to one


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes of a decoder-only transformer."""

    architecture: str  # a name of engine.models.ARCHITECTURES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int  # positions the model was trained for
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    is_head_tied: bool  # the head is the embedding
    windows: tuple[int | None, ...] = ()  # by layer, see `window`; () is no window anywhere
    local_rope_theta: float | None = None  # of layers with a window, which then know no scaling; None: as all others
    has_qkv_bias: bool = False
    has_output_bias: bool = False  # of the attention's output projection
    score_scale: float | None = None  # what query · key is multiplied with; None is head_dim ** -0.5
    experts: Experts | None = None

    def window(self, layer: int) -> int | None:
        """How far a layer sees: keys whose position is less than this before the query's. None is no bound."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary embedding of a layer: `frequencies` [head_dim / 2] are radians a position, scaling applied; rotated
    queries and keys are multiplied with `magnitude`."""

    frequencies: Tensor
    magnitude: float = 1.0


class Ranks(Protocol):
    """The processes that share a model, each with a part of its heads, its MLPs and its head, as one of them sees them.
    All of them ask for the same, in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def num_ranks(self) -> int: ...

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place, and the same bits on each."""
        ...

    def side_by_side(self, part: Tensor) -> Tensor:
        """[num_rows, size] of each rank → [num_rows, num_ranks · size] on each, the first rank's first."""
        ...

    def take_from_first(self, tensor: Tensor) -> Tensor:
        """What the first rank gives, on each."""
        ...


class _Alone:
    """A model that one process has whole. Implements Ranks."""

    rank = 0
    num_ranks = 1

    def add_up(self, partial: Tensor) -> Tensor:
        return partial

    def side_by_side(self, part: Tensor) -> Tensor:
        return part

    def take_from_first(self, tensor: Tensor) -> Tensor:
        return tensor


ALONE = _Alone()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    `weights` are float32, a matrix is [outputs, inputs]; the architecture's `weights` lists names and shapes.
    Rows of query and key come in pairs that rotate together (element 2i with 2i + 1).
    `ropes` has one for each layer; layers that rotate alike share one. `quantization` is how most of it was stored.
    With `ranks` it is one's part of a model, and so are the config's numbers of heads and sizes of MLPs; the embedding
    and the vocabulary's size are whole."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    ropes: tuple[Rope, ...]
    quantization: str
    stored_as: Mapping[str, str] = field(default_factory=dict)  # the kind of a weight, if all its parts have one
    ranks: Ranks = ALONE

    def own_rows(self, embedding: Tensor) -> Tensor:
        """The rows of a tied head that are this rank's: [vocab_size / num_ranks, hidden_size]."""
        size = self.config.vocab_size // self.ranks.num_ranks
        return embedding[self.ranks.rank * size :][:size]

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that one step must read: an input embedding is looked up, unless the head is tied to it, and
        a token runs through its chosen experts."""
        skipped = () if self.config.is_head_tied else ("embedding",)
        experts = self.config.experts
        share = 1.0 if experts is None else experts.num_chosen / experts.num_experts
        return sum(
            int(weight.nbytes * (share if ".experts." in name else 1))
            for name, weight in self.weights.items()
            if name not in skipped
        )
