"""Runs of several turns, drawn at random: segments of every kind, tokens that a program chooses from lists, drafts.

Alone and one after the other, or all at once, beginning from the same texts, with few blocks and given up: each turn
has to come to the same. Never asserts more than that: used with a device's engine on the CPU, and on a GPU.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from disturbed_rig import FORM, KINDS, VOCAB_SIZE, drawn, noted_suspensions
from loopwright.bench.sessions import QUEUE, Caller, segment_call
from loopwright.bench.together import all_of
from loopwright.compose.small_engine import open_small_engine
from loopwright.control.config import ControlConfig
from loopwright.core.calls import CreateQueue, DistributionRequest, ForwardText, KvWindow, Sampling
from loopwright.core.clock import SystemClock
from loopwright.core.control import Control
from loopwright.core.executor import Executor
from loopwright.core.grammars import Grammar
from loopwright.core.ids import PageName
from loopwright.core.results import Forwarded, Segment
from loopwright.grammar.pool import GrammarPool
from loopwright.text.byte_tokenizer import byte_tokenizer

PREFIX_LENS = (0, 16, 33, 96, 130)
"""Of the texts that runs begin with: several sizes of prompts as graphs, and full pages that others have too."""

SEGMENTS: list[Callable[[int], dict[str, object]]] = [
    *KINDS,
    lambda seed: {"sampling": Sampling()},
    lambda seed: {"sampling": drawn(seed, top_k=1 + seed % 9, min_p=0.01)},
    lambda seed: {"sampling": drawn(seed, allowed=tuple(range(seed % 5, VOCAB_SIZE, 5)))},
    lambda seed: {"sampling": drawn(seed, logit_bias={seed % 200: 3.0, 201: -100.0}, repetition_penalty=1.3)},
    lambda seed: {"sampling": drawn(seed, top_p=0.8, top_logprobs=5, logprobs="processed")},
    lambda seed: {"sampling": drawn(seed, typical_p=0.8), "grammar": Grammar("regex", FORM)},
    lambda seed: {"sampling": drawn(seed), "window": KvWindow(size=24, sinks=seed % 5)},
]

Turn = tuple[object, ...]
"""What one came to: comparable."""


class Life:
    """One run: a context, and what it does with it. Two of the same seed do the same. One that `is_shown` is of longer
    segments alone, which show their tokens."""

    def __init__(self, seed: int, *, is_shown: bool = False) -> None:
        self._rng = Random(seed)
        self.seed = seed
        length, family = self._rng.choice(PREFIX_LENS), self._rng.randrange(2)
        self.tokens = [(family + 7 * place) % 256 for place in range(length)]
        self._kv_len = 0
        self._pages: tuple[PageName, ...] = ()
        self._is_windowed = False
        self.num_cached = 0
        self._is_shown = is_shown
        self._ways = [self._segment] if is_shown else [self._segment, self._segment, self._choose, self._guess]

    async def turns(self, caller: Caller, told: list[Turn], weather: Random | None) -> None:
        """Adds to `told` what each turn comes to. With `weather` it ends early, or takes its time, when that says
        so."""
        await caller.call(CreateQueue(queue=QUEUE))
        for _ in range(self._rng.randrange(1, 4)):
            self.tokens += [self._rng.randrange(256) for _ in range(self._rng.randrange(1, 20))]
            await self._rng.choice(self._ways)(caller, told, weather)
            if self._is_windowed or (weather is not None and weather.random() < 0.05):
                return

    async def _segment(self, caller: Caller, told: list[Turn], _: Random | None) -> None:
        kind = self._rng.choice(SEGMENTS)(self._rng.randrange(1000))
        call = replace(
            segment_call(self._rng.randrange(1, 60 if self._is_shown else 30)),
            pages=self._pages,
            grow_from=PageName(len(self._pages)),
            kv_len=self._kv_len,
            tokens=self._new(),
            positions=self._positions(),
            progress=self._is_shown or self._rng.random() < 0.5,
            **kind,
        )
        if call.window is not None:
            call = replace(call, window=replace(call.window, positions=tuple(range(self._kv_len))))
        segment = await (caller.call(call) if call.watch is None else caller.watch(call))
        assert isinstance(segment, Segment)
        self.num_cached += segment.cached_tokens
        self._is_windowed = call.window is not None
        kept = segment.tokens[: segment.num_kept]
        self.tokens += kept
        told.append((segment.tokens, segment.reason, segment.kv_len, segment.num_pages, segment.freed))
        self._took(segment.kv_len, segment.num_pages)

    async def _choose(self, caller: Caller, told: list[Turn], weather: Random | None) -> None:
        """Token by token, from lists: each of a size and kind of its own."""
        asked = [
            DistributionRequest(k=self._rng.choice([1, 4, 20]), entropy=self._rng.random() < 0.2)
            for _ in range(self._rng.randrange(1, 12))
        ]
        if self._rng.random() < 0.3:
            asked[-1] = replace(asked[-1], allowed=tuple(range(3, 90, 2)))
        for number, request in enumerate(asked):
            if weather is not None and weather.random() < 0.1:
                for _ in range(weather.randrange(50)):  # others are quicker, meanwhile
                    await asyncio.sleep(0)
            found = await self._forward(caller, distributions=(request,))
            ids = np.frombuffer(found.distributions[0].ids, "<i4").tolist()
            told.append((*ids[: request.k],))
            self.tokens.append(ids[number % len(ids)])

    async def _guess(self, caller: Caller, told: list[Turn], _: Random | None) -> None:
        """Tokens with drafts, of which some are right by chance alone: the model's distribution is nearly flat."""
        for _number in range(self._rng.randrange(1, 5)):
            drafts = [self._rng.randrange(256) for _ in range(self._rng.randrange(4))]
            before = len(self.tokens)
            self.tokens += drafts
            sampling = drawn(self._rng.randrange(1000), allowed=tuple(range(4)) if self._rng.random() < 0.5 else None)
            found = await self._forward(caller, num_drafts=len(drafts), sampling=sampling)
            told.append((found.tokens, found.kv_len))
            self.tokens = [*self.tokens[:before], *found.tokens]

    async def _forward(self, caller: Caller, **asked: object) -> Forwarded:
        call = ForwardText(
            queue=QUEUE, pages=self._pages, grow_from=PageName(len(self._pages)), kv_len=self._kv_len,
            tokens=self._new(), positions=self._positions(), **asked,  # type: ignore[arg-type]
        )  # fmt: skip
        found = await caller.call(call)
        assert isinstance(found, Forwarded)
        self._took(found.kv_len, found.num_pages)
        return found

    def _new(self) -> tuple[int, ...]:
        return tuple(self.tokens[self._kv_len :])

    def _positions(self) -> tuple[int, ...]:
        return tuple(range(self._kv_len, len(self.tokens)))

    def _took(self, kv_len: int, num_pages: int) -> None:
        self._kv_len = kv_len
        self._pages = tuple(map(PageName, range(num_pages)))


