"""Pages that runs lend to each other by name: what an importer gets, who may write, what stays and what goes."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loopwright.control import exports
from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocatePages,
    ClearQueue,
    CopyPage,
    CreateQueue,
    ExportedPages,
    ExportPages,
    ForwardText,
    FreePages,
    ImportPages,
    QueueCall,
    SharePages,
    ShiftKv,
    Synchronize,
    UnexportPages,
)
from loopwright.core.control import ControlLimits
from loopwright.core.ids import PageName, QueueName, RunId, TenantId
from loopwright.core.results import ExportInfo, ExportList, Imported

from .reference import NaiveContext
from .rig import QUEUE, Rig, RigRun, generate

TOKENS = (5, 6, 7, 8, 9, 10)  # a full page and half of another
POSITIONS = (0, 1, 2, 3, 7, 8)  # with a gap


def pages(*names: int) -> tuple[PageName, ...]:
    return tuple(PageName(name) for name in names)


def export(name: str = "doc", names: tuple[int, ...] = (1, 2), **fields: object) -> ExportPages:
    kwargs = {"positions": POSITIONS, "tokens": TOKENS, **fields}
    return ExportPages(queue=QUEUE, name=name, pages=pages(*names), **kwargs)  # type: ignore[arg-type]


def import_(name: str = "doc", names: tuple[int, ...] = (11, 12)) -> ImportPages:
    return ImportPages(queue=QUEUE, name=name, pages=pages(*names))


def filled(rig: Rig, name: str, limits: ControlLimits | None = None, tenant: str = "") -> RigRun:
    """A run whose pages 1 and 2 hold TOKENS."""
    run = rig.open(name, limits, tenant=tenant)
    call = run.submit(
        ForwardText(
            queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=TOKENS, positions=POSITIONS, answer=True
        )
    )
    rig.drain()
    assert run.error_type(call) is None
    return run


def listed(run: RigRun, prefix: str = "") -> tuple[ExportInfo, ...]:
    result = run.now(ExportedPages(prefix=prefix)).result
    assert isinstance(result, ExportList)
    return result.exports


def num_free(rig: Rig) -> int:
    return rig.controller._resources.blocks.num_free


def refused(rig: Rig, run: RigRun, call: QueueCall) -> str:
    """The message that a call ends with; its queue is cleared."""
    call_id = run.submit(call)
    rig.drain()
    message = run.error(call_id).message
    assert run.now(ClearQueue(queue=QUEUE)).error is None
    return message


def test_an_importer_gets_kv_positions_and_tokens_and_goes_on_as_if_it_had_run_them() -> None:
    rig = Rig()
    giver, taker = filled(rig, "giver"), rig.open("taker")
    assert giver.now(export()).error is None
    held = num_free(rig)
    result = taker.now(import_()).result
    assert result == Imported(kv_len=6, num_pages=2, positions=POSITIONS, tokens=TOKENS)
    assert num_free(rig) == held, "importing copies nothing"
    taker.now(AllocatePages(queue=QUEUE, pages=pages(13)))
    taker.submit(CopyPage(queue=QUEUE, source=PageName(12), target=PageName(13), size=2))
    segment = taker.submit(generate((20,), pages=(11, 13), kv_len=6, first_position=9, max_tokens=5))
    rig.drain()
    naive = NaiveContext()
    naive.run(TOKENS, POSITIONS)
    expected = naive.generate((20,), (9,), generate((20,)).sampling, 5)
    assert list(taker.segment(segment).tokens) == expected


def test_an_export_waits_for_the_forward_that_fills_its_pages_and_an_import_behind_it_for_the_export() -> None:
    rig = Rig()
    run = rig.open("a")
    run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=TOKENS, positions=POSITIONS))
    given, taken = run.submit(export()), run.submit(import_())
    after = run.submit(
        ForwardText(queue=QUEUE, pages=pages(11), kv_len=0, tokens=(5,), positions=(0,))
    )  # would write over it
    assert (run.final(given), run.final(taken)) == (None, None)
    assert listed(run) == ()
    rig.drain()
    assert run.error_type(given) is None
    assert run.result(taken) == Imported(6, 2, POSITIONS, TOKENS)
    assert listed(run) == (ExportInfo("doc", 6, 2, False),)
    assert run.order().index(given) < run.order().index(taken) < run.order().index(after)


@pytest.mark.parametrize("is_issued_only", [True, False])
def test_nobody_writes_to_an_exported_page_from_the_issue_of_the_export_until_it_is_shared_no_more(
    is_issued_only: bool,
) -> None:
    rig = Rig()
    giver, taker = filled(rig, "giver"), rig.open("taker")
    if is_issued_only:  # behind a call that has not run
        giver.submit(generate((3,), grow_from=50, max_tokens=2))
    giver.submit(export())
    if not is_issued_only:
        taker.now(import_())
    over_1_2 = ForwardText(queue=QueueName(2), pages=pages(1, 2), kv_len=6, tokens=(1,), positions=(9,))
    over_11_12 = ForwardText(queue=QueueName(2), pages=pages(11, 12), kv_len=6, tokens=(1,), positions=(9,))
    copy = CopyPage(queue=QueueName(3), source=PageName(1), target=PageName(2), size=1)
    shift = ShiftKv(queue=QueueName(4), pages=pages(1, 2), size=6, delta=1)
    writes: list[tuple[RigRun, QueueCall]] = [(giver, over_1_2), (giver, copy), (giver, shift)]
    if not is_issued_only:
        writes.append((taker, over_11_12))
    for run in (giver, taker):
        for queue in (2, 3, 4):
            run.now(CreateQueue(queue=QueueName(queue)))
    tried = [(run, run.submit(write)) for run, write in writes]
    rig.drain()
    assert ["an export or another run" in run.error(call).message for run, call in tried] == [True] * len(writes)
    giver.now(UnexportPages(queue=QUEUE, name="doc"))
    for queue in (2, 3, 4):  # whoever reads what the refused calls should have written is poisoned until then
        giver.now(ClearQueue(queue=QueueName(queue)))
    if not is_issued_only:
        assert "another run" in giver.error(giver.submit(over_1_2)).message  # the taker still reads it
        giver.now(ClearQueue(queue=QueueName(2)))
        taker.now(FreePages(queue=QUEUE, pages=pages(11, 12)))
    written = giver.submit(over_1_2)
    rig.drain()
    assert giver.error_type(written) is None


def test_an_export_ends_with_its_run_and_an_importer_keeps_the_pages() -> None:
    rig = Rig()
    giver, taker = filled(rig, "giver"), rig.open("taker")
    giver.now(export())
    taker.now(import_())
    giver.session.close()
    rig.controller.check_integrity()
    assert listed(taker) == ()
    assert "'doc'" in refused(rig, taker, import_(names=(21, 22)))
    naive = NaiveContext()
    naive.run(TOKENS, POSITIONS)
    taker.now(SharePages(queue=QUEUE, sources=pages(11), targets=pages(31)))
    segment = taker.submit(generate((20,), pages=(31,), kv_len=4, first_position=9, grow_from=60, max_tokens=3))
    rig.drain()
    del naive.values[4:]
    assert list(taker.segment(segment).tokens) == naive.generate((20,), (9,), generate((20,)).sampling, 3)
    taker.session.close()
    rig.assert_all_free()


def test_a_persistent_export_stays_until_it_is_unexported_by_any_run_of_the_identity() -> None:
    rig = Rig()
    giver = filled(rig, "giver")
    giver.now(export(persistent=True))
    giver.session.close()
    assert num_free(rig) == 62
    later = rig.open("later")
    assert listed(later) == (ExportInfo("doc", 6, 2, True),)
    assert later.now(import_()).error is None
    assert later.now(UnexportPages(queue=QUEUE, name="doc")).error is None
    assert listed(later) == ()
    later.session.close()
    rig.assert_all_free()


def test_exports_are_listed_by_name_and_by_prefix() -> None:
    rig = Rig()
    run = filled(rig, "a")
    for name in ("b/2", "a", "b/1"):
        run.now(export(name))
    assert [one.name for one in listed(run)] == ["a", "b/1", "b/2"]
    assert [one.name for one in listed(run, "b/")] == ["b/1", "b/2"]
    run.session.close()
    rig.assert_all_free()


def test_a_name_belongs_to_the_identity_that_the_server_knows() -> None:
    rig = Rig()
    giver, stranger = filled(rig, "giver"), filled(rig, "stranger", tenant="other")
    giver.now(export())
    assert "nothing is exported as 'doc'" in refused(rig, stranger, import_())
    assert "nothing is exported as 'doc'" in refused(rig, stranger, UnexportPages(queue=QUEUE, name="doc"))
    assert listed(stranger) == ()
    assert stranger.now(export()).error is None  # the same name is another one
    assert len(listed(giver)) == 1


@pytest.mark.parametrize(
    ("call", "field", "words"),
    [
        (export(names=(1,)), "pages", ["1 for 6 positions", "need 2"]),
        (export(names=(1, 9)), "pages", ["page 9 is not bound", "2 names"]),
        (export(tokens=(5,)), "positions", ["6", "1 tokens"]),
        (export(tokens=(64,) * 6), "tokens", ["64"]),
        (export(positions=(*POSITIONS, 9), tokens=()), "positions", ["first 2 tokens", "3 are counted"]),
        (export("taken"), "name", ["'taken' is exported already"]),
        (import_("nothing"), "name", ["nothing is exported as 'nothing'"]),
        (import_("taken", names=(11,)), "pages", ["1 names", "2 pages"]),
        (import_("taken", names=(1, 11)), "pages", ["page 1 is already bound"]),
        (UnexportPages(queue=QUEUE, name="nothing"), "name", ["'nothing'"]),
    ],
)
def test_what_cannot_be_lent_or_borrowed_is_refused_and_changes_nothing(
    call: QueueCall, field: str, words: list[str]
) -> None:
    rig = Rig()
    run = filled(rig, "a")
    run.now(export("taken"))
    error = run.now(call).error
    assert error is not None
    assert error.field == field
    assert all(word in error.message for word in words), error.message
    rig.controller.check_integrity()
    run.now(ClearQueue(queue=QUEUE))
    again = run.now(import_("taken", names=(41, 42)))  # the names that the failed import bound are not
    assert again.error is None
    assert [one.name for one in listed(run)] == ["taken"]
    run.session.close()
    rig.assert_all_free()


def test_exports_and_imports_are_bounded_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(num_blocks=8)
    run = filled(rig, "a")
    small = rig.open("small", ControlLimits(max_pages=1))
    for name in "xy":
        run.now(export(name))
    message = refused(rig, run, export("z"))
    assert "4 are exported and 2 more" in message
    assert "limit is 4 of the pool's 8" in message
    assert "asks for 2 more; the limit of the run is 1" in refused(rig, small, import_("x"))
    monkeypatch.setattr(exports, "MAX_EXPORTS", 2)
    assert "2 exports are there; the limit is 2" in refused(rig, run, export("z"))
    run.session.close()
    small.session.close()
    rig.assert_all_free()


def test_a_failed_import_poisons_who_reads_its_pages_and_frees_its_names() -> None:
    rig = Rig()
    run = filled(rig, "a")
    first = run.submit(generate((3,), grow_from=50, max_tokens=2))  # so that the others wait
    taken = run.submit(import_("nothing"))
    reader = run.submit(generate((3,), pages=(11, 12), kv_len=8, grow_from=60))
    rig.drain()
    assert run.error_type(first) is None
    assert run.error_type(taken) == "NotFound"
    assert run.error_type(reader) == "Poisoned"
    run.now(ClearQueue(queue=QUEUE))
    assert run.now(AllocatePages(queue=QUEUE, pages=pages(11, 12))).error is None


def test_a_run_that_closes_with_an_export_and_an_import_under_way_leaves_nothing() -> None:
    rig = Rig()
    run = rig.open("a")
    run.submit(ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=TOKENS, positions=POSITIONS))
    run.submit(export())
    run.submit(import_())
    run.submit(Synchronize(queue=QUEUE))
    batch = rig.controller.schedule()
    assert batch is not None
    run.session.close()
    rig.controller.complete(rig.executor.run(batch))
    rig.assert_all_free()
    assert rig.controller._resources.exports.infos(TenantId(""), "") == ()
    assert RunId("a") not in rig.controller._sessions


class Lenders(RuleBasedStateMachine):
    """Random runs that lend, borrow, share, free and end, beside plain sets of blocks.

    With the prefix cache, what is filled alike has one block more often; who may write where does not change."""

    has_cache = False

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(num_blocks=16, config=ControlConfig(prefix_cache=self.has_cache))
        self.runs: dict[str, RigRun] = {}
        self.bound: dict[str, dict[int, object]] = {}  # run → page name → block
        self.lent: dict[str, tuple[list[object], str | None]] = {}  # export → blocks, and the run it ends with
        self.num_names = 0

    @precondition(lambda self: len(self.runs) < 3)
    @rule()
    def open(self) -> None:
        name = f"run {self.num_names}"
        self.num_names += 1
        self.runs[name], self.bound[name] = self.rig.open(name), {}

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), num_pages=st.integers(1, 3))
    def fill(self, data: st.DataObject, num_pages: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        if num_pages > num_free(self.rig):
            return
        names = self.take(num_pages)
        numbers = tuple(range(num_pages * 4))
        call = ForwardText(
            queue=QUEUE, pages=(), grow_from=PageName(names[0]), kv_len=0, tokens=numbers, positions=numbers
        )
        self.done(name, call)
        self.bound[name] |= {page: object() for page in names}

    @precondition(lambda self: any(self.bound.values()))
    @rule(data=st.data(), title=st.sampled_from("xyz"), persistent=st.booleans())
    def lend(self, data: st.DataObject, title: str, persistent: bool) -> None:
        name = data.draw(st.sampled_from(sorted(one for one, pages in self.bound.items() if pages)))
        names = data.draw(st.lists(st.sampled_from(sorted(self.bound[name])), min_size=1, max_size=3, unique=True))
        call = export(title, tuple(names), positions=tuple(range(4 * len(names))), tokens=(), persistent=persistent)
        num_lent = sum(len(blocks) for blocks, _ in self.lent.values())
        if self.done(name, call, is_right=title not in self.lent and num_lent + len(names) <= 8):
            self.lent[title] = ([self.bound[name][page] for page in names], None if persistent else name)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), title=st.sampled_from("xyz"), is_import=st.booleans())
    def borrow_or_end(self, data: st.DataObject, title: str, is_import: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        if not is_import:
            if self.done(name, UnexportPages(queue=QUEUE, name=title), is_right=title in self.lent):
                del self.lent[title]
            return
        names = self.take(len(self.lent[title][0]) if title in self.lent else 1)
        if self.done(name, import_(title, tuple(names)), is_right=title in self.lent):
            self.bound[name] |= dict(zip(names, self.lent[title][0], strict=True))

    @precondition(lambda self: any(self.bound.values()))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(one for one, pages in self.bound.items() if pages)))
        page = data.draw(st.sampled_from(sorted(self.bound[name])))
        self.done(name, FreePages(queue=QUEUE, pages=pages(page)))
        del self.bound[name][page]

    @precondition(lambda self: any(self.bound.values()))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Who holds a block alone may write to it, and nobody else."""
        name = data.draw(st.sampled_from(sorted(one for one, pages in self.bound.items() if pages)))
        page = data.draw(st.sampled_from(sorted(self.bound[name])))
        block = self.bound[name][page]
        holders = [one for table in self.bound.values() for one in table.values() if one is block]
        lenders = [one for blocks, _ in self.lent.values() for one in blocks if one is block]
        call = ForwardText(queue=QUEUE, pages=pages(page), kv_len=3, tokens=(9,), positions=(3,))
        self.done(name, call, is_right=len(holders) + len(lenders) == 1)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        self.runs.pop(name).session.close()
        del self.bound[name]
        self.lent = {title: one for title, one in self.lent.items() if one[1] != name}

    @invariant()
    def blocks_are_held_as_the_plain_sets_say(self) -> None:
        self.rig.controller.check_integrity()
        held = {block for table in self.bound.values() for block in table.values()}
        held |= {block for blocks, _ in self.lent.values() for block in blocks}
        if self.has_cache:
            assert num_free(self.rig) >= 16 - len(held)
        else:
            assert num_free(self.rig) == 16 - len(held)

    def teardown(self) -> None:
        for run in self.runs.values():
            run.session.close()
        exported = self.rig.controller._resources.exports
        for info in exported.infos(TenantId(""), ""):
            exported.remove(TenantId(""), info.name)
        self.rig.assert_all_free()

    def take(self, num: int) -> list[int]:
        self.num_names += num
        return list(range(self.num_names - num, self.num_names))

    def done(self, name: str, call: QueueCall, is_right: bool = True) -> bool:
        """Runs a call to its end, which is as it should be."""
        run = self.runs[name]
        call_id = run.submit(call)
        self.rig.drain()
        assert (run.error_type(call_id) is None) == is_right, run.final(call_id)
        run.now(ClearQueue(queue=QUEUE))
        return is_right


class LendersWithCache(Lenders):
    has_cache = True


TestLenders = Lenders.TestCase
TestLendersWithCache = LendersWithCache.TestCase
TestLenders.settings = TestLendersWithCache.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
