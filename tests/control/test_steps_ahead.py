"""Steps that are formed while others run: what they hold, what they waste, whom they delay, and when there are none."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from loopwright.control.config import ControlConfig
from loopwright.control.grouping import goes_ahead
from loopwright.core.batch import Batch, StepResult
from loopwright.core.calls import DistributionRequest, Generate, KvWindow, Sampling
from loopwright.core.errors import BadRequest, InternalError
from loopwright.core.executor import EngineShape
from loopwright.core.grammars import Grammar
from loopwright.core.ids import CallId, PageName
from loopwright.core.late_bits import LateBits
from loopwright.core.watch_calls import Veto, Watch

from .fake_grammars import FakeCompiler, Respelled
from .reference import NaiveContext
from .rig import Rig, RigRun, generate
from .step_by_step import COUNTER, LETTERS, PLACES
from .test_joining import text, token_after
from .test_overlap import serving

SAMPLING = Sampling(temperature=1.0, seed=3)


def expected(first_token: int, max_tokens: int, stop_tokens: Sequence[int] = ()) -> list[int]:
    return NaiveContext().generate([first_token], range(1), SAMPLING, max_tokens, stop_tokens)


def segment(first_token: int = 5, **fields) -> Generate:
    return generate((first_token,), sampling=SAMPLING, **fields)


def stop_after(first_token: int, num_tokens: int) -> int:
    """A token that ends the text right there."""
    *before, last = expected(first_token, num_tokens)
    assert last not in before
    return last


async def num_wasted(rig: Rig) -> int:
    return (await rig.controller.stats()).num_wasted_rows


def test_a_run_that_closes_beside_its_interrupted_prompt_harms_nobody() -> None:
    rig = Rig(is_ahead=True)
    run, other = rig.open("a"), rig.open("b")
    call, theirs = run.submit(segment(5, max_tokens=9)), other.submit(segment(6, max_tokens=4))
    rig.begin()
    assert len(rig.running[-1].decodes), "its first row of one token is formed, and its prompt still runs"
    rig.controller.interrupt(run.session, call)
    rig.controller.close(run.session)
    rig.drain()
    assert list(other.segment(theirs).tokens) == expected(6, 4)


def test_a_step_that_goes_on_as_before_names_rows_instead_of_tokens_and_has_the_very_same_columns() -> None:
    rig = Rig(is_ahead=True)
    calls = [(run := rig.open(name), run.submit(segment(5 + place, max_tokens=9))) for place, name in enumerate("abc")]
    rig.drain()
    prompts, joined, *later = rig.executor.batches
    assert (len(prompts.rows), list(joined.decodes.sources)) == (3, [0, 1, 2])
    assert [batch.decodes.sources for batch in later] == [range(3)] * 7
    for name in ("block_ids", "kv_lens", "positions", "samplings", "generated", "num_generated", "token_ids"):
        assert all(getattr(batch.decodes, name) is getattr(later[0].decodes, name) for batch in later), name
    assert not any(later[0].decodes.token_ids), "no token was known"
    assert [list(run.segment(call).tokens) for run, call in calls] == [expected(5 + place, 9) for place in range(3)]


async def test_an_end_by_length_wastes_no_row_and_an_end_by_a_token_one() -> None:
    rig = Rig(is_ahead=True)
    runs = [rig.open(name) for name in "abc"]
    stop = stop_after(6, 4)
    calls = [
        runs[0].submit(segment(max_tokens=3)),
        runs[1].submit(segment(6, max_tokens=9, stop_tokens=(stop,), progress=True)),
        runs[2].submit(segment(7, max_tokens=8)),
    ]
    rig.drain()
    assert [batch.num_rows for batch in rig.executor.batches] == [3, 3, 3, 2, 2, 1, 1, 1]
    assert await num_wasted(rig) == 1
    stats = await rig.controller.stats()
    assert (stats.num_rows, stats.num_decode_tokens) == (16, 16)
    stopped = runs[1].segment(calls[1])
    assert (list(stopped.tokens), stopped.reason) == (expected(6, 9, (stop,)), "stop_token")
    assert [token for part in runs[1].parts[calls[1]] for token in part.tokens] == list(stopped.tokens)
    assert [list(run.segment(call).tokens) for run, call in zip(runs[::2], calls[::2], strict=True)] == [
        expected(5, 3), expected(7, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5])
def test_a_page_that_only_a_wasted_row_wrote_is_given_back(num_tokens: int) -> None:
    rig = Rig(is_ahead=True)
    run, other = rig.open("a"), rig.open("other")
    stop = stop_after(9, num_tokens)
    call = run.submit(segment(9, max_tokens=20, stop_tokens=(stop,)))
    other_call = other.submit(segment(max_tokens=20))
    rig.drain()
    ended = run.segment(call)
    assert (len(ended.tokens), ended.kv_len, ended.num_pages) == (num_tokens, num_tokens, -(-num_tokens // 4))
    assert list(other.segment(other_call).tokens) == expected(5, 20)
    run.session.close()
    other.session.close()
    rig.assert_all_free()


def test_who_comes_while_a_step_is_ahead_is_in_the_one_behind_it() -> None:
    rig = Rig(is_ahead=True)
    first, late = rig.open("first"), rig.open("late")
    first.submit(segment(max_tokens=12))
    rig.step()
    rig.step()
    assert len(rig.running) == 1, "a step is ahead"
    call = late.submit(segment(6, max_tokens=3))
    rig.executor.batches.clear()
    rig.drain()
    assert [len(batch.rows) for batch in rig.executor.batches[:3]] == [0, 1, 0]
    assert list(late.segment(call).tokens) == expected(6, 3)


def test_a_prompt_that_ends_with_a_step_has_its_first_token_run_in_the_next() -> None:
    rig = Rig(is_ahead=True)
    runs = [rig.open(name) for name in "ab"]
    calls = [runs[0].submit(segment(max_tokens=9))]
    for _ in range(3):
        rig.step()
    calls.append(runs[1].submit(segment(6, max_tokens=3)))
    rig.executor.batches.clear()
    rig.drain()
    with_prompt = next(place for place, batch in enumerate(rig.executor.batches) if batch.rows)
    assert list(rig.executor.batches[with_prompt + 1].decodes.sources) == [0, 1]
    assert [list(run.segment(call).tokens) for run, call in zip(runs, calls, strict=True)] == [
        expected(5, 9), expected(6, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"sampler": COUNTER, "sampler_state": {"count": 0.0}},
        {"stop_entropy": 11.0},
        {"watch": Watch(20)},
        {"sampling": Sampling(temperature=1.0, seed=3, top_logprobs=2)},
    ],
)
def test_segments_that_ask_for_more_than_a_token_go_on_ahead_in_columns(fields: dict[str, object]) -> None:
    rig = Rig(is_ahead=True)
    run = rig.open("a")
    run.submit(replace(segment(max_tokens=9), **fields))
    rig.drain()
    assert [list(batch.decodes.sources) for batch in rig.executor.batches] == [[], *[[0]] * 8]


def test_a_segment_with_a_grammar_goes_on_ahead_and_says_late_what_may_be_chosen() -> None:
    rig = Rig(is_ahead=True, grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    plain, held = rig.open("plain"), rig.open("held")
    plain.submit(segment(max_tokens=20))
    call = held.submit(replace(segment(6, max_tokens=4), grammar=Grammar("regex", "g")))
    serial = Rig(grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    alone = serial.open("held")
    expected = alone.submit(replace(segment(6, max_tokens=4), grammar=Grammar("regex", "g")))
    rig.drain()
    serial.drain()
    late = [row for batch in rig.executor.batches for row in batch.rows if row.late_bits is not None]
    assert held.segment(call) == alone.segment(expected)
    assert len(late) >= 2
    assert all(row.source >= 0 and row.allowed_bits is None for row in late)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_sampler_carries_its_state_where_the_grammar_is_explained_too(is_ahead: bool) -> None:
    rig = Rig(is_ahead=is_ahead, grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    run = rig.open("held")
    fields = {"grammar": Grammar("regex", "g"), "sampler": COUNTER, "sampler_state": {"count": 0.0}, "explain": True}
    call = run.submit(replace(segment(6, max_tokens=4, progress=True), **fields))
    rig.drain()
    found = run.segment(call)
    assert found.sampler_state == {"count": len(found.tokens)}


def test_forced_tokens_come_one_by_one_as_they_would_have_come_together() -> None:
    """What the grammar would force from the middle of them on is not asked, nor right behind them."""
    choices = [(3, 4, 5), (10, 12), (11, 13), (20, 21, 22), (30, 31), (8, 9), (40, 41)]
    texts = []
    for is_ahead in (False, True):
        form = Respelled(*choices, spelled={1: [10, 11], 2: [13], 3: [22], 4: [30, 8], 5: [9]})
        rig = Rig(is_ahead=is_ahead, grammars=FakeCompiler(g=form), token_bytes=LETTERS)
        run = rig.open("held")
        call = run.submit(replace(segment(6, max_tokens=20), grammar=Grammar("regex", "g")))
        rig.drain()
        texts.append(run.segment(call).tokens)
        assert any(row.num_drafts for batch in rig.executor.batches for row in batch.rows) != is_ahead
    assert texts[0] == texts[1]
    assert texts[0][1:3] == (10, 11)
    assert texts[0][4:6] == (30, 8)


def held_ahead(rig: Rig) -> LateBits:
    """A segment with a grammar of which one step runs and one is ahead; what that one waits for."""
    run = rig.open("held")
    run.submit(replace(segment(6, max_tokens=9), grammar=Grammar("regex", "g")))
    rig.step()
    rig.begin()
    while not (late := [row.late_bits for row in rig.running[-1].rows if row.late_bits is not None]):
        rig.end()
        assert rig.begin()
    [bits] = late
    assert not bits.is_given
    return bits


@pytest.mark.parametrize("how", ["step fails", "row fails", "run closes"])
def test_whatever_becomes_of_a_text_the_engine_hears_what_its_row_ahead_may_choose(how: str) -> None:
    rig = Rig(is_ahead=True, grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    late = held_ahead(rig)
    if how == "step fails":
        rig.executor.fault = RuntimeError("device lost")
    elif how == "row fails":
        rig.executor.fail_rows = {token: BadRequest("NaN").info() for token in range(64)}
    else:
        next(iter(rig.controller._sessions.values())).close()
    rig.end()
    assert late.is_given
    rig.drain()


def test_a_veto_while_a_row_waits_for_its_bits_sets_it_free() -> None:
    rig = Rig(is_ahead=True, grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    run = rig.open("held")
    call = run.submit(replace(segment(6, max_tokens=9), grammar=Grammar("regex", "g"), watch=Watch(9)))
    rig.step()
    rig.begin()
    [late] = [row.late_bits for row in rig.running[-1].rows]
    assert late is not None
    assert not late.is_given
    assert run.now(Veto(handle=call, index=0)).error is None
    rig.end()
    assert late.is_given


async def test_an_engine_that_outlives_control_does_not_wait_for_it() -> None:
    rig = Rig(is_ahead=True, grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS)
    late = held_ahead(rig)
    task = asyncio.create_task(rig.controller.serve())
    await asyncio.sleep(0)
    assert not late.is_given
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert late.is_given


def test_an_executor_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.core.late_bits.PATIENCE_S", 0.0)
    with pytest.raises(InternalError, match="nobody has said what a row may choose"):
        LateBits().wait()


def test_what_needs_a_result_to_go_on_keeps_the_step_behind_it_waiting_for_it() -> None:
    """Here a window, which moves with each token."""
    rig = Rig(is_ahead=True)
    plain, held = rig.open("plain"), rig.open("held")
    plain.submit(segment(max_tokens=20))
    call = held.submit(replace(segment(6, max_tokens=4), window=KvWindow(size=9, sinks=0)))
    rig.drain()
    rows = [batch.decodes for batch in rig.executor.batches]
    num_held = sum(bool(batch.rows) for batch in rig.executor.batches)
    assert len(held.segment(call).tokens) >= 3
    assert all(len(one) == 0 or not one.sources for one in rows[:num_held]), "it misses no step"
    assert all(one.sources for one in rows[num_held + 1 :])


PROMPT = tuple(range(5, 35))
SMALL = ControlConfig(max_batch_tokens=11, max_batch_rows=4)


def prompt(max_tokens: int = 4, **fields) -> Generate:
    return generate(PROMPT, sampling=SAMPLING, max_tokens=max_tokens, **fields)


def pieces(rig: Rig) -> list[tuple[int, int]]:
    """KV length and tokens of each longer row that ran."""
    return [(row.kv_len, row.num_tokens) for batch in rig.executor.batches for row in batch.rows if row.num_tokens > 1]


def test_the_next_piece_of_a_prompt_is_formed_while_one_runs_and_rows_beside_it_miss_no_step() -> None:
    rig = Rig(is_ahead=True, config=SMALL)
    plain, long = rig.open("plain"), rig.open("long")
    call = plain.submit(segment(max_tokens=12))
    rig.step()
    cut = long.submit(prompt())
    sizes = []
    while rig.begin():
        sizes.append([batch.num_long_tokens for batch in rig.running])
        rig.end()
    assert sizes[:5] == [[0, 10], [10, 10], [10, 10], [10, 0], [0, 0]]
    assert pieces(rig) == [(0, 10), (10, 10), (20, 10)]
    assert all(batch.decodes.sources for batch in rig.executor.batches[1:12])
    assert list(plain.segment(call).tokens) == expected(5, 12)
    assert list(long.segment(cut).tokens) == NaiveContext().generate(PROMPT, range(len(PROMPT)), SAMPLING, 4, ())


def test_what_goes_on_with_more_than_a_piece_misses_no_step() -> None:
    """A last token alone, which is a row of another kind, and a window that moves: the next step waits."""
    for fields, size in (({}, 30), ({"window": KvWindow(size=12, sinks=0)}, 11)):
        rig = Rig(is_ahead=True, config=ControlConfig(max_batch_tokens=size, max_batch_rows=4))
        plain, run = rig.open("plain"), rig.open("a")
        theirs = plain.submit(segment(max_tokens=9))
        rig.step()
        call = run.submit(replace(prompt(), **fields))
        sizes = []
        while rig.begin():
            sizes.append([batch.num_tokens for batch in rig.running])
            rig.end()
        alone = Rig(config=ControlConfig(max_batch_tokens=512))
        other = alone.open("a")
        expecting = other.submit(replace(prompt(), **fields))
        alone.drain()
        assert sizes[:3] == ([[1, 30], [30], [2, 2]] if size == 30 else [[1, 11], [11], [11]])
        assert run.segment(call).tokens == other.segment(expecting).tokens
        assert list(plain.segment(theirs).tokens) == expected(5, 9)


def test_a_segment_whose_last_piece_ran_ahead_takes_its_turn_with_rows_of_one_token() -> None:
    rig = Rig(is_ahead=True, config=SMALL)
    run = rig.open("a")
    call = run.submit(prompt())
    for _ in range(3):
        rig.begin()
        rig.end()
    assert rig.running[0].num_tokens == 1
    assert rig.controller._scheduler._long == []
    rig.drain()
    assert list(run.segment(call).tokens) == NaiveContext().generate(PROMPT, range(len(PROMPT)), SAMPLING, 4, ())


@pytest.mark.parametrize("num_ended", [0, 1])
def test_a_prompt_that_is_interrupted_between_two_pieces_has_what_ran_of_it(num_ended: int) -> None:
    """The piece ahead writes where nobody looks, and the run goes on from there."""
    rig = Rig(is_ahead=True, config=SMALL)
    run, other = rig.open("a"), rig.open("other")
    call, theirs = run.submit(prompt()), other.submit(segment(6, max_tokens=9))
    for _ in range(num_ended):
        rig.step()
    rig.begin()
    rig.controller.interrupt(run.session, call)
    rig.end()
    found = run.segment(call)
    assert (found.tokens, found.reason) == ((), "interrupted")
    assert 0 < found.kv_len < len(PROMPT)
    rest = PROMPT[found.kv_len :]
    held = tuple(100 + place for place in range(found.num_pages))
    again = run.submit(generate(rest, sampling=SAMPLING, max_tokens=4, kv_len=found.kv_len, pages=held, grow_from=200))
    rig.drain()
    assert list(run.segment(again).tokens) == NaiveContext().generate(PROMPT, range(len(PROMPT)), SAMPLING, 4, ())
    assert list(other.segment(theirs).tokens) == expected(6, 9)


def test_a_piece_that_fails_ends_its_prompt_and_the_one_behind_it_is_wasted() -> None:
    rig = Rig(is_ahead=True, config=SMALL)
    run, other = rig.open("a"), rig.open("other")
    call, theirs = run.submit(prompt()), other.submit(segment(6, max_tokens=9))
    rig.executor.fail_rows = {PROMPT[3]: BadRequest("NaN").info()}
    rig.drain()
    assert run.error(call).message == "NaN"
    assert pieces(rig) == [(0, 10), (10, 10)], "no third one"
    assert list(other.segment(theirs).tokens) == expected(6, 9)
    run.session.close()
    other.session.close()
    rig.assert_all_free()


def test_a_run_that_closes_between_two_pieces_is_gone_when_both_have_run() -> None:
    rig = Rig(is_ahead=True, config=SMALL)
    run = rig.open("a")
    run.submit(prompt())
    rig.begin()
    assert len(rig.running) == 2
    run.session.close()
    rig.drain()
    assert pieces(rig) == [(0, 11), (11, 11)]
    rig.assert_all_free()


def test_each_piece_answers_the_questions_about_its_own_tokens() -> None:
    rig = Rig(is_ahead=True, config=SMALL)
    run = rig.open("a")
    asked = tuple(DistributionRequest(index=index, k=3) for index in (0, 10, 11, 15, 22, 29))
    call = run.submit(text(PROMPT, grow_from=PageName(1), distributions=asked))
    rig.begin()
    assert len(rig.running) == 2
    rig.drain()
    alone = Rig()
    whole = alone.open("a")
    same = whole.submit(text(PROMPT, grow_from=PageName(1), distributions=asked))
    alone.drain()
    assert run.forwarded(call).distributions == whole.forwarded(same).distributions


def test_calls_that_answer_their_program_do_not_hold_up_the_others() -> None:
    rig = Rig(is_ahead=True)
    plain, program = rig.open("plain"), rig.open("program")
    call = plain.submit(segment(max_tokens=9))
    rig.step()
    answered = program.submit(text((7,), grow_from=PageName(1), sampling=SAMPLING))
    rig.drain()
    assert program.forwarded(answered).token is not None
    assert all(batch.decodes.sources for batch in rig.executor.batches[1:])
    assert list(plain.segment(call).tokens) == expected(5, 9)


def test_a_row_that_fails_ends_its_text_alone_with_what_it_had() -> None:
    rig = Rig(is_ahead=True)
    good, bad = rig.open("good"), rig.open("bad")
    bad_tokens = expected(9, 12)
    place = next(place for place, token in enumerate(bad_tokens) if token not in expected(5, 12) and place > 1)
    rig.executor.fail_rows = {bad_tokens[place]: BadRequest("NaN").info()}
    calls = good.submit(segment(max_tokens=12)), bad.submit(segment(9, max_tokens=12, progress=True))
    rig.drain()
    assert bad.error(calls[1]).message == "NaN"
    assert [token for part in bad.parts[calls[1]] for token in part.tokens] == bad_tokens[: place + 1]
    assert list(good.segment(calls[0]).tokens) == expected(5, 12)


def test_a_step_that_fails_takes_only_its_own_calls_along() -> None:
    rig = Rig(is_ahead=True)
    first, late = rig.open("first"), rig.open("late")
    failed = first.submit(segment(max_tokens=12))
    rig.begin()
    rig.end()
    call = late.submit(segment(6, max_tokens=6))
    rig.begin()
    assert [len(batch.rows) for batch in rig.running] == [0, 1]
    rig.executor.fault = RuntimeError("device lost")
    rig.drain()
    assert first.error_type(failed) == "InternalError"
    assert list(late.segment(call).tokens) == expected(6, 6)


@pytest.mark.parametrize("num_ended", [0, 1])
def test_a_run_that_closes_in_the_middle_is_gone_when_its_rows_have_run(num_ended: int) -> None:
    rig = Rig(is_ahead=True)
    gone, other = rig.open("gone"), rig.open("other")
    gone.submit(segment(9, max_tokens=20))
    call = other.submit(segment(max_tokens=9))
    for _ in range(3):
        rig.step()
    rig.begin()
    gone.session.close()
    for _ in range(num_ended):
        rig.end()
    while rig.running:
        rig.end()
    assert rig.open("gone") is not None, "the name is free"
    rig.drain()
    assert list(other.segment(call).tokens) == expected(5, 9)
    assert "gone" not in rig.controller._suspension._served


def test_service_is_counted_for_tokens_and_not_for_wasted_rows() -> None:
    rig = Rig(is_ahead=True)
    run, other = rig.open("a"), rig.open("other")
    run.submit(segment(6, max_tokens=9, stop_tokens=(stop_after(6, 4),)))
    other.submit(segment(max_tokens=9))
    rig.drain()
    served = rig.controller._suspension._served
    assert (served[run.session.run_id], served[other.session.run_id]) == (4, 9)


def test_a_run_that_ends_while_a_wasted_row_of_its_own_is_in_flight_leaves_no_account_behind() -> None:
    rig = Rig(is_ahead=True)
    run, other = rig.open("gone"), rig.open("other")
    own_row = replace(
        segment(6, max_tokens=9, stop_tokens=(stop_after(6, 4),)), sampling=replace(SAMPLING, top_logprobs=1)
    )
    call = run.submit(own_row)
    other.submit(segment(max_tokens=9))
    while run.final(call) is None:
        rig.step()
    assert len(rig.running[0].decodes) == 2, "its row is in flight"
    run.session.close()
    rig.drain()
    assert "gone" not in rig.controller._suspension._served


async def test_a_step_that_is_over_is_counted_with_the_rows_that_it_had() -> None:
    rig = Rig(is_ahead=True)
    for place, name in enumerate("abc"):
        rig.open(name).submit(segment(5 + place, max_tokens=4))
    rig.step()
    assert (await rig.controller.stats()).num_rows == 3, "though three more are in the step ahead"


async def test_the_engine_has_two_steps_while_something_goes_on() -> None:
    rig = Rig(is_ahead=True)
    run = rig.open("a")
    async with serving(rig) as executor:
        call = run.submit(segment(max_tokens=6))
        for num_held in (2, 2, 2, 2, 2, 1, 0):
            await turns()
            assert executor.held is not None
            assert len(executor.held) == num_held
            if num_held:
                executor.release_first()
    assert list(run.segment(call).tokens) == expected(5, 6)


async def test_who_came_while_a_step_ran_is_with_the_engine_before_its_result_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs that look at every token take turns: the engine must not wait while control takes what came of some."""
    rig = Rig(is_ahead=True)
    runs = [rig.open(name) for name in "ab"]
    answered: list[int] = []
    submit = rig.executor.submit

    def watched_submit(batch: Batch) -> Future[StepResult]:
        answered.append(sum(run.final(call) is not None for run, call in calls))
        return submit(batch)

    monkeypatch.setattr(rig.executor, "submit", watched_submit)
    calls: list[tuple[RigRun, CallId]] = []
    async with serving(rig) as executor:
        for tokens, run in zip(((5, 6), (7, 8)), runs, strict=True):
            calls.append((run, run.submit(text(tokens, grow_from=PageName(1), sampling=SAMPLING))))
            await turns()
        assert answered == [0], "the second is not ahead of the first: more might come"
        executor.release_first()
        await turns()
        assert answered == [0, 0]
        assert runs[0].final(calls[0][1]) is not None
        executor.release_first()
        await turns()
    found = [run.forwarded(call).token for run, call in calls]
    assert found == [token_after(tokens, SAMPLING) for tokens in ((5, 6), (7, 8))]


async def turns() -> None:
    """For control to take what came."""
    for _ in range(20):
        await asyncio.sleep(0)


def shape(**fields) -> EngineShape:
    return EngineShape(64, 100, 16, 8, 8, **fields)


def test_steps_are_ahead_where_the_engine_gains_by_it_or_where_that_is_asked_for() -> None:
    for steps_ahead, is_usual in (("never", False), ("possible", False), ("usual", True)):
        assert goes_ahead(ControlConfig(), shape(steps_ahead=steps_ahead)) == is_usual
        assert not goes_ahead(ControlConfig(steps_ahead="off"), shape(steps_ahead=steps_ahead))
    assert goes_ahead(ControlConfig(steps_ahead="on"), shape(steps_ahead="possible"))
    assert not goes_ahead(ControlConfig(policy="eager"), shape(steps_ahead="usual"))


def test_steps_ahead_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(ValueError, match="one step at a time"):
        goes_ahead(ControlConfig(steps_ahead="on"), shape())
    with pytest.raises(ValueError, match="under policy k-only"):
        goes_ahead(ControlConfig(steps_ahead="on", policy="k-only"), shape(steps_ahead="usual"))
