"""Hands a context to another run: its KV by reference, everything else as data. Never starts a run.

Used by `children`. The pages are exported until the other run has imported them; full ones stay shared, and the tail
is the other run's own.
"""

from typing import Any

from loopwright.sdk.context import Context
from loopwright.sdk.errors import BadRequest
from loopwright.sdk.resources import Queue
from loopwright.sdk.run_state import run_state
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.transcript import Transcript
from loopwright.sdk.views import View, ViewLog, Window

Data = dict[str, Any]


async def hand_over(context: Context, name: str) -> Data:
    """A copy of the context as data, with its pages exported as `name` if it has any."""
    async with await context.fork() as copy:
        pages = copy._kv.pages
        if pages.names:
            await pages.lend(name)
        return {
            "model": copy._queue.model,
            "export": name if pages.names else "",
            "num_pages": len(pages.names),
            "layout": pages.layout,
            "views": [[start, _view_data(view)] for start, view in copy._kv.views.epochs],
            **_log_data(copy._log),
        }


async def take_over(data: Data, *, seed: int | None, priority: int) -> Context:
    """The context that `hand_over` described, in this run."""
    context = Context(seed=seed, priority=priority, model=data["model"])
    _fill_log(context._log, data)
    context._kv.views = ViewLog(tuple((start, _view(view)) for start, view in data["views"]))
    if data["export"]:
        layout = [(start, end) for start, end in data["layout"]]
        try:
            await context._kv.pages.borrow(data["export"], data["num_pages"], layout)
        except BaseException:
            context.close()
            raise
    return context


def take_back(name: str, model: str) -> None:
    """Ends an export, if the other run never took it."""
    queue = Queue.of_context(0, model)
    queue.post("unexport_pages", name=name)
    queue.leave(run_state())  # which forgets that it may have been gone already


async def parent_context(*, seed: int | None = None, priority: int = 0) -> Context:
    """The context that this run was spawned with; asked once. Nothing of it is run again, and what is done to it here
    does not show in the parent's. Raises BadRequest if there is none."""
    data = await run_state().take_parent_context()
    if data is None:
        raise BadRequest(
            "this run has no context of its parent, or has taken it already",
            hint="spawn it with context=…, and fork what you have taken",
        )
    return await take_over(data, seed=seed, priority=priority)


def _view_data(view: View) -> Data:
    window = view.window
    return {
        "hidden": view.hidden,
        "window": None if window is None else [window.size, window.sinks, window.page_size],
    }


def _view(data: Data) -> View:
    window = data["window"]
    return View(tuple((start, end) for start, end in data["hidden"]), None if window is None else Window(*window))


def _log_data(log: TokenLog) -> Data:
    """Each mark's transcript is a beginning of the last one's, so that its length tells it."""
    return {
        "tokens": log.tokens,
        "messages": log.transcript.messages,
        "is_open": log.transcript.is_open,
        "tools": log.transcript.tools,
        "num_written": log.num_written,
        "marks": [[start, len(transcript.messages), transcript.is_open] for start, transcript in log.marks],
    }


def _fill_log(log: TokenLog, data: Data) -> None:
    messages, tools = data["messages"], data["tools"]
    log.tokens += data["tokens"]
    log.transcript = Transcript(list(messages), data["is_open"], tools)
    log.num_written = data["num_written"]
    log.marks = [(start, _mark(messages[:count], is_open, tools)) for start, count, is_open in data["marks"]]


def _mark(messages: list[dict[str, str]], is_open: bool, tools: list[Data]) -> Transcript:
    if is_open:
        messages[-1] = {**messages[-1], "content": ""}  # nothing of the turn was written yet
    return Transcript(messages, is_open, tools if messages else [])  # the first messages tell of them
