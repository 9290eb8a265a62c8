"""How a model is split among ranks: which splits there are, what sizes a rank has, and which part of each weight.

Never loads or moves one. Query, key, value, gate and up are split by their rows, attention's output and down by their
columns, the head by rows of the vocabulary; norms and the embedding are everybody's. Used by the loader.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopwright.core.errors import BadRequest
from loopwright.engine.loaded_model import ModelConfig
from loopwright.engine.models import find_architecture
from loopwright.engine.models.weight_spec import WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `num_ranks` parts of a model."""

    rank: int
    num_ranks: int


WHOLE = Shard(0, 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """A rectangle of a stored matrix of `num_rows` rows and `num_columns` columns (1 for a vector)."""

    num_rows: int
    num_columns: int
    rows: slice
    columns: slice

    @property
    def is_whole_rows(self) -> bool:
        return self.columns == slice(0, self.num_columns)


@dataclass(frozen=True, slots=True)
class ShardedSpec:
    """A rank's weight: its spec with the rank's sizes, and where each part of it lies in the stored part. One that
    `is_elsewhere` belongs to the first rank alone, and is nothing here."""

    spec: WeightSpec
    cuts: tuple[Cut, ...]
    is_elsewhere: bool = False


def check_split(config: ModelConfig, num_ranks: int) -> None:
    """Raises BadRequest, with the numbers, for a model that so many ranks cannot share evenly."""
    sizes = _sizes(config)
    if odd := [f"{size} {name}" for name, size in sizes.items() if size % num_ranks]:
        possible = [n for n in range(1, config.num_kv_heads + 1) if not any(size % n for size in sizes.values())]
        raise BadRequest(
            f"engine.tensor_parallel: {num_ranks} ranks cannot share this model evenly, which has {', '.join(odd)}",
            hint=f"it can be split by {', '.join(map(str, possible))}",
            field="engine.tensor_parallel",
        )


def local_config(config: ModelConfig, num_ranks: int) -> ModelConfig:
    """The sizes that one rank has."""
    if num_ranks == 1:
        return config
    experts = config.experts
    if experts is not None:
        experts = dataclasses.replace(experts, intermediate_size=experts.intermediate_size // num_ranks)
    return dataclasses.replace(
        config, num_heads=config.num_heads // num_ranks, num_kv_heads=config.num_kv_heads // num_ranks,
        intermediate_size=config.intermediate_size // num_ranks, experts=experts,
    )  # fmt: skip


def sharded_specs(config: ModelConfig, shard: Shard) -> Iterator[ShardedSpec]:
    """Every weight of the rank, of a model of these sizes. Raises BadRequest as `check_split` does."""
    check_split(config, shard.num_ranks)
    list_weights = find_architecture(config.architecture).weights
    wholes, parts = list_weights(config), list_weights(local_config(config, shard.num_ranks))
    for whole, part in zip(wholes, parts, strict=True):
        local = _split_head(part, shard.num_ranks) if part.name == "head" else part
        cuts = tuple(
            _cut(whole, local, stored.num_rows, mine.num_rows, shard.rank)
            for stored, mine in zip(whole.parts, local.parts, strict=True)
        )
        yield ShardedSpec(local, cuts, is_elsewhere=shard.rank > 0 and whole.name.endswith("output_bias"))


def _sizes(config: ModelConfig) -> Mapping[str, int]:
    """What is split, by its name for people. A mixture of experts has no MLP but theirs."""
    size = config.intermediate_size if config.experts is None else config.experts.intermediate_size
    return {
        "query heads": config.num_heads,
        "KV heads": config.num_kv_heads,
        "as intermediate size": size,
        "tokens in its vocabulary": config.vocab_size,
    }


def _split_head(spec: WeightSpec, num_ranks: int) -> WeightSpec:
    (part,) = spec.parts
    num_rows = part.num_rows // num_ranks
    return WeightSpec(spec.name, (num_rows, *spec.shape[1:]), (WeightPart(num_rows, part.hf, part.gguf),))


def _cut(whole: WeightSpec, part: WeightSpec, num_rows: int, num_mine: int, rank: int) -> Cut:
    """What is smaller than the whole is the rank's in order."""
    num_columns, mine = (spec.shape[1] if len(spec.shape) > 1 else 1 for spec in (whole, part))
    first_row = rank * num_mine if num_mine < num_rows else 0
    first = rank * mine if mine < num_columns else 0
    return Cut(num_rows, num_columns, slice(first_row, first_row + num_mine), slice(first, first + mine))
