"""Owns what a call's values may be, given the sizes of the engine. Never looks at names, pages or what else runs.

Called when a call is issued, before anything is bound. Each check raises a BadRequest that names the field, the value
and the limit.
"""

import math
from collections.abc import Collection, Sequence

from loopwright.control.name_table import check_distinct
from loopwright.control.sampler_checks import check_sampler
from loopwright.core.calls import (
    MAX_DRAFTS,
    CopyPage,
    DistributionRequest,
    EmbedText,
    ExportPages,
    Forward,
    ForwardText,
    Generate,
    NextDistribution,
    Sample,
    Sampling,
    ShiftKv,
    Visibility,
)
from loopwright.core.errors import BadRequest, ContextTooLong
from loopwright.core.executor import EngineShape
from loopwright.core.grammars import HeldText


def check_copy(call: CopyPage, shape: EngineShape) -> None:
    """Something is copied, and both ranges lie inside their page."""
    if call.size < 1:
        raise BadRequest(f"size: {call.size} is less than 1", field="size")
    for field, offset in (("source_offset", call.source_offset), ("target_offset", call.target_offset)):
        if offset < 0 or offset + call.size > shape.block_size:
            raise BadRequest(
                f"{field}: {offset} + size {call.size} is not within the page's {shape.block_size} tokens", field=field
            )


def check_shift(call: ShiftKv, num_places: int) -> None:
    """Something is shifted, and it lies in the pages, of `num_places` tokens."""
    if call.size < 1:
        raise BadRequest(f"size: {call.size} is less than 1", field="size")
    if call.start < 0 or call.start + call.size > num_places:
        raise BadRequest(
            f"start: {call.start} + size {call.size} is not within the {num_places} tokens that the pages hold",
            field="start",
        )


def check_embed_text(call: EmbedText, shape: EngineShape) -> None:
    """Tokens, positions and embeds have one length; tokens and positions are in range."""
    _check_length("embeds", len(call.embeds), "tokens", len(call.tokens))
    _check_not_empty("tokens", len(call.tokens))
    _check_inputs(call.tokens, call.positions, shape)


