"""Segments, whatever runs beside them and whenever they are interrupted, equal the step-by-step loop."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.core.calls import AllocatePages, Generate, Sampling
from loopwright.core.ids import PageName
from loopwright.core.results import Segment

from .fake_grammars import FakeCompiler
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate
from .step_by_step import LETTERS, OPTIONS, PAGE_SIZE, PLACES, PROMPT, Looked, call_of, step_by_step


def keep(index: int, token: int, num_vetoes: int) -> str:
    return "keep"


@settings(deadline=None, max_examples=150)
@given(
    options=st.lists(st.sampled_from(list(OPTIONS)), min_size=1, max_size=4),
    max_tokens=st.integers(1, 9),
    num_given_pages=st.sampled_from([0, 0, 1, 6]),
    max_batch_tokens=st.sampled_from([3, 5, 512]),
    is_ahead=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_segments_side_by_side_equal_the_loop_in_tokens_reason_kv_length_and_pages(
    options: list[str], max_tokens: int, num_given_pages: int, max_batch_tokens: int, is_ahead: bool, seed: int
) -> None:
    rig = make_rig(max_batch_tokens, is_ahead)
    runs = [(rig.open(str(number)), *call_of(option, seed + number)) for number, option in enumerate(options)]
    calls = []
    for number, (run, call, _) in enumerate(runs):
        pages = tuple(PageName(1 + place) for place in range(num_given_pages)) if number == 0 else ()
        if pages:
            run.now(AllocatePages(queue=QUEUE, pages=pages))
        calls.append(msgspec.structs.replace(call, max_tokens=max_tokens, pages=pages, progress=True))
    ids = [run.submit(call) for (run, _, _), call in zip(runs, calls, strict=True)]
    rig.drain()
    for (run, _, places), call, call_id in zip(runs, calls, ids, strict=True):
        segment = run.segment(call_id)
        check(segment, step_by_step(call, keep, places), num_given=len(call.pages))
        assert [token for part in run.parts.get(call_id, []) for token in part.tokens] == list(segment.tokens)
        check_kv(rig, run, call, segment)
        run.session.close()
    rig.assert_all_free()


@settings(deadline=None, max_examples=150)
@given(
    option=st.sampled_from(list(OPTIONS)),
    num_steps=st.integers(0, 10),
    is_running=st.booleans(),
    max_batch_tokens=st.sampled_from([3, 5, 512]),
    is_ahead=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_an_interrupt_lands_at_a_token_boundary_within_two_steps_with_the_context_as_the_loop_has_it(
    option: str, num_steps: int, is_running: bool, max_batch_tokens: int, is_ahead: bool, seed: int
) -> None:
    call, places = call_of(option, seed)
    expected = step_by_step(call, keep, places)
    rig = make_rig(max_batch_tokens, is_ahead)
    run, other = rig.open("a"), rig.open("other")
    neighbour = other.submit(generate(PROMPT, max_tokens=30))
    call_id = run.submit(call)
    for _ in range(num_steps):
        rig.step()
    if is_running:
        rig.begin()
    has_started = run.session.open_calls.get(call_id) is None or run.session.open_calls[call_id].is_started
    run.session.interrupt(call_id)
    while rig.running and run.final(call_id) is None:
        rig.end()
    assert run.final(call_id) is not None  # no step that begins after it is needed
    if has_started:
        segment = run.segment(call_id)
        if segment.reason == "interrupted":
            assert list(segment.tokens) == expected.tokens[: len(segment.tokens)]
            check_interrupted(segment, call)
        else:
            check(segment, expected, num_given=0)
        check_kv(rig, run, call, segment)
    else:
        assert run.error_type(call_id) == "Cancelled"
    rig.drain()
    assert len(other.segment(neighbour).tokens) == 30
    run.session.close()
    other.session.close()
    rig.assert_all_free()


def make_rig(max_batch_tokens: int, is_ahead: bool) -> Rig:
    config = ControlConfig(max_batch_rows=min(64, max_batch_tokens - 1), max_batch_tokens=max_batch_tokens)
    return Rig(grammars=FakeCompiler(g=PLACES), token_bytes=LETTERS, config=config, is_ahead=is_ahead)


def check(segment: Segment, expected: Looked, num_given: int) -> None:
    assert list(segment.tokens) == expected.tokens
    assert segment.logprobs == tuple(-float(token) for token in expected.tokens)
    assert (segment.reason, segment.stop) == (expected.reason, expected.stop)
    assert segment.kv_len == min(expected.num_run(), len(PROMPT) + segment.num_kept)
    assert segment.num_pages == max(expected.num_pages(), num_given)


def check_interrupted(segment: Segment, call: Generate) -> None:
    """All tokens are kept; every one but the last has KV, unless not even the prompt was through."""
    num_tokens = len(segment.tokens)
    assert segment.num_kept == num_tokens
    if num_tokens:
        assert segment.kv_len == len(PROMPT) + num_tokens - 1
        assert segment.num_pages == -(-segment.kv_len // PAGE_SIZE)
    else:
        assert segment.kv_len < len(PROMPT) + (1 if call.stop_entropy is not None else 0)


def check_kv(rig: Rig, run: RigRun, call: Generate, segment: Segment) -> None:
    """The pages hold what the loop would have left there: the next segment goes on from it."""
    kept = [*PROMPT, *segment.tokens[: segment.num_kept]]
    inputs = kept[segment.kv_len :] or [50]
    grown = range(call.grow_from, call.grow_from + segment.num_pages - len(call.pages))
    after = run.submit(
        generate(inputs, pages=[*call.pages, *grown], grow_from=900, kv_len=segment.kv_len, max_tokens=2)
    )
    rig.drain()
    whole = kept[: segment.kv_len] + inputs
    naive = NaiveContext().generate(whole, range(len(whole)), Sampling(temperature=1.0), 2)
    assert list(run.segment(after).tokens) == naive
