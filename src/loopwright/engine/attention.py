"""Attention over paged KV: the protocol of a back-end, their registry, and the reference, "sdpa".

Never computes projections. Planned once a step by the model runner, then asked by the model in every layer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from loopwright.core.calls import Visibility
from loopwright.core.errors import Unavailable
from loopwright.engine.kv_cache import BLOCK_SIZE, KvCache

_MAX_GROUPED_PLACES = 1024  # gathered keys and values of a group should stay in a core's second-level cache
_MAX_GROUPED_TOKENS = 32  # rows with more new tokens fill the device by themselves


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """A run of new tokens of one page table, as in core.batch.ForwardRow."""

    block_ids: Sequence[int]
    kv_len: int
    num_tokens: int
    mask: Sequence[Visibility] | None = None


class AttentionStep(Protocol):
    """One step's attention, planned for its rows.

    A token sees what its row's mask shows, in a layer with a window only where the key's position is less than the
    window before its own. One that sees nothing at all gets zeros."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Writes the new keys and values, then attends.

        query [num_tokens, num_heads, head_dim]; key, value [num_tokens, num_kv_heads, head_dim];
        returns [num_tokens, num_heads · head_dim]. Tokens are those of the planned rows, one after the other."""
        ...


class AttentionBackend(Protocol):
    """A way to compute attention. All match "sdpa"."""

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> AttentionStep:
        """`positions` [num_tokens] are those of all rows' new tokens; they are kept with the tokens' KV."""
        ...


def make_attention(name: str, cache: KvCache) -> AttentionBackend:
    """The back-end of that name. Raises Unavailable, which says why it cannot run."""
    make = BACKENDS.get(name)
    if make is None:
        raise Unavailable(
            f"the attention back-end {name!r} does not exist; known are {', '.join(BACKENDS)}",
            hint="set engine.attention = 'sdpa'",
        )
    return make(cache)


class SdpaAttention:
    """The reference: torch's scaled_dot_product_attention in float32.

    Rows with equally many new tokens and similar length form a group, which is one padded call; a long prefill is a
    group by itself. Where the blocks of a group follow one another, the cache is read in place, else gathered."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def plan(self, rows: Sequence[AttentionRow], positions: Tensor) -> "SdpaStep":
        return SdpaStep(self._cache, rows, positions)


