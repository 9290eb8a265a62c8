"""Streams of tokens at control's sessions, one session each, as programs have them: when each token came.

Never an HTTP client: `over_http` has those. Used by the sections that measure at the model worker.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from figures.report import System
from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.calls import CreateQueue, Generate, Sampling
from loopwright.core.clock import SystemClock
from loopwright.core.control import ControlLimits
from loopwright.core.errors import from_info
from loopwright.core.ids import CallId, PageName, QueueName, RunId
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Completion, Progress, Segment
from loopwright.core.told_tokens import Whose
from loopwright.engine.cuda.dummy import shape_config
from loopwright.engine.executor import create_executor

NUM_IN, NUM_OUT = 128, 128
GREEDY = Sampling()
_LIMITS = ControlLimits(max_pages=1 << 20, max_open_calls=1 << 16)
_numbers = itertools.count()


@asynccontextmanager
async def system_over(
    shape: str, device: str, num_ranks: int = 1, dtype: str = "auto", *, is_deterministic: bool = False
) -> AsyncIterator[System]:
    """Control over random weights of that shape, with the engine in this process, which may be the first of several."""
    executor = create_executor(
        Path(), num_blocks=0, num_slots=16, shape=shape, device=device, dtype=dtype, num_ranks=num_ranks,  # type: ignore[arg-type]
        is_deterministic=is_deterministic,
    )  # fmt: skip
    sizes = executor.shape
    info = ModelInfo(
        name=shape, architecture="llama", traits=executor.traits, vocab_size=sizes.vocab_size,
        max_context=sizes.max_context, page_size=sizes.block_size, num_pages=sizes.num_blocks, eos_ids=(), bos_id=None,
        has_chat_template=False, quantization="dummy", weights_sha256="", engine=executor.computed_by,
    )  # fmt: skip
    controller = Controller(executor, (), info, SystemClock(), ControlConfig(prefix_cache=False))
    serving = asyncio.create_task(controller.serve())
    try:
        yield System(controller, executor.step_weight_bytes)
    finally:
        serving.cancel()
        executor.close()


class Reader:
    """Reads many streams as the model worker's server does for a process of programs: a step's tokens at once."""

    def __init__(self) -> None:
        self._streams: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        self._told: list[tuple[float, float, Sequence[int], Sequence[int]]] = []  # in order, until somebody asks

    def add(self, name: int, stream: "Stream") -> None:
        self._streams[name] = stream

    def take_tokens(
        self, whose: Whose, token_ids: Sequence[int], logprobs: Sequence[float], left_out: Sequence[int]
    ) -> bool:
        self.note(whose.names, left_out)
        return True

    def note(self, names: Sequence[int], left_out: Sequence[int] = ()) -> None:
        """A token came for each name, but for those at some places."""
        self._told.append((time.perf_counter(), time.thread_time(), names, left_out))

    def settle(self) -> None:
        """Gives each stream the times of its tokens."""
        told, self._told = self._told, []
        for now_s, cpu_s, names, left_out in told:
            for place, name in enumerate(names):
                if place not in left_out and (stream := self._streams.get(name)) is not None:
                    stream.add(now_s, cpu_s)


READERS = [Reader() for _ in range(8)]  # as there are processes of programs


class Stream:
    """One request, from `begin` on: `times_s` are of its tokens, by time.perf_counter; `cpu_s` too, by the event loop's
    thread_time."""

    def __init__(
        self, controller: Controller, prompt: Sequence[int], num_out: int, sampling: Sampling = GREEDY,
        **fields: Any,
    ) -> None:  # fmt: skip
        """`fields` are further ones of the segment."""
        self.began_s = time.perf_counter()
        self._times_s: list[float] = []
        self._cpu_s: list[float] = []
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._number = number = next(_numbers)
        self._session = controller.open(RunId(f"speed-{number}"), _LIMITS)
        self._reader = READERS[number % len(READERS)]
        self._reader.add(number, self)
        self._session.when_news(self._take)
        self._session.when_tokens(self._reader, number)
        self._session.submit(CallId(0), CreateQueue(queue=QueueName(0)))
        self._session.submit(
            CallId(1),
            Generate(
                queue=QueueName(0), pages=(), grow_from=PageName(1), kv_len=0, tokens=tuple(prompt),
                positions=tuple(range(len(prompt))), sampling=sampling, max_tokens=num_out, progress=True, **fields,
            ),
        )  # fmt: skip

    @property
    def times_s(self) -> list[float]:
        self._reader.settle()
        return self._times_s

    @property
    def cpu_s(self) -> list[float]:
        self._reader.settle()
        return self._cpu_s

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.began_s

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens."""
        return [later - sooner for sooner, later in itertools.pairwise(self.times_s)]

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._session.close()
        self.begun.cancel()
        self.ended.cancel()

    def add(self, now_s: float, cpu_s: float) -> None:
        """For Reader: when a token came."""
        self._times_s.append(now_s)
        self._cpu_s.append(cpu_s)

    def _take(self) -> None:
        for one in self._session.take():
            self._take_one(one)

    def _take_one(self, one: Completion) -> None:
        if one.error is not None and not self.ended.done():
            self.ended.set_exception(from_info(one.error))
        elif isinstance(one.result, Progress):
            self._reader.note((self._number,) * len(one.result.tokens))
            if not self.begun.done():
                self.begun.set_result(None)
        elif isinstance(one.result, Segment):
            self._session.close()
            if not self.ended.done():
                self.ended.set_result(None)