async def lived(control: Control, life: Life, weather: Random | None = None) -> list[Turn]:
    """What a run's turns came to. With `weather` one in six is cancelled in the midst of something."""
    told: list[Turn] = []
    with Caller(control, f"run-{life.seed}") as caller:
        living = asyncio.ensure_future(life.turns(caller, told, weather))
        try:
            if weather is not None and weather.random() < 1 / 6:
                for _ in range(weather.randrange(400)):
                    await asyncio.sleep(0)
                living.cancel()
            await asyncio.wait([living])
            if not living.cancelled():
                living.result()
        finally:
            living.cancel()
    return told


async def lives_alone(executor: Executor, lives: Sequence[Life]) -> list[list[Turn]]:
    """One after the other, step by step, and nothing cached."""
    config = ControlConfig(steps_ahead="off", prefix_cache=False)
    with closing(GrammarPool(byte_tokenizer(), VOCAB_SIZE)) as grammars:
        async with open_small_engine(VOCAB_SIZE, SystemClock(), config, executor, grammars) as control:
            return [await lived(control, life) for life in lives]


async def check_lives(
    executor: Executor, seeds: Sequence[int], expected: Sequence[list[Turn]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, and given up at times that the seeds say, over an engine that is short of blocks."""
    suspended = noted_suspensions(monkeypatch)
    weather, lives = Random(seeds[0]), [Life(seed) for seed in seeds]

    async def one(life: Life) -> list[Turn]:
        for _ in range(weather.randrange(200)):
            await asyncio.sleep(0)
        return await lived(control, life, Random(life.seed + 1))

    config = ControlConfig(steps_ahead="on")
    with closing(GrammarPool(byte_tokenizer(), VOCAB_SIZE)) as grammars:
        async with open_small_engine(VOCAB_SIZE, SystemClock(), config, executor, grammars) as control:
            found = await all_of(one(life) for life in lives)
    for seed, mine, alone in zip(seeds, found, expected, strict=True):
        assert mine == alone[: len(mine)], seed
    num_whole = sum(mine == alone for mine, alone in zip(found, expected, strict=True))
    assert len(seeds) // 2 < num_whole < len(seeds), "some were given up, and most were not"
    assert sum(life.num_cached for life in lives), "nobody found what another had computed"
    assert suspended, "nobody ran out of blocks"
