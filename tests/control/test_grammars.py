"""Segments under a grammar: who waits for it, what rides along, and every way in which they end."""

import msgspec
import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import ClearQueue, Generate, Sampling
from loopwright.core.errors import BadRequest
from loopwright.core.grammars import Grammar
from loopwright.core.results import Segment

from .fake_executor import choose
from .fake_grammars import FakeCompiler, Places
from .reference import NaiveContext
from .rig import QUEUE, TOKEN_BYTES, Rig, RigRun, generate

PROMPT = (5, 6, 7, 8, 9, 10)
ANY = range(2, 60)
SAMPLING = Sampling(temperature=1.0, seed=3)


def under(name: str, prompt=PROMPT, **fields) -> Generate:
    call = generate(prompt, sampling=SAMPLING, **{"max_tokens": 12, **fields})
    return msgspec.structs.replace(call, grammar=Grammar("regex", name))


def run_to_end(places: Places, sizes: dict | None = None, **fields) -> tuple[Segment, Rig, RigRun]:
    rig = Rig(grammars=FakeCompiler(g=places), **sizes or {})
    run = rig.open("a")
    call = run.submit(under("g", **fields))
    rig.drain()
    return run.segment(call), rig, run


def naive(places: Places, max_tokens: int = 12, prompt=PROMPT) -> list[int]:
    """The loop that takes a step for every token, forced or not."""
    context, state = NaiveContext(), places.start()
    inputs, positions, tokens = list(prompt), list(range(len(prompt))), []
    while len(tokens) < max_tokens and not state.is_over:
        position = positions[-1] + 1
        bits = int.from_bytes(state.allowed_bits(()), "little")
        allowed = tuple(one for one in range(64) if bits >> one & 1)
        sampling = msgspec.structs.replace(SAMPLING, allowed=allowed)
        tokens.append(choose(context.run(inputs, positions)[-1], sampling, position))
        state.accept(tokens[-1])
        inputs, positions = [tokens[-1]], [position]
    return tokens


def test_a_segment_under_a_grammar_equals_the_step_by_step_loop_and_ends_with_it() -> None:
    places = Places(ANY, {11, 12}, ANY, {13, 14, 15})
    segment, rig, _ = run_to_end(places)
    assert list(segment.tokens) == naive(places)
    assert (segment.reason, segment.stop, segment.num_kept, segment.kv_len) == ("grammar_end", None, 4, 9)
    assert len(rig.executor.batches) == 4


def test_forced_tokens_ride_in_the_row_of_the_token_before_them() -> None:
    places = Places(ANY, {11}, {12}, {13}, ANY, {14}, ANY)
    segment, rig, _ = run_to_end(places)
    assert list(segment.tokens) == naive(places)
    assert [batch.all_rows[0].num_tokens for batch in rig.executor.batches] == [6, 4, 2]
    assert [batch.all_rows[0].num_drafts for batch in rig.executor.batches] == [0, 3, 1]
    assert segment.logprobs == tuple(-float(token) for token in segment.tokens)
    assert (segment.kv_len, segment.num_kept, segment.num_pages) == (12, 7, 3)


def test_what_is_forced_from_the_start_rides_with_the_prompt() -> None:
    places = Places({11}, {12}, ANY)
    segment, rig, _ = run_to_end(places)
    assert list(segment.tokens) == naive(places)
    assert [batch.all_rows[0].num_tokens for batch in rig.executor.batches] == [8]
    assert segment.kv_len == 8


def test_a_text_that_is_forced_as_a_whole_has_its_last_token_sampled() -> None:
    segment, rig, _ = run_to_end(Places({11}, {12}, {13}))
    assert list(segment.tokens) == [11, 12, 13]
    assert (segment.reason, segment.kv_len, len(rig.executor.batches)) == ("grammar_end", 8, 1)


def test_forced_tokens_keep_to_a_row_when_the_prompt_is_cut_into_chunks() -> None:
    places = Places({11}, {12}, ANY, {13}, {14}, ANY)
    segment, rig, _ = run_to_end(places, {"config": ControlConfig(max_batch_rows=2, max_batch_tokens=3)})
    assert list(segment.tokens) == naive(places)
    assert [batch.all_rows[0].num_tokens for batch in rig.executor.batches] == [3, 2, 3, 3]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6])
