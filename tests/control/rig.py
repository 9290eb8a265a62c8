"""A controller over the fake executor that a test drives step by step, and runs that remember what completed."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.control.session import InlineSession
from loopwright.core.calls import CreateQueue, ForwardText, Generate, QueueCall, Sampling
from loopwright.core.clock import FakeClock
from loopwright.core.control import ControlLimits
from loopwright.core.errors import ErrorInfo
from loopwright.core.grammars import GrammarCompiler
from loopwright.core.ids import CallId, PageName, QueueName, RunId, TenantId
from loopwright.core.instrument import Meter
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import CallResult, Completion, Forwarded, Progress, Segment
from loopwright.core.traits import Trait

from .fake_executor import VOCAB_SIZE, FakeExecutor

if TYPE_CHECKING:
    from loopwright.core.batch import Batch

TOKEN_BYTES = tuple(b"" if token < 2 else bytes([32 + token]) for token in range(VOCAB_SIZE))
QUEUE = QueueName(1)


SERVED_TRAITS: tuple[Trait, ...] = ("allocate", "forward", "input_text", "output_text", "tokenize")


def model_info(executor: FakeExecutor, traits: tuple[Trait, ...] = SERVED_TRAITS) -> ModelInfo:
    shape = executor.shape
    return ModelInfo(
        name="fake", architecture="none", traits=traits, vocab_size=shape.vocab_size, max_context=shape.max_context,
        page_size=shape.block_size, num_pages=shape.num_blocks, eos_ids=(), bos_id=None, has_chat_template=False,
        quantization="none", weights_sha256="",
    )  # fmt: skip


class Rig:
    """One controller, its engine and its clock."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_slots: int = 64,
        max_context: int = 1000,
        token_bytes: Sequence[bytes] = TOKEN_BYTES,
        config: ControlConfig | None = None,
        grammars: GrammarCompiler | None = None,
        traits: tuple[Trait, ...] = SERVED_TRAITS,
        meter: Meter | None = None,
        is_ahead: bool = False,
    ) -> None:
        """With `is_ahead` each step is formed before the one in front of it has run, as far as control can."""
        config = config or ControlConfig()
        if is_ahead:
            config = msgspec.structs.replace(config, steps_ahead="on")
        self.running: deque[Batch] = deque()  # formed by `begin`, in order
        self._max_running = 1 + is_ahead
        self.executor = FakeExecutor(num_blocks=num_blocks, num_slots=num_slots, max_context=max_context)
        self.clock = FakeClock()
        info = model_info(self.executor, traits)
        self.controller = Controller(self.executor, token_bytes, info, self.clock, config, grammars, meter)

    def open(
        self, name: str, limits: ControlLimits | None = None, queues: Sequence[int] = (QUEUE,), tenant: str = ""
    ) -> "RigRun":
        run = RigRun(self.controller.open(RunId(name), limits or ControlLimits(), TenantId(tenant), program=name))
        for queue in queues:
            assert run.now(CreateQueue(queue=QueueName(queue))).error is None
        return run

    def hold(self, name: str, pages: Sequence[int]) -> "RigRun":
        """A run with nothing to do that holds these pages and can give up none, for a mask made them opaque."""
        run = self.open(name)
        size = self.executor.shape.block_size
        tokens = range(len(pages) * size)
        names = tuple(map(PageName, pages))
        mask = tuple((0, place + 1) for place in tokens)
        call = run.submit(
            ForwardText(queue=QUEUE, pages=(), grow_from=names[0], kv_len=0, positions=tuple(tokens), mask=mask,
                        tokens=tuple(token % 64 for token in tokens))
        )  # fmt: skip
        assert names == tuple(range(names[0], names[0] + len(names)))
        self.drain()
        assert run.error_type(call) is None
        self.executor.batches.clear()
        return run

    def begin(self) -> bool:
        """Has steps run, as many as may at once. Whether one does."""
        while len(self.running) < self._max_running and (batch := self.controller.schedule()) is not None:
            self.running.append(batch)
        return bool(self.running)

    def step(self) -> bool:
        """Begins, and ends one step, if one runs."""
        is_running = self.begin()
        if is_running:
            self.end()
        return is_running

    def end(self) -> None:
        """The step that has run the longest is over."""
        batch = self.running.popleft()
        try:
            result = self.executor.run(batch)
        except RuntimeError as error:
            self.controller.fail_step(error)
        else:
            self.controller.complete(result)
        self.controller.check_integrity()

    def drain(self) -> int:
        """Steps until nothing can run; how many there were."""
        num_steps = 0
        while self.step():
            num_steps += 1
            assert num_steps < 10_000
        return num_steps

    def assert_all_free(self) -> None:
        """That no run holds anything."""
        self.controller.check_integrity()
        resources = self.controller._resources
        assert resources.blocks.num_free == resources.blocks.num_total
        assert resources.slots.num_free == resources.slots.num_total