@dataclass(frozen=True)
class Timing:
    """One round of a batch. `tpot_s` is the mean over streams of (last token - first token) / (tokens - 1), `steady_s`
    the median time between two tokens of a stream once all have begun, `ttft_s` the median time to the first token.
    `steady_host_s` is the median CPU of the event loop's thread from one such token to the next, and `stream_host_s`
    what it takes on top, beginning and end, for each stream."""

    tpot_s: float
    steady_s: float
    ttft_s: float
    request_s: float  # from asking to the last token, the mean over streams
    host_s: float  # CPU of the event loop's thread for each step
    steady_host_s: float
    stream_host_s: float
    process_s: float  # CPU of this process for each step, waiting included
    tokens_per_s: float
    tokens_per_core_s: float  # for a second of the event loop's CPU


def prompts_of(num_streams: int, num_in: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random ids, which no two streams share."""
    rng = np.random.default_rng((seed, num_streams, num_in))
    return [rng.integers(300, vocab_size, num_in).tolist() for _ in range(num_streams)]  # type: ignore[misc]


async def run_batch(
    system: System, num_streams: int, num_in: int = NUM_IN, num_out: int = NUM_OUT, sampling: Sampling = GREEDY,
    **fields: Any,
) -> Timing:  # fmt: skip
    """All streams at once, to their end. `fields` are further ones of their segments."""
    controller = system.controller
    prompts = prompts_of(num_streams, num_in, controller.models()[0].vocab_size)
    num_before = (await controller.stats()).num_steps
    began_s, thread_s, process_s = time.perf_counter(), time.thread_time(), time.process_time()
    streams = [Stream(controller, prompt, num_out, sampling, **fields) for prompt in prompts]
    await asyncio.gather(*(stream.ended for stream in streams))
    took_s, thread_s, process_s = (
        time.perf_counter() - began_s, time.thread_time() - thread_s, time.process_time() - process_s
    )  # fmt: skip
    num_steps = (await controller.stats()).num_steps - num_before
    return timing(streams, took_s, thread_s, process_s, num_steps)


def timing(streams: Sequence[Stream], took_s: float, thread_s: float, process_s: float, num_steps: int) -> Timing:
    """What came of streams that began together."""
    all_begun_s = max(one.times_s[0] for one in streams)
    num_before = sum(when < all_begun_s for when in streams[0].times_s)
    gaps, cpu_gaps = np.diff(streams[0].times_s[num_before:]), np.diff(streams[0].cpu_s[num_before:])
    steady_host_s = float(np.median(cpu_gaps)) if len(cpu_gaps) else 0.0
    num_tokens = sum(len(one.times_s) for one in streams)
    return Timing(
        tpot_s=mean((one.times_s[-1] - one.times_s[0]) / max(1, len(one.times_s) - 1) for one in streams),
        steady_s=float(np.median(gaps)) if len(gaps) else 0.0,
        ttft_s=median(one.ttft_s for one in streams),
        request_s=mean(one.times_s[-1] - one.began_s for one in streams),
        host_s=thread_s / num_steps,
        steady_host_s=steady_host_s,
        stream_host_s=max(0.0, thread_s - num_steps * steady_host_s) / len(streams),
        process_s=process_s / num_steps,
        tokens_per_s=num_tokens / took_s,
        tokens_per_core_s=num_tokens / thread_s,
    )


def vocabulary(shape: str) -> int:
    """Ids that prompts are drawn from."""
    return shape_config(shape).vocab_size