def test_max_tokens_cuts_also_among_forced_tokens(max_tokens: int) -> None:
    places = Places({11}, {12}, ANY, {13}, {14}, ANY, ANY)
    segment, _, _ = run_to_end(places, max_tokens=max_tokens)
    assert list(segment.tokens) == naive(places, max_tokens)
    assert (segment.reason, segment.kv_len) == ("length", 6 + max_tokens - 1)


def test_a_text_that_is_whole_at_max_tokens_ends_as_whole() -> None:
    segment, _, _ = run_to_end(Places(ANY, ANY), max_tokens=2)
    assert segment.reason == "grammar_end"


def test_the_end_of_the_context_cuts_also_among_forced_tokens() -> None:
    places = Places(ANY, *[{11}] * 20)
    segment, _, _ = run_to_end(places, {"max_context": 12}, max_tokens=99)
    assert list(segment.tokens) == naive(places, 6)
    assert (segment.reason, segment.kv_len) == ("length", 11)
    full, _, _ = run_to_end(places, {"max_context": 6}, max_tokens=99)
    assert (len(full.tokens), full.reason) == (1, "length")


def test_a_stop_string_ends_the_segment_also_inside_what_is_forced() -> None:
    places = Places(ANY, {11}, {12}, {13}, {14}, ANY)
    stop = (TOKEN_BYTES[12] + TOKEN_BYTES[13]).decode()
    segment, _, _ = run_to_end(places, stop=(stop,))
    assert list(segment.tokens) == naive(places)[:4]
    assert (segment.reason, segment.stop, segment.num_kept, segment.kv_len) == ("stop", stop, 2, 8)


def test_a_stop_token_may_come_only_where_the_text_is_whole() -> None:
    places = Places(ANY, ANY, {21}, ANY, optional_from=3)
    reasons = set()
    for seed in range(40):
        rig = Rig(grammars=FakeCompiler(g=places))
        run = rig.open("a")
        call = under("g", stop_tokens=(1,))
        sampling = msgspec.structs.replace(SAMPLING, seed=seed)
        number = run.submit(msgspec.structs.replace(call, sampling=sampling))
        rig.drain()
        segment = run.segment(number)
        assert 1 not in segment.tokens[:3]
        assert len(segment.tokens) == 4
        assert segment.num_kept == (3 if segment.reason == "stop_token" else 4)
        reasons.add(segment.reason)
    assert reasons == {"stop_token", "grammar_end"}


def test_progress_carries_forced_tokens_with_the_token_after_them() -> None:
    places = Places({11}, {12}, ANY, {13}, ANY)
    rig = Rig(grammars=FakeCompiler(g=places))
    run = rig.open("a")
    call = run.submit(under("g", progress=True))
    rig.drain()
    assert list(run.segment(call).tokens) == naive(places)
    assert [len(part.tokens) for part in run.parts[call]] == [3, 2]
    assert [token for part in run.parts[call] for token in part.tokens] == naive(places)


def test_an_interrupt_drops_what_was_forced_and_has_not_run() -> None:
    places = Places(ANY, {11}, {12}, ANY, ANY)
    rig = Rig(grammars=FakeCompiler(g=places))
    run = rig.open("a")
    call = run.submit(under("g"))
    rig.step()
    run.session.interrupt(call)
    segment = run.segment(call)
    assert (list(segment.tokens), segment.reason, segment.kv_len) == (naive(places)[:1], "interrupted", 6)


def test_a_call_waits_for_its_grammar_and_its_neighbours_do_not() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    slow, other = rig.open("slow", queues=(QUEUE, 2)), rig.open("other")
    waiting = slow.submit(under("g"))
    behind = slow.submit(generate(PROMPT, grow_from=200, max_tokens=2))
    beside = slow.submit(generate(PROMPT, queue=2, grow_from=300, max_tokens=2))
    neighbour = other.submit(generate(PROMPT, max_tokens=2))
    rig.drain()
    assert other.segment(neighbour).reason == slow.segment(beside).reason == "length"
    assert slow.final(waiting) is slow.final(behind) is None
    compiler.finish("g", Places(ANY, {11}))
    rig.drain()
    assert slow.segment(waiting).reason == "grammar_end"
    assert slow.segment(behind).reason == "length"


