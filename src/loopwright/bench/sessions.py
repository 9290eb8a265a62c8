"""Programs without a sandbox: coroutines that call control as a program's calls do. Never measures. Used by suites."""

from collections.abc import Awaitable, Callable

import msgspec

from loopwright.core.calls import CreateQueue, ForwardText, Generate, QueueCall, Sampling
from loopwright.core.clock import Clock
from loopwright.core.control import Control, ControlLimits, Session
from loopwright.core.errors import InternalError, from_info
from loopwright.core.ids import CallId, PageName, QueueName, RunId
from loopwright.core.results import CallResult, Forwarded, Progress, Segment
from loopwright.core.samplers import SamplerNode, TracedSampler, TracedState
from loopwright.core.watch_calls import Acknowledge, Watch

QUEUE = QueueName(0)
FIRST_TOKEN = 1  # of a prompt, where it does not matter


class Caller:
    """One run, which waits for one call at a time. Closes its session at the end of the `with`."""

    def __init__(self, control: Control, name: str) -> None:
        self._session: Session = control.open(RunId(name), ControlLimits())
        self._num_calls = 0

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def call(self, call: QueueCall) -> CallResult:
        """What the call completes with. Raises what it fails with."""
        self._num_calls += 1
        called = CallId(self._num_calls)
        self._session.submit(called, call)
        while True:
            for completion in await self._session.receive():
                if completion.call_id != called:
                    continue
                if completion.error is not None:
                    raise from_info(completion.error)
                if completion.is_final and completion.result is not None:
                    return completion.result

    async def watch(self, call: Generate) -> CallResult:
        """As `call`, for a watched segment: each token is accepted when it is there."""
        self._num_calls += 1
        watched = CallId(self._num_calls)
        self._session.submit(watched, call)
        while True:
            num_seen = 0
            for completion in await self._session.receive():
                if completion.error is not None:
                    raise from_info(completion.error)
                if isinstance(completion.result, Progress):
                    num_seen = completion.result.first + len(completion.result.tokens)
                elif completion.call_id == watched and completion.result is not None:
                    return completion.result
            if num_seen:
                self.begin(Acknowledge(handle=watched, num_tokens=num_seen))

    async def timed(self, call: Generate, clock: Clock) -> tuple[Segment, list[float]]:
        """As `call`, for a segment with progress: also when each of its tokens came."""
        self._num_calls += 1
        timed, times_s = CallId(self._num_calls), list[float]()
        self._session.submit(timed, call)
        while True:
            for completion in await self._session.receive():
                if completion.error is not None:
                    raise from_info(completion.error)
                if isinstance(completion.result, Progress):
                    times_s += [clock.now_s()] * len(completion.result.tokens)
                elif completion.call_id == timed and isinstance(completion.result, Segment):
                    return completion.result, times_s

    def begin(self, call: QueueCall) -> None:
        """Has the call in flight, and waits for no answer."""
        self._num_calls += 1
        self._session.submit(CallId(self._num_calls), call)

    def close(self) -> None:
        self._session.close()


async def nothing() -> None:
    """What a program does between two calls, if it does nothing."""


async def by_segment(caller: Caller, num_tokens: int, *, prompt_len: int = 1, first_token: int = FIRST_TOKEN) -> None:
    """A program that leaves its loop to control: one segment of `num_tokens` tokens."""
    await caller.call(CreateQueue(queue=QUEUE))
    result = await caller.call(segment_call(num_tokens, prompt_len=prompt_len, first_token=first_token))
    _check_segment(result, num_tokens)


async def by_streaming(caller: Caller, num_tokens: int, *, prompt_len: int = 1) -> None:
    """As `by_segment`, with each token told as it comes."""
    await caller.call(CreateQueue(queue=QUEUE))
    call = msgspec.structs.replace(segment_call(num_tokens, prompt_len=prompt_len), progress=True)
    _check_segment(await caller.call(call), num_tokens)


async def by_sampler(caller: Caller, num_tokens: int, *, prompt_len: int = 1) -> None:
    """As `by_segment`, with a traced sampler that carries a state."""
    await caller.call(CreateQueue(queue=QUEUE))
    call = msgspec.structs.replace(
        segment_call(num_tokens, prompt_len=prompt_len), sampler=_SAMPLER, sampler_state={"count": 0.0}
    )
    _check_segment(await caller.call(call), num_tokens)


async def by_watching(caller: Caller, num_tokens: int, *, prompt_len: int = 1) -> None:
    """A program that looks at every token while its segment runs ahead."""
    await caller.call(CreateQueue(queue=QUEUE))
    call = msgspec.structs.replace(segment_call(num_tokens, prompt_len=prompt_len), watch=Watch())
    _check_segment(await caller.watch(call), num_tokens)


async def by_token(
    caller: Caller,
    num_tokens: int,
    *,
    prompt_len: int = 1,
    first_token: int = FIRST_TOKEN,
    turn: Callable[[], Awaitable[None]] = nothing,
) -> None:
    """A program that looks at every token: a call for each, and `turn` before it."""
    await caller.call(CreateQueue(queue=QUEUE))
    tokens, kv_len, pages = (first_token,) * prompt_len, 0, tuple[PageName, ...]()
    for _ in range(num_tokens):
        await turn()
        result = await caller.call(_token_call(tokens, kv_len, pages))
        if not isinstance(result, Forwarded) or result.token is None:
            raise InternalError(f"a forward that samples answered {result}")
        tokens, kv_len = (result.token,), result.kv_len
        pages += tuple(PageName(page) for page in range(len(pages), result.num_pages))


def segment_call(num_tokens: int, *, prompt_len: int = 1, first_token: int = FIRST_TOKEN) -> Generate:
    """A greedy segment without stop, in a context of its own."""
    return Generate(
        queue=QUEUE,
        pages=(),
        grow_from=PageName(0),
        kv_len=0,
        tokens=(first_token,) * prompt_len,
        positions=tuple(range(prompt_len)),
        sampling=Sampling(),
        max_tokens=num_tokens,
    )


def _check_segment(result: CallResult, num_tokens: int) -> None:
    if not isinstance(result, Segment) or len(result.tokens) != num_tokens:
        raise InternalError(f"a segment of {num_tokens} tokens ended as {result}")


_SAMPLER = TracedSampler(  # token = argmax(scores); count = count + 1
    nodes=(
        SamplerNode("scores"),
        SamplerNode("argmax", (0,)),
        SamplerNode("state", name="count"),
        SamplerNode("constant", value=1.0),
        SamplerNode("add", (2, 3)),
    ),
    result=1,
    states=(TracedState("count", False, 4),),
)


def _token_call(tokens: tuple[int, ...], kv_len: int, pages: tuple[PageName, ...]) -> ForwardText:
    return ForwardText(
        queue=QUEUE,
        pages=pages,
        grow_from=PageName(len(pages)),
        kv_len=kv_len,
        tokens=tokens,
        positions=tuple(range(kv_len, kv_len + len(tokens))),
        sampling=Sampling(),
    )
