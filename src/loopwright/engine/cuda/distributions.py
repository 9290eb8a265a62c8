"""Distributions and the most probable tokens of many rows of logits: computed together, read when they are there.

Never waits for the device. What is asked is as engine.sampler.distribution defines it. Used by the answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import DistributionRequest
from loopwright.core.results import Distribution, TopLogprobs
from loopwright.engine.cuda.adjusting import bits_of, unpacked
from loopwright.engine.cuda.sampling import Top
from loopwright.engine.transfer import HostCopies, Landing, to_device

_MAX_RANK_ROWS = 64  # ids whose ranks are counted at once: each is a pass over the vocabulary


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and the row of logits that it is about."""

    row: int
    request: DistributionRequest


def ask_distributions(
    logits: Tensor, normalizers: Tensor, asked: Sequence[Asked], top: Top, copies: HostCopies
) -> Callable[[], list[Distribution]]:
    """What each request gets, from float32 logits [num_rows, vocab_size] and their log-sum-exps; to be called when the
    copies are there."""
    if not asked:
        return list
    vocab_size, device = logits.shape[1], logits.device
    rows = to_device(np.array([one.row for one in asked]), device)
    seen, own = logits[rows], normalizers[rows].double()
    raw = own
    masked = [place for place, one in enumerate(asked) if one.request.allowed is not None]
    if masked:
        seen, own = _masked(seen, own, asked, masked)
    values, ids = top(seen, min(max(one.request.k for one in asked), vocab_size))
    logprobs = (values.double() - own[:, None]).float()
    top_ids, top_logprobs = copies.take(ids.int()), copies.take(logprobs)
    unread = _Unread(
        asked,
        vocab_size,
        top_ids,
        top_logprobs,
        extras=_ask_extras(seen, own, asked, copies),
        masses=copies.take((own - raw).exp().clamp(max=1.0)) if masked else None,
        entropies=copies.take(entropies(seen, own)) if any(one.request.entropy for one in asked) else None,
        dense={place: copies.take(logits[one.row]) for place, one in enumerate(asked) if one.request.logits},
    )
    return unread.read


@dataclass(frozen=True, slots=True)
class _Unread:
    """What is on its way to the host for some requests: each copy is called for when all are there."""

    asked: Sequence[Asked]
    vocab_size: int
    top_ids: Landing
    top_logprobs: Landing
    extras: Callable[[int], tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]
    masses: Landing | None
    entropies: Landing | None
    dense: Mapping[int, Landing]  # by place

    def read(self) -> list[Distribution]:
        ids, logprobs = self.top_ids().astype("<i4"), self.top_logprobs().astype("<f4")
        covered = _covered([one.request.k for one in self.asked], logprobs)
        nums_finite = np.isfinite(logprobs).cumsum(axis=1)
        found = []
        for place, one in enumerate(self.asked):
            request, num_possible = one.request, self.vocab_size
            if request.allowed is not None:
                num_possible = num_allowed(request.allowed, self.vocab_size)
            k = min(request.k, num_possible)
            mine = _Listed(ids[place, :k], logprobs[place, :k], covered[place])
            num_listed = int(nums_finite[place, k - 1])
            if request.must_include:
                mine = mine.with_extras(*self.extras(place))
                num_listed = int(np.isfinite(mine.logprobs).sum())
            found.append(self._distribution(place, mine, is_truncated=num_listed < num_possible))
        return found

    def _distribution(self, place: int, mine: "_Listed", *, is_truncated: bool) -> Distribution:
        request = self.asked[place].request
        has_mass = self.masses is not None and request.allowed is not None
        return Distribution(
            ids=mine.ids.astype("<i4").tobytes(),
            logprobs=mine.logprobs.astype("<f4").tobytes(),
            covered=mine.covered,
            tail_mass=1.0 - mine.covered,
            truncated=is_truncated,
            entropy=float(self.entropies()[place]) if self.entropies is not None and request.entropy else None,
            allowed_mass=float(self.masses()[place]) if self.masses is not None and has_mass else None,
            logits=self.dense[place]().astype("<f4").tobytes() if request.logits else None,
            ranks=mine.ranks() if request.ranks else None,
        )


def ask_tops(
    values: Tensor, normalizers: Tensor, sizes: Sequence[int], top: Top, copies: HostCopies
) -> Callable[[], Sequence[TopLogprobs]]:
    """The `sizes` largest values of each row, less its normalizer; none that is -inf."""
    found, ids = top(values, min(max(sizes), values.shape[1]))
    logprobs, token_ids = copies.take(found.double() - normalizers.double()[:, None]), copies.take(ids)

    return lambda: Tops(token_ids().astype(np.int32), logprobs().copy(), sizes)


class Tops(Sequence[TopLogprobs]):
    """The most probable tokens of rows, made when they are asked for; of each row as many as its size says."""

    def __init__(self, ids: NDArray[Any], logprobs: NDArray[Any], sizes: Sequence[int]) -> None:
        self._ids, self._logprobs, self._sizes = ids, logprobs, sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401 (nobody slices it)
        size = self._sizes[row]
        return _possible(self._ids[row, :size].tolist(), self._logprobs[row, :size].tolist())


