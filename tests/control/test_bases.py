"""Long contexts: what a call only reads is held and ordered as one, and every rule of pages holds for it."""

import pytest
from msgspec.structs import replace

from loopwright.control import bases
from loopwright.core.calls import AllocatePages, ClearQueue, CopyPage, ForwardText, FreePages, Sampling
from loopwright.core.errors import BadRequest
from loopwright.core.ids import CallId, PageName, QueueName

from .fake_executor import choose
from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate
from .test_random_programs import FaultyRandomPrograms, RandomPrograms, TightRandomPrograms, soak

GREEDY = Sampling()
NUM_PAGES = 18
TOKENS = tuple(number % 60 + 2 for number in range(NUM_PAGES * 4 + 1))  # pages of 4
NAMES = tuple(PageName(100 + number) for number in range(NUM_PAGES + 1))


def with_long_context(queues: tuple[int, ...] = (QUEUE, 2)) -> tuple[Rig, RigRun]:
    rig = Rig()
    run = rig.open("a", queues=queues)
    call = run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=NAMES[0], kv_len=0, tokens=TOKENS,
                                  positions=tuple(range(len(TOKENS)))))  # fmt: skip
    rig.drain()
    assert run.error_type(call) is None
    return rig, run


def one_more(token: int, queue: int = QUEUE, kv_len: int = len(TOKENS)) -> ForwardText:
    return ForwardText(queue=QueueName(queue), pages=NAMES, kv_len=kv_len, tokens=(token,), positions=(kv_len,),
                       sampling=GREEDY)  # fmt: skip


def answered(rig: Rig, run: RigRun, call: ForwardText) -> CallId:
    call_id = run.submit(call)
    rig.drain()
    return call_id


def expected(*more: int) -> int:
    tokens = [*TOKENS, *more]
    return choose(NaiveContext().run(tokens, range(len(tokens)))[-1], GREEDY, len(tokens))


def test_a_call_in_a_long_context_touches_none_of_the_pages_it_stands_on() -> None:
    rig, run = with_long_context()
    pages = rig.controller._resources.holdings(run.session.run_id).pages.names
    tokens, found = (7, 9, 11), list[int | None]()
    for number, token in enumerate(tokens):
        call = run.submit(one_more(token, kv_len=len(TOKENS) + number))
        assert all(pages[name].num_holds == 0 and not pages[name].readers for name in NAMES[:NUM_PAGES])
        rig.drain()
        found.append(run.forwarded(call).token)
    assert found == [expected(*tokens[:number]) for number in (1, 2, 3)]


def test_who_writes_into_the_base_of_a_call_waits_for_it() -> None:
    rig, run = with_long_context()
    reader = run.submit(one_more(7))
    writer = run.submit(CopyPage(queue=QueueName(2), source=NAMES[0], target=NAMES[3], source_offset=0, target_offset=0,
                                 size=4))  # fmt: skip
    after = run.submit(one_more(7, queue=2))
    rig.drain()
    assert run.order()[-3:] == [reader, writer, after]
    assert run.forwarded(reader).token == expected(7)
    naive = NaiveContext()
    naive.run(TOKENS, range(len(TOKENS)))
    naive.values[12:16] = naive.values[:4]
    assert run.forwarded(after).token == choose(naive.run([7], [len(TOKENS)])[0], GREEDY, len(TOKENS) + 1)


def test_a_call_waits_for_those_that_write_into_what_would_be_its_base() -> None:
    rig, run = with_long_context()
    writer = run.submit(CopyPage(queue=QueueName(2), source=NAMES[0], target=NAMES[3], source_offset=0, target_offset=0,
                                 size=4))  # fmt: skip
    reader = run.submit(one_more(7))
    rig.drain()
    assert run.order()[-2:] == [writer, reader]
    assert run.forwarded(reader).token != expected(7)


def test_pages_that_are_freed_while_a_call_stands_on_them_live_until_it_is_over() -> None:
    rig, run = with_long_context()
    num_free = rig.controller._resources.blocks.num_free
    call = run.submit(one_more(7))
    batch = rig.controller.schedule()
    assert batch is not None
    run.now(FreePages(queue=QUEUE, pages=NAMES))
    rig.controller.check_integrity()
    assert rig.controller._resources.blocks.num_free == num_free
    rig.controller.complete(rig.executor.run(batch))
    assert run.forwarded(call).token == expected(7)
    rig.assert_all_free()


