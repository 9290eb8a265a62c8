"""The engine driven by hand: the batches of a plain greedy decode, one after another, with nothing of control. Never
measures. Used by suites that ask what control costs on top, while control is idle and has no prefix cache.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from loopwright.control.step_results import result_of
from loopwright.core.batch import Batch, DecodeRows, ForwardRow, StepResult
from loopwright.core.calls import Sampling
from loopwright.core.errors import InternalError, from_info
from loopwright.core.executor import Executor
from loopwright.core.ids import BlockId

_MAX_PROMPT_TOKENS = 512  # in one batch
_SAMPLING = Sampling()


async def bare_loop(executor: Executor, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """The tokens after each prompt: all run together, each step ahead of the one before if the engine likes that."""
    shape = executor.shape
    num_blocks = -(-(max(map(len, prompts)) + num_tokens) // shape.block_size)
    if num_blocks * len(prompts) > shape.num_blocks:
        raise InternalError(f"{len(prompts)} texts need {num_blocks} blocks each, and there are {shape.num_blocks}")
    block_ids = [[BlockId(number * num_blocks + one) for one in range(num_blocks)] for number in range(len(prompts))]
    tokens = [[one] for one in await _first_tokens(executor, prompts, block_ids)]
    lens = [len(prompt) for prompt in prompts]
    max_running = 1 if shape.steps_ahead == "never" else 2
    running: deque[Future[StepResult]] = deque()
    for number in range(num_tokens - 1):
        rows = DecodeRows(
            block_ids, lens, lens, [_SAMPLING] * len(prompts), [()] * len(prompts),
            [0] * len(prompts) if running else [one[-1] for one in tokens], number, lens,
            range(len(prompts)) if running else (),
        )  # fmt: skip
        running.append(executor.submit(Batch(decodes=rows)))
        if len(running) == max_running:
            await _take(running, tokens)
    while running:
        await _take(running, tokens)
    return tokens


async def _first_tokens(
    executor: Executor, prompts: Sequence[Sequence[int]], block_ids: Sequence[Sequence[BlockId]]
) -> list[int]:
    found: list[int] = []
    num_rows = max(1, _MAX_PROMPT_TOKENS // max(map(len, prompts)))
    for start in range(0, len(prompts), num_rows):
        places = range(start, min(start + num_rows, len(prompts)))
        rows = [
            ForwardRow(block_ids[place], 0, range(len(prompts[place])), prompts[place], sampling=_SAMPLING,
                       sample_position=len(prompts[place]))
            for place in places
        ]  # fmt: skip
        for result in (await result_of(executor.submit(Batch(rows=rows)))).rows:
            if result.error is not None or result.token_id is None:
                raise from_info(result.error) if result.error else InternalError("a prompt without a token")
            found.append(result.token_id)
    return found


async def _take(running: deque[Future[StepResult]], tokens: list[list[int]]) -> None:
    result = (await result_of(running.popleft())).decodes
    for error in result.errors.values():
        raise from_info(error)
    for one, token in zip(tokens, result.token_ids, strict=True):
        one.append(token)
