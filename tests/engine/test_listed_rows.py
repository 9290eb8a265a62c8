"""Rows that ask for their likeliest tokens and nothing else, beside the model runner: alone, among others, failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from device_rig import device_rig
from loopwright.core.batch import Batch, DecodeRows, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.byte_model import byte_model
from loopwright.engine.cuda import runner as runner_module
from loopwright.engine.cuda.captured import Captured
from runner_rig import Rig, some_tokens

if TYPE_CHECKING:
    from loopwright.core.batch import RowResult
    from loopwright.engine.cuda.answers import Answers
    from loopwright.engine.loaded_model import LoadedModel

SIZES = (256, 1, 7, 256, 20)


@pytest.fixture(params=[None, 100], ids=["a usual vocabulary", "one smaller than a list"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    sizes = {} if request.param is None else {"vocab_size": request.param}
    return byte_model(seed=2, num_layers=2, **sizes)


def asking(rig: Rig, tables: list[list[int]], number: int, vocab_size: int) -> list[ForwardRow]:
    """The rows' step of that number: one token each."""
    return [
        ForwardRow(table, 20 + place + number, [20 + place + number], [(7 * number + place) % vocab_size],
                   distributions=[DistributionRequest(k=min(size, vocab_size), index=-(place % 2))])
        for place, (table, size) in enumerate(zip(tables, SIZES, strict=True))
    ]  # fmt: skip


def begun(rig: Rig) -> list[list[int]]:
    tables = [rig.blocks(64) for _ in SIZES]
    prompts = [[one % rig.vocab_size for one in some_tokens(20 + place, place)] for place in range(len(SIZES))]
    rig.rows(*(rig.row(prompt, block_ids=table) for prompt, table in zip(prompts, tables, strict=True)))
    return tables


def assert_alike(mine: RowResult, theirs: RowResult) -> None:
    assert mine.error == theirs.error
    (one,), (other,) = mine.distributions, theirs.distributions
    assert one.ids == other.ids
    np.testing.assert_allclose(np.frombuffer(one.logprobs, "<f4"), np.frombuffer(other.logprobs, "<f4"), atol=5e-5)
    assert one.covered == pytest.approx(other.covered, abs=1e-5)
    assert one.tail_mass == 1.0 - one.covered
    assert one.truncated == other.truncated
    assert one.entropy is one.allowed_mass is one.logits is one.ranks is None


