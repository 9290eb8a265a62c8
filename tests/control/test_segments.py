"""Segments: equal to the step-by-step loop, and every way in which they end."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.batch import RowResult, Sampled
from loopwright.core.calls import AllocatePages, ClearQueue, ForwardText, FreePages, Sampling
from loopwright.core.errors import InternalError
from loopwright.core.ids import CallId, PageName
from loopwright.core.results import Segment

from .fake_executor import VOCAB_SIZE
from .reference import NaiveContext
from .rig import QUEUE, TOKEN_BYTES, Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
PROMPT = (5, 6, 7, 8, 9, 10)


def naive(max_tokens: int = 12) -> list[int]:
    return NaiveContext().generate(PROMPT, range(len(PROMPT)), SAMPLING, max_tokens)


def spelled(tokens: list[int]) -> str:
    return b"".join(TOKEN_BYTES[token] for token in tokens).decode()


def step_by_step(run: RigRun, rig: Rig, num_tokens: int) -> tuple[list[int], int, int]:
    """A loop of ForwardText with one sampled token each: tokens, KV length, pages."""
    pages: list[int] = []
    tokens, kv_len, sampled = list(PROMPT), 0, []
    for _ in range(num_tokens):
        call = run.submit(
            ForwardText(
                queue=QUEUE,
                pages=tuple(PageName(page) for page in pages),
                grow_from=PageName(500 + len(pages)),
                kv_len=kv_len,
                tokens=tuple(tokens),
                positions=tuple(range(kv_len, kv_len + len(tokens))),
                sampling=SAMPLING,
            )
        )
        rig.drain()
        result = run.forwarded(call)
        assert result.token is not None
        pages += range(500 + len(pages), 500 + result.num_pages)
        kv_len, tokens = result.kv_len, [result.token]
        sampled.append(result.token)
    return sampled, kv_len, len(pages)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 11])
def test_a_segment_equals_the_step_by_step_loop_in_tokens_kv_length_and_pages(num_tokens: int) -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=num_tokens))
    rig.drain()
    segment = run.segment(call)
    assert (list(segment.tokens), segment.kv_len, segment.num_pages) == step_by_step(run, rig, num_tokens)
    assert (segment.reason, segment.num_kept, segment.stop) == ("length", num_tokens, None)
    assert segment.logprobs == tuple(-float(token) for token in segment.tokens)
    assert list(segment.tokens) == naive(num_tokens)


def test_a_segment_binds_a_page_only_when_a_token_needs_it() -> None:
    rig = Rig(num_blocks=4)
    run = rig.open("a")
    call = run.submit(generate((5, 6, 7), max_tokens=3))
    rig.step()
    assert rig.controller._resources.blocks.num_free == 3
    rig.step()
    assert rig.controller._resources.blocks.num_free == 3
    rig.step()
    assert rig.controller._resources.blocks.num_free == 2
    assert run.segment(call).num_pages == 2
    assert run.now(FreePages(queue=QUEUE, pages=(PageName(100), PageName(101)))).error is None


def test_a_segment_uses_the_pages_it_was_given_before_it_binds_more() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(1), PageName(2), PageName(3))))
    call = run.submit(generate(PROMPT, pages=(1, 2, 3), sampling=SAMPLING, max_tokens=5))
    rig.drain()
    assert (run.segment(call).num_pages, run.segment(call).kv_len) == (3, 10)
    assert list(run.segment(call).tokens) == naive(5)


def test_a_name_that_is_bound_when_a_segment_wants_it_ends_the_segment_with_its_pages_as_they_were() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(102),)))
    call = run.submit(generate(PROMPT, max_tokens=20))
    rig.drain()
    error = run.error(call)
    assert error.field == "grow_from"
    assert "page 102 is already bound" in error.message
    run.now(ClearQueue(queue=QUEUE))
    assert run.now(AllocatePages(queue=QUEUE, pages=(PageName(100), PageName(101)))).error is None


def test_a_stop_token_ends_the_segment_and_is_not_kept() -> None:
    tokens = naive()
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=12, stop_tokens=(tokens[4],)))
    rig.drain()
    end = tokens.index(tokens[4])
    segment = run.segment(call)
    assert list(segment.tokens) == tokens[: end + 1]
    assert (segment.reason, segment.stop, segment.num_kept) == ("stop_token", tokens[4], end)
    assert segment.kv_len == len(PROMPT) + end


def test_a_stop_string_ends_the_segment_and_drops_the_tokens_it_reaches_into() -> None:
    tokens = naive()
    stop = spelled(tokens[3:6])
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=12, stop=("zzzz", stop)))
    rig.drain()
    segment = run.segment(call)
    assert list(segment.tokens) == tokens[:6]
    assert (segment.reason, segment.stop, segment.num_kept, segment.remainder) == ("stop", stop, 3, "")
    assert segment.kv_len == len(PROMPT) + 3


def forced(pieces: list[bytes], stop: str) -> Segment:
    """A segment whose sampled tokens are forced to be tokens 2, 3, … with the given bytes."""
    token_bytes = [b"", b"", *pieces, *[b"?"] * (VOCAB_SIZE - 2 - len(pieces))]
    rig = Rig(token_bytes=token_bytes)
    run = rig.open("a")
    feed = generate((5,), sampling=Sampling(), max_tokens=len(pieces), stop=(stop,))
    call = run.submit(feed)
    token = 2
    while (batch := rig.controller.schedule()) is not None:
        result = rig.executor.run(batch)
        forced_row = RowResult(sampled=(Sampled(token, 0.0),))
        rig.controller.complete(type(result).of_all_rows(batch, [forced_row], (), ()))
        token += 1
    return run.segment(call)


@pytest.mark.parametrize(
    ("pieces", "stop", "num_kept", "remainder"),
    [
        ([b"ab", b"cdE", b"Fg"], "EF", 1, "cd"),
        ([b"ab", b"EF"], "EF", 1, ""),
        ([b"abEF"], "EF", 0, "ab"),
        ([b"a", b"", b"E", b"", b"F"], "EF", 2, ""),  # a token without bytes before the stop is kept, one inside is not
        ([b"caf\xc3", b"\xa9!E", b"F"], "EF", 1, "!"),  # the second half of é is no UTF-8 by itself
        ([b"x", b"\xe2\x82\xacE", b"F"], "EF", 1, "€"),
    ],
)
def test_what_is_before_a_stop_string_in_a_dropped_token_is_the_remainder(
    pieces: list[bytes], stop: str, num_kept: int, remainder: str
) -> None:
    segment = forced(pieces, stop)
    assert (segment.num_kept, segment.remainder, segment.reason) == (num_kept, remainder, "stop")
    assert segment.kv_len == min(1 + num_kept, len(segment.tokens))


def test_a_segment_ends_as_length_before_a_position_reaches_the_end_of_the_context() -> None:
    rig = Rig(max_context=10)
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=99))
    full = run.submit(generate((5,), first_position=9, grow_from=200, max_tokens=99))
    rig.drain()
    assert (len(run.segment(call).tokens), run.segment(call).reason) == (4, "length")  # positions 6 … 9
    assert list(run.segment(call).tokens) == naive(4)
    assert (len(run.segment(full).tokens), run.segment(full).reason) == (1, "length")  # a full context: one token


def test_positions_may_have_gaps_and_sampled_tokens_follow_the_last() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate((5, 6), first_position=40, sampling=SAMPLING, max_tokens=4))
    rig.drain()
    assert list(run.segment(call).tokens) == NaiveContext().generate((5, 6), (40, 41), SAMPLING, 4)


def test_progress_carries_every_token_once_and_in_order_also_after_a_prompt_in_chunks() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=3))
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=5, progress=True))
    rig.drain()
    assert list(run.segment(call).tokens) == naive(5)
    assert [token for part in run.parts[call] for token in part.tokens] == naive(5)
    assert run.final(call) is not None


def test_an_interrupt_while_a_step_runs_keeps_that_steps_token() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=12))
    rig.step()
    rig.step()
    batch = rig.controller.schedule()
    assert batch is not None
    run.session.interrupt(call)
    assert run.final(call) is None
    rig.controller.complete(rig.executor.run(batch))
    segment = run.segment(call)
    assert (segment.reason, list(segment.tokens), segment.num_kept, segment.kv_len) == ("interrupted", naive(3), 3, 8)


def test_an_interrupt_between_steps_ends_the_segment_at_once() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=12))
    rig.step()
    rig.step()
    run.session.interrupt(call)
    assert list(run.segment(call).tokens) == naive(2)
    assert not rig.step()
    run.session.interrupt(call)
    run.session.interrupt(CallId(99))
    after = run.submit(generate((11,), pages=(100, 101), grow_from=102, kv_len=7, max_tokens=1))
    rig.drain()
    assert run.error_type(after) is None


def test_an_interrupt_in_the_middle_of_a_prompt_keeps_the_chunks_that_ran() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
    run = rig.open("a")
    call = run.submit(generate(PROMPT))
    batch = rig.controller.schedule()
    assert batch is not None
    run.session.interrupt(call)
    rig.controller.complete(rig.executor.run(batch))
    segment = run.segment(call)
    assert (segment.tokens, segment.kv_len, segment.reason, segment.num_pages) == ((), 4, "interrupted", 2)


def test_an_interrupt_before_the_start_fails_the_call_as_cancelled_in_its_turn() -> None:
    rig = Rig()
    run = rig.open("a")
    first = run.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=3))
    second = run.submit(generate(PROMPT, grow_from=200))
    third = run.submit(generate(PROMPT, grow_from=300))
    run.session.interrupt(second)
    assert run.final(second) is None
    rig.drain()
    assert [run.error_type(call) for call in (first, second, third)] == [None, "Cancelled", "Poisoned"]
    assert list(run.segment(first).tokens) == naive(3)


def test_a_segment_whose_row_fails_ends_alone_and_its_neighbour_goes_on() -> None:
    rig = Rig()
    one, other = rig.open("a"), rig.open("b")
    bad = one.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=9))
    good = other.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=9))
    rig.step()
    rig.executor.fail_rows[naive(1)[0]] = InternalError("NaN logits").info()
    rig.step()
    assert one.error_type(bad) == other.error_type(good) == "InternalError"
    rig.executor.fail_rows.clear()
    other.now(ClearQueue(queue=QUEUE))
    good = other.submit(generate(PROMPT, sampling=SAMPLING, max_tokens=9))
    rig.drain()
    assert list(other.segment(good).tokens) == naive(9)
