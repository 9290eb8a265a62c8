"""Penalties, biases and lists of rows that decode: tables on the device that go on from step to step, whoever comes and
goes, and give what counting anew in each step gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from device_rig import device_rig
from loopwright.core.batch import NO_DECODES, Batch, DecodeRows, ForwardRow
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.row_adjustments import RowAdjustments
from loopwright.engine.cuda.runner import DeviceRunner
from runner_rig import Rig, some_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.core.batch import RowResult
    from loopwright.engine.cuda.launched import Launched
    from loopwright.engine.loaded_model import LoadedModel

HOT = {"temperature": 1.0, "seed": 7}
FEW = {8: 30.0, 9: 29.0, 10: 28.5, 11: 28.0}  # so that each token that is counted, or is not, shows
SAMPLINGS = [
    Sampling(frequency_penalty=1.5, presence_penalty=0.5, logit_bias=FEW),
    Sampling(repetition_penalty=1.8, seen=(4, 9, 9), generated=(5, 6, 6), **HOT),
    Sampling(**HOT),
    Sampling(logit_bias={5: 4.0, 9: -3.0}, allowed=(3, 5, 7, 9, 200, 5000), **HOT),
    Sampling(frequency_penalty=2.0, logit_bias={8: 2.0}),
]


class Text:
    """One that decodes: what the host knows of it, and where it stood in the batch before."""

    def __init__(self, rig: Rig, number: int, *, is_single: bool = False) -> None:
        self.rig, self.sampling, self.is_single = rig, SAMPLINGS[number % len(SAMPLINGS)], is_single
        self.prompt = some_tokens(5 + number, number)
        self.table = rig.blocks(60)
        self.tokens: list[int] = []  # that have been read
        self.num_launched = 0

    @property
    def is_unread(self) -> bool:
        return self.num_launched > len(self.tokens)

    @property
    def position(self) -> int:
        """Of the next input."""
        return len(self.prompt) + self.num_launched - 1

    def prefill(self) -> ForwardRow:
        length = len(self.prompt)
        return ForwardRow(self.table, 0, range(length), self.prompt, sampling=self.sampling, sample_position=length)

    def single(self, source: int) -> ForwardRow:
        position = self.position
        known = self.tokens[: self.num_launched - 1] if source >= 0 else self.tokens
        token = 0 if source >= 0 else self.tokens[-1]
        return ForwardRow(self.table, position, [position], [token], sampling=self.sampling,
                          sample_position=position + 1, generated=tuple(known), source=source)  # fmt: skip


class Texts:
    """Runs steps of texts that are named each time, ahead or one by one, and reads what they say."""

    def __init__(self, rig: Rig, *, is_ahead: bool) -> None:
        self.rig, self.is_ahead = rig, is_ahead
        self._waiting: list[tuple[list[Text], Launched]] = []
        self._ran: list[Text] = []  # in the batch before
        self._decoded: list[Text] = []
        self._columns = NO_DECODES
        self._told: Sequence[int] = ()

    def begin(self, number: int, *, is_single: bool = False) -> Text:
        text = Text(self.rig, number, is_single=is_single)
        self._run([text], Batch(rows=[text.prefill()]))
        return text

    def step(self, texts: Sequence[Text]) -> None:
        if not self.is_ahead or any(one.is_unread and one not in self._ran for one in texts):
            self.read()
        decoding = [one for one in texts if not one.is_single]
        singles = [one for one in texts if one.is_single]
        sources = [self._ran.index(one) if one.is_unread else -1 for one in (*decoding, *singles)]
        decodes = self._decodes(decoding, sources[: len(decoding)])
        rows = [one.single(source) for one, source in zip(singles, sources[len(decoding) :], strict=True)]
        self._run([*decoding, *singles], Batch(decodes=decodes, rows=rows))

    def read(self) -> None:
        while self._waiting:
            self._take(*self._waiting.pop(0))

    def _decodes(self, texts: list[Text], sources: list[int]) -> DecodeRows:
        """The very same lists, if the rows are those of the step before."""
        is_same, self._decoded = texts == self._decoded, texts
        tokens = [0 if source >= 0 else one.tokens[-1] for one, source in zip(texts, sources, strict=True)]
        if is_same:
            named = range(len(texts)) if sources == list(range(len(texts))) else sources
            told = self._told if self._told == tokens else tokens
            fields = {"token_ids": told, "num_steps": self._columns.num_steps + 1}
        else:
            at = [one.position for one in texts]
            generated = [one.tokens if one.sampling.has_penalties else () for one in texts]
            known = [one.num_launched - 1 for one in texts]
            samplings = [one.sampling for one in texts]
            self._columns = DecodeRows([one.table for one in texts], at, at, samplings, generated, (), 0, known)
            named, fields = sources, {"token_ids": tokens}
        has_sources = max(sources, default=-1) >= 0
        self._columns = replace(self._columns, **fields, sources=named if has_sources else ())
        return self._columns

    def _run(self, texts: list[Text], batch: Batch) -> None:
        runner = self.rig.runner
        assert isinstance(runner, DeviceRunner)
        self._waiting.append((texts, runner.launch(batch)))
        runner._steps.adjustments.check_integrity()
        self._ran = texts
        for one in texts:
            one.num_launched += 1
        if len(self._waiting) > 1:
            self._take(*self._waiting.pop(0))

    def _take(self, texts: list[Text], launched: Launched) -> None:
        result = launched.result()
        assert not result.decodes.errors
        self._told = result.decodes.token_ids
        for one, token in zip(texts, [*self._told, *(row.token_id for row in result.rows)], strict=True):
            assert token is not None
            one.tokens.append(token)


def expected(model: LoadedModel, number: int, num_tokens: int) -> list[int]:
    """Of the model runner, token by token."""
    rig = Rig(model)
    text = Text(rig, number)
    rows: list[RowResult] = rig.rows(text.prefill())
    for _ in range(num_tokens):
        assert rows[0].token_id is not None
        text.tokens.append(rows[0].token_id)
        text.num_launched += 1
        rows = rig.rows(text.single(-1))
    return text.tokens


@pytest.mark.parametrize("is_ahead", [True, False])
def test_texts_that_come_go_change_places_and_pause_count_what_they_wrote(
    model: LoadedModel, *, is_ahead: bool
) -> None:
    texts = Texts(device_rig(model), is_ahead=is_ahead)
    first = texts.begin(0)
    for _ in range(5):
        texts.step([first])  # its input is what the prompt's row samples
    all_of = [first, *(texts.begin(number) for number in range(1, 4))]
    watched = [texts.begin(4, is_single=True), texts.begin(0, is_single=True)]
    _, second, plain, listed = all_of
    for members in (
        [*all_of], [*all_of], [*all_of], [second, first, listed], [second, first, listed], [listed, second],
        [listed, second, *watched], [listed, second, *watched], [first, listed, second, *watched],
        [first, listed, second, watched[1]], [plain, first], [plain, first], [second, plain, first],
        [*all_of, *watched], [*all_of, *watched], [first], [first], [second], [first, second],
    ):  # fmt: skip
        texts.step(members)
    texts.read()
    numbers = {one: number for number, one in enumerate([*all_of, watched[0]])} | {watched[1]: 0}
    for one, number in numbers.items():
        assert one.tokens == expected(model, number, len(one.tokens)), number
        assert len(one.tokens) > 4


def test_another_token_than_was_sampled_is_what_counts(model: LoadedModel) -> None:
    found = []
    for rig in (device_rig(model), Rig(model)):
        blocks, written = rig.blocks(40), [5]
        rig.rows(rig.row(some_tokens(9), block_ids=blocks))
        sampling = Sampling(frequency_penalty=2.0, presence_penalty=2.0, logit_bias={77: 3.5, 78: 3.0})
        columns = DecodeRows([blocks], [9], [9], [sampling], [written], [5], 0)
        for number in range(16):
            step = DecodeRows(
                *(getattr(columns, name) for name in columns.__struct_fields__[:5]), [written[-1]], number
            )
            told = list(rig.step(Batch(decodes=step)).decodes.token_ids)
            written.append(told[0] if number % 4 else 78)
        found.append(written)
    assert found[0] == found[1]


def test_a_row_that_goes_on_is_sent_nothing(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(device_rig(model), is_ahead=True)
    all_of = [texts.begin(number) for number in (0, 1, 3)]
    texts.step(all_of)
    begun: list[int] = []
    monkeypatch.setattr(RowAdjustments, "_begin", lambda _, new, *__: begun.append(len(new)))
    for members in (all_of, all_of, all_of[::-1], all_of[::-1], all_of[1:], all_of[1:]):
        texts.step(members)
    texts.read()
    assert not any(begun)
