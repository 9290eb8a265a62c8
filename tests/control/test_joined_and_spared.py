"""Where calls that join a step, blocks that are shared and pages that were dropped meet."""

from collections.abc import Sequence

from loopwright.core.calls import (
    AllocatePages,
    CopyPage,
    ExportPages,
    ForwardText,
    Generate,
    ImportPages,
    KvWindow,
    MaskPage,
    Sampling,
    ShiftKv,
)
from loopwright.core.ids import PageName

from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

SAMPLING = Sampling(temperature=1.0, seed=3)
STEM = [10, 11, 12, 13]  # one page


def names(*numbers: int) -> tuple[PageName, ...]:
    return tuple(map(PageName, numbers))


def text(tokens: Sequence[int], pages: Sequence[int], kv_len: int = 0) -> ForwardText:
    return ForwardText(
        queue=QUEUE, pages=names(*pages), kv_len=kv_len, tokens=tuple(tokens), sampling=SAMPLING,
        positions=tuple(range(kv_len, kv_len + len(tokens))), grow_from=PageName(200),
    )  # fmt: skip


def copy(source: int, target: int, size: int) -> CopyPage:
    return CopyPage(queue=QUEUE, source=PageName(source), target=PageName(target), size=size)


def expected(tokens: Sequence[int], max_tokens: int = 4) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, max_tokens)


def following(rig: Rig, run: RigRun, page: int, kv_len: int) -> list[int]:
    """What comes after token 5 behind one page."""
    call = run.submit(
        generate((5,), pages=(page,), kv_len=kv_len, grow_from=10 * page + 300, sampling=SAMPLING, max_tokens=4)
    )
    rig.drain()
    return list(run.segment(call).tokens)


def filled(rig: Rig, name: str) -> RigRun:
    """A run whose page 1 holds the stem, and whose page 2 is there to be written."""
    run = rig.open(name)
    run.now(AllocatePages(queue=QUEUE, pages=names(1, 2)))
    call = run.submit(text(STEM, [1]))
    rig.drain()
    assert run.error_type(call) is None
    rig.executor.batches.clear()
    return run


def drop(rig: Rig, run: RigRun) -> bool:
    return rig.controller._resources.drop(run.session.run_id, ())


def test_what_joined_a_copy_and_wrote_over_its_end_is_known_as_it_is() -> None:
    rig = Rig()
    run = filled(rig, "a")
    run.submit(copy(1, 2, 4))
    run.submit(text([20, 21], [2], kv_len=2))
    assert rig.drain() == 1
    drop(rig, run)
    assert following(rig, run, 2, 4) == expected([10, 11, 20, 21, 5])


def test_what_joined_a_copy_and_shifted_it_is_opaque() -> None:
    shifted = []
    for drops in (False, True):
        rig = Rig()
        run = filled(rig, "a")
        run.submit(copy(1, 2, 4))
        run.submit(ShiftKv(queue=QUEUE, pages=names(2), size=4, delta=3))
        assert rig.drain() == 1
        if drops:
            drop(rig, run)
        shifted.append(following(rig, run, 2, 4))
    assert shifted[0] == shifted[1] != expected([*STEM, 5])


def test_a_call_that_needs_a_private_copy_does_not_join() -> None:
    rig = Rig()
    first, second = rig.open("first"), rig.open("second")
    for run in (first, second):
        run.now(AllocatePages(queue=QUEUE, pages=names(2)))
        run.submit(text([*STEM, 5], []))
        rig.drain()
    assert rig.controller._resources.blocks.num_others(_block(rig, first, 200)) == 1
    rig.executor.batches.clear()
    second.submit(copy(200, 2, 4))
    second.submit(text([20, 21], [200], kv_len=2))
    assert rig.drain() == 3  # the copy; the private copy; the row
    assert following(rig, second, 200, 4) == expected([10, 11, 20, 21, 5])
    assert following(rig, second, 2, 4) == expected([*STEM, 5])
    assert following(rig, first, 200, 4) == expected([*STEM, 5])


def test_nothing_joins_a_call_whose_dropped_pages_are_on_their_way_back() -> None:
    rig = Rig(num_blocks=4)
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=names(1)))
    run.submit(text(STEM, [1]))
    hidden = run.submit(
        ForwardText(queue=QUEUE, pages=(), grow_from=PageName(2), kv_len=0, tokens=(7,), positions=(0,), mask=((0, 1),))
    )
    rig.drain()
    assert run.error_type(hidden) is None
    assert drop(rig, run)
    other = rig.hold("other", range(3))  # so that the cache lost the stem too
    other.session.close()
    run.submit(copy(1, 2, 2))
    run.submit(text([20], [2], kv_len=2))
    rig.drain()
    assert following(rig, run, 2, 3) == expected([10, 11, 20, 5])