def test_a_name_that_is_bound_anew_is_not_what_it_was() -> None:
    rig, run = with_long_context()
    assert run.forwarded(answered(rig, run, one_more(7))).token == expected(7)
    run.now(FreePages(queue=QUEUE, pages=NAMES[:1]))
    assert run.error_type(run.submit(one_more(7))) == "NotFound"
    run.submit(ClearQueue(queue=QUEUE))
    fresh = run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=NAMES[0], kv_len=0, tokens=(5, 6, 7, 8),
                                   positions=tuple(range(4))))  # fmt: skip
    call = run.submit(one_more(7))
    rig.drain()
    assert run.error_type(fresh) is None
    assert run.forwarded(call).token != expected(7)


@pytest.mark.parametrize("num_known", [NUM_PAGES, NUM_PAGES - 1])
def test_the_same_last_page_behind_others_is_not_the_same_base(num_known: int) -> None:
    rig, run = with_long_context()
    own = PageName(500)
    assert run.now(AllocatePages(queue=QUEUE, pages=(own,))).error is None
    kv_len = num_known * 4
    answered(rig, run, ForwardText(queue=QUEUE, pages=(*NAMES[:num_known], own), kv_len=kv_len, tokens=(9,),
                                   positions=(kv_len,)))  # fmt: skip
    swapped = replace(one_more(7), pages=(NAMES[1], NAMES[0], *NAMES[2:]))
    naive = NaiveContext()
    naive.run(TOKENS, range(len(TOKENS)))
    naive.values[:8] = [*naive.values[4:8], *naive.values[:4]]
    found = run.forwarded(answered(rig, run, swapped)).token
    assert found == choose(naive.run([7], [len(TOKENS)])[0], GREEDY, len(TOKENS) + 1)


def test_a_page_of_a_long_context_that_was_never_written_is_refused() -> None:
    rig, run = with_long_context()
    empty = PageName(500)
    assert run.now(AllocatePages(queue=QUEUE, pages=(empty,))).error is None
    call = answered(rig, run, replace(one_more(7), pages=(*NAMES[:5], empty, *NAMES[6:])))
    assert run.error(call).message == "kv_len: pages[5] has KV for its first 0 tokens, and 4 are counted"


def test_a_page_of_a_base_that_is_lost_is_not_full_any_more() -> None:
    rig, run = with_long_context()
    answered(rig, run, one_more(7))
    own = PageName(500)
    assert run.now(AllocatePages(queue=QUEUE, pages=(own,))).error is None
    rig.executor.fail_rows = {63: BadRequest("NaN").info()}
    failing = run.submit(ForwardText(queue=QUEUE, pages=(own,), kv_len=0, tokens=(63,),
                                     positions=(0,)))  # fmt: skip
    joined = run.submit(CopyPage(queue=QUEUE, source=NAMES[0], target=NAMES[3], source_offset=0, target_offset=0,
                                 size=4))  # fmt: skip
    rig.drain()
    assert (run.error_type(failing), run.error_type(joined)) == ("BadRequest", "Poisoned")
    run.submit(ClearQueue(queue=QUEUE))
    call = answered(rig, run, one_more(7))
    assert run.error(call).message == "kv_len: pages[3] has KV for its first 0 tokens, and 4 are counted"


def test_a_page_that_is_in_the_base_and_behind_it_is_refused() -> None:
    rig, run = with_long_context()
    call = run.submit(ForwardText(queue=QUEUE, pages=(*NAMES[:NUM_PAGES], NAMES[0]), kv_len=NUM_PAGES * 4, tokens=(7,),
                                  positions=(len(TOKENS),)))  # fmt: skip
    rig.drain()
    assert run.error(call).message == "pages: 100 is there twice"


def test_a_call_on_a_page_that_failed_to_be_written_is_poisoned_however_long_its_context() -> None:
    rig, run = with_long_context()
    bad = run.submit(CopyPage(queue=QueueName(2), source=PageName(999), target=NAMES[3], source_offset=0,
                              target_offset=0, size=4))  # fmt: skip
    call = run.submit(one_more(7))
    rig.drain()
    assert (run.error_type(bad), run.error_type(call)) == ("NotFound", "Poisoned")


@pytest.mark.parametrize("kind", [RandomPrograms, TightRandomPrograms, FaultyRandomPrograms])
def test_random_programs_answer_alike_when_two_pages_are_a_long_context(
    kind: type[RandomPrograms], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "MIN_PAGES", 2)
    soak(kind(), seed=11, num_operations=700)


def test_a_segment_that_went_on_from_a_long_context_has_the_naive_tokens() -> None:
    rig, run = with_long_context()
    sampling = Sampling(temperature=1.0, seed=3)
    call = run.submit(generate((7,), pages=NAMES, kv_len=len(TOKENS), grow_from=500, sampling=sampling, max_tokens=9))
    rig.drain()
    tokens = [*TOKENS, 7]
    assert list(run.segment(call).tokens) == NaiveContext().generate(tokens, range(len(tokens)), sampling, 9)
