"""A model runner with shuffled pages and dense results, and transformers as reference, for tests of the engine."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import LlamaForCausalLM

from loopwright.core.batch import Batch, ForwardRow, HeadRow, RowResult, StepResult
from loopwright.core.calls import DistributionRequest
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.model_files import write_hf_folder
from loopwright.engine.model_runner import ModelRunner

if TYPE_CHECKING:
    from pathlib import Path

    from loopwright.core.results import Distribution
    from loopwright.engine.loaded_model import LoadedModel


class Rig:
    """Hands out blocks in shuffled order, so that no test passes because pages happen to lie in a row."""

    def __init__(self, model: LoadedModel, num_blocks: int = 128, num_slots: int = 64, seed: int = 0) -> None:
        self.vocab_size = model.config.vocab_size
        self.runner = ModelRunner(model, num_blocks=num_blocks, num_slots=num_slots)
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


def transformers_model(model: LoadedModel, folder: Path) -> LlamaForCausalLM:
    write_hf_folder(model, folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def transformers_logprobs(reference: LlamaForCausalLM, token_ids: list[int], positions: list[int] | None = None,
                          is_visible: torch.Tensor | None = None) -> np.ndarray:  # fmt: skip
    """[num_tokens, vocab_size]. `is_visible` [num_tokens, num_tokens] replaces the causal mask."""
    if is_visible is None:  # said always: without a mask, transformers reads a gap in the positions as a new sequence
        is_visible = torch.ones(len(token_ids), len(token_ids), dtype=torch.bool).tril()
    mask = torch.zeros(is_visible.shape, dtype=reference.dtype).masked_fill(~is_visible, -torch.inf)
    output = reference(
        input_ids=torch.tensor([token_ids]),
        position_ids=torch.tensor([positions if positions is not None else list(range(len(token_ids)))]),
        attention_mask=mask[None, None],
        use_cache=False,
    )
    return log_softmax(output.logits[0])


def some_tokens(num_tokens: int, seed: int = 0, vocab_size: int = 256) -> list[int]:
    return [random.Random(seed * 1_000_003 + i).randrange(vocab_size) for i in range(num_tokens)]
