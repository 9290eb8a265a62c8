"""Passes over prompts of some hundred tokens as captured graphs, with rows of one token beside them or alone.

Never samples and never decides what runs. Launched one by one, the kernels of such a pass take longer than the device
needs for them; all that differs between two passes of a size is on the device. Used by the decode steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import new_places
from loopwright.engine.cuda.attention_kernels import attend, long_tiling, reach, windowed
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.captured import Captured
from loopwright.engine.cuda.decoder import DeviceDecoder
from loopwright.engine.cuda.tile_attention import launches
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.transfer import to_device

Capture = Callable[[Callable[[], tuple[Tensor, Tensor]]], Captured[tuple[Tensor, Tensor]]]

TILE = 128
"""Tokens by which sizes grow: products take as long for a part of them."""

MAX_TILES = 8
MAX_PROMPTS = 32
MAX_PLACES = 4096
"""Of a prompt with what lies before it. Beyond, attention is most of a pass, and other kernels are faster at it."""

FEW_ROWS = 32
"""Rows of one token have room for so many, or for all that there may be: attention shares each row's places among more
programs if there are few."""


@dataclass(frozen=True, slots=True, eq=False)
class _Buffers:
    """What a pass reads: of its tokens `residual` [num_tokens, hidden_size], `positions` and `places` [num_tokens], its
    prompts' `table` [prompts, max_blocks] and `tiles` [num_tiles, 4], and how many rows of one token come first."""

    residual: Tensor
    positions: Tensor
    places: Tensor
    table: Tensor
    tiles: Tensor
    num_singles: Tensor
    singles: DecodeBuffers


