"""What a batch on a device consists of while it is launched, and what of a row decides how. Never launches anything.

Used by the runners.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from loopwright.core.batch import Batch, DecodeRows, ForwardRow, RowResult
from loopwright.core.samplers import SamplerState
from loopwright.engine.cuda.answers import Fed
from loopwright.engine.cuda.decode_asks import DecodeAnswers, DecodeAsks, DecodedStates, StateOf
from loopwright.engine.cuda.launched import Part, Pending
from loopwright.engine.cuda.sampling import RowSamplings, is_adjusting, is_special
from loopwright.engine.sampler import Question


def _nothing(_: int) -> SamplerState | None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """What the batch before left: [2, rows] ids and failures, None if it failed; and what samplers did, that of decode
    rows alone and that of all rows by place."""

    sampled: Tensor | None = None
    decoded: DecodedStates | None = None
    state_of: StateOf = _nothing


@dataclass(slots=True, eq=False)
class Other:
    """What was launched of the rows that are in no decode step, by places among all rows."""

    known: dict[int, RowResult]
    parts: list[Part] = field(default_factory=list)
    sampled: list[tuple[Sequence[int], Tensor]] = field(default_factory=list)  # [2, rows] each
    states: dict[int, SamplerState] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Step:
    """A decode step of a batch: its rows, by their places among all rows; what its decode rows ask for beside a token
    that is drawn, and those of the others that ask for more than a token, by their places in the step; and what the
    step before gave either."""

    decodes: DecodeRows
    singles: Sequence[ForwardRow]
    places: Sequence[int]
    samplings: RowSamplings
    asks: DecodeAsks | None
    decode_fed: Tensor | None  # tokens that the host may not know, of `asks.rows`, if they count
    asking: dict[int, ForwardRow]
    fed: Fed | None
    answers: DecodeAnswers | None = None  # once the model has run
    logits: Tensor | None = None  # [rows, vocab_size], once the model has run


@dataclass(frozen=True, slots=True, eq=False)
class AskedRows:
    """What was launched for rows with questions; `sampled` [2, rows] as in `Other`, states by row."""

    pending: Pending
    sampled: Tensor
    states: Mapping[int, SamplerState]


def is_certain(batch: Batch, step: Step | None) -> bool:
    """Whether the same logits give the same ids whatever sums are rounded to: all are the likeliest. That follows from
    what all ranks know of the batch."""
    is_whole = step is not None and len(step.decodes) == batch.num_rows
    return (
        step is not None
        and is_whole
        and step.samplings.is_greedy
        and not (step.asking or (step.asks is not None and len(step.asks.rows)))
    )


def question_of(row: ForwardRow) -> Question:
    """All that a row of one token asks."""
    return Question(row.distributions, row.sampling, row.sample_position, row.generated, row.allowed_bits, row.sampler)


def is_plain_row(row: ForwardRow) -> bool:
    """Whether all that the row asks for is a token that the device can draw."""
    return (
        row.sampling is not None
        and not row.distributions
        and row.sampler is None
        and row.allowed_bits is None
        and row.late_bits is None
        and not row.sampling.top_logprobs
        and not is_special(row.sampling)
    )


def needs_step(row: ForwardRow) -> bool:
    """Whether a plain row needs what only decode steps have ready, or more than one token."""
    return row.num_drafts > 0 or (row.sampling is not None and is_adjusting(row.sampling))
