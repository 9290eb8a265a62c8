"""On two GPUs: a model that both share says what one alone says, in graphs too, and a rank that dies ends it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from loopwright.core.batch import Batch, DecodeRows, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.errors import Unavailable
from loopwright.engine.executor import create_executor
from runner_rig import dense, some_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loopwright.core.executor import Executor

DEVICE, SHAPE, DTYPE = "cuda", "llama-1b", "bfloat16"
MAX_NOISE = 0.02  # each is up to 0.01 from float32, in its own way
NUM_ROWS, NUM_STEPS = 3, 40

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")


def executor_on(num_ranks: int) -> Executor:
    return create_executor(
        Path(), shape=SHAPE, device=DEVICE, dtype=DTYPE, num_blocks=256, num_slots=4, max_rows=8, num_ranks=num_ranks
    )  # fmt: skip


def after_last(executor: Executor, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Log-probabilities of all tokens after each text: [num_texts, vocab_size]."""
    everything = DistributionRequest(k=executor.shape.vocab_size)
    rows = [
        ForwardRow(range(100 + 8 * place, 108 + 8 * place), 0, range(len(text)), text, distributions=[everything])
        for place, text in enumerate(texts)
    ]
    return np.stack([dense(one.distributions[0]) for one in executor.submit(Batch(rows=rows)).result().rows])


def decoded(executor: Executor, sampling: Sampling) -> tuple[list[list[int]], list[list[float]]]:
    """Texts that go on, each step launched before the one before is read, and the log-probability of each token."""
    prompts = [some_tokens(20 + 7 * place, place) for place in range(NUM_ROWS)]
    blocks = [list(range(8 * place, 8 * place + 8)) for place in range(NUM_ROWS)]
    samplings = [sampling] * NUM_ROWS
    rows = [
        ForwardRow(own, 0, range(len(prompt)), prompt, sampling=sampling, sample_position=len(prompt))
        for own, prompt in zip(blocks, prompts, strict=True)
    ]
    first = executor.submit(Batch(rows=rows)).result().rows
    texts = [[*prompt, one.token_id] for prompt, one in zip(prompts, first, strict=True)]
    lengths = [len(prompt) for prompt in prompts]
    empty, counts = [()] * NUM_ROWS, [1] * NUM_ROWS
    futures = []
    for number in range(NUM_STEPS):
        ids = [0] * NUM_ROWS if number else [text[-1] for text in texts]
        sources = range(NUM_ROWS) if number else ()
        decodes = DecodeRows(blocks, lengths, lengths, samplings, empty, ids, number, counts, sources)
        futures.append(executor.submit(Batch(decodes=decodes)))
    logprobs: list[list[float]] = [[] for _ in texts]
    for future in futures:
        result = future.result().decodes
        assert not result.errors
        for place, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            texts[place].append(token)
            logprobs[place].append(logprob)
    return texts, logprobs


def test_two_gpus_say_what_one_says() -> None:
    texts = [some_tokens(100, 3), some_tokens(31, 4)]
    found = []
    for num_ranks in (1, 2):
        executor = executor_on(num_ranks)
        found.append(after_last(executor, texts))
        if num_ranks == 2:
            for sampling in (Sampling(), Sampling(temperature=1.0, seed=5), Sampling(top_logprobs=3)):
                check_decoding(executor, sampling)
            check_death(executor)
        executor.close()
        torch.cuda.empty_cache()
    one, two = found
    assert np.sqrt(np.mean((one - two) ** 2)) / one.std() < MAX_NOISE


def check_decoding(executor: Executor, sampling: Sampling) -> None:
    """What was sampled has the log-probabilities that the texts have as prompts: all ranks had the tokens."""
    texts, logprobs = decoded(executor, sampling)
    for back in (1, 2, 20, NUM_STEPS):
        again = after_last(executor, [text[:-back] for text in texts])
        spread = float(again.std())
        for text, known, row in zip(texts, logprobs, again, strict=True):
            assert abs(row[text[-back]] - known[-back]) < 8 * MAX_NOISE * spread


def check_death(executor: Executor) -> None:
    members = list(ranks_of_this_process())
    assert len(members) == 1
    futures = [executor.submit(Batch(rows=[ForwardRow([1], 0, [0], [7], sampling=Sampling())])) for _ in range(2)]
    os.kill(members[0], signal.SIGKILL)
    assert "rank 1 of 2 of the model was ended by SIGKILL" in executor.lost.result(timeout=60).message
    for future in futures:
        future.exception(timeout=60)  # or it was done before: nothing hangs
    with pytest.raises(Unavailable, match="SIGKILL"):
        executor.submit(Batch()).result(timeout=60)


def ranks_of_this_process() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"loopwright.engine.rank_member" in (folder / "cmdline").read_bytes():
                yield int(folder.name)