def test_a_grammar_that_cannot_be_enforced_fails_its_call_and_what_depends_on_it() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    run = rig.open("a")
    refused, behind = run.submit(under("g")), run.submit(generate(PROMPT, grow_from=200))
    compiler.finish("g", BadRequest("JSON schema at #/type: no", field="grammar.source#/type"))
    rig.drain()
    assert run.error(refused).field == "grammar.source#/type"
    assert run.error_type(behind) == "Poisoned"
    run.now(ClearQueue(queue=QUEUE))
    after = run.submit(generate(PROMPT, max_tokens=1))
    rig.drain()
    assert run.segment(after).reason == "length"


def test_a_fault_of_the_compiler_is_an_internal_error_and_its_end_an_unavailable_one() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    run = rig.open("a", queues=(QUEUE, 2))
    broken, cancelled = run.submit(under("g")), run.submit(under("h", grow_from=200, queue=2))
    compiler.finish("g", ZeroDivisionError("oops"))
    assert compiler.futures["h"].cancel()
    rig.drain()
    assert (run.error_type(broken), run.error_type(cancelled)) == ("InternalError", "Unavailable")


def test_an_interrupt_while_the_grammar_is_compiled_ends_the_call_at_once() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    run = rig.open("a")
    call = run.submit(under("g"))
    run.session.interrupt(call)
    assert run.error_type(call) == "Cancelled"
    compiler.finish("g", Places(ANY))
    assert rig.drain() == 0


def test_a_run_that_closes_while_its_grammar_is_compiled_leaves_nothing() -> None:
    compiler = FakeCompiler()
    rig = Rig(grammars=compiler)
    run = rig.open("a")
    run.submit(under("g"))
    run.session.close()
    compiler.finish("g", Places(ANY))
    assert rig.drain() == 0
    rig.assert_all_free()


def test_a_grammar_that_becomes_too_much_work_fails_its_segment_alone() -> None:
    rig = Rig(grammars=FakeCompiler(g=Places(*[ANY] * 9, fails_at=3)))
    one, other = rig.open("a"), rig.open("b")
    bad, good = one.submit(under("g")), other.submit(generate(PROMPT, max_tokens=9))
    rig.drain()
    assert one.error_type(bad) == "LimitExceeded"
    assert len(other.segment(good).tokens) == 9


def test_waiting_for_a_grammar_is_not_being_stuck_for_pages() -> None:
    compiler = FakeCompiler()
    rig = Rig(num_blocks=4, grammars=compiler)
    holder, other = rig.open("holder"), rig.open("other")
    first = holder.submit(generate(range(2, 14), max_tokens=1))  # holds 3 of 4 blocks
    rig.drain()
    waiting = holder.submit(under("g", prompt=(5,), pages=(100, 101, 102), grow_from=103, kv_len=12, max_tokens=1))
    wants = other.submit(generate(range(20, 30), max_tokens=1))
    rig.drain()
    rig.clock.advance(10)
    rig.drain()
    assert other.final(wants) is holder.final(waiting) is None
    compiler.finish("g", Places(ANY))
    rig.drain()
    assert holder.segment(waiting).reason == "grammar_end"
    assert holder.segment(first).reason == "length"


def test_without_a_compiler_a_grammar_is_refused_by_name() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(under("g"))
    assert run.error(call).type == "ModelLacksTrait"
    assert run.error(call).field == "grammar"


def test_a_grammar_beside_allowed_tokens_is_refused() -> None:
    rig = Rig(grammars=FakeCompiler(g=Places(ANY)))
    run = rig.open("a")
    sampling = msgspec.structs.replace(SAMPLING, allowed=(3,))
    call = run.submit(msgspec.structs.replace(under("g"), sampling=sampling))
    assert run.error(call).field == "sampling.allowed"