def check_export(call: ExportPages, shape: EngineShape) -> None:
    """The pages are as many as the positions need, and tokens, if there are any, as many as positions."""
    _check_inputs(call.tokens or (0,) * len(call.positions), call.positions, shape)
    num_needed = -(-len(call.positions) // shape.block_size)
    if len(call.pages) != num_needed:
        raise BadRequest(
            f"pages: {len(call.pages)} for {len(call.positions)} positions, which need {num_needed} of "
            f"{shape.block_size} tokens each",
            field="pages",
        )


def check_forward(call: Forward, num_places: int) -> None:
    """Outputs are distinct and no more than inputs; pages, of `num_places` tokens, and mask fit."""
    _check_not_empty("inputs", len(call.inputs))
    check_distinct(call.outputs, "outputs")
    if len(call.outputs) > len(call.inputs):
        raise BadRequest(f"outputs: {len(call.outputs)} for {len(call.inputs)} inputs", field="outputs")
    _check_capacity(call.kv_len, len(call.inputs), num_places)
    _check_mask(call.mask, call.kv_len, len(call.inputs))


def check_forward_text(call: ForwardText, shape: EngineShape, num_places: int) -> None:
    """Inputs, pages, mask, distributions, sampling and drafts fit each other and the model."""
    _check_not_empty("tokens", len(call.tokens))
    _check_inputs(call.tokens, call.positions, shape)
    _check_capacity(call.kv_len, 0 if call.grow_from is not None else len(call.tokens), num_places)
    _check_mask(call.mask, call.kv_len, len(call.tokens))
    _check_distributions(call.distributions, len(call.tokens), shape)
    if call.sampling is not None:
        _check_sampling(call.sampling, shape)
    if call.num_drafts:
        _check_drafts(call)
    if call.held is not None:
        _check_held(call, call.held, shape)


def check_generate(call: Generate, shape: EngineShape, num_places: int) -> None:
    """Inputs, pages, sampling and stop tokens fit each other and the model."""
    _check_not_empty("tokens", len(call.tokens))
    _check_inputs(call.tokens, call.positions, shape)
    _check_capacity(call.kv_len, 0, num_places)
    _check_sampling(call.sampling, shape)
    _check_tokens("stop_tokens", call.stop_tokens, shape)
    if call.grammar is not None and call.sampling.allowed is not None:
        raise BadRequest("sampling.allowed: a grammar says which tokens are allowed", field="sampling.allowed")
    if call.window is not None:
        _check_length("window.positions", len(call.window.positions), "cached tokens", call.kv_len)
        if call.window.size < 1:
            raise BadRequest(f"window.size: {call.window.size} is less than 1", field="window.size")
    if call.sampler is not None:
        check_sampler(call.sampler, call.sampler_state, call.sampling, shape)
    elif call.sampler_state:
        raise BadRequest("sampler_state: there is no sampler to carry it", field="sampler_state")
    if call.stop_entropy is not None and not 0 < call.stop_entropy < math.inf:
        raise BadRequest(f"stop_entropy: {call.stop_entropy} is not a finite number above 0", field="stop_entropy")
    if call.max_tokens < 1:
        raise BadRequest(f"max_tokens: {call.max_tokens} is less than 1", field="max_tokens")


def check_next_distribution(call: NextDistribution, shape: EngineShape) -> None:
    """The request fits the vocabulary and the one hidden state."""
    _check_distributions((call.request,), 1, shape, field="request")


def check_sample(call: Sample, shape: EngineShape) -> None:
    """The sampling fits the vocabulary. The position may be one beyond the context, where no token runs."""
    _check_sampling(call.sampling, shape)
    if not 0 <= call.position <= shape.max_context:
        raise _too_long("position", call.position, shape)


def _check_inputs(tokens: Sequence[int], positions: Sequence[int], shape: EngineShape) -> None:
    _check_length("positions", len(positions), "tokens", len(tokens))
    _check_tokens("tokens", tokens, shape)
    if min(positions) < 0:
        raise BadRequest(f"positions: {min(positions)} is negative", field="positions")
    if max(positions) >= shape.max_context:
        raise _too_long("positions", max(positions), shape)


def _check_tokens(field: str, tokens: Collection[int], shape: EngineShape) -> None:
    if not tokens:  # most lists of most calls
        return
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < shape.vocab_size:
            raise BadRequest(f"{field}: token {token} is not in the vocabulary of {shape.vocab_size}", field=field)


def _check_length(field: str, length: int, other: str, other_length: int) -> None:
    if length != other_length:
        raise BadRequest(f"{field}: {length} of them for {other_length} {other}", field=field)


def _check_not_empty(field: str, length: int) -> None:
    if length == 0:
        raise BadRequest(f"{field}: none; at least 1 is needed", field=field)


def _check_capacity(kv_len: int, num_inputs: int, num_places: int) -> None:
    if kv_len < 0 or kv_len > num_places:
        raise BadRequest(f"kv_len: {kv_len} is beyond the {num_places} tokens that the pages hold", field="kv_len")
    if kv_len + num_inputs > num_places:
        raise BadRequest(
            f"pages: {kv_len} + {num_inputs} tokens do not fit the {num_places} that the pages hold",
            field="pages",
            hint="give more pages, or grow_from",
        )


def _check_mask(mask: Sequence[Visibility] | None, kv_len: int, num_inputs: int) -> None:
    if mask is None:
        return
    _check_length("mask", len(mask), "inputs", num_inputs)
    for place, runs in enumerate(mask):
        seen_end = _visible_end(runs)
        if seen_end == 0:
            raise BadRequest(f"mask[{place}]: nothing is visible", field="mask", hint="a token may see itself")
        if seen_end > (own_end := kv_len + place + 1):
            raise BadRequest(
                f"mask[{place}]: slot {seen_end - 1} is visible, and the token's own is {own_end - 1}", field="mask"
            )


def _visible_end(runs: Visibility) -> int:
    """One past the last visible slot; 0 if none is."""
    if any(length < 0 for length in runs):
        raise BadRequest(f"mask: a run of {min(runs)} slots", field="mask")
    end = slot = 0
    for place, length in enumerate(runs):
        slot += length
        if place % 2 == 1 and length > 0:
            end = slot
    return end


def _check_distributions(
    requests: Sequence[DistributionRequest], num_inputs: int, shape: EngineShape, field: str = "distributions"
) -> None:
    for request in requests:
        if not -1 <= request.index < num_inputs:
            raise BadRequest(
                f"{field}.index: {request.index} is not one of {num_inputs} inputs", field=f"{field}.index"
            )
        if not 1 <= request.k <= shape.vocab_size:
            raise BadRequest(
                f"{field}.k: {request.k} is not from 1 to the vocabulary's {shape.vocab_size}", field=f"{field}.k"
            )
        _check_tokens(f"{field}.must_include", request.must_include, shape)
        _check_allowed(f"{field}.allowed", request.allowed, shape)
    check_distinct([one.index if one.index >= 0 else num_inputs - 1 for one in requests], f"{field}.index")


def _check_sampling(sampling: Sampling, shape: EngineShape) -> None:
    _check_tokens("sampling.logit_bias", sampling.logit_bias, shape)
    _check_tokens("sampling.seen", sampling.seen, shape)
    _check_tokens("sampling.generated", sampling.generated, shape)
    _check_allowed("sampling.allowed", sampling.allowed, shape)


def _check_allowed(field: str, allowed: Collection[int] | None, shape: EngineShape) -> None:
    if allowed is not None:
        _check_not_empty(field, len(allowed))
        _check_tokens(field, allowed, shape)


def _check_held(call: ForwardText, held: HeldText, shape: EngineShape) -> None:
    _check_tokens("held.text", held.text, shape)
    _check_tokens("held.stop_tokens", held.stop_tokens, shape)
    if call.num_drafts:
        raise BadRequest(f"held: not beside {call.num_drafts} drafts", field="held")
    if call.sampling is not None and call.sampling.allowed is not None:
        raise BadRequest("sampling.allowed: a grammar says which tokens are allowed", field="sampling.allowed")
    for place, one in enumerate(call.distributions):
        if one.allowed is not None and one.index in (-1, len(call.tokens) - 1):
            field = f"distributions[{place}].allowed"
            raise BadRequest(f"{field}: a grammar says which tokens are allowed", field=field)


def _check_drafts(call: ForwardText) -> None:
    num_drafts, num_tokens = call.num_drafts, len(call.tokens)
    if call.sampling is None:
        raise BadRequest(f"num_drafts: {num_drafts} drafts without sampling", field="num_drafts")
    if not 0 <= num_drafts <= min(MAX_DRAFTS, num_tokens - 1):
        raise BadRequest(
            f"num_drafts: {num_drafts} of {num_tokens} tokens; at most {min(MAX_DRAFTS, num_tokens - 1)} can be, for "
            f"one must stand before them",
            field="num_drafts",
        )
    before = call.positions[-num_drafts - 1]
    if call.positions[-num_drafts:] != tuple(range(before + 1, before + 1 + num_drafts)):
        raise BadRequest(
            f"positions: the {num_drafts} drafts do not stand one after the other behind position {before}",
            field="positions",
        )


def _too_long(field: str, position: int, shape: EngineShape) -> ContextTooLong:
    """In words by which langchain and litellm know this error: they look at no code."""
    return ContextTooLong(
        f"{field}: the prompt is too long: position {position} needs a context of {position + 1} tokens; this model's "
        f"maximum context length is {shape.max_context}",
        field=field,
    )
