"""Random calls of three queues on few pages and embeds, some of them wrong, interleaved with steps at random: each
answer and each failure is that of running the calls one after the other, in the order of their issue.

Names change at issue, whatever is still to run; positions are any; a batch whose entries touch each other fails in the
fake engine; a page is free again with its last name and its last call.
"""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocateEmbeds,
    AllocatePages,
    ClearQueue,
    CopyPage,
    EmbedText,
    Forward,
    ForwardText,
    FreeEmbeds,
    FreePages,
    QueueCall,
    Sample,
    Sampling,
    SetPriority,
    SharePages,
    ShiftKv,
    Synchronize,
)
from loopwright.core.ids import CallId, EmbedName, PageName, QueueName
from loopwright.core.results import Forwarded

from .rig import Rig
from .serial_machine import BLOCK_SIZE, Cell, Expected, SerialMachine

QUEUES = (1, 2, 3)
NAMES_QUEUE = QueueName(9)
"""Names change on a queue of their own, which is cleared after each refusal: on a poisoned queue they would not."""

queues = st.sampled_from([QueueName(name) for name in QUEUES])
pages = st.integers(1, 5).map(PageName)
inputs = st.integers(1, 3).map(EmbedName)
outputs = st.integers(11, 13).map(EmbedName)
positions = st.integers(0, 99)
tokens = st.integers(0, 127).map(lambda number: 64 if number == 127 else number % 64)  # 64 is not in the vocabulary
samplings = st.builds(Sampling, temperature=st.just(1.0), seed=st.integers(0, 2))


