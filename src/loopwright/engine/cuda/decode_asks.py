"""What the rows of a decode group ask for beside a token that is drawn, from step to step. Never runs a model.

The columns that ask stay as long as the group's do, so what follows from them is worked out once, and what a row
carries comes from the step before as it lies there. Used by the runner; what came of it is read by `launched`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from loopwright.core.batch import DecodeResult, DecodeRows, ForwardRow
from loopwright.core.errors import ErrorInfo, LoopwrightError
from loopwright.core.results import TopLogprobs
from loopwright.core.samplers import SamplerRun, SamplerState
from loopwright.engine.cuda.answers import Answers, Ways
from loopwright.engine.cuda.asks import Asks, Now, Some, TopAsks, TracedAsks
from loopwright.engine.cuda.distributions import ask_tops, entropies
from loopwright.engine.cuda.listed import tops_of
from loopwright.engine.cuda.sampling import Top, normalizers
from loopwright.engine.sampler import Question
from loopwright.engine.traced import carried
from loopwright.engine.transfer import HostCopies, Landing

StateOf = Callable[[int], SamplerState | None]
"""What a sampler left, by the place of its row among all rows of a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeAsks:
    """Of the rows with some columns. `rows` are those that do not draw as the others do, by their places, and `asks`
    what these ask; `listing` and `unsure` rows want to know more of the model's distribution, however they choose."""

    rows: Some
    asks: Asks
    numbers: Mapping[int, int]  # which of `rows` is at a place
    penalized: Sequence[int]  # those of `rows`, by number, whose penalties count what they have written
    errors: Mapping[int, ErrorInfo]  # of rows that ask what cannot be, by place
    wrong: Some | None  # these
    listing: TopAsks | None
    unsure: Some | None

    @classmethod
    def of(
        cls, decodes: DecodeRows, special: Sequence[int], ways: Ways, check: Callable[[ForwardRow], None]
    ) -> "DecodeAsks | None":
        """None if nobody asks anything. `special` rows do not draw as the others do; `check` raises for a wrong row."""
        device = ways.columns.device
        raw = [place for place in decodes.listing if decodes.samplings[place].logprobs == "raw"]
        if not (special or raw or decodes.unsure):
            return None
        rows = decodes.rows()
        errors = {place: error for place in {*special, *raw} if (error := _error_of(rows[place], check)) is not None}
        good = [place for place in special if place not in errors]
        sizes = [decodes.samplings[place].top_logprobs for place in raw]
        return cls(
            Some.of(good, device),
            ways.asks([_question(rows[place]) for place in good]),
            {place: number for number, place in enumerate(good)},
            [number for number, place in enumerate(good) if decodes.samplings[place].has_penalties],
            errors,
            Some.of(sorted(errors), device) if errors else None,
            TopAsks(Some.of(raw, device), sizes) if raw else None,
            Some.of(decodes.unsure, device) if decodes.unsure else None,
        )

    def questions(self, decodes: DecodeRows) -> list[Question]:
        """With what each has written by now, as far as the host may know it."""
        questions = list(self.asks.questions)
        for number in self.penalized:
            place = int(self.rows.places[number])
            written = decodes.generated[place]
            if decodes.sources and decodes.sources[place] >= 0:
                written = written[: decodes.num_generated[place] + decodes.num_steps]
            questions[number] = dataclasses.replace(questions[number], generated=written)
        return questions

    def now(
        self, decodes: DecodeRows, fed: Tensor | None, has_failed: Tensor, before: "DecodedStates | None",
        state_of: StateOf,
    ) -> Now:  # fmt: skip
        """Of a step. `fed` are tokens that the host may not know, of `rows`; `has_failed` is of these, too. `before`
        and `state_of` are what the step before left."""
        positions = np.array(decodes.positions, np.int64)[self.rows.places] + (decodes.num_steps + 1)

        def states(asks: TracedAsks, vocab_size: int) -> Mapping[str, Tensor]:
            left = before if isinstance(decodes.sources, range) else decodes.states
            if isinstance(left, DecodedStates) and (whole := left.whole(asks)) is not None:
                return whole
            places = self.rows.places[asks.rows.places].tolist()
            runs = [
                SamplerRun(run.graph, run.initial, _state_at(place, decodes, state_of))
                for run, place in zip(asks.runs, places, strict=True)
            ]
            return carried(asks.graph, runs, vocab_size, has_failed.device)

        return Now(positions, fed, has_failed, lambda: self.questions(decodes), states)


class KnownAsks:
    """What the decode rows of the step before asked, for rows with the very same columns."""

    def __init__(self, ways: Ways, check: Callable[[ForwardRow], None]) -> None:
        self._ways, self._check = ways, check
        self._columns: tuple[object, ...] = (None,) * 4
        self._asks: DecodeAsks | None = None

    def of(self, decodes: DecodeRows, special: Sequence[int]) -> DecodeAsks | None:
        """As `DecodeAsks.of`."""
        columns = decodes.samplings, decodes.samplers, decodes.unsure, special
        if any(one is not other for one, other in zip(columns, self._columns, strict=True)):
            self._columns, self._asks = columns, DecodeAsks.of(decodes, special, self._ways, self._check)
        return self._asks