def _possible(ids: Sequence[int], logprobs: Sequence[float]) -> TopLogprobs:
    """Those that are not -inf, which are behind all others."""
    listed = tuple(zip(ids, logprobs, strict=True))
    return listed if logprobs[-1] > -np.inf else tuple([pair for pair in listed if pair[1] > -np.inf])


def num_allowed(allowed: Sequence[int], vocab_size: int) -> int:
    """How many tokens a list has."""
    return len({token_id for token_id in allowed if token_id < vocab_size})


@dataclass(frozen=True, slots=True)
class _Listed:
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    covered: float
    extra_ranks: NDArray[np.int64] | None = None

    def with_extras(self, ids: NDArray[Any], logprobs: NDArray[Any], ranks: NDArray[Any] | None) -> "_Listed":
        """And ids that must be included, unless they are listed already."""
        is_new = ~np.isin(ids, self.ids)
        all_logprobs = np.concatenate([self.logprobs, logprobs[is_new]])
        return _Listed(
            np.concatenate([self.ids, ids[is_new].astype(np.int32)]),
            all_logprobs,
            min(1.0, float(np.exp(all_logprobs.astype(np.float64)).sum())),
            None if ranks is None else ranks[is_new],
        )

    def ranks(self) -> bytes:
        num_extra = 0 if self.extra_ranks is None else len(self.extra_ranks)
        ranks = np.arange(1, len(self.ids) - num_extra + 1)
        return (
            np.concatenate([ranks, *([] if self.extra_ranks is None else [self.extra_ranks])]).astype("<i4").tobytes()
        )


def _covered(sizes: Sequence[int], logprobs: NDArray[np.float32]) -> list[float]:
    """The probability of the first `sizes` tokens of each row."""
    sums = np.exp(logprobs.astype(np.float64)).cumsum(axis=1)
    last = np.minimum(sizes, logprobs.shape[1]) - 1
    found: list[float] = np.minimum(1.0, sums[np.arange(len(sizes)), last]).tolist()
    return found


def _masked(seen: Tensor, own: Tensor, asked: Sequence[Asked], masked: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits and normalizers with what each mask leaves."""
    vocab_size = seen.shape[1]
    bits = np.full((len(asked), -(-vocab_size // 8)), 255, np.uint8)
    for place in masked:
        bits[place] = bits_of(asked[place].request.allowed or (), vocab_size)
    is_masked = to_device(np.isin(np.arange(len(asked)), masked), seen.device)
    seen = seen.masked_fill(~unpacked(bits, vocab_size, seen.device), -torch.inf)
    return seen, torch.where(is_masked, seen.double().logsumexp(-1), own)


def _ask_extras(
    seen: Tensor, own: Tensor, asked: Sequence[Asked], copies: HostCopies
) -> Callable[[int], tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]:
    """Of each request: the ids that must be included, their log-probabilities, and if asked their ranks."""
    lists = [list(dict.fromkeys(one.request.must_include)) for one in asked]
    ends = np.cumsum([len(one) for one in lists])
    if not len(ends) or not ends[-1]:
        return lambda _: (np.array([], np.int64), np.array([], np.float32), None)
    flat = np.array([token for one in lists for token in one], np.int64)
    place = to_device(np.repeat(np.arange(len(lists)), [len(one) for one in lists]), seen.device)
    token = to_device(flat, seen.device)
    logprobs = copies.take((seen[place, token].double() - own[place]).float())
    ranks: Landing | None = None
    if any(one.request.ranks and one.request.must_include for one in asked):
        ranks = copies.take(_ranks(seen, place, token))

    def of(place: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        mine = slice(int(ends[place]) - len(lists[place]), int(ends[place]))
        wants_ranks = ranks is not None and asked[place].request.ranks
        return flat[mine], logprobs()[mine], ranks()[mine] if ranks is not None and wants_ranks else None

    return of


def _ranks(seen: Tensor, place: Tensor, token: Tensor) -> Tensor:
    """From 1: of equal ones the lowest id first."""
    ids = torch.arange(seen.shape[1], device=seen.device)
    found = []
    for start in range(0, len(place), _MAX_RANK_ROWS):
        rows, wanted = seen[place[start : start + _MAX_RANK_ROWS]], token[start : start + _MAX_RANK_ROWS, None]
        value = rows.gather(1, wanted)
        found.append(((rows > value) | ((rows == value) & (ids < wanted))).sum(-1) + 1)
    return torch.cat(found)


def entropies(seen: Tensor, own: Tensor) -> Tensor:
    """In nats, float64 [num_rows], by logits and their log-sum-exps; -inf has no probability and adds nothing."""
    found: Tensor = torch.special.entr((seen.double() - own[:, None]).exp()).sum(-1)
    return found
