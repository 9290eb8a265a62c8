"""The routes of programs and runs: deploy, remove, start, follow, list, cancel. Never runs anything itself. Used by
app."""

import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, NotFound, from_info
from loopwright.core.ids import ONE_TENANT, RunId
from loopwright.core.runs import ClientInput, ProgramInfo, RunInfo, Runs, RunSpec, no_program
from loopwright.server.body import read_body
from loopwright.server.disconnect import unless_disconnected
from loopwright.server.errors import json_response, of_program, status_of
from loopwright.server.identity import current_tenant
from loopwright.server.live_run import LiveRun, followed_run, read_to_end, started_run
from loopwright.server.openapi import takes
from loopwright.server.sse import EventStream, SseResponse, sse_event

log = logging.getLogger(__name__)

MAX_SEQ = 2**53  # more than a run has events, and still a number to every peer

Seed = Annotated[int, Meta(ge=0, lt=2**62)]


ANOTHER = "another tenant"  # who deployed a program that is not the asker's: tenants' names are not told to others
DETACH = {"detach": {"type": "string", "enum": ["true", "false"]}}


class DeployBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    source: str
    filename: str = "program.py"


class ProgramRunBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`stream` false waits for the end; without it, the Accept header decides, and events are the default."""

    arguments: dict[str, Any] = {}
    seed: Seed | None = None
    model: str = ""  # the run's own; without it, the server's default
    stream: bool | None = None


class SourceRunBody(ProgramRunBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: str
    filename: str = "program.py"


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for the program, any JSON but null; `end` says that none comes after it."""

    message: Any = msgspec.UNSET
    end: bool = False