class SdpaStep:
    """One step's attention: where new KV goes, and the groups."""

    def __init__(self, cache: KvCache, rows: Sequence[AttentionRow], positions: Tensor) -> None:
        self._cache = cache
        self._places = torch.from_numpy(np.concatenate([_new_places(row) for row in rows]))
        cache.positions.index_copy_(0, self._places, positions.int())
        starts = np.cumsum([0, *(row.num_tokens for row in rows)])
        self._num_tokens = int(starts[-1])
        self._groups = [
            _make_group([rows[i] for i in members], [int(starts[i]) for i in members], cache, positions)
            for members in _group_rows(rows)
        ]  # fmt: skip

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values, window = self._cache.keys[layer], self._cache.values[layer], self._cache.windows[layer]
        keys.index_copy_(0, self._places, key)
        values.index_copy_(0, self._places, value)
        if len(self._groups) == 1 and self._groups[0].is_in_order:
            return _attend_group(self._groups[0], window, query, keys, values)
        output = query.new_empty(self._num_tokens, query.shape[1] * query.shape[2])
        for group in self._groups:
            output[group.tokens] = _attend_group(group, window, query[group.tokens], keys, values)
        return output


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the tokens of a group see, as SDPA wants to be told."""

    mask: Tensor | None  # added to the scores, 0 or -inf: [num_rows, num_tokens, num_places]
    is_causal: bool = False  # new tokens see each other in order and nothing else


@dataclass(frozen=True, slots=True)
class _Group:
    """`num_rows` rows of `num_tokens` new tokens each, padded to `num_places` places of KV."""

    num_rows: int
    num_tokens: int
    num_places: int
    tokens: slice | Tensor  # which tokens of the batch
    is_in_order: bool  # `tokens` starts at 0 and has no gap
    blocks: int | Tensor  # the first of consecutive blocks, or all block ids, num_rows · blocks a row
    seen: Mapping[int | None, _Seen]  # by the window of a layer


def _group_rows(rows: Sequence[AttentionRow]) -> list[list[int]]:
    """Row numbers by group: equally many new tokens, the longest at most twice the shortest, ascending within."""
    by_length = sorted(range(len(rows)), key=lambda i: (rows[i].num_tokens, rows[i].kv_len))
    groups: list[list[int]] = []
    for i in by_length:
        first = rows[groups[-1][0]] if groups else None
        if (
            first is not None
            and first.num_tokens == rows[i].num_tokens <= _MAX_GROUPED_TOKENS
            and rows[i].kv_len <= 2 * first.kv_len + BLOCK_SIZE
            and (len(groups[-1]) + 1) * (rows[i].kv_len + 1) <= _MAX_GROUPED_PLACES
        ):
            groups[-1].append(i)
        else:
            groups.append([i])
    return [sorted(group) for group in groups]


def _make_group(rows: Sequence[AttentionRow], starts: Sequence[int], cache: KvCache, positions: Tensor) -> _Group:
    num_tokens = rows[0].num_tokens
    num_places = max(row.kv_len for row in rows) + num_tokens
    end = starts[0] + len(rows) * num_tokens
    is_run = starts[-1] + num_tokens == end
    index = np.asarray(starts)[:, None] + np.arange(num_tokens)
    blocks = _blocks(rows, -(-num_places // BLOCK_SIZE))
    seen: dict[int | None, _Seen] = {None: _seen(rows, num_places)}
    if windows := {window for window in cache.windows if window is not None}:
        own = positions[torch.from_numpy(index)]  # [num_rows, num_tokens]
        age = own[:, :, None] - _read(cache.positions, blocks, len(rows), num_places)[:, None]
        is_visible = _is_visible(rows, num_places)
        seen |= {window: _narrowed(seen[None], is_visible, age < window) for window in windows}
    return _Group(
        num_rows=len(rows),
        num_tokens=num_tokens,
        num_places=num_places,
        tokens=slice(starts[0], end) if is_run else torch.from_numpy(index.reshape(-1)),
        is_in_order=is_run and starts[0] == 0,
        blocks=blocks,
        seen=seen,
    )


def _seen(rows: Sequence[AttentionRow], num_places: int) -> _Seen:
    """Without a window. Most groups need no mask: a prompt from its start, decoding rows of one length."""
    num_tokens = rows[0].num_tokens
    if all(row.mask is None for row in rows):
        if num_tokens == 1 and all(row.kv_len + 1 == num_places for row in rows):
            return _Seen(None)
        if len(rows) == 1 and rows[0].kv_len == 0:
            return _Seen(None, is_causal=True)
    return _Seen(_additive(_is_visible(rows, num_places)))


def _narrowed(seen: _Seen, is_visible: Tensor, is_near: Tensor) -> _Seen:
    narrow = is_visible & is_near
    return seen if torch.equal(narrow, is_visible) else _Seen(_additive(narrow))


def _blocks(rows: Sequence[AttentionRow], num_blocks: int) -> int | Tensor:
    """Blocks of all rows, each padded to `num_blocks`. Padding repeats the row's own first block: it is masked, but a
    NaN behind a mask still spreads, and must not spread from one row to another."""
    padded = np.empty((len(rows), num_blocks), np.int64)
    for target, row in zip(padded, rows, strict=True):
        used = row.block_ids[: -(-(row.kv_len + row.num_tokens) // BLOCK_SIZE)]
        target[: len(used)] = used
        target[len(used) :] = used[0]
    flat = padded.reshape(-1)
    if (flat[1:] - flat[:-1] == 1).all():
        return int(flat[0])
    return torch.from_numpy(flat)


def _is_visible(rows: Sequence[AttentionRow], num_places: int) -> Tensor:
    """[num_rows, num_tokens, num_places] of booleans."""
    places = np.arange(num_places)
    own_places = np.array([row.kv_len for row in rows])[:, None] + np.arange(rows[0].num_tokens)
    is_visible = places <= own_places[:, :, None]
    for target, row in zip(is_visible, rows, strict=True):
        for seen, runs in zip(target, row.mask or (), strict=row.mask is not None):
            seen[:] = visible_places(runs, num_places)
    return torch.from_numpy(is_visible)


def _additive(is_visible: Tensor) -> Tensor:
    return torch.where(is_visible, 0.0, -torch.inf)


def visible_places(runs: Visibility, num_places: int) -> NDArray[np.bool_]:
    """The run lengths of core.calls.Visibility, which alternate hidden and visible, as [num_places] booleans."""
    seen = np.zeros(num_places, np.bool_)
    start = 0
    for hidden, visible in zip(runs[::2], runs[1::2], strict=False):  # a hidden run at the end may have any length
        seen[start + hidden : start + hidden + visible] = True
        start += hidden + visible
    return seen


def seen_places(masks: Sequence[Visibility], widths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """As `visible_places` of many tokens, one after the other: token t has `widths[t]` places, and what no run of its
    own reaches is hidden. All at once, for a token by itself costs ten times what its places do."""
    counts = np.fromiter(map(len, masks), np.int64, len(masks))
    runs = np.fromiter(chain.from_iterable(masks), np.int64, int(counts.sum()))
    token = np.repeat(np.arange(len(masks)), counts)
    first = np.cumsum(counts) - counts  # of each token's runs
    reached = np.concatenate([[0], np.cumsum(runs)])
    ends = np.minimum(reached[1:] - reached[first][token], widths[token])  # clipped: the last run may have any length
    starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
    starts[first[counts > 0]] = 0
    # A token's last piece is what its runs have left, so all pieces together are all places.
    lengths = np.empty(len(runs) + len(masks), np.int64)
    is_visible = np.zeros(len(lengths), np.bool_)
    place = np.arange(len(runs)) + token
    lengths[place], is_visible[place] = ends - starts, (np.arange(len(runs)) - first[token]) % 2 == 1
    rest = first + counts + np.arange(len(masks))
    lengths[rest] = widths - np.bincount(token, ends - starts, len(masks)).astype(np.int64)
    return np.repeat(is_visible, lengths)


def _new_places(row: AttentionRow) -> NDArray[np.int64]:
    """Where the KV of the new tokens goes: [num_tokens]."""
    index = np.arange(row.kv_len, row.kv_len + row.num_tokens)
    first = row.kv_len // BLOCK_SIZE
    blocks = np.asarray(row.block_ids[first : index[-1] // BLOCK_SIZE + 1], np.int64)
    return blocks[index // BLOCK_SIZE - first] * BLOCK_SIZE + index % BLOCK_SIZE


def _attend_group(group: _Group, window: int | None, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query [num_rows · num_tokens, num_heads, head_dim] → [num_rows · num_tokens, num_heads · head_dim].

    Query heads that share a KV head are never given copies of it. A long row makes KV heads the batch, so that SDPA
    sees one KV head expanded; short rows make the sharing heads more queries of one KV head."""
    # [num_rows, num_places, num_kv_heads, head_dim]
    key, value = (_read(one, group.blocks, group.num_rows, group.num_places) for one in (keys, values))
    num_kv_heads, head_dim = keys.shape[1:]
    grouped = query.view(group.num_rows, group.num_tokens, num_kv_heads, -1, head_dim)
    num_shared = grouped.shape[3]
    seen = group.seen[window]
    mask = seen.mask
    if group.num_rows == 1 and group.num_tokens > 1:
        attended = scaled_dot_product_attention(
            grouped[0].permute(1, 2, 0, 3),  # [num_kv_heads, num_shared, num_tokens, head_dim]
            key[0].transpose(0, 1)[:, None].expand(-1, num_shared, -1, -1),
            value[0].transpose(0, 1)[:, None].expand(-1, num_shared, -1, -1),
            attn_mask=None if mask is None else mask[:, None],
            is_causal=seen.is_causal,
        )
        return attended.permute(2, 0, 1, 3).reshape(group.num_tokens, -1)
    if mask is not None:
        mask = mask[:, None, None].expand(-1, 1, num_shared, -1, -1).flatten(2, 3)
    attended = scaled_dot_product_attention(
        grouped.permute(0, 2, 3, 1, 4).flatten(2, 3),  # [num_rows, num_kv_heads, num_shared · num_tokens, head_dim]
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
    )
    by_token = attended.view(group.num_rows, num_kv_heads, num_shared, group.num_tokens, head_dim).permute(
        0, 3, 1, 2, 4
    )
    return by_token.reshape(group.num_rows * group.num_tokens, -1)


def _read(cache: Tensor, blocks: int | Tensor, num_rows: int, num_places: int) -> Tensor:
    """A group's places of a tensor [places, …] of the cache: [num_rows, num_places, …]."""
    num_blocks = -(-num_places // BLOCK_SIZE)
    if isinstance(blocks, int):
        start = blocks * BLOCK_SIZE
        places = cache[start : start + num_rows * num_blocks * BLOCK_SIZE]
    else:
        places = cache.view(cache.shape[0] // BLOCK_SIZE, -1).index_select(0, blocks)
    return places.view(num_rows, num_blocks * BLOCK_SIZE, *cache.shape[1:])[:, :num_places]


BACKENDS: Mapping[str, Callable[[KvCache], AttentionBackend]] = {"sdpa": SdpaAttention}
