"""Candidates for what follows a context: how probable each is, or the one that the model picks. Never knows text.

Called by Context, with its TokenLog and ContextKv.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from loopwright.sdk.context_kv import ContextKv
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.errors import BadRequest, LoopwrightError
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.turn import Score


async def scored(kv: ContextKv, forks: Sequence[ContextKv], candidates: Sequence[Sequence[int]]) -> list[Score]:
    """Of candidates that share their batches. `forks` have the tokens of the filled `kv`, and no KV yet."""
    scoring = (_scored(kv, fork, ids) for fork, ids in zip(forks, candidates, strict=True))
    found = await asyncio.gather(*scoring, return_exceptions=True)  # all are over when their pages are freed
    scores: list[Score] = []
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
