"""Page tables as FlashInfer wants them: pointers into one list of blocks. No torch device here, no kernel.

Called by the FlashInfer back-end; numbers are int32 on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.kv_cache import BLOCK_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class PageLists:
    """`token_starts` and `block_starts` [num_rows + 1], `blocks` of all rows one after the other, `last_lens` how much
    of each row's last block is used."""

    token_starts: Tensor
    block_starts: Tensor
    blocks: Tensor
    last_lens: Tensor

    @classmethod
    def of_rows(cls, rows: Sequence[AttentionRow]) -> "PageLists":
        """With the rows' new tokens."""
        ends = [row.kv_len + row.num_tokens for row in rows]
        used = [
            np.asarray(row.block_ids[: -(-end // BLOCK_SIZE)], np.int32) for row, end in zip(rows, ends, strict=True)
        ]
        return cls(
            _starts([row.num_tokens for row in rows]),
            _starts([len(one) for one in used]),
            torch.from_numpy(np.concatenate(used)),
            torch.from_numpy((np.array(ends, np.int32) - 1) % BLOCK_SIZE + 1),
        )


def _starts(sizes: Sequence[int] | NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
