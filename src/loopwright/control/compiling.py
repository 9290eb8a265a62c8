"""Owns the calls that wait until their grammar is compiled. Never compiles, orders or ends one.

Called by the controller. A call waits for its grammar as it waits for other calls, with a blocker; nobody else waits.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall
from loopwright.core.calls import ForwardText, Generate, QueueCall
from loopwright.core.errors import InternalError, LoopwrightError, ModelLacksTrait, Unavailable
from loopwright.core.grammars import CompiledGrammar, Grammar, GrammarCompiler

if TYPE_CHECKING:
    from concurrent.futures import Future


class CompilingCalls:
    """Calls by the future of their grammar. `wake` is called on any thread, when one of them is done."""

    def __init__(self, compiler: GrammarCompiler | None, wake: Callable[[], None]) -> None:
        self._compiler = compiler
        self._wake = wake
        self._futures: dict[OpenCall, Future[CompiledGrammar]] = {}
        self._done: deque[OpenCall] = deque()  # appended to by other threads

    @property
    def num_waiting(self) -> int:
        return len(self._futures)

    def check(self, call: QueueCall) -> None:
        """Raises ModelLacksTrait for a grammar that nobody here could compile."""
        if _grammar_of(call) is not None and self._compiler is None:
            raise ModelLacksTrait("grammar: this model is served without grammars", field="grammar")

    def add(self, call: OpenCall) -> None:
        """The call waits from now on, if it has a grammar."""
        if (grammar := _grammar_of(call.call)) is None:
            return
        assert self._compiler is not None
        call.num_blockers += 1
        future = self._futures[call] = self._compiler.compile(grammar)
        future.add_done_callback(lambda _: self._note(call))

    def take(self) -> Iterator[tuple[OpenCall, LoopwrightError | None]]:
        """The calls whose wait is over, with what is wrong with their grammar."""
        while self._done:
            call = self._done.popleft()
            future = self._futures.pop(call, None)
            if future is not None:
                call.num_blockers -= 1
                yield call, _begin(call, future)

    def drop(self, call: OpenCall) -> None:
        """The call does not wait any more, if it did."""
        if self._futures.pop(call, None) is not None:
            call.num_blockers -= 1

    def _note(self, call: OpenCall) -> None:
        self._done.append(call)
        self._wake()


def _grammar_of(call: QueueCall) -> Grammar | None:
    match call:
        case Generate():
            return call.grammar
        case ForwardText():
            return None if call.held is None else call.held.grammar
        case _:
            return None


def _begin(call: OpenCall, future: "Future[CompiledGrammar]") -> LoopwrightError | None:
    """Holds the call's text to its grammar from now on."""
    if future.cancelled():
        return Unavailable("the server stopped while it compiled the grammar")
    match future.exception():
        case LoopwrightError() as error:
            return error
        case BaseException() as fault:
            return InternalError(f"the grammar could not be compiled: {type(fault).__name__}: {fault}")
    assert isinstance(call.work, Feed)
    try:
        call.work.follow(future.result())
    except LoopwrightError as error:
        return error
    return None