@st.composite
def page_lists(draw: st.DrawFn, num_new: int) -> tuple[tuple[PageName, ...], int]:
    """A page list and a KV length such that `num_new` tokens just fit."""
    kv_len = draw(st.integers(0, 6))
    num_pages = -(-(kv_len + num_new) // BLOCK_SIZE)
    return tuple(draw(st.lists(pages, min_size=num_pages, max_size=num_pages, unique=True))), kv_len


@st.composite
def forwards(draw: st.DrawFn) -> QueueCall:
    if draw(st.booleans()):
        num_new = draw(st.integers(1, 6))
        names, kv_len = draw(page_lists(num_new))
        return ForwardText(
            queue=draw(queues), pages=names, kv_len=kv_len, sampling=draw(samplings),
            tokens=tuple(draw(st.lists(tokens, min_size=num_new, max_size=num_new))),
            positions=tuple(draw(st.lists(positions, min_size=num_new, max_size=num_new))),
        )  # fmt: skip
    read = tuple(draw(st.lists(inputs, min_size=1, max_size=2)))
    written = tuple(draw(st.lists(outputs, max_size=len(read), unique=True)))
    names, kv_len = draw(page_lists(len(read)))
    return Forward(queue=draw(queues), pages=names, kv_len=kv_len, inputs=read, outputs=written)


@st.composite
def moves(draw: st.DrawFn) -> QueueCall:
    if draw(st.booleans()):
        size = draw(st.integers(1, BLOCK_SIZE))
        offsets = st.integers(0, BLOCK_SIZE - size)
        return CopyPage(
            queue=draw(queues), source=draw(pages), target=draw(pages), size=size, source_offset=draw(offsets),
            target_offset=draw(offsets),
        )  # fmt: skip
    size = draw(st.integers(1, 4))
    names, start = draw(page_lists(size))
    return ShiftKv(queue=draw(queues), pages=names, start=start, size=size, delta=draw(st.integers(-3, 3)))


@st.composite
def embeddings(draw: st.DrawFn) -> QueueCall:
    names = tuple(draw(st.lists(inputs, min_size=1, max_size=2, unique=True)))
    numbers = st.lists(positions, min_size=len(names), max_size=len(names))
    written = draw(st.lists(tokens, min_size=len(names), max_size=len(names)))
    return EmbedText(queue=draw(queues), tokens=tuple(written), positions=tuple(draw(numbers)), embeds=names)


@dataclass(frozen=True)
class Steps:
    num: int


@dataclass(frozen=True)
class ClearAll:
    """Once everything has completed: what fails while it runs is observed before its queue is cleared."""


@dataclass(frozen=True)
class Rename:
    """Binds or frees a page or an embed, or binds a second name."""

    verb: str
    name: int
    other: int


queued = st.one_of(
    forwards(), forwards(), moves(), embeddings(),
    st.builds(Sample, queue=queues, embed=outputs, sampling=samplings, position=positions),
    st.builds(Synchronize, queue=queues),
)  # fmt: skip
others = st.one_of(
    st.builds(Rename, st.sampled_from(["take", "free", "share"]), pages, pages),
    st.builds(Steps, st.integers(1, 3)),
    st.just(ClearAll()),
    st.builds(SetPriority, queue=queues, priority=st.integers(-1, 1)),
)
scripts = st.lists(st.one_of(queued, queued, others), min_size=10, max_size=60)


class Pair:
    """One run of control and the serial machine beside it."""

    def __init__(self) -> None:
        self.rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=3))
        self.run = self.rig.open("a", queues=(*QUEUES, NAMES_QUEUE))
        self.serial = SerialMachine()
        self.expected: dict[CallId, Expected] = {}
        self.order: dict[QueueName, list[CallId]] = {QueueName(name): [] for name in QUEUES}
        for name in (*range(1, 4), *range(11, 14)):
            self.run.now(AllocateEmbeds(queue=NAMES_QUEUE, embeds=(EmbedName(name),)))
            self.serial.embeds[name] = Cell([None])
        self.fill()

    def fill(self) -> None:
        """Four pages and all embeds hold something."""
        names, numbers = tuple(PageName(name) for name in range(1, 5)), tuple(range(16))
        for name in names:
            self.rename(Rename("take", name, name))
        read, written = tuple(EmbedName(name) for name in (1, 2, 3)), tuple(EmbedName(name) for name in (11, 12, 13))
        queue = QueueName(QUEUES[0])
        self.act(EmbedText(queue=queue, tokens=(5, 6, 7), positions=(0, 1, 9), embeds=read))
        self.act(Forward(queue=queue, pages=names, kv_len=0, inputs=read, outputs=written))
        sampling = Sampling(temperature=1.0)
        self.act(ForwardText(queue=queue, pages=names, kv_len=0, tokens=numbers, positions=numbers, sampling=sampling))
        self.drain()

    def act(self, one: object) -> None:
        match one:
            case Steps():
                for _ in range(one.num):
                    self.rig.step()
            case ClearAll():
                self.drain()
                for queue in QUEUES:
                    self.run.now(ClearQueue(queue=QueueName(queue)))
                self.serial.clear()
            case Rename():
                self.rename(one)
            case SetPriority():
                self.run.now(one)
            case _:
                call: QueueCall = one  # type: ignore[assignment]
                call_id = self.run.submit(call)
                self.expected[call_id] = self.serial.issue(call)
                self.order[call.queue].append(call_id)  # type: ignore[union-attr,index]

    def rename(self, one: Rename) -> None:
        """Control's word on whether names may change so is the naive table's."""
        table, name, other = self.serial.pages, PageName(one.name), PageName(one.other)
        match one.verb:
            case "take":
                is_right = name not in table
                completion = self.run.now(AllocatePages(queue=NAMES_QUEUE, pages=(name,)))
                if is_right:
                    table[name] = Cell([None] * BLOCK_SIZE)
            case "free":
                is_right = name in table
                completion = self.run.now(FreePages(queue=NAMES_QUEUE, pages=(name,)))
                table.pop(name, None)
            case _:
                is_right = name in table and other not in table
                completion = self.run.now(SharePages(queue=NAMES_QUEUE, sources=(name,), targets=(other,)))
                if is_right:
                    table[other] = table[name]
        assert (completion.error is None) == is_right
        self.run.now(ClearQueue(queue=NAMES_QUEUE))

    def drain(self) -> None:
        self.rig.drain()
        for call_id, expected in self.expected.items():
            completion = self.run.final(call_id)
            assert completion is not None, f"call {call_id} never completed"
            if expected.errors:
                assert completion.error is not None, f"call {call_id} should have failed: {expected.errors}"
                assert completion.error.type in expected.errors, completion.error
                continue
            assert completion.error is None, completion.error
            if isinstance(completion.result, Forwarded):
                assert (completion.result.kv_len, completion.result.token) == expected.answer
        self.expected.clear()
        held = len({id(cell) for cell in self.serial.pages.values()})
        assert self.rig.controller._resources.blocks.num_free == 64 - held, "a block outlived its names and its calls"
        for order in self.order.values():
            assert [call_id for call_id in self.run.order() if call_id in order] == order

    def close(self) -> None:
        for name in tuple(self.serial.pages):
            self.rename(Rename("free", name, name))
        self.run.now(FreeEmbeds(queue=NAMES_QUEUE, embeds=tuple(EmbedName(name) for name in self.serial.embeds)))
        self.drain()
        self.rig.assert_all_free()


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(scripts)
def test_calls_mean_what_they_mean_one_after_the_other(script: list[object]) -> None:
    pair = Pair()
    for one in script:
        pair.act(one)
    pair.drain()
    pair.close()