class Passes:
    """A graph for each number of tiles, without rows of one token, with few and with as many as there may be."""

    def __init__(self, decoder: DeviceDecoder, max_rows: int, max_blocks: int) -> None:
        self._decoder, self._device, self._max_rows = decoder, decoder.device, max_rows
        self._tiling = long_tiling(decoder.head_dim)
        self._num_shared = max(1, self._tiling.rows // decoder.group)
        self._scratch = decoder.cache.scratch_block
        tokens = MAX_TILES * TILE
        self._buffers = _Buffers(
            torch.zeros(tokens, decoder.hidden_size, dtype=torch.float32, device=self._device),
            torch.zeros(tokens, dtype=torch.int64, device=self._device),
            torch.full((tokens,), self._scratch * BLOCK_SIZE, dtype=torch.int64, device=self._device),
            torch.full((MAX_PROMPTS, max_blocks), self._scratch, dtype=torch.int32, device=self._device),
            torch.zeros(self._num_tiles(tokens), 4, dtype=torch.int32, device=self._device),
            torch.zeros(1, dtype=torch.int64, device=self._device),
            DecodeBuffers.make(max_rows, max_blocks, self._scratch, self._device),
        )
        self._captured: dict[tuple[int, int], Captured[tuple[Tensor, Tensor]]] = {}

    def capture(self, capture: Capture) -> None:
        """Makes the graphs, the largest first: the others fit into its memory."""
        for num_rows in sorted({self._room(self._max_rows), self._room(1), 0}, reverse=True):
            for tiles in range(MAX_TILES, 0, -1):
                key = (num_rows, tiles * TILE)
                self._captured[key] = capture(lambda key=key: self._compute(*key))  # type: ignore[misc]

    def forget(self) -> None:
        """Gives them back."""
        for captured in self._captured.values():
            captured.graph.reset()
        self._captured = {}

    def has(self, num_singles: int, rows: Sequence[AttentionRow]) -> bool:
        """Whether there is a graph for so many rows of one token and these prompts."""
        num_tokens = num_singles + sum(row.num_tokens for row in rows)
        return bool(self._captured) and num_tokens <= MAX_TILES * TILE and fits(rows)

    def run(
        self, buffers: DecodeBuffers, num_singles: int, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow]
    ) -> tuple[Tensor, Tensor]:
        """The first `num_singles` rows of the buffers, and the prompts: normalized hidden states of the former, and
        hidden states of the latter's tokens. Both are good until the next pass."""
        num_tokens = num_singles + len(hidden)
        size = -(-num_tokens // TILE) * TILE
        self._fill(buffers, num_singles, hidden, positions, rows, size)
        key = (self._room(num_singles), size)
        captured = self._captured.get(key)
        residual, normalized = self._compute(*key) if captured is None else captured.replay()
        return normalized[:num_singles], residual[num_singles:num_tokens]

    def _room(self, num_singles: int) -> int:
        if num_singles == 0:
            return 0
        return FEW_ROWS if num_singles <= FEW_ROWS <= self._max_rows else self._max_rows

    def _num_tiles(self, num_tokens: int) -> int:
        """Of attention, for prompts of so many tokens in all."""
        return num_tokens // self._num_shared + MAX_PROMPTS

    def _fill(
        self, buffers: DecodeBuffers, num_singles: int, hidden: Tensor, positions: Tensor,
        rows: Sequence[AttentionRow], size: int,
    ) -> None:  # fmt: skip
        own, end = self._buffers, num_singles + len(hidden)
        ((_, tiles),) = launches(rows, self._num_shared, self._tiling)
        width = max(len(row.block_ids) for row in rows)
        table = np.full((len(rows), width), self._scratch, np.int32)
        for number, row in enumerate(rows):
            table[number, : len(row.block_ids)] = row.block_ids
        places = np.full(size, self._scratch * BLOCK_SIZE, np.int32)
        places[num_singles:end] = new_places(rows)
        num_tiles = self._num_tiles(size)
        # A tile without tokens sees one place, of which no token comes.
        all_tiles = np.tile(np.array([0, 0, 0, 1], np.int32), (num_tiles, 1))
        all_tiles[: len(tiles)] = tiles + np.array([0, num_singles, 0, 0], np.int32)
        parts = [places, all_tiles.reshape(-1), table.reshape(-1), np.array([num_singles], np.int32)]
        sent = to_device(np.concatenate(parts), self._device).split([len(part) for part in parts])
        own.places[:size] = sent[0]
        own.tiles[:num_tiles] = sent[1].view(num_tiles, 4)
        own.table[: len(rows), :width] = sent[2].view(table.shape)
        own.num_singles.copy_(sent[3])
        own.residual[num_singles:end] = hidden
        own.residual[end:size] = 0
        own.positions[:size] = 0
        own.positions[num_singles:end] = positions
        if num_singles:
            room = self._room(num_singles)
            own.singles.inputs[:, num_singles:room] = 0
            own.singles.inputs[:, :num_singles] = buffers.inputs[:, :num_singles]
            own.singles.table[num_singles:room, 0] = self._scratch
            own.singles.table[:num_singles] = buffers.table[:num_singles]

    def _compute(self, room: int, size: int) -> tuple[Tensor, Tensor]:
        """All layers: the residual stream and its final norm, of `size` tokens, of which up to `room` are singles."""
        own, decoder, cache = self._buffers, self._decoder, self._decoder.cache
        residual, positions, places = own.residual[:size], own.positions[:size], own.places[:size]
        tiles, singles = own.tiles[: self._num_tiles(size)], own.singles
        is_single = torch.arange(min(room, size), device=self._device) < own.num_singles
        count = len(is_single)
        if room:
            begun, own_places = decoder.begin(singles, room)
            residual[:count] = torch.where(is_single[:, None], begun[:count], residual[:count])
            places[:count] = torch.where(is_single, own_places[:count].long(), places[:count])
            positions[:count] = torch.where(is_single, singles.positions[:count].long(), positions[:count])
        cache.positions[places] = positions.int()
        windows = {window for window in cache.windows if window is not None}
        reaches = {one: reach(own.table, tiles, cache.positions, one, self._num_shared) for one in windows}
        attend_singles = decoder.attend_singles(singles.table[:room], singles.lens[:room]) if room else None

        def attend_all(layer: int, query: Tensor, fresh: Tensor) -> Tensor:
            window = cache.windows[layer]
            seen = None if window is None else reaches[window]
            tiling = self._tiling if window is None else windowed(self._tiling, decoder.head_dim)
            found = attend(query, cache.layers[layer], own.table, tiles, tiling, reach=seen)
            if attend_singles is not None:
                asked = (
                    query[:room] if room <= size else torch.cat([query, query.new_zeros(room - size, *query.shape[1:])])
                )
                alone = attend_singles(layer, asked, fresh)
                found[:count] = torch.where(is_single[:, None], alone[:count], found[:count])
            return found

        return decoder.run_layers(residual, positions, places, attend_all)


def fits(rows: Sequence[AttentionRow]) -> bool:
    """Whether the kernel that graphs have is for these prompts."""
    return len(rows) <= MAX_PROMPTS and all(
        row.mask is None and row.kv_len + row.num_tokens <= MAX_PLACES for row in rows
    )
