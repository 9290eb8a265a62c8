"""Runs batches on a device: rows of one token as decode steps, everything else as the model runner does.

Never starts a thread and never waits for the device: `launch` returns when the work is under way, whatever the rows ask
for, and what came of it is read later. Tokens go from one step to the next on the device.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import NO_DECODES, Batch, DecodeRows, ForwardRow, HeadRow, RowResult, StepResult
from loopwright.core.calls import Sampling
from loopwright.core.errors import LoopwrightError
from loopwright.core.samplers import SamplerRun, SamplerState
from loopwright.engine.asked import Asked, Hidden
from loopwright.engine.attention import AttentionRow
from loopwright.engine.carried import settled
from loopwright.engine.cuda.answers import Answers, Fed, Ways, answers_of
from loopwright.engine.cuda.decode_asks import DecodeAnswers, DecodeAsks, KnownAsks
from loopwright.engine.cuda.launched import Assembled, Launched, Part, Reading
from loopwright.engine.cuda.launching import (
    AskedRows,
    Before,
    Other,
    Step,
    is_certain,
    is_plain_row,
    needs_step,
    question_of,
)
from loopwright.engine.cuda.listed import Listed, ids_of, is_listing, is_right
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.sampling import RowSamplings, SamplingColumns, draw_rows
from loopwright.engine.cuda.steps import Beside, DecodeSteps, Report
from loopwright.engine.cuda.traced_graphs import CudaCaptures, TracedSamplers
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import ModelRunner, Share, errors_of
from loopwright.engine.row_checks import check_head, check_row, check_step
from loopwright.engine.transfer import to_device

_GREEDY = Sampling()


class DeviceRunner(ModelRunner):
    """A model with its memory on a device. `run` and `launch` must be called under torch.inference_mode."""

    def __init__(
        self, model: LoadedModel, parts: DeviceParts, *, num_slots: int, max_rows: int, share: Share | None = None
    ) -> None:
        """`max_rows` is how many rows of one token a step has at most. `share` is told each batch before any of it is
        done, as it is: other ranks do all of it, too."""
        super().__init__(
            model, num_blocks=parts.cache.num_blocks, num_slots=num_slots, device=parts.decoder, share=share
        )
        self._ranks = model.ranks
        max_blocks = min(-(-model.config.max_context // self.shape.block_size), self.shape.num_blocks)
        self._steps = DecodeSteps(
            parts.decoder, parts.operations, self._ranks, max_rows=max_rows, max_blocks=max_blocks,
            has_passes=parts.has_passes,
        )  # fmt: skip
        self._draw = parts.operations.draw
        self._num_launched = 0  # batches
        self._launched: Launched | None = None  # the batch before, unless it failed
        self._before = Before()  # the same, while a batch is launched
        self._columns = SamplingColumns(self._device)
        self._likeliest: dict[int, list[Sampling]] = {}  # the samplings of rows that do not sample, by their number
        can_capture = self._device.type == "cuda" and parts.operations.can_be_captured
        samplers = TracedSamplers(CudaCaptures(self._device) if can_capture else None)
        self._ways = Ways(self._columns, self._draw, parts.operations.top, samplers)
        self._decoder = parts.decoder
        self._step: Step | None = None  # waits for the pass of the other rows
        self._known_asks = KnownAsks(self._ways, lambda row: check_row(row, self.shape))

    def capture(self, report: Report) -> None:
        """Makes the graphs; once, before the first step."""
        self._steps.capture(report)

    def forget_graphs(self) -> None:
        """Gives them back; no step may follow."""
        self._steps.forget_graphs()

    def run(self, batch: Batch) -> StepResult:
        return self.launch(batch).result()

    def launch(self, batch: Batch) -> Launched:
        """As `run`, but what the device still does is waited for by `Launched.result`."""
        if (launched := self.list_on(batch)) is not None:
            return launched
        before, self._launched = self._launched, None
        self._num_launched += 1
        self._before = Before() if before is None else Before(before.sampled, before.decoded, before.state_of)
        check_step(batch, self.shape)
        if self._share is not None:
            self._share(batch)
        self._cache.copy(batch.copies)
        shifts = tuple(self._shift(shift) for shift in batch.shifts)
        self._embed(batch.embeds)
        decodes, rows = batch.decodes, batch.rows
        if len(decodes) > self._steps.max_rows:
            decodes, rows = NO_DECODES, batch.all_rows
        num_decodes = len(decodes)
        single = [num_decodes + place for place, row in enumerate(rows) if self._is_single(row)]
        single = single[: self._steps.max_rows - num_decodes]
        stepping = [*range(num_decodes), *single]
        others = sorted(set(range(num_decodes, num_decodes + len(rows))).difference(single))
        other, reading = Other({}), None
        step = self._made_step(decodes, [rows[place - num_decodes] for place in single], stepping) if stepping else None
        if others:
            self._launch_others([rows[place - num_decodes] for place in others], others, step, other)
        if step is not None:
            self._launch_step(step, other)
            if num_decodes or len(step.asking) < len(stepping):  # else nobody wants what was drawn
                is_put = step.answers is not None and step.answers.is_put
                drawn = None if is_put else Reading(self._steps.buffers.outputs[:, : len(stepping)])
                reading = (drawn, stepping, step.answers)
        heads = self._launch_heads(batch.heads)
        launched = Launched(batch, num_decodes, other.known, reading, other.parts, heads, shifts)
        launched.sampled = self._sampled(num_decodes + len(rows), stepping, other)
        if self._ranks.num_ranks > 1 and not is_certain(batch, step):
            launched.sampled = self._agreed(launched.sampled, stepping)
        launched.states = other.states
        if stepping and not single:
            launched.tell = self._steps.tables.sampled
        self._launched = launched
        return launched

    def list_on(self, batch: Batch) -> Launched | None:
        """As `launch`, of nothing but the rows of the batch before, each a token on, that want to know their likeliest
        tokens alone: programs that choose wait for it. None, and nothing is done, if it is another."""
        rows = batch.rows
        if not rows or len(batch.decodes) or self._ranks.num_ranks > 1:
            return None
        if batch.copies or batch.shifts or batch.embeds or batch.heads:
            return None
        token_ids = ids_of(rows, self._steps.tables.due, self.shape)
        if token_ids is None:
            return None
        self._launched = None
        try:
            packed = self._steps.list_on(token_ids)
            told = Listed(packed, range(len(rows)), [row.distributions[0].k for row in rows], self.shape.vocab_size)
        except BaseException:
            self._steps.forget()
            raise
        launched = Launched(batch, 0, {}, None, [(told, range(len(rows)))], ({}, ()), ())
        launched.sampled = self._steps.buffers.outputs[::2, : len(rows)]
        self._num_launched += 1
        self._launched = launched
        return launched

    def _sampled(self, num_rows: int, stepping: Sequence[int], other: Other) -> Tensor:
        """What the next batch's rows may have as their source: [2, rows], ids and failures, on the device."""
        stepped = self._steps.buffers.outputs[::2, : len(stepping)]
        if len(stepping) == num_rows:
            return stepped
        numbers = np.zeros((2, num_rows), np.int32)
        numbers[1, list(other.known)] = 1
        sampled = self._steps.to_device(numbers)
        if stepping:
            sampled[:, self._numbers(stepping)] = stepped
        for places, one in other.sampled:
            sampled[:, self._numbers(places)] = one
        return sampled

    def _agreed(self, sampled: Tensor, stepping: Sequence[int]) -> Tensor:
        """What the first rank sampled, and puts it where the next step looks."""
        sampled = self._ranks.take_from_first(sampled)
        if stepping:
            self._steps.note(slice(0, len(stepping)), sampled[:, self._numbers(stepping)])
        return sampled

    # Rows of one token

    def _is_single(self, row: ForwardRow) -> bool:
        """Whether the row can be one of a decode step."""
        if len(row.token_ids) != 1 or row.mask is not None or row.output_slots or row.input_slots:
            return False
        if is_listing(row) and is_right(row, self.shape):
            return True
        try:
            check_row(row, self.shape)
        except LoopwrightError:
            return False  # the model runner says what is wrong with it
        return True

    def _made_step(self, decodes: DecodeRows, singles: Sequence[ForwardRow], places: Sequence[int]) -> Step:
        samplings, special = self._step_samplings(decodes, singles)
        asks = self._known_asks.of(decodes, self._columns.of_decodes(decodes).special) if len(decodes) else None
        fed = self._decode_fed(decodes, asks)
        asking = self._asking(decodes, singles, special)
        return Step(decodes, singles, places, samplings, asks, fed, asking, self._fed(list(asking.values())))

    def _launch_step(self, step: Step, other: Other) -> None:
        """Adds what is launched for rows that ask for more than a token. All else is in the outputs of the buffers."""
        try:
            logits = step.logits
            if logits is None:
                logits = self._steps.forward(
                    step.decodes, step.singles, self._before.sampled, is_greedy=step.samplings.is_greedy,
                    wants_logits=bool(step.asking) or step.asks is not None,
                )  # fmt: skip
            self._choose(step, logits, other)
        except BaseException:
            self._steps.forget()
            raise
        self._steps.tables.sampled(None)

    def _choose(self, step: Step, logits: Tensor, other: Other) -> None:
        """The tokens of a step's rows, if not those that are likeliest already."""
        if not step.samplings.is_greedy:
            rows = step.decodes, step.singles, step.places
            self._steps.draw(logits, step.samplings, *rows, self._num_launched)
        self._answer_decodes(step, logits)
        listing = self._list(step, logits, other)
        late = {place: row for place, row in step.asking.items() if row.late_bits is not None}
        if len(late) + len(listing) < len(step.asking):
            asked = [place for place in step.asking if place not in late and place not in listing]
            self._answer_step(step, asked, logits, other)
        if late:  # all else is under way
            step.asking = step.asking | {place: settled(row) for place, row in late.items()}
            self._answer_step(step, list(late), logits, other)

    def _list(self, step: Step, logits: Tensor, other: Other) -> Collection[int]:
        """Launches what is told of the rows that ask for their likeliest tokens and nothing else: their places in the
        step. None of them samples, so the next step has nothing of them."""
        if self._ranks.num_ranks > 1:  # all ranks have to agree about a step that is not certain
            return ()
        sizes = {place: row.distributions[0].k for place, row in step.asking.items() if is_listing(row)}
        if not sizes:
            return ()
        rows = list(sizes)
        told = Listed(self._steps.likeliest(logits), rows, list(sizes.values()), logits.shape[1])
        other.parts.append((told, [step.places[place] for place in rows]))
        if len(rows) < len(logits):  # what others have written is counted, and these have written nothing
            self._steps.note(self._numbers(rows), torch.ones(2, len(rows), dtype=torch.int32, device=self._device))
        return sizes

    def _step_samplings(self, decodes: DecodeRows, singles: Sequence[ForwardRow]) -> tuple[RowSamplings, Sequence[int]]:
        """Of all rows, and which rows are for the answers: they ask for more than a token, or for none."""
        if not decodes and all(map(is_listing, singles)):  # the model can begin at once
            likeliest = self._likeliest.setdefault(len(singles), [_GREEDY] * len(singles))
            return self._columns.of(likeliest), range(len(singles))
        if not singles:
            samplings = self._columns.of_decodes(decodes)
            return samplings, samplings.special
        is_plain = [is_plain_row(row) for row in singles]
        own = [row.sampling or _GREEDY if plain else _GREEDY for row, plain in zip(singles, is_plain, strict=True)]
        others = self._columns.of_decodes(decodes).special if decodes.samplers or decodes.unsure else ()
        samplings = self._columns.of([*decodes.samplings, *own], others)
        special = [place for place, plain in enumerate(is_plain, start=len(decodes)) if not plain]
        return samplings, [*samplings.special, *special]

    def _asking(
        self, decodes: DecodeRows, singles: Sequence[ForwardRow], special: Sequence[int]
    ) -> dict[int, ForwardRow]:
        """The special ones of the single rows by their place in the step, with the samplers' states."""
        num = len(decodes)
        return {place: self._carrying(singles[place - num]) for place in special if place >= num}

    def _decode_fed(self, decodes: DecodeRows, asks: DecodeAsks | None) -> Tensor | None:
        """Of rows that do not draw as others do: the tokens that the step before sampled, if anybody counts them."""
        if asks is None or not asks.penalized or not decodes.sources:
            return None
        fed = self._fed_by([decodes.sources[place] for place in asks.rows.places.tolist()])
        return None if fed is None else fed.token_ids

    def _answer_decodes(self, step: Step, logits: Tensor) -> None:
        """Launches what decode rows ask for beside what is drawn; those that choose in ways of their own have their
        tokens put where the next step looks."""
        asks, answers = step.asks, None
        if asks is None:
            return
        if len(asks.rows):
            failed = asks.rows.in_(self._steps.buffers.outputs[2, : len(logits)])
            now = asks.now(step.decodes, step.decode_fed, failed, self._before.decoded, self._before.state_of)
            is_whole = asks.asks.is_of_one_sampler and len(asks.rows) == len(logits) and self._ranks.num_ranks == 1
            whole = self._steps.whole(logits) if is_whole else None
            answers = Answers(asks.rows.in_(logits), asks.asks, self._ways, now, whole)
            if not answers.is_put:
                self._steps.note(asks.rows.index, answers.sampled)
        if asks.wrong is not None:
            self._steps.note(asks.wrong.index, torch.ones(2, len(asks.wrong), dtype=torch.int32, device=self._device))
        likeliest = self._steps.likeliest if self._ranks.num_ranks == 1 else None
        step.answers = DecodeAnswers(asks, answers, logits, self._ways.top, len(step.decodes), likeliest)

    def _answer_step(self, step: Step, asked: Sequence[int], logits: Tensor, other: Other) -> None:
        """Of some of the rows that ask, by their places in the step. Each has one question at most, for one token."""
        places = step.places
        asking = {place: step.asking[place] for place in asked}
        silent = [place for place, row in asking.items() if row.sampling is None and not row.distributions]
        other.known.update({places[place]: RowResult() for place in silent})
        mine = [place for place in asking if places[place] not in other.known]
        if not mine:
            return
        fed = step.fed
        if fed is not None and len(mine) < len(step.asking):
            chosen = set(mine)
            fed = fed.of(self._numbers([number for number, place in enumerate(step.asking) if place in chosen]))
        wanted = logits if len(mine) == len(logits) else logits[self._numbers(mine)]
        questions = [question_of(asking[place]) for place in mine]
        answers = answers_of(wanted, questions, self._ways, fed)
        self._steps.note(self._numbers(mine), answers.sampled)
        own = [places[place] for place in mine]
        other.parts.append((answers, own))
        other.states.update(_states(answers, [one.sampler for one in questions], own))

    # Other rows

    def _launch_others(
        self, rows: Sequence[ForwardRow], places: Sequence[int], step: Step | None, other: Other
    ) -> None:
        """Adds what is launched for them. They take the step along in their pass, if there is one for them."""
        errors = errors_of(rows, lambda row: check_row(row, self.shape))
        other.known.update({places[number]: error for number, error in errors.items()})
        good = [number for number in range(len(rows)) if number not in errors]
        if not good:
            return
        self._step = step
        try:
            self._run_others([self._carrying(rows[one]) for one in good], [places[one] for one in good], other)
        except BaseException:
            self._steps.forget()
            raise
        finally:
            self._step = None

    def _run_layers(
        self, vectors: Tensor, positions: Tensor, rows: Sequence[AttentionRow], asked: Callable[[], NDArray[np.int64]]
    ) -> Hidden:
        """The pass of the model runner, with the decode step in it, if one waits. Of the last layer, what nobody asks
        for is left out."""
        kept = asked()
        beside = Beside(vectors, positions, rows, None if len(kept) == len(vectors) else self._numbers(kept))
        step, self._step = self._step, None
        if step is None:
            return Hidden(self._steps.forward_others(beside), kept)
        step.logits, hidden = self._steps.forward_beside(
            step.decodes, step.singles, self._before.sampled, beside, is_greedy=step.samplings.is_greedy
        )
        return Hidden(hidden, kept)

    def _run_others(self, rows: Sequence[ForwardRow], places: Sequence[int], other: Other) -> None:
        fed = self._fed(rows)
        hidden, ends = self._forward_rows(rows)
        plain = [number for number, row in enumerate(rows) if is_plain_row(row) and not needs_step(row)]
        for start in range(0, len(plain), self._steps.max_rows):
            part = plain[start : start + self._steps.max_rows]
            last = hidden.of([ends[one] - 1 for one in part])
            outputs = self._drawn(self._model.normalize(last), [rows[one] for one in part])
            if fed is not None:
                outputs[2] |= fed.of(self._numbers(part)).has_failed.int()
            own = [places[one] for one in part]
            other.parts.append((Reading(outputs), own))
            other.sampled.append((own, outputs[::2]))
        is_plain = set(plain)
        asking = [number for number, row in enumerate(rows) if number not in is_plain]
        asked = [Asked.of_row(settled(rows[number]), ends[number]) for number in asking]
        silent = [number for number, one in zip(asking, asked, strict=True) if not one.questions]
        other.known.update({places[number]: RowResult() for number in silent})
        asking = [number for number in asking if number not in silent]
        asked = [one for one in asked if one.questions]
        if asked:
            mine = None if fed is None else fed.of(self._numbers(asking))
            found = self._ask(asked, lambda index: self._model.normalize(hidden.of(index)), mine)
            own = [places[number] for number in asking]
            other.parts.append((found.pending, own))
            other.sampled.append((own, found.sampled))
            other.states.update({own[number]: state for number, state in found.states.items()})

    def _drawn(self, vectors: Tensor, rows: Sequence[ForwardRow]) -> Tensor:
        """Outputs [3, rows] of rows that want a plain token after normalised hidden states."""
        logits = self._model.logits(vectors)
        samplings = self._columns.of([row.sampling or _GREEDY for row in rows])
        positions = np.array([row.sample_position for row in rows])
        return draw_rows(self._draw, logits, logits, samplings, positions)

    def _launch_heads(self, heads: Sequence[HeadRow]) -> tuple[Mapping[int, RowResult], Sequence[Part]]:
        errors = errors_of(heads, lambda head: check_head(head, self.shape))
        good = [place for place in range(len(heads)) if place not in errors]
        asked = [Asked.of_head(heads[place]) for place in good]
        parts = [(self._ask(asked, self._head_vectors, None).pending, good)] if good else []
        return errors, parts

    def _ask(self, asked: Sequence[Asked], vectors: Callable[[list[int]], Tensor], fed: Fed | None) -> AskedRows:
        """Rows with any number of questions; `fed` is of the rows."""
        row_of = [number for number, one in enumerate(asked) for _ in one.questions]
        answers: list[Answers] = []
        states: dict[int, SamplerState] = {}
        start = 0
        for logits, questions in self._logits_of(asked, vectors):
            rows = row_of[start : start + len(questions)]
            mine = None if fed is None else fed.of(self._numbers(rows))
            answers.append(answers_of(logits, questions, self._ways, mine))
            states.update(_states(answers[-1], [one.sampler for one in questions], rows))
            start += len(questions)
        told = torch.cat([one.sampled for one in answers], dim=1)
        failures = torch.cat([one.has_failed for one in answers]).int()
        has_failed = torch.zeros(len(asked), dtype=torch.int32, device=self._device)
        has_failed.index_add_(0, self._numbers(row_of), failures)
        starts = np.cumsum([0, *(len(one.questions) for one in asked)])[:-1]
        sampled = told[:, self._numbers(starts)]
        for number, one in enumerate(asked):
            if len(one.drafts):
                sampled[:, number : number + 1] = self._after_drafts(told[:, starts[number] :], one.drafts)
            else:
                sampled[1, number] |= has_failed[number] > 0
        return AskedRows(Assembled(asked, answers), sampled, states)

    def _after_drafts(self, told: Tensor, drafts: Sequence[int]) -> Tensor:
        """The token after the drafts that are accepted: [2, 1] of the answers from the row's first on."""
        num_drafts = len(drafts)
        is_right = told[0, :num_drafts] == self._numbers(drafts)
        num_accepted = is_right.int().cumprod(0).sum()[None]
        has_failed = told[1, : num_drafts + 1].cumsum(0) > 0
        return torch.stack([told[0].gather(0, num_accepted), has_failed.gather(0, num_accepted).int()])

    # What the step before sampled

    def _fed(self, rows: Sequence[ForwardRow]) -> Fed | None:
        """None if no row has a source."""
        return self._fed_by([row.source for row in rows])

    def _fed_by(self, from_rows: Sequence[int]) -> Fed | None:
        """Likewise, of rows with such sources."""
        if all(source < 0 for source in from_rows):
            return None
        sources = self._numbers(from_rows)
        has_source, sampled = sources >= 0, self._before.sampled
        if sampled is None:
            return Fed(torch.full_like(sources, -1), has_source)
        taken = sampled[:, sources.clamp(min=0)]
        return Fed(torch.where(has_source, taken[0], -1).long(), has_source & (taken[1] != 0))

    def _carrying(self, row: ForwardRow) -> ForwardRow:
        """The row with the state that its source's sampler left."""
        if row.source < 0 or row.sampler is None:
            return row
        sampler = SamplerRun(row.sampler.graph, row.sampler.initial, self._before.state_of(row.source))
        return replace(row, sampler=sampler)

    def _token_ids(self, rows: Sequence[ForwardRow]) -> Tensor:
        token_ids = super()._token_ids(rows)
        if (fed := self._fed(rows)) is None:
            return token_ids
        starts = np.cumsum([0, *(row.num_tokens for row in rows)])[:-1]
        fed_rows = [number for number, row in enumerate(rows) if row.source >= 0]
        own = self._numbers(fed_rows)
        token_ids[self._numbers(starts[fed_rows])] = fed.token_ids[own].clamp(min=0)
        return token_ids

    def _numbers(self, numbers: Iterable[int] | NDArray[np.integer]) -> Tensor:
        return to_device(np.asarray(numbers, np.int64), self._device)


def _states(answers: Answers, samplers: Sequence[SamplerRun | None], places: Sequence[int]) -> dict[int, SamplerState]:
    """What samplers of questions left, by the place of whose they are."""
    found = {places[number]: answers.state_of(number) for number, sampler in enumerate(samplers) if sampler is not None}
    return {place: state for place, state in found.items() if state is not None}
