"""Watched segments: equal to a loop that looks at every token before the next is sampled, whatever ran ahead."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwright.core.calls import Sampling
from loopwright.core.errors import InternalError
from loopwright.core.ids import CallId
from loopwright.core.results import Segment
from loopwright.core.watch_calls import Acknowledge, Veto, Watch

from .fake_grammars import FakeCompiler
from .reference import NaiveContext
from .rig import Rig, RigRun, generate
from .step_by_step import LETTERS, OPTIONS, PLACES, PROMPT, Looked, call_of, step_by_step
from .watcher import Watcher, drive, verdict_of


@settings(deadline=None, max_examples=150)
@given(
    option=st.sampled_from(list(OPTIONS)),
    window=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    veto_share=st.sampled_from([0, 15, 50]),
    leaves_at=st.sampled_from([None, None, 0, 1, 5, 8]),
    moves=st.lists(st.sampled_from(["step", "begin", "complete", "look", "look", "ack"]), max_size=80),
    is_ahead=st.booleans(),
)
# Left at the very token that completes a stop string, which its program never acknowledged.
@example(option="stop string", window=1, seed=72, veto_share=15, leaves_at=5, moves=[], is_ahead=False)
def test_a_watched_segment_equals_the_loop_that_looks_at_every_token(
    option: str,
    window: int,
    seed: int,
    veto_share: int,
    leaves_at: int | None,
    moves: list[str],
    is_ahead: bool,
) -> None:
    call, places = call_of(option, seed, Watch(window))
    verdict = verdict_of(seed, veto_share, leaves_at, places)
    expected = step_by_step(call, verdict, places)
    rig = Rig(grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS, is_ahead=is_ahead)
    run = rig.open("a")
    watcher = Watcher(run, call, verdict)
    drive(rig, watcher, moves)
    segment = run.segment(watcher.call_id)
    check(rig, run, watcher, segment, expected, window)
    if call.sampler is not None:
        assert segment.sampler_state == {"count": float(len(expected.tokens))}


def check(rig: Rig, run: RigRun, watcher: Watcher, segment: Segment, expected: Looked, window: int) -> None:
    assert list(segment.tokens) == expected.tokens
    assert segment.logprobs == tuple(-float(token) for token in expected.tokens)
    assert (segment.reason, segment.stop) == (expected.reason, expected.stop)
    assert segment.num_pages == expected.num_pages()
    assert segment.kv_len == min(expected.num_run(), len(PROMPT) + segment.num_kept)
    assert watcher.max_ahead <= window
    # What is in the pages is what the loop would have left there: the next segment goes on from it.
    kept = expected.tokens[: segment.num_kept]
    inputs = [*PROMPT, *kept][segment.kv_len :] or [50]
    after = run.submit(
        generate(inputs, pages=range(100, 100 + segment.num_pages), grow_from=900, kv_len=segment.kv_len, max_tokens=3)
    )
    rig.drain()
    whole = [*PROMPT, *kept][: segment.kv_len] + inputs
    naive = NaiveContext().generate(whole, range(len(whole)), Sampling(temperature=1.0), 3)
    assert list(run.segment(after).tokens) == naive
    run.session.close()
    rig.assert_all_free()


def watched(rig: Rig, window: int = 3, **fields) -> tuple[RigRun, CallId]:
    run = rig.open("a")
    call = generate(PROMPT, **{"sampling": Sampling(temperature=1.0, seed=3), "max_tokens": 12, **fields})
    return run, run.submit(msgspec.structs.replace(call, watch=Watch(window)))


def test_it_runs_at_most_the_window_ahead_and_goes_on_as_it_is_acknowledged() -> None:
    rig = Rig()
    run, call = watched(rig)
    assert rig.drain() == 3
    assert run.now(Acknowledge(handle=int(call), num_tokens=2)).error is None
    assert rig.drain() == 2
    assert run.final(call) is None


def test_an_end_that_was_reached_ahead_waits_until_all_is_acknowledged() -> None:
    rig = Rig()
    run, call = watched(rig, window=8, max_tokens=4)
    rig.drain()
    assert run.final(call) is None
    run.now(Acknowledge(handle=int(call), num_tokens=3))
    assert run.final(call) is None
    run.now(Acknowledge(handle=int(call), num_tokens=4))
    assert run.segment(call).reason == "length"


def test_a_failure_ahead_of_the_program_counts_only_when_all_before_it_is_acknowledged() -> None:
    rig = Rig()
    run, call = watched(rig, window=4)
    rig.step()
    rig.step()
    run.final(call)
    second = run.parts[call][1].tokens[0]
    rig.executor.fail_rows[second] = InternalError("NaN logits").info()
    rig.step()
    assert run.final(call) is None
    assert run.now(Veto(handle=int(call), index=1)).error is None
    rig.drain()
    run.final(call)
    assert run.parts[call][2].num_vetoes == 1
    assert run.parts[call][2].tokens[0] != second
    rig.executor.fail_rows[run.parts[call][-1].tokens[-1]] = InternalError("NaN logits").info()
    for num_tokens in range(2, 12):
        run.now(Acknowledge(handle=int(call), num_tokens=num_tokens))
        rig.drain()
        if run.final(call) is not None:
            break
    assert run.error_type(call) == "InternalError"


def test_vetoes_that_leave_nothing_fail_the_segment_with_their_number() -> None:
    rig = Rig()
    run, call = watched(rig, sampling=Sampling(allowed=(4, 9)))
    for _ in range(2):
        rig.step()
        assert run.now(Veto(handle=int(call), index=0)).error is None
    assert "2 tokens" in run.error(call).message
    assert run.error(call).field == "veto"


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (Acknowledge(handle=2, num_tokens=4), "num_tokens: 4 of 3 tokens"),
        (Veto(handle=2, index=3), "token 3 cannot be vetoed: 1 of 3 tokens are acknowledged"),
        (Veto(handle=2, index=0), "token 0 cannot be vetoed: 1 of 3 tokens are acknowledged"),
    ],
)
def test_what_is_not_there_or_stands_already_is_neither_acknowledged_nor_vetoed(refused, message: str) -> None:
    rig = Rig()
    run, call = watched(rig)
    assert call == 2
    rig.drain()
    run.now(Acknowledge(handle=2, num_tokens=1))
    error = run.now(refused).error
    assert error is not None
    assert message in error.message


def test_a_second_veto_before_the_first_took_effect_refers_to_what_still_stands() -> None:
    rig = Rig()
    run, call = watched(rig, window=4)
    rig.step()
    rig.step()
    batch = rig.controller.schedule()
    assert batch is not None
    assert run.now(Veto(handle=int(call), index=1)).error is None
    late = run.now(Veto(handle=int(call), index=1)).error
    assert late is not None
    assert "token 1 cannot be vetoed: 1 of 1 tokens" in late.message
    rig.controller.complete(rig.executor.run(batch))
    rig.drain()
    assert run.final(call) is None


def test_watching_what_is_no_watched_segment_is_refused_and_what_is_over_is_ignored() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, max_tokens=2))
    error = run.now(Veto(handle=int(call), index=0)).error
    assert error is not None
    assert error.field == "handle"
    rig.drain()
    assert run.now(Veto(handle=int(call), index=0)).error is None
    assert run.now(Acknowledge(handle=99, num_tokens=5)).error is None


@pytest.mark.parametrize("index", [0, 1, 5, 9])
def test_what_was_taken_back_serves_no_other_run_from_the_prefix_cache(index: int) -> None:
    rig = Rig()
    run, call = watched(rig, window=10)
    rig.drain()
    assert run.final(call) is None
    ahead = [part.tokens[0] for part in run.parts[call]][:10]
    run.now(Veto(handle=int(call), index=index))
    while run.final(call) is None:
        rig.drain()
        if run.final(call) is not None:
            break
        num_tokens = max((one.first + 1 for one in run.parts[call] if one.num_vetoes), default=index)
        run.now(Acknowledge(handle=int(call), num_tokens=num_tokens))
    kept = list(run.segment(call).tokens)
    assert kept[:index] == ahead[:index]
    assert kept != ahead + kept[10:]
    run.session.close()
    for number, tokens in enumerate((ahead, kept)):
        prompt, other = [*PROMPT, *tokens], rig.open(f"other {number}")
        after = other.submit(generate(prompt, sampling=Sampling(temperature=1.0), max_tokens=3))
        rig.drain()
        naive = NaiveContext().generate(prompt, range(len(prompt)), Sampling(temperature=1.0), 3)
        assert list(other.segment(after).tokens) == naive
        other.session.close()
    rig.assert_all_free()


def test_a_stop_string_behind_a_veto_cuts_the_tokens_that_stand() -> None:
    """Tokens of one, two and three letters: what the vetoed ones were long must not count."""
    letters = tuple(b"" if token < 2 else (b"a", b"bb", b"ccc")[token % 3] for token in range(64))
    cuts = set()
    for seed in range(40):
        rig = Rig(token_bytes=letters)
        run, call = watched(rig, window=6, stop=("bc",), sampling=Sampling(temperature=1.0, seed=seed))
        rig.drain()
        run.final(call)
        if sum(len(part.tokens) for part in run.parts[call]) < 3:
            continue
        assert run.now(Veto(handle=int(call), index=1)).error is None
        for num_tokens in range(2, 13):
            rig.drain()
            run.now(Acknowledge(handle=int(call), num_tokens=num_tokens))
        segment = run.segment(call)
        if segment.reason != "stop":
            continue
        pieces = [letters[token] for token in segment.tokens]
        start = b"".join(pieces).find(b"bc")
        ends = [sum(map(len, pieces[: place + 1])) for place in range(len(pieces))]
        num_kept = sum(end <= start for end in ends)
        rest = b"".join(pieces)[ends[num_kept - 1] if num_kept else 0 : start]
        assert (segment.num_kept, segment.remainder) == (num_kept, rest.decode())
        cuts.add(num_kept)
    assert len(cuts) > 2