def test_who_a_failure_reaches_does_not_depend_on_when_it_came() -> None:
    """A shift of what nobody wrote is found out when its turn comes: before or after others were issued."""
    for is_known in (False, True):
        rig = Rig()
        run = rig.open("a", queues=(1, 2))
        run.now(AllocatePages(queue=QueueName(1), pages=(PageName(1),)))
        run.submit(ShiftKv(queue=QueueName(1), pages=(PageName(1),), size=1, delta=1))
        if is_known:
            rig.drain()
        over = run.submit(text(2, kv_len=0))
        reader = run.submit(text(2, kv_len=1))
        rig.drain()
        assert [run.error_type(one) for one in (over, reader)] == [None, "Poisoned"]


def test_an_embed_that_was_written_anew_is_read_whenever_its_earlier_writer_fails() -> None:
    for is_known in (False, True):
        rig = Rig()
        run = rig.open("a", queues=(1, 2, 3))
        run.now(AllocateEmbeds(queue=QueueName(1), embeds=(EmbedName(1), EmbedName(2), EmbedName(11))))
        run.now(AllocatePages(queue=QueueName(1), pages=(PageName(1), PageName(2))))
        run.submit(EmbedText(queue=QueueName(2), tokens=(5,), positions=(0,), embeds=(EmbedName(1),)))
        run.submit(forward(1, page=1, read=2))  # which nobody wrote
        if is_known:
            rig.drain()
        run.submit(forward(2, page=2, read=1))
        if not is_known:
            rig.drain()
        sample = run.submit(Sample(queue=QueueName(3), embed=EmbedName(11), sampling=Sampling(), position=1))
        rig.drain()
        assert run.error_type(sample) is None


def test_a_clear_forgets_what_failed_before_it_and_not_what_fails_behind_it() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QueueName(1), pages=(PageName(1),)))
    written = run.submit(text(1, kv_len=0))
    cleared = run.submit(ClearQueue(queue=QueueName(1)))
    run.submit(text(1, kv_len=1, token=64))  # refused at once, while the clear waits for its turn
    rig.drain()
    reader = run.submit(text(2, kv_len=1))
    rig.drain()
    assert [run.error_type(one) for one in (written, cleared, reader)] == [None, None, "Poisoned"]


def text(queue: int, *, kv_len: int, token: int = 7) -> ForwardText:
    return ForwardText(
        queue=QueueName(queue), pages=(PageName(1),), kv_len=kv_len, tokens=(token,), positions=(kv_len,)
    )


def forward(queue: int, *, page: int, read: int) -> Forward:
    return Forward(
        queue=QueueName(queue), pages=(PageName(page),), kv_len=0, inputs=(EmbedName(read),), outputs=(EmbedName(11),)
    )