def test_what_was_computed_behind_a_masked_page_serves_nobody_and_the_page_itself_does() -> None:
    rig = Rig()
    run, reader = filled(rig, "a"), rig.open("reader")
    run.now(MaskPage(queue=QUEUE, page=PageName(1), keep=(True, False, True, True)))
    run.submit(text([20, 21, 22, 23, 24], [1], kv_len=4))
    rig.drain()
    call = reader.submit(generate((*STEM, 20, 21, 22, 23, 24), sampling=SAMPLING, max_tokens=4))
    rig.drain()
    assert reader.segment(call).cached_tokens == 4
    assert list(reader.segment(call).tokens) == expected([*STEM, 20, 21, 22, 23, 24])


def test_what_a_segment_wrote_under_a_window_serves_nobody() -> None:
    rig = Rig()
    run, reader = filled(rig, "a"), rig.open("reader")
    call = run.submit(
        Generate(
            queue=QUEUE, pages=names(1), kv_len=4, grow_from=PageName(50), tokens=(20, 21, 22, 23), max_tokens=9,
            positions=(4, 5, 6, 7), sampling=SAMPLING, window=KvWindow(size=4, sinks=0, positions=(0, 1, 2, 3)),
        )
    )  # fmt: skip
    rig.drain()
    whole = [*STEM, 20, 21, 22, 23, *run.segment(call).tokens]
    again = reader.submit(generate(whole, sampling=SAMPLING, max_tokens=4))
    rig.drain()
    assert reader.segment(again).cached_tokens == 4
    assert list(reader.segment(again).tokens) == expected(whole)


def test_dropped_pages_are_brought_back_for_an_export_and_stay_while_they_are_lent() -> None:
    rig = Rig()
    lender, borrower = filled(rig, "lender"), rig.open("borrower")
    assert drop(rig, lender)
    done = lender.submit(ExportPages(queue=QUEUE, name="stem", pages=names(1), positions=(0, 1, 2, 3)))
    rig.drain()
    assert lender.error_type(done) is None
    drop(rig, lender)
    assert _block(rig, lender, 1) is not None
    taken = borrower.submit(ImportPages(queue=QUEUE, name="stem", pages=names(1)))
    rig.drain()
    assert borrower.error_type(taken) is None
    drop(rig, borrower)
    assert _block(rig, borrower, 1) == _block(rig, lender, 1)
    assert following(rig, borrower, 1, 4) == expected([*STEM, 5])


def test_what_is_known_of_imported_pages_is_used_behind_them() -> None:
    rig = Rig()
    lender, borrower = filled(rig, "lender"), rig.open("borrower")
    lender.submit(text([20, 21, 22, 23, 24], [1], kv_len=4))
    lender.submit(ExportPages(queue=QUEUE, name="stem", pages=names(1), positions=(0, 1, 2, 3)))
    rig.drain()
    taken = borrower.submit(ImportPages(queue=QUEUE, name="stem", pages=names(9)))
    call = borrower.submit(text([20, 21, 22, 23, 24], [9], kv_len=4))
    rig.drain()
    assert borrower.error_type(taken) is None
    assert borrower.forwarded(call).cached_tokens == 4


def test_a_page_is_refused_while_it_is_lent_by_name_and_copied_while_only_the_cache_shares_it() -> None:
    rig = Rig()
    lender, borrower = filled(rig, "lender"), rig.open("borrower")
    same = borrower.submit(text([*STEM, 5], []))
    rig.drain()
    assert borrower.forwarded(same).cached_tokens == 4
    lender.now(ExportPages(queue=QUEUE, name="stem", pages=names(1), positions=(0, 1, 2, 3)))
    assert lender.now(text([30], [1], kv_len=3)).error is not None
    written = borrower.submit(text([30], [200], kv_len=3))
    rig.drain()
    assert borrower.error_type(written) is None
    assert following(rig, borrower, 200, 4) == expected([10, 11, 12, 30, 5])


def test_a_page_that_an_import_is_still_to_fill_is_not_written_behind_it() -> None:
    rig = Rig()
    lender = filled(rig, "lender")
    lender.now(ExportPages(queue=QUEUE, name="stem", pages=names(1), positions=(0, 1, 2, 3)))
    first = lender.submit(text([30], [2]))  # so that the others wait
    lender.submit(ImportPages(queue=QUEUE, name="stem", pages=names(9)))
    written = lender.submit(text([30], [9], kv_len=3))
    rig.drain()
    assert lender.error_type(first) is None
    assert lender.error_type(written) == "BadRequest"


def _block(rig: Rig, run: RigRun, page: int) -> object:
    return rig.controller._resources.holdings(run.session.run_id).pages.names[PageName(page)].id