class RigRun:
    """One run: gives its calls ids and keeps their completions."""

    def __init__(self, session: InlineSession) -> None:
        self.session = session
        self.finals: dict[int, Completion] = {}  # by call, in order of completion
        self.parts: dict[int, list[Progress]] = {}
        self._num_calls = 0

    def submit(self, call: QueueCall) -> CallId:
        self._num_calls += 1
        call_id = CallId(self._num_calls)
        self.session.submit(call_id, call)
        return call_id

    def now(self, call: QueueCall) -> Completion:
        """The completion of a call that completes when it is issued."""
        completion = self.final(self.submit(call))
        assert completion is not None, f"{call} is still open"
        return completion

    def final(self, call_id: CallId) -> Completion | None:
        self._take()
        return self.finals.get(call_id)

    def order(self) -> list[int]:
        """Calls in the order of their completion."""
        self._take()
        return list(self.finals)

    def result(self, call_id: CallId) -> CallResult:
        completion = self.final(call_id)
        assert completion is not None, f"call {call_id} is still open"
        assert completion.error is None, completion.error
        assert completion.result is not None
        return completion.result

    def segment(self, call_id: CallId) -> Segment:
        result = self.result(call_id)
        assert isinstance(result, Segment)
        return result

    def forwarded(self, call_id: CallId) -> Forwarded:
        result = self.result(call_id)
        assert isinstance(result, Forwarded)
        return result

    def error(self, call_id: CallId) -> ErrorInfo:
        completion = self.final(call_id)
        assert completion is not None, f"call {call_id} is still open"
        assert completion.error is not None, completion.result
        return completion.error

    def error_type(self, call_id: CallId) -> str | None:
        """The type of the error that ended the call, if it ended with one."""
        completion = self.final(call_id)
        return None if completion is None or completion.error is None else completion.error.type

    def _take(self) -> None:
        for completion in self.session.inbox.take():
            if isinstance(completion.result, Progress):
                self.parts.setdefault(completion.call_id, []).append(completion.result)
            else:
                assert completion.call_id not in self.finals, "a call completed twice"
                self.finals[completion.call_id] = completion


def generate(
    tokens: Sequence[int],
    *,
    queue: int = QUEUE,
    pages: Sequence[int] = (),
    grow_from: int = 100,
    kv_len: int = 0,
    first_position: int | None = None,
    sampling: Sampling = Sampling(temperature=1.0),  # noqa: B008 (frozen)
    max_tokens: int = 8,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    progress: bool = False,
) -> Generate:
    """A Generate whose positions follow kv_len."""
    first = kv_len if first_position is None else first_position
    return Generate(
        queue=QueueName(queue),
        pages=tuple(PageName(page) for page in pages),
        grow_from=PageName(grow_from),
        kv_len=kv_len,
        tokens=tuple(tokens),
        positions=tuple(range(first, first + len(tokens))),
        sampling=sampling,
        max_tokens=max_tokens,
        stop=tuple(stop),
        stop_tokens=tuple(stop_tokens),
        progress=progress,
    )
