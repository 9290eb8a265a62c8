"""Candidates for what follows a context: how probable each is, or the one that the model picks. Never knows text.

Called by Context, with its TokenLog and ContextKv.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import BadRequest, LoopwrightError
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.turn import Score

MAX_FORKS_SCORED = 32
"""Candidates that are scored at once: each holds pages of its own meanwhile."""

Siblings: TypeAlias = Callable[[int], AbstractContextManager[list[ContextKv]]]
"""So many with the tokens of a context and no KV yet, which are gone at its end."""


async def scored(kv: ContextKv, siblings: Siblings, candidates: Sequence[Sequence[int]]) -> list[Score]:
    """How probable each is behind the filled `kv`; they share their batches."""
    scores: list[Score] = []
    for first in range(0, len(candidates), MAX_FORKS_SCORED):
        some = candidates[first : first + MAX_FORKS_SCORED]
        with siblings(len(some)) as forks:
            scoring = (_scored(kv, fork, ids) for fork, ids in zip(forks, some, strict=True))
            found = await asyncio.gather(*scoring, return_exceptions=True)  # all are over when their pages are freed
            for one in found:
                if isinstance(one, BaseException):
                    raise one
                scores.append(one)
    return scores


async def picked_of(
    ids: Sequence[tuple[int, ...]], log: TokenLog, kv: ContextKv, sampling: Callable[[], dict[str, Any]]
) -> tuple[int, ...]:
    """One of `ids`, chosen token by token where they part; the tokens are added on the way. `sampling` says how, at
    the place where the log ends."""
    picked: tuple[int, ...] = ()
    while len(alive := {one for one in ids if one[: len(picked)] == picked}) > 1:
        if picked in alive:
            raise LoopwrightError("one option is the beginning of another: the model could not choose the shorter")
        ways = sorted({one[len(picked)] for one in alive})
        if len(ways) > 1:
            payload = await kv.ask([], sampling={**sampling(), "allowed": ways})
            ways = [payload["token"]]
        log.extend_written(ways)
        picked = (*picked, ways[0])
    (rest,) = alive
    log.extend_written(rest[len(picked) :])
    return rest


async def _scored(kv: ContextKv, fork: ContextKv, ids: Sequence[int]) -> Score:
    if not ids:
        raise BadRequest("candidates: one has no tokens", field="candidates")
    await kv.share_with(fork)
    dists = [Distribution(one) for one in await fork.ask_each(list(ids))]
    return Score(tuple(ids), tuple(dist.listed(one) for dist, one in zip(dists, ids, strict=True)))