class ProgramRoutes:
    """What the command line talks to (`deploy`, `programs`, `ps`, `logs` …), and whoever runs programs over HTTP."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    @takes(DeployBody)
    async def deploy(self, request: Request) -> Response:
        """POST /v1/programs: puts a program on the server."""
        body = await read_body(request, DeployBody)
        program = await self._runs.deploy(body.name, body.source, body.filename, current_tenant())
        told = {"program": body.name, "tenant": current_tenant(), "sha256": program.source_sha256}
        if program.replaced is not None:
            told["replaced"] = program.replaced.source_sha256
        log.info("a program was deployed", extra={"told": told})
        return json_response(_shown(program))

    async def undeploy(self, request: Request) -> Response:
        """DELETE /v1/programs/{name}: removes a program from the server; runs of it go on."""
        name = request.path_params["name"]
        await self._runs.undeploy(name, current_tenant())
        log.info("a program was removed", extra={"told": {"program": name, "tenant": current_tenant()}})
        return json_response({"name": name, "deleted": True})

    async def programs(self, request: Request) -> Response:
        """GET /v1/programs: the programs that are deployed."""
        return json_response({"programs": [_shown(program) for program in await self._runs.programs()]})

    @takes(ProgramRunBody, query=DETACH, streams=True)
    async def start_program(self, request: Request) -> Response:
        """POST /v1/programs/{name}/runs: runs a deployed program."""
        body = await read_body(request, ProgramRunBody)
        name = request.path_params["name"]
        if name not in (deployed := [program.name for program in await self._runs.programs()]):
            raise no_program(name, deployed)
        spec = RunSpec(program=name, arguments=body.arguments, seed=body.seed, model=body.model)
        return await self._start(request, body, spec)

    @takes(SourceRunBody, query=DETACH, streams=True)
    async def start_source(self, request: Request) -> Response:
        """POST /v1/runs: runs a program that is sent along."""
        body = await read_body(request, SourceRunBody)
        spec = RunSpec(
            source=body.source,
            filename=body.filename,
            arguments=body.arguments,
            seed=body.seed,
            model=body.model,
        )
        return await self._start(request, body, spec)

    async def runs(self, request: Request) -> Response:
        """GET /v1/runs: the tenant's runs, also those that have ended."""
        return json_response({"runs": await self._own_runs()})

    @takes(query={"after": {"type": "integer"}}, streams=True)
    async def events(self, request: Request) -> Response:
        """GET /v1/runs/{run}/events: what a run tells, from its beginning or after an event."""
        after = _read_after(request.query_params.get("after", "-1"))
        run_id = await self._own_run(request)

        async def chunks(run: LiveRun) -> AsyncGenerator[bytes]:
            yield (
                b": events of run %b\n\n" % run.run_id.encode()
            )  # a comment: the client knows at once that it is heard
            async for chunk in _event_chunks(run):
                yield chunk

        return SseResponse(followed_run(self._runs, run_id, after), lambda run: EventStream(chunks(run)))

    @takes(status=202)
    async def cancel(self, request: Request) -> Response:
        """POST /v1/runs/{run}/cancel, DELETE /v1/runs/{run}: ends a run."""
        run_id = await self._own_run(request)
        await self._runs.cancel(run_id)
        return json_response({"run": run_id}, status=202)

    @takes(MessageBody, status=202)
    async def send(self, request: Request) -> Response:
        """POST /v1/runs/{run}/messages: says something to a run."""
        body = await read_body(request, MessageBody)
        messages = () if isinstance(body.message, msgspec.UnsetType) else (body.message,)
        if not messages and not body.end:
            raise BadRequest("message: is required, or end as true", field="message")
        run_id = await self._own_run(request)
        await self._runs.send(run_id, ClientInput(messages, is_end=body.end))
        return json_response({"run": run_id}, status=202)

    async def _own_runs(self) -> list[RunInfo]:
        tenant = current_tenant()
        return [info for info in await self._runs.runs() if info.tenant == tenant]

    async def _own_run(self, request: Request) -> RunId:
        """The run that the path names. Raises NotFound, of another tenant's run as of one that is not there."""
        run_id = RunId(request.path_params["run"])
        if all(info.run != run_id for info in await self._own_runs()):
            raise NotFound(f"there is no run {run_id[:100]!r}", hint="GET /v1/runs lists the runs", field="run")
        return run_id

    async def _start(self, request: Request, body: ProgramRunBody, spec: RunSpec) -> Response:
        detach = request.query_params.get("detach", "false")
        if detach not in ("true", "false"):
            raise BadRequest(f"detach: {detach[:50]!r} is neither true nor false", field="detach")
        live_run = started_run(self._runs, spec, is_detached=detach == "true")
        is_streamed = body.stream if body.stream is not None else _accepts_events(request)
        if is_streamed:
            return SseResponse(live_run, lambda run: EventStream(_event_chunks(run)))

        async def wait() -> Response:
            async with live_run as run:
                return await _outcome(run)

        return await unless_disconnected(request.receive, wait())


def _shown(program: ProgramInfo) -> dict[str, Any]:
    """To whoever asks: whose it is, but no other tenant's name."""
    fields = msgspec.structs.asdict(program)
    tenant = fields.pop("tenant")
    is_told = tenant in (ONE_TENANT, current_tenant()) or current_tenant() == ONE_TENANT
    return {**fields, "deployed_by": tenant if is_told else ANOTHER}


async def _event_chunks(run: LiveRun) -> AsyncGenerator[bytes]:
    async for batch in run.batches():
        yield b"".join(map(sse_event, batch))


async def _outcome(run: LiveRun) -> Response:
    """The end of a run as one object, with the status of its error if it has one."""
    text, finished = await read_to_end(run)
    body = {"run": run.run_id, "code": finished.code, "text": text}
    if finished.error is None:
        return json_response({**body, "result": finished.result})
    return json_response({**body, "error": finished.error}, status_of(of_program(from_info(finished.error))))


def _accepts_events(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*")
    return "application/json" not in accept or "text/event-stream" in accept


def _read_after(text: str) -> int:
    try:
        return min(int(text), MAX_SEQ)
    except ValueError:
        raise BadRequest(f"after: {text[:50]!r} is not a number", field="after") from None
