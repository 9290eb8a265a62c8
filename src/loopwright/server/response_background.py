"""Responses that are made in the background: begun, looked after, followed and cancelled. Used by their routes.

Owns no task and keeps no event: a run goes on by itself, and the runtime tells again what it has told. So each event of
the run becomes events of its own of the response, which have the same numbers whenever they are asked for.
"""

from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, LoopwrightError, NotFound
from loopwright.core.events import Finished
from loopwright.core.ids import RunId, TenantId
from loopwright.server.blocks import BlockStream
from loopwright.server.errors import json_response
from loopwright.server.live_run import LiveRun, events_to_end, followed_run, started_run
from loopwright.server.response_making import ResponseMaking
from loopwright.server.response_request import ResponseRequest
from loopwright.server.response_store import Begun, KeptResponse
from loopwright.server.sse import EventStream, SseResponse


class BackgroundResponses:
    """Those of one server."""

    def __init__(self, making: ResponseMaking) -> None:
        self._making = making
        self._runs = making.generating.runs

    async def begin(self, http: Request, tenant: TenantId, request: ResponseRequest) -> Response:
        """Starts the run, which goes on whatever its client does. Answers at once, or with the events. Raises
        BadRequest where nothing is kept."""
        if not self._making.store.max_responses:
            raise BadRequest("background: this server keeps no responses", field="background")
        asked = self._making.asked(tenant, request)
        spec, model = await self._making.generating.find_spec(http, asked)

        def keep(run: LiveRun) -> Begun:
            begun = Begun(self._making.generating.begun(run, asked, model), request)
            self._making.keep_begun(tenant, begun)
            return begun

        run = started_run(self._runs, spec, is_detached=True)
        if request.chat.generation.is_streamed:
            return SseResponse(run, lambda run: self._stream(tenant, keep(run), run, -1))
        async with run as started:
            return json_response(self._making.store.get(tenant, keep(started).response_id).response)

    async def get(self, tenant: TenantId, response_id: str, field: str = "response_id") -> KeptResponse:
        """One that was kept, as it is by now. Raises NotFound, also when its run is forgotten before it was kept."""
        kept = self._making.store.get(tenant, response_id, field)
        if kept.begun is None or not kept.is_being_made:
            return kept
        states = {info.run: info.state for info in await self._runs.runs()}
        if (state := states.get(RunId(kept.begun.answer.run_id))) is None:
            self._making.store.delete(tenant, response_id)
            raise NotFound(f"{field}: the run of {response_id} is forgotten", field=field)
        return kept if state == "running" else await self._settled(tenant, kept.begun)

    def follow(self, tenant: TenantId, kept: KeptResponse, after: int) -> Response:
        """The events behind number `after`, those to come included. Raises BadRequest for one that is no background
        response."""
        if (begun := kept.begun) is None:
            raise BadRequest("stream: only of a response that was made with background true", field="stream")
        run = followed_run(self._runs, RunId(begun.answer.run_id))
        return SseResponse(run, lambda run: self._stream(tenant, begun, run, after))

    async def cancel(self, tenant: TenantId, kept: KeptResponse) -> KeptResponse:
        """Ends the run. Raises BadRequest for a response that is not being made in the background."""
        if kept.begun is None or not kept.is_being_made:
            response_id = kept.response["id"]
            raise BadRequest(
                f"response_id: {response_id} is not being made in the background",
                hint="to cancel one whose client waits, close its connection",
                field="response_id",
            )
        await self._runs.cancel(RunId(kept.begun.answer.run_id))
        return await self._settled(tenant, kept.begun)

    async def forget(self, tenant: TenantId, kept: KeptResponse) -> None:
        """Ends the run of one that is being made, and keeps none of it."""
        if kept.begun is not None and kept.is_being_made:
            with suppress(NotFound):
                await self._runs.cancel(RunId(kept.begun.answer.run_id))
        self._making.store.delete(tenant, kept.response["id"])

    async def _settled(self, tenant: TenantId, begun: Begun) -> KeptResponse:
        """Keeps the response of a run that has ended."""
        async with followed_run(self._runs, RunId(begun.answer.run_id)) as run:
            events = await events_to_end(run)
        writer = self._writer(tenant, begun, -1)
        writer.push(events[:-1])
        finished = events[-1]
        assert isinstance(finished, Finished), "a run's events end with a final one"
        try:
            writer.finish(finished)
        except LoopwrightError as error:
            writer.failed(error)
        return self._making.store.get(tenant, begun.response_id)

    def _stream(self, tenant: TenantId, begun: Begun, run: LiveRun, after: int) -> EventStream:
        writer = self._writer(tenant, begun, after)
        return EventStream(_one_by_one(run, writer), writer.failed, writer.alive)

    def _writer(self, tenant: TenantId, begun: Begun, after: int) -> BlockStream:
        return BlockStream(begun.answer, self._making.form(tenant, begun.answer, begun.request, after))


async def _one_by_one(run: LiveRun, writer: BlockStream) -> AsyncGenerator[bytes]:
    """The stream of a run, of which nothing is joined that has come together."""
    async for batch in run.batches():
        for event in batch:
            chunk = writer.finish(event) if isinstance(event, Finished) else writer.push([event])
            if chunk:
                yield chunk
