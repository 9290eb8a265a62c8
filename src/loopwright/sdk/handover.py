"""Hands a context to another run: its KV by reference, everything else as data. Never starts a run.

To a child, with `children`: the pages are exported until it has imported them. To whoever knows a name, by programs:
they stay exported, and the data is the export's note. Full pages are shared, the tail is the other run's own.
"""

import json
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.context import Context
from loopwright.sdk.errors import BadRequest, NotFound
from loopwright.sdk.resources import Queue, exported_pages
from loopwright.sdk.run_state import run_state
from loopwright.sdk.token_log import TokenLog
from loopwright.sdk.transcript import Transcript
from loopwright.sdk.views import Exact, View, ViewLog, Window

Data = dict[str, Any]


@checked
async def export_context(
    context: Context, name: str, *, persistent: bool = False, allow_approximate: bool = False
) -> bool:
    """Lends a copy of the context, as it is now, to the tenant's runs: `import_context(name)` gives it to them, and
    they run nothing of it again. Until this run ends, or, if `persistent`, until somebody calls `unexport_context`.

    False if something is exported by that name already. Raises BadRequest for an approximate context that is not
    declared with `allow_approximate`, and LimitExceeded where too many pages are exported."""
    if not allow_approximate and not isinstance(context.provenance(), Exact):
        raise BadRequest(
            f"{name!r} would be an approximate context: {context.provenance()}",
            field="allow_approximate",
            hint="pass allow_approximate=True if whoever imports it may have that",
        )
    async with await context.fork() as copy:
        if await _export(name, copy._queue.model) is not None:
            return False
        try:
            await copy._kv.pages.lend(name, note=json.dumps(_data(copy)), persistent=persistent)
        except BadRequest:
            copy._queue.post("clear_queue")
            if await _export(name, copy._queue.model) is None:
                raise
            return False  # another run was faster
        return True


@checked
async def import_context(name: str, *, seed: int | None = None, priority: int = 0, model: str = "") -> Context:
    """The context that a run exported by that name: its tokens, chat and view, and its KV. What is done to it here does
    not show there. Raises NotFound."""
    found = await _export(name, model)
    if found is None:
        raise NotFound(f"name: no context is exported as {name!r}", field="name")
    context = Context(seed=seed, priority=priority, model=model)
    try:
        payload = await context._kv.pages.borrow(name, found["num_pages"], ends_loan=False)
        if not payload.get("note"):
            raise BadRequest(f"name: what is exported as {name!r} are pages, and no context", field="name")
    except BaseException:
        context.close()
        raise
    _fill(context, json.loads(payload["note"]))
    return context


@checked
async def unexport_context(name: str, *, model: str = "") -> None:
    """Ends an export; who has imported it keeps what it has. Raises NotFound."""
    queue = Queue.of_context(0, model)
    try:
        await queue.unexport_pages(name)
    finally:
        queue.leave(run_state())


@checked
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


async def hand_over(context: Context, name: str) -> Data:
    """A copy of the context as data, with its pages exported as `name` if it has any."""
    async with await context.fork() as copy:
        pages = copy._kv.pages
        if pages.names:
            await pages.lend(name)
        model, num_pages = copy._queue.model, len(pages.names)
        return {"model": model, "export": name if num_pages else "", "num_pages": num_pages, **_data(copy)}


async def take_over(data: Data, *, seed: int | None, priority: int) -> Context:
    """The context that `hand_over` described, in this run."""
    context = Context(seed=seed, priority=priority, model=data["model"])
    _fill(context, data)
    if data["export"]:
        try:
            await context._kv.pages.borrow(data["export"], data["num_pages"], ends_loan=True)
        except BaseException:
            context.close()
            raise
    return context


def take_back(name: str, model: str) -> None:
    """Ends an export, if the other run never took it."""
    queue = Queue.of_context(0, model)
    queue.post("unexport_pages", name=name)
    queue.leave(run_state())  # which forgets that it may have been gone already


async def _export(name: str, model: str) -> Data | None:
    """What is known of an export."""
    found: list[Data] = (await exported_pages(name, model=model))["exports"]
    return next((one for one in found if one["name"] == name), None)


def _data(context: Context) -> Data:
    """What a context is beside its KV."""
    views = [[start, _view_data(view)] for start, view in context._kv.views.epochs]
    return {"views": views, **_log_data(context._log)}


def _fill(context: Context, data: Data) -> None:
    _fill_log(context._log, data)
    context._kv.views = ViewLog(tuple((start, _view(view)) for start, view in data["views"]))


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
        "options": log.transcript.options,
        "num_written": log.num_written,
        "marks": [[start, len(transcript.messages), transcript.is_open] for start, transcript in log.marks],
    }


def _fill_log(log: TokenLog, data: Data) -> None:
    messages, tools, options = data["messages"], data["tools"], data["options"]
    log.tokens += data["tokens"]
    log.transcript = Transcript(list(messages), data["is_open"], tools, options)
    log.num_written = data["num_written"]
    log.marks = [(start, _mark(messages[:count], is_open, tools, options)) for start, count, is_open in data["marks"]]


def _mark(messages: list[Data], is_open: bool, tools: list[Data], options: Data) -> Transcript:
    if is_open:
        messages[-1] = {**messages[-1], "content": ""}  # nothing of the turn was written yet
    return Transcript(messages, is_open, tools if messages else [], options)  # the first messages tell of them
