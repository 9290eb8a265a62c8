"""Every filter of docs/sampling.md over whole rows of scores, and a draw from what they leave. Never waits for them.

It sorts the vocabulary. So on a device it is for what is rare: scores that a program made, and processed alternatives;
all else is drawn by kernels, of which this is the reference.
"""

import torch
from torch import Tensor

from loopwright.engine.cuda.sampling import RowSamplings
from loopwright.engine.draws import draw_each


def kept_weights(scores: Tensor, samplings: RowSamplings) -> Tensor:
    """Float64 [num_rows, vocab_size] of `scores` likewise, in which -inf is not allowed: weights in proportion to
    probabilities, the heaviest 1, and 0 for what the filters do not leave; of greedy rows, the best token alone."""
    top, best = scores.max(-1, keepdim=True)
    weights = ((scores - top) / samplings.temperatures).exp()
    if samplings.has_top_k:
        weights = _of_top_k(weights, samplings)
    if samplings.has_typical:
        weights = _typical(weights, samplings.typical_p)
    if samplings.has_top_p:
        weights = _nucleus(weights, samplings.top_p)
    least = samplings.min_p * weights.amax(-1, keepdim=True)  # typical_p may have taken the heaviest
    weights = torch.where(weights >= least, weights, 0.0)
    alone = torch.zeros_like(weights).scatter_(1, best, 1.0)
    return torch.where(samplings.greedy[:, None], alone, weights)


def draw(logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
    """As `Operations.draw`."""
    weights = kept_weights(scores.double(), samplings)
    token_ids = draw_each(weights, numbers)
    raw = logits.gather(1, token_ids[:, None])[:, 0] - logits.logsumexp(-1)
    processed = (weights.gather(1, token_ids[:, None])[:, 0] / weights.sum(-1)).log().float()
    logprobs = torch.where(samplings.processed, processed, raw).clamp(max=0.0)
    failed = (~logits.sum(-1).isfinite()).int()  # a sum is finite only if all of its terms are
    return torch.stack([token_ids.int(), logprobs.view(torch.int32), failed])


def _of_top_k(weights: Tensor, samplings: RowSamplings) -> Tensor:
    """All that tie with the k-th are kept."""
    falling = weights.sort(dim=-1, descending=True).values
    threshold = falling.gather(1, (samplings.top_k - 1).clamp(0, weights.shape[1] - 1))
    return torch.where((samplings.top_k == 0) | (weights >= threshold), weights, 0.0)


def _typical(weights: Tensor, typical_p: Tensor) -> Tensor:
    """As engine.sampler: the tokens whose surprise is next to the entropy, and all that tie with the last of them."""
    probabilities = weights / weights.sum(-1, keepdim=True)
    entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
    distances = (-probabilities.log() - entropy).abs()
    ordered, order = distances.sort(dim=-1, stable=True)
    mass = probabilities.gather(1, order).cumsum(-1)
    last = (mass < typical_p).sum(-1, keepdim=True).clamp(max=weights.shape[1] - 1)
    return torch.where((typical_p == 1) | (distances <= ordered.gather(1, last)), weights, 0.0)


def _nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """The heaviest, the lowest id first on a tie, until they have `top_p` of all."""
    falling, order = weights.sort(dim=-1, descending=True, stable=True)
    mass = falling.cumsum(-1)
    size = (mass < top_p * weights.sum(-1, keepdim=True)).sum(-1, keepdim=True) + 1
    is_first = torch.arange(weights.shape[1], device=weights.device) < size
    is_kept = torch.zeros_like(is_first.expand_as(weights)).scatter(1, order, is_first.expand_as(order))
    return torch.where((top_p == 1) | is_kept, weights, 0.0)
