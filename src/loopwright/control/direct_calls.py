"""Answers, at once and out of turn, the calls about queues and exports that touch no page. Never runs a call.

Called by the controller. A queue's priority is a head start of its calls among those that wait for the engine.
"""

from typing import TypeAlias

from loopwright.control.ordering import CallQueue, OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.session import InlineSession
from loopwright.core.call_table import op_of, require_traits
from loopwright.core.calls import CreateQueue, DebugQuery, ExportedPages, SetPriority
from loopwright.core.errors import BadRequest, LimitExceeded, NotFound
from loopwright.core.ids import QueueName
from loopwright.core.model_info import ModelInfo
from loopwright.core.raise_hint import raise_hint
from loopwright.core.results import CallInfo, CallResult, CallState, DebugInfo, Done, ExportList, QueueInfo

DirectCall: TypeAlias = CreateQueue | SetPriority | DebugQuery | ExportedPages

PRIORITY_ADVANCE = 1000
"""A queue of priority 1 goes before 1000 calls issued earlier: it is preferred, and yet starves nobody."""


def answer(call: DirectCall, session: InlineSession, resources: ResourceManager, model: ModelInfo) -> CallResult:
    """What the call completes with. Raises a LoopwrightError. Whoever calls reorders after a SetPriority."""
    require_traits(call, model)
    match call:
        case CreateQueue():
            _create_queue(call, session, model)
            return Done()
        case SetPriority():
            _set_priority(session, find_queue(session, call.queue), call.priority)
            return Done()
        case DebugQuery():
            return _describe(session, resources, call.queue)
        case ExportedPages():
            return ExportList(resources.exports.infos(session.tenant, call.prefix))


def find_queue(session: InlineSession, name: QueueName) -> CallQueue:
    """The run's queue of that name. Raises NotFound; LimitExceeded in a run that has all its queues, because that is
    what stopped this one, and nobody may have waited to hear it."""
    queue = session.queues.get(name)
    if queue is not None:
        return queue
    if len(session.queues) >= session.limits.max_queues:
        raise _too_many_queues(session)
    raise NotFound(
        f"queue: {name} is not one of the {len(session.queues)} queues of this run", field="queue", hint="create_queue"
    )


def rank(num_issued: int, priority: int) -> int:
    """The place of a call among those that wait for the engine: lower runs first."""
    return num_issued - priority * PRIORITY_ADVANCE


def _create_queue(call: CreateQueue, session: InlineSession, model: ModelInfo) -> None:
    if call.queue in session.queues:
        raise BadRequest(f"queue: {call.queue} exists already", field="queue", hint="take another name")
    if call.model not in ("", model.name):
        raise NotFound(f"model: {call.model} is not served; {model.name} is", field="model")
    if len(session.queues) >= session.limits.max_queues:
        raise _too_many_queues(session)
    session.queues[call.queue] = CallQueue(call.queue, call.priority)


def _too_many_queues(session: InlineSession) -> LimitExceeded:
    return LimitExceeded(
        f"the run has {len(session.queues)} queues; the limit is {session.limits.max_queues}; each context has one",
        hint=raise_hint("max_queues", session.limits.max_queues, "drop contexts that are done"),
        field="queue",
    )


def _set_priority(session: InlineSession, queue: CallQueue, priority: int) -> None:
    advance = (priority - queue.priority) * PRIORITY_ADVANCE
    queue.priority = priority
    for call in session.open_calls.values():
        if call.queue is queue:
            call.rank -= advance


def _describe(session: InlineSession, resources: ResourceManager, name: QueueName | None) -> DebugInfo:
    queues = tuple(session.queues.values()) if name is None else (find_queue(session, name),)
    holdings, limits = resources.holdings(session.run_id), session.limits
    return DebugInfo(
        num_pages=holdings.pages.num_held,
        max_pages=limits.max_pages,
        num_page_names=len(holdings.pages.names),
        num_embeds=holdings.embeds.num_held,
        max_embeds=limits.max_embeds,
        num_open_calls=len(session.open_calls),
        max_open_calls=limits.max_open_calls,
        queues=tuple(_queue_info(session, queue) for queue in queues),
    )


def _queue_info(session: InlineSession, queue: CallQueue) -> QueueInfo:
    calls = [call for call in session.open_calls.values() if call.queue is queue]
    infos = tuple(CallInfo(call.call_id, op_of(type(call.call)), _state(call)) for call in calls)
    return QueueInfo(queue.name, queue.priority, infos, queue.failure)


def _state(call: OpenCall) -> CallState:
    if call.failure is not None:
        return "failed"
    if call.is_running:
        return "running"
    return "waiting" if call.num_blockers or call.is_paused else "ready"
