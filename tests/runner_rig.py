"""A model runner with shuffled pages and dense results, for tests of any engine. Needs no other library's models."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from loopwright.core.batch import Batch, ForwardRow, HeadRow, RowResult, StepResult
from loopwright.core.calls import DistributionRequest
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.model_runner import ModelRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwright.core.calls import Visibility
    from loopwright.core.results import Distribution
    from loopwright.engine.loaded_model import LoadedModel
    from loopwright.engine.model_runner import NativeSettings


class Rig:
    """Hands out blocks in shuffled order, so that no test passes because pages happen to lie in a row."""

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int = 128,
        num_slots: int = 64,
        seed: int = 0,
        native: NativeSettings | None = None,
        make_runner: Callable[[LoadedModel, int, int], ModelRunner] | None = None,
    ) -> None:
        """`make_runner` takes the model and the numbers of blocks and slots."""
        self.vocab_size = model.config.vocab_size
        if make_runner is not None:
            self.runner = make_runner(model, num_blocks, num_slots)
        else:
            self.runner = ModelRunner(model, num_blocks=num_blocks, num_slots=num_slots, native=native)
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)

    def blocks(self, num_tokens: int) -> list[int]:
        return [self._free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))]

    def step(self, batch: Batch) -> StepResult:
        with torch.inference_mode():
            return self.runner.run(batch)

    def rows(self, *rows: ForwardRow) -> list[RowResult]:
        return list(self.step(Batch(rows=rows)).rows)

    def heads(self, *heads: HeadRow) -> list[RowResult]:
        return list(self.step(Batch(heads=heads)).heads)

    def everything(self, num_tokens: int) -> list[DistributionRequest]:
        """The whole distribution after each token of a row."""
        return [DistributionRequest(index=index, k=self.vocab_size) for index in range(num_tokens)]

    def logprobs(self, token_ids: list[int], positions: list[int] | None = None, **fields: object) -> np.ndarray:
        """One row alone on fresh pages: [num_tokens, vocab_size]."""
        return dense_rows(self.rows(self.row(token_ids, positions=positions, **fields))[0])

    def row(self, token_ids: list[int], kv_len: int = 0, positions: list[int] | None = None, **fields) -> ForwardRow:
        """A row that asks for the distribution after each of its tokens."""
        end = kv_len + len(token_ids)
        fields.setdefault("block_ids", self.blocks(end) if "block_ids" not in fields else None)
        return ForwardRow(
            kv_len=kv_len,
            positions=list(range(kv_len, end)) if positions is None else positions,
            token_ids=token_ids,
            distributions=self.everything(len(token_ids)),
            **fields,
        )


def dense(distribution: Distribution) -> np.ndarray:
    """A distribution over the whole vocabulary as log-probabilities by id."""
    ids = np.frombuffer(distribution.ids, "<i4")
    logprobs = np.empty(len(ids), np.float32)
    logprobs[ids] = np.frombuffer(distribution.logprobs, "<f4")
    return logprobs


def dense_rows(result: RowResult) -> np.ndarray:
    assert result.error is None, result.error
    return np.stack([dense(one) for one in result.distributions])


def pairs(distribution: Distribution) -> list[tuple[int, float]]:
    ids = np.frombuffer(distribution.ids, "<i4").tolist()
    return list(zip(ids, np.frombuffer(distribution.logprobs, "<f4").tolist(), strict=True))


def log_softmax(logits: torch.Tensor) -> np.ndarray:
    return logits.double().log_softmax(-1).numpy()


def runs_of(seen: list[bool]) -> Visibility:
    """Booleans as alternating run lengths, hidden first."""
    runs, current = [0], False
    for one in seen:
        if one != current:
            runs.append(0)
            current = one
        runs[-1] += 1
    return tuple(runs)


def some_tokens(num_tokens: int, seed: int = 0, vocab_size: int = 256) -> list[int]:
    return [random.Random(seed * 1_000_003 + i).randrange(vocab_size) for i in range(num_tokens)]
