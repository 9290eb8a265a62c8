"""Checks what a batch asks against the engine's shape, before any tensor is made. Never repairs anything.

Called by the model runner: a fault of one row is that row's error; copies and embeds have no result of their own, so
a fault there is a fault of the step.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from loopwright.core.batch import Batch, ForwardRow, HeadRow, KvShift
from loopwright.core.calls import DistributionRequest, Sampling, Visibility
from loopwright.core.errors import BadRequest, InternalError, LoopwrightError
from loopwright.core.executor import EngineShape

EntryT = TypeVar("EntryT")
_ANY = Sampling()


def check_step(batch: Batch, shape: EngineShape) -> None:
    """Raises InternalError for a copy or an embed that control should not have sent."""
    for copy in batch.copies:
        is_inside = (
            min(copy.source, copy.target) >= 0
            and max(copy.source, copy.target) < shape.num_blocks
            and min(copy.source_offset, copy.target_offset) >= 0
            and max(copy.source_offset, copy.target_offset) + copy.size <= shape.block_size
            and copy.size > 0
        )
        if not is_inside:
            raise InternalError(f"{copy} leaves its blocks of {shape.block_size} or the {shape.num_blocks} blocks")
    for embed in batch.embeds:
        if not len(embed.token_ids) == len(embed.positions) == len(embed.slots):
            raise InternalError(f"an embed has {len(embed.token_ids)} tokens, {len(embed.positions)} positions, "
                                f"{len(embed.slots)} slots")  # fmt: skip
        _check_ids("token_ids", embed.token_ids, shape.vocab_size, InternalError)
        _check_ids("slots", embed.slots, shape.num_slots, InternalError)


def checked(batch: Batch, rows: Sequence[ForwardRow], shape: EngineShape) -> Batch:
    """Those of the batch's entries that pass their checks, with `rows` for all of its rows, and of a row only what
    decides about hidden states and about which logits are computed: for ranks that do not answer."""
    return Batch(
        copies=batch.copies,
        shifts=[one for one in batch.shifts if _passes(check_shift, one, shape)],
        embeds=batch.embeds,
        rows=[
            replace(
                one, sampling=None if one.sampling is None else _ANY, generated=(), allowed_bits=None, sampler=None,
                source=-1,
            )
            for one in rows if _passes(check_row, one, shape)
        ],
        heads=[
            replace(one, sampling=None if one.sampling is None else _ANY)
            for one in batch.heads if _passes(check_head, one, shape)
        ],
    )  # fmt: skip


def _passes(check: Callable[[EntryT, EngineShape], None], entry: EntryT, shape: EngineShape) -> bool:
    try:
        check(entry, shape)
    except LoopwrightError:
        return False
    return True


def check_shift(shift: KvShift, shape: EngineShape) -> None:
    """Raises InternalError for a shift that control should not have sent."""
    _check_ids("block_ids", shift.block_ids, shape.num_blocks, InternalError)
    if not 0 <= shift.start < shift.start + shift.size <= len(shift.block_ids) * shape.block_size:
        raise InternalError(f"{shift} leaves its blocks of {shape.block_size}")


def check_row(row: ForwardRow, shape: EngineShape) -> None:
    """Raises BadRequest for what a program may have asked wrongly, InternalError for what control should have known."""
    num_tokens = row.num_tokens
    if num_tokens == 0 or (row.token_ids and row.input_slots):
        raise BadRequest("a row needs either token ids or input slots", field="token_ids")
    if row.token_ids and len(row.positions) != num_tokens:
        raise BadRequest(f"{num_tokens} tokens come with {len(row.positions)} positions", field="positions")
    _check_ids("token_ids", row.token_ids, shape.vocab_size, BadRequest)
    _check_ids("positions", row.positions, 1 << 31, BadRequest)
    if row.kv_len < 0 or row.kv_len + num_tokens > len(row.block_ids) * shape.block_size:
        raise BadRequest(
            f"{num_tokens} tokens after {row.kv_len} do not fit {len(row.block_ids)} blocks of {shape.block_size}",
            field="kv_len",
        )
    _check_ids("block_ids", row.block_ids, shape.num_blocks, InternalError)
    if row.input_slots or row.output_slots:
        _check_slots(row, shape)
    if row.mask is not None:
        _check_mask(row.mask, row.kv_len, num_tokens)
    if not 0 <= row.num_drafts < num_tokens or (row.num_drafts and (row.sampling is None or row.input_slots)):
        raise BadRequest(
            f"{row.num_drafts} drafts among {num_tokens} inputs; they need a token before them, and sampling",
            field="num_drafts",
        )
    if row.generated:
        _check_ids("generated", row.generated, shape.vocab_size, BadRequest)
    _check_questions(row.distributions, row.sampling, num_tokens, shape.vocab_size)
    if row.allowed_bits is not None and not int.from_bytes(row.allowed_bits, "little") % (1 << shape.vocab_size):
        raise InternalError("the row's bits allow no token", field="allowed_bits")


def _check_slots(row: ForwardRow, shape: EngineShape) -> None:
    _check_ids("input_slots", row.input_slots, shape.num_slots, InternalError)
    _check_ids("output_slots", row.output_slots, shape.num_slots, InternalError)
    if len(row.output_slots) > row.num_tokens:
        raise BadRequest(f"{len(row.output_slots)} outputs are asked of {row.num_tokens} tokens", field="outputs")


def check_head(row: HeadRow, shape: EngineShape) -> None:
    """Like check_row."""
    _check_ids("slot", [row.slot], shape.num_slots, InternalError)
    _check_questions(row.distributions, row.sampling, 1, shape.vocab_size)


def _check_questions(
    distributions: Sequence[DistributionRequest], sampling: Sampling | None, num_tokens: int, vocab_size: int
) -> None:
    for request in distributions:
        if not -num_tokens <= request.index < num_tokens:
            raise BadRequest(f"index {request.index} is outside a row of {num_tokens} tokens", field="index")
        if not 1 <= request.k <= vocab_size:
            raise BadRequest(f"k is {request.k}; the vocabulary has {vocab_size}", field="k")
        if request.must_include:
            _check_ids("must_include", request.must_include, vocab_size, BadRequest)
        _check_allowed(request.allowed, vocab_size)
    if sampling is None:
        return
    if sampling.logit_bias:
        _check_ids("logit_bias", list(sampling.logit_bias), vocab_size, BadRequest)
        if not all(abs(bias) < 1e30 for bias in sampling.logit_bias.values()):
            raise BadRequest("a logit bias is not a finite number below 1e30", field="logit_bias")
    if sampling.seen or sampling.generated:
        _check_written(sampling, vocab_size)
    _check_allowed(sampling.allowed, vocab_size)


def _check_written(sampling: Sampling, vocab_size: int) -> None:
    _check_ids("seen", sampling.seen, vocab_size, BadRequest)
    _check_ids("generated", sampling.generated, vocab_size, BadRequest)


def _check_allowed(allowed: Sequence[int] | None, vocab_size: int) -> None:
    if allowed is not None and not any(0 <= token_id < vocab_size for token_id in allowed):
        raise BadRequest(
            f"none of the {len(allowed)} allowed tokens is in the vocabulary of {vocab_size}", field="allowed"
        )


def _check_mask(mask: Sequence[Visibility], kv_len: int, num_tokens: int) -> None:
    if len(mask) != num_tokens:
        raise BadRequest(f"{num_tokens} tokens come with {len(mask)} masks", field="mask")
    for index, runs in enumerate(mask):
        own_place = kv_len + index
        last = max((place for place in range(1, len(runs), 2) if runs[place]), default=0)
        end = sum(runs[: last + 1])  # what is hidden after it may say anything
        if last == 0:
            raise BadRequest(f"mask {index} hides everything; a token must see at least one place", field="mask")
        if end > own_place + 1:
            raise BadRequest(f"mask {index} reaches to place {end - 1}; the token's own is {own_place}", field="mask")


def _check_ids(field: str, ids: Sequence[int], limit: int, error: type[LoopwrightError]) -> None:
    if not ids:
        return
    ends = (ids[0], ids[-1]) if isinstance(ids, range) else ids  # a prompt's positions are thousands
    if not 0 <= min(ends) <= max(ends) < limit:
        wrong = next(one for one in ids if not 0 <= one < limit)
        raise error(f"{field}: {wrong} is outside 0 … {limit - 1}", field=field)
