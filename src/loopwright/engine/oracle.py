"""The naive loop that answers are held against: one request, the whole sequence again for every token, dense attention.

Shares nothing with the model runner, the attention back-ends, the layers or the sampler; only the weights are the same.
Called by tests and by `bench`. Slow on purpose: what can be read in one go is easy to trust.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.calls import Sampling
from loopwright.core.grammars import GrammarState
from loopwright.core.results import TopLogprobs
from loopwright.engine.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True)
class Generated:
    """Sampled tokens, a stop token included, and log-probabilities of the kind that was asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()


class _Text:
    """A text under a grammar, token by token."""

    def __init__(self, state: GrammarState, stop_tokens: Sequence[int]) -> None:
        self._state = state
        self._stop_tokens = stop_tokens
        self._forced: list[int] | None = None  # to come before the next token that is chosen; None: not asked yet

    @property
    def is_over(self) -> bool:
        return self._state.is_over

    def allowed(self, max_forced: int) -> tuple[int, ...]:
        if self._forced is None:
            self._forced = list(self._state.forced())[:max_forced]
        if self._forced:
            return (self._forced[0],)
        bits = self._state.allowed_bits(self._stop_tokens)
        return tuple(one for one in range(8 * len(bits)) if bits[one // 8] >> one % 8 & 1)

    def accept(self, token_id: int) -> None:
        self._state.accept(token_id)
        self._forced = self._forced[1:] if self._forced else None


class Oracle:
    """Any of the architectures in float32, one sequence at a time."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling = Sampling(),  # noqa: B008 — frozen
        max_tokens: int = 16,
        stop_tokens: Sequence[int] = (),
        positions: Sequence[int] | None = None,
        grammar: GrammarState | None = None,
    ) -> Generated:
        """Continues `token_ids` until a stop token or `max_tokens`. New tokens stand one position after the last.

        Under a grammar, until its text is over too; what it forces is sampled from that one token."""
        tokens = list(token_ids)
        places = list(range(len(tokens))) if positions is None else list(positions)
        logprobs: list[float] = []
        top_logprobs: list[TopLogprobs] = []
        text = None if grammar is None else _Text(grammar, stop_tokens)
        while len(logprobs) < max_tokens and not (text and text.is_over):
            if text is not None:
                sampling = msgspec.structs.replace(sampling, allowed=text.allowed(max_tokens - len(logprobs) - 1))
            logits = self.logits(tokens, places)[-1].double().numpy()
            places.append(places[-1] + 1)
            token, logprob, top = next_token(logits, sampling, places[-1], tokens[len(token_ids) :])
            tokens.append(token)
            logprobs.append(logprob)
            top_logprobs.append(top)
            if tokens[-1] in stop_tokens:
                break
            if text is not None:
                text.accept(tokens[-1])
        return Generated(
            tuple(tokens[len(token_ids) :]), tuple(logprobs), tuple(top_logprobs) if sampling.top_logprobs else ()
        )

    @torch.inference_mode()
    def logits(
        self, token_ids: Sequence[int], positions: Sequence[int] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """[num_tokens] → [num_tokens, vocab_size]. `mask` [num_tokens, num_tokens] says what each token sees;
        None is causal."""
        config, weights = self._model.config, self._model.weights
        places = torch.tensor(range(len(token_ids)) if positions is None else positions)
        if mask is None:
            mask = torch.ones(len(token_ids), len(token_ids), dtype=torch.bool).tril()
        hidden = weights["embedding"][torch.tensor(token_ids)]
        if config.architecture == "gemma3":
            hidden = hidden * math.sqrt(config.hidden_size)
        for index in range(config.num_layers):
            prefix = f"layers.{index}."
            layer = {key.removeprefix(prefix): one for key, one in weights.items() if key.startswith(prefix)}
            attended = self._attention(self._norm(hidden, layer["attention_norm"]), layer, index, places, mask)
            hidden = hidden + self._post_norm(attended, layer.get("attention_post_norm"))
            computed = self._mlp(self._norm(hidden, layer["mlp_norm"]), layer)
            hidden = hidden + self._post_norm(computed, layer.get("mlp_post_norm"))
        head = weights["embedding" if config.is_head_tied else "head"]
        return self._norm(hidden, weights["final_norm"]) @ head.T

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        mean_square = (hidden * hidden).mean(dim=-1, keepdim=True)
        return hidden / torch.sqrt(mean_square + self._model.config.norm_epsilon) * weight

    def _post_norm(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        return hidden if weight is None else self._norm(hidden, weight)

    def _attention(self, hidden: Tensor, layer: dict[str, Tensor], index: int, places: Tensor, mask: Tensor) -> Tensor:
        config, rope = self._model.config, self._model.ropes[index]
        num_shared = config.num_heads // config.num_kv_heads
        heads = hidden @ layer["qkv"].T + layer.get("qkv_bias", torch.zeros(()))
        heads = heads.view(len(hidden), -1, config.head_dim).transpose(0, 1)
        query = heads[: config.num_heads]  # [num_heads, num_tokens, head_dim]
        key = heads[config.num_heads : config.num_heads + config.num_kv_heads]
        value = heads[config.num_heads + config.num_kv_heads :]
        if "query_norm" in layer:
            query, key = self._norm(query, layer["query_norm"]), self._norm(key, layer["key_norm"])
        angles = torch.outer(places.float(), rope.frequencies)  # [num_tokens, head_dim / 2]
        query, key = _rotated(query, angles) * rope.magnitude, _rotated(key, angles) * rope.magnitude
        key, value = (tensor.repeat_interleave(num_shared, dim=0) for tensor in (key, value))
        scale = 1 / math.sqrt(config.head_dim) if config.score_scale is None else config.score_scale
        window = config.window(index)
        if window is not None:
            mask = mask & (places[:, None] - places[None, :] < window)
        scores = (query @ key.transpose(1, 2) * scale).masked_fill(~mask, -math.inf).softmax(dim=-1)
        scores = scores.masked_fill(~mask, 0.0)  # a token that sees nothing gets zeros, not NaN
        attended = (scores @ value).transpose(0, 1).reshape(len(hidden), -1)
        return attended @ layer["attention_output"].T + layer.get("attention_output_bias", torch.zeros(()))

    def _mlp(self, hidden: Tensor, layer: dict[str, Tensor]) -> Tensor:
        experts = self._model.config.experts
        if experts is None:
            is_gelu = self._model.config.architecture == "gemma3"
            return _gated(hidden, layer["gate_up"], layer["down"], is_gelu=is_gelu)
        probabilities = (hidden @ layer["router"].T).softmax(dim=-1)
        rows = []
        for vector, probability in zip(hidden, probabilities, strict=True):
            chosen = probability.argsort(descending=True)[: experts.num_chosen].tolist()
            total = float(probability[chosen].sum()) if experts.is_normalized else 1.0
            outputs = [_gated(vector, layer[f"experts.{i}.gate_up"], layer[f"experts.{i}.down"]) for i in chosen]
            shares = torch.tensor([float(probability[i]) / total for i in chosen])
            rows.append(shares @ torch.stack(outputs))
        return torch.stack(rows)


def next_token(
    logits: NDArray[np.float64], sampling: Sampling, position: int, generated: Sequence[int] = ()
) -> tuple[int, float, TopLogprobs]:
    """The token that `sampling` takes from logits [vocab_size] to stand at `position`; log-probabilities as asked."""
    probabilities = _probabilities(logits, sampling, [*sampling.generated, *generated])
    cumulative = np.cumsum(probabilities)
    token = int(np.argmax(cumulative > _uniform(sampling.seed, position) * cumulative[-1]))
    reported = logits - np.logaddexp.reduce(logits)
    if sampling.logprobs == "processed":
        reported = np.log(probabilities, out=np.full_like(logits, -np.inf), where=probabilities > 0)
    return token, float(reported[token]), _top(reported, sampling.top_logprobs)


def _gated(hidden: Tensor, gate_up: Tensor, down: Tensor, *, is_gelu: bool = False) -> Tensor:
    gate, up = (hidden @ gate_up.T).chunk(2, dim=-1)
    if is_gelu:  # the approximation by tanh
        cubic = gate + 0.044715 * gate**3
        return (0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic)) * up) @ down.T
    return (gate * torch.sigmoid(gate) * up) @ down.T


def _rotated(heads: Tensor, angles: Tensor) -> Tensor:
    even, odd = heads[..., 0::2], heads[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def _probabilities(logits: NDArray[np.float64], sampling: Sampling, generated: Sequence[int]) -> NDArray[np.float64]:
    """What the token is drawn from: [vocab_size], summing to 1. The steps are those of docs/sampling.md, in order."""
    logits = logits.copy()
    for token_id in {*sampling.seen, *generated}:
        logits[token_id] *= sampling.repetition_penalty ** (1 if logits[token_id] < 0 else -1)
    for token_id in set(generated):
        logits[token_id] -= sampling.presence_penalty
    for token_id in generated:
        logits[token_id] -= sampling.frequency_penalty
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += bias
    if sampling.allowed is not None:
        forbidden = sorted(set(range(len(logits))) - set(sampling.allowed))
        logits[forbidden] = -np.inf
    if sampling.temperature == 0:
        certain = np.zeros(len(logits))
        certain[logits.argmax()] = 1
        return certain
    weights: NDArray[np.float64] = np.exp((logits - logits.max()) / sampling.temperature)
    if 0 < sampling.top_k < len(weights):
        weights[weights < np.sort(weights)[-sampling.top_k]] = 0
    if sampling.typical_p < 1:
        weights[_is_atypical(weights / weights.sum(), sampling.typical_p)] = 0
    if sampling.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        mass_before = np.cumsum(weights[order]) - weights[order]
        weights[order[mass_before >= sampling.top_p * weights.sum()]] = 0
    weights[weights < sampling.min_p * weights.max()] = 0
    weights /= weights.sum()
    return weights


def _is_atypical(probabilities: NDArray[np.float64], typical_p: float) -> NDArray[np.bool_]:
    """Which tokens lie farther from the entropy than those, nearest first, that make up `typical_p` of the mass."""
    surprise = -np.log(probabilities, out=np.full_like(probabilities, -np.inf), where=probabilities > 0)
    entropy = float((probabilities * np.where(probabilities > 0, surprise, 0)).sum())
    distance: NDArray[np.float64] = np.abs(surprise - entropy)
    order = np.argsort(distance, kind="stable")
    mass_before = np.cumsum(probabilities[order]) - probabilities[order]
    is_beyond: NDArray[np.bool_] = distance > distance[order[mass_before < typical_p][-1]]
    return is_beyond


def _top(logprobs: NDArray[np.float64], k: int) -> TopLogprobs:
    order = np.argsort(-logprobs, kind="stable")[:k].tolist()
    return tuple((one, float(logprobs[one])) for one in order if logprobs[one] > -np.inf)


def _uniform(seed: int, position: int) -> float:
    """SplitMix64's output function over the seed, then over that plus position + 1 Weyl steps."""
    state = seed
    for step in (0, position + 1):
        state = (state + step * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state = state ^ state >> 31
    return (state >> 11) / 2**53