class DecodedStates(Sequence[SamplerState | None]):
    """What the samplers of decode rows left to the next token, by row: made when it is asked for."""

    def __init__(self, asks: DecodeAsks, answers: Answers, num_rows: int) -> None:
        self._asks, self._answers, self._num_rows = asks, answers, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 (nobody slices it)
        number = self._asks.numbers.get(place)
        return None if number is None else self._answers.state_of(number)

    def whole(self, asks: TracedAsks) -> Mapping[str, Tensor] | None:
        """What all rows of `asks` carry, if it was left for these very rows and lies together."""
        left = self._answers.left.get(asks.graph)
        return left.columns if left is not None and left.asks is asks and not left.is_apart else None


class DecodeAnswers:
    """What was launched for the decode rows of a step that ask. `result` may be asked on any thread."""

    def __init__(
        self, asks: DecodeAsks, answers: Answers | None, logits: Tensor, top: Top, num_rows: int,
        likeliest: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        """`logits` float32 [rows of the step, vocab_size]; `answers` are those of `asks.rows`, if there are any.
        `likeliest` is as `DecodeSteps` has it, where one graph finds those of all rows."""
        self.is_put = answers is not None and answers.is_put and len(asks.rows) == len(logits)
        """Whether it has all that came of the step's rows, and the outputs of the buffers have nothing more."""
        self.states = None if answers is None else DecodedStates(asks, answers, num_rows)
        self._asks, self._answers = asks, answers
        self._copies = HostCopies()
        self._tops: Callable[[], Sequence[TopLogprobs]] | None = None
        self._entropies: Landing | None = None
        if asks.listing is not None:
            rows, sizes = asks.listing.rows, asks.listing.sizes
            if likeliest is not None:
                landed = self._copies.take(likeliest(logits))
                self._tops = lambda: tops_of(landed(), rows.places, sizes)
            else:
                own = rows.in_(logits)
                self._tops = ask_tops(own, normalizers(own), sizes, top, self._copies)
        if asks.unsure is not None:
            own = asks.unsure.in_(logits)
            self._entropies = self._copies.take(entropies(own, normalizers(own).double()))
        self._copies.sent()

    def result(
        self, decodes: DecodeRows, ids: list[int], logprobs: list[float], errors: dict[int, ErrorInfo]
    ) -> DecodeResult:
        """With what the other rows drew, which is changed. Waits for the device."""
        self._copies.wait()
        tops = [] if self._tops is None else self._tops()
        if self._answers is not None:
            found = self._answers.read()
            places = self._asks.rows.places.tolist()
            if len(places) == len(ids):
                ids[:], logprobs[:] = found.token_ids, found.logprobs
            else:
                for number, place in enumerate(places):
                    ids[place], logprobs[place] = found.token_ids[number], found.logprobs[number]
            errors.update({places[number]: error for number, error in found.errors.items()})
            if found.tops:
                tops = self._with(decodes, tops, {places[number]: one for number, one in found.tops.items()})
        errors.update(self._asks.errors)
        unsure = () if self._entropies is None else self._entropies().tolist()
        return DecodeResult(ids, logprobs, errors, tops, unsure, self.states or ())

    def _with(
        self,
        decodes: DecodeRows,
        raw: Sequence[TopLogprobs],
        processed: Mapping[int, tuple[Sequence[TopLogprobs], int]],
    ) -> Sequence[TopLogprobs]:
        """Of all rows that list, in their order."""
        rest = iter(raw)
        found: list[TopLogprobs] = []
        for place in decodes.listing:
            if place in processed:
                tops, at = processed[place]
                found.append(tops[at])
            else:
                found.append(() if decodes.samplings[place].logprobs == "processed" else next(rest))
        return found


def _question(row: ForwardRow) -> Question:
    """What beside the model's own distribution the row asks for."""
    sampling = row.sampling
    if sampling is not None and sampling.top_logprobs and sampling.logprobs == "raw":
        sampling = replace(sampling, top_logprobs=0)
    return Question((), sampling, 0, row.generated, None, row.sampler)


def _error_of(row: ForwardRow, check: Callable[[ForwardRow], None]) -> ErrorInfo | None:
    try:
        check(row)
    except LoopwrightError as error:
        return error.info()
    return None


def _state_at(place: int, decodes: DecodeRows, state_of: StateOf) -> SamplerState | None:
    """What the row carries: from its source, or as control has it."""
    source = decodes.sources[place] if decodes.sources else -1
    if source >= 0:
        return state_of(source)
    return decodes.states[place] if place < len(decodes.states) else None