def test_rows_that_ask_for_a_list_alone_equal_the_model_runners(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step after step, over pages that are full and pages that are not; none of them is answered one by one."""
    mine, theirs = device_rig(model), Rig(model)
    (tables, others), asked = (begun(rig) for rig in (mine, theirs)), mine.vocab_size
    monkeypatch.setattr(runner_module, "Answers", refuse)
    for number in range(18):
        for one, other in zip(
            mine.rows(*asking(mine, tables, number, asked)), theirs.rows(*asking(theirs, others, number, asked)),
            strict=True,
        ):  # fmt: skip
            assert_alike(one, other)


def refuse(*_: object) -> Answers:
    raise AssertionError("these rows need no answers of their own")


def test_beside_rows_that_decode_and_others_that_ask_for_more_each_gets_its_own(model: LoadedModel) -> None:
    """Penalties go on to count what their own row writes, and nothing that a list's neighbour did not choose."""
    found = []
    for rig in (device_rig(model), Rig(model)):
        tables, own, vocab_size = begun(rig), rig.blocks(64), rig.vocab_size
        sampling = Sampling(temperature=1.0, seed=3, frequency_penalty=1.5, repetition_penalty=1.3)
        written, results = [5], []
        rig.rows(rig.row(some_tokens(9, 1) if vocab_size > 200 else list(range(9)), block_ids=own))
        for number in range(6):
            columns = DecodeRows([own], [9], [9], [sampling], [written], [written[-1]], number, [1])
            more = ForwardRow(rig.blocks(9), 0, [0], [3], distributions=[DistributionRequest(entropy=True, k=9)])
            rows = [more, *asking(rig, tables, number, vocab_size)]
            result = rig.step(Batch(decodes=columns, rows=rows))
            written.append(result.decodes.token_ids[0])
            results += result.rows
        found.append((written, results))
    assert found[0][0] == found[1][0]
    for place, (one, other) in enumerate(zip(found[0][1], found[1][1], strict=True)):
        if place % (1 + len(SIZES)):
            assert_alike(one, other)
        else:
            assert one.distributions[0].entropy == pytest.approx(other.distributions[0].entropy, abs=1e-4)


def test_a_row_that_is_refused_or_not_finite_fails_alone(model: LoadedModel) -> None:
    rig = device_rig(model)
    tables, expected = begun(rig), None
    good = asking(rig, tables, 0, rig.vocab_size)
    expected = rig.rows(*good)
    bad = ForwardRow(tables[1], 20, [20], [rig.vocab_size], distributions=[DistributionRequest(k=3)])
    results = rig.rows(good[0], bad, *good[2:])
    assert results[1].error is not None
    assert "token_ids" in results[1].error.message
    for one, other in zip([results[0], *results[2:]], [expected[0], *expected[2:]], strict=True):
        assert_alike(one, other)
    with torch.inference_mode():
        rig.runner._cache.layers[0][tables[2][0]] = torch.nan
    errors = [one.error for one in rig.rows(*good)]
    assert [one is not None for one in errors] == [False, False, True, False, False]
    assert "finite" in errors[2].message


class Replayed:
    """In the place of a captured graph: computes anew what it was captured from."""

    def __init__(self, steps: object, size: int, found: torch.Tensor) -> None:
        self._steps, self._size, self.found = steps, size, found

    def replay(self) -> torch.Tensor:
        return self._steps._listed(self.found, is_end=False)


def test_a_captured_list_reads_the_steps_logits_wherever_these_are(model: LoadedModel) -> None:
    """Of a pass with others they are not where the graph looks."""
    rig, plain = device_rig(model), device_rig(model)
    steps = rig.runner._steps
    for size in steps._sizes:
        logits = torch.full((size, rig.vocab_size), 3.0)
        steps._greedy[size] = _Eager(steps, size, logits)
        steps._lists[size] = Replayed(steps, size, logits)
    tables, others = begun(rig), begun(plain)
    for number in range(3):
        prompt = [one % rig.vocab_size for one in some_tokens(12, number)]
        rows, expected = (
            one.rows(
                *asking(one, own, number, one.vocab_size),
                *([one.row(prompt)] if number == 1 else []),
            )
            for one, own in ((rig, tables), (plain, others))
        )
        for mine, theirs in zip(rows[: len(SIZES)], expected[: len(SIZES)], strict=True):
            assert_alike(mine, theirs)


class _Eager(Captured):
    """A decode step that is computed anew, to where a graph would leave its logits."""

    def __init__(self, steps: object, size: int, logits: torch.Tensor) -> None:
        super().__init__(None, logits)
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_size", size)

    def replay(self) -> torch.Tensor:
        with torch.inference_mode():
            self.found.copy_(self._steps._decode_greedily(self._size))
        return self.found


def test_rows_that_go_on_send_their_ids_alone_and_others_send_everything(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes between: another order, a gap in the positions, a place again, rows that decode, a new list."""
    mine, theirs = device_rig(model), Rig(model)
    (tables, others), vocab_size = (begun(rig) for rig in (mine, theirs)), mine.vocab_size
    steps, sent = mine.runner._steps, []
    send = steps._send
    monkeypatch.setattr(steps, "_send", lambda changes, *rest: sent.append(changes) or send(changes, *rest))

    def step(number: int, change: object = lambda rows: rows, more: bool = False) -> bool:
        found = []
        for rig, own in ((mine, tables), (theirs, others)):
            rows = change(asking(rig, own, number, vocab_size))
            extra = [ForwardRow(rig.blocks(9), 0, [0], [3], sampling=Sampling())] if more else []
            found.append(rig.rows(*rows, *extra)[: len(rows)])
        for one, other in zip(*found, strict=True):
            assert_alike(one, other)
        return sent[-1].inputs is None

    assert [step(number) for number in range(20)] == [False, *[True] * 19]
    assert [step(20, lambda rows: rows[::-1]), step(21, lambda rows: rows[::-1]), step(22)] == [False, True, False]
    assert [step(22), step(23)] == [False, True]  # a place again
    shifted = [step(24, lambda rows: [replace(one, positions=[one.positions[0] + 7]) for one in rows]), step(25)]
    assert shifted == [False, False]
    assert [step(26, more=True), step(27), step(28)] == [False, False, True]
    assert [step(29, lambda rows: [replace(rows[0], block_ids=[*rows[0].block_ids]), *rows[1:]]), step(30)] == [
        False
    ] * 2
    entropy = [DistributionRequest(k=3, entropy=True)]
    for number in (30, 31):  # one asks for more, and has no token that could go on
        rows = asking(mine, tables, number, vocab_size)
        mine.rows(replace(rows[0], distributions=entropy), *rows[1:])
        theirs.rows(*asking(theirs, others, number, vocab_size))
        assert sent[-1].inputs is not None
    assert [step(32), step(33)] == [False, True]
    assert [step(34, lambda rows: rows[:3]), step(35, lambda rows: rows[:3])] == [False, True]


def test_rows_that_go_on_are_one_launch_and_whatever_else_they_ask_or_is_wrong_is_seen(model: LoadedModel) -> None:
    """Row for row what the model runner says of it, which looks at everything."""
    mine, theirs = device_rig(model), Rig(model)
    (tables, others), vocab_size = (begun(rig) for rig in (mine, theirs)), mine.vocab_size
    allowed = bytes([255] * (-(-vocab_size // 8)))
    changes = [
        {"token_ids": [vocab_size]}, {"token_ids": [-1]}, {"positions": [-1]}, {"kv_len": 0}, {"kv_len": 64},
        {"sampling": Sampling()}, {"distributions": ()}, {"num_drafts": 1}, {"generated": [3]},
        {"allowed_bits": allowed}, {"token_ids": [1, 2], "positions": [40, 41]},
        *({"distributions": [DistributionRequest(**one)]} for one in (
            {"k": vocab_size + 1}, {"k": 0}, {"index": 1}, {"index": -2}, {"k": 2, "entropy": True},
            {"k": 2, "logits": True}, {"k": 2, "ranks": True}, {"k": 2, "must_include": (5,)},
            {"k": 2, "allowed": (5, 6)},
        )),
    ]  # fmt: skip
    for number in range(8):
        if number:
            with torch.inference_mode():
                listing = mine.runner.list_on(Batch(rows=asking(mine, tables, number, vocab_size)))
            assert listing is not None
            found = listing.result().rows
        else:
            found = mine.rows(*asking(mine, tables, number, vocab_size))
        for one, other in zip(found, theirs.rows(*asking(theirs, others, number, vocab_size)), strict=True):
            assert_alike(one, other)
    for change in changes:
        rows = asking(mine, tables, 8, vocab_size)
        with torch.inference_mode():
            assert mine.runner.list_on(Batch(rows=[replace(rows[0], **change), *rows[1:]])) is None, change
        (found, *_), (expected, *_) = (
            rig.rows(replace(own[0], **change), *own[1:])
            for rig, own in ((mine, rows), (theirs, asking(theirs, others, 8, vocab_size)))
        )
        assert found.error == expected.error
        mine.rows(*asking(mine, tables, 7, vocab_size))  # rows that may go on again


def test_a_block_that_is_reached_is_looked_at(model: LoadedModel) -> None:
    rig = device_rig(model)
    tables = begun(rig)
    first = next(number for number in range(20) if (20 + number) % 16 == 15)
    rig.rows(*asking(rig, tables, first, rig.vocab_size))
    tables[0][2:] = [rig.runner.shape.num_blocks] * 2
    rows = asking(rig, tables, first + 1, rig.vocab_size)
    with torch.inference_mode():
        assert rig.runner.list_on(Batch(rows=rows)) is None
    assert [one.error is not None for one in rig.rows(*rows)] == [True, *[False] * 4]
