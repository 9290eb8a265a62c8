"""The HTTP application: its routes, its middleware and its answers to errors, in one list each. Called by compose."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import LoopwrightError
from loopwright.core.runs import Runs
from loopwright.server import errors
from loopwright.server.body import MAX_BODY_BYTES
from loopwright.server.errors import json_response
from loopwright.server.generating import Generating
from loopwright.server.hosts import HostCheck, allowed_hosts
from loopwright.server.identity import Identified, TenantOf, everybody
from loopwright.server.known_query import KnownQuery
from loopwright.server.message_routes import MessageRoutes
from loopwright.server.metrics_route import MetricsRoute
from loopwright.server.openai_routes import OpenAIRoutes
from loopwright.server.openapi import Taken, openapi_document, takes
from loopwright.server.origin import WithOrigin
from loopwright.server.program_routes import ProgramRoutes
from loopwright.server.response_limits import ResponsesConfig
from loopwright.server.response_routes import ResponseRoutes
from loopwright.server.response_store import ResponseStore
from loopwright.server.stopping import EndsWhenStopped
from loopwright.server.text_routes import TextRoutes

LOOPBACK = "127.0.0.1"


def create_app(
    runs: Runs,
    *,
    host: str = LOOPBACK,
    clock: Clock | None = None,
    tenant_of: TenantOf = everybody,
    kept: ResponsesConfig | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Starlette:
    """The application over `runs`. `host` is where it will listen: on a loopback address, Host headers are checked.
    `tenant_of` says whose a request is, and so whose are the runs that it starts; `kept`, what is kept of responses."""
    middleware = [Middleware(WithOrigin, SystemClock()), Middleware(EndsWhenStopped), Middleware(Identified, tenant_of)]
    if (hosts := allowed_hosts(host)) is not None:
        middleware.append(Middleware(HostCheck, hosts))
    app = Starlette(
        routes=_routes(runs, clock or SystemClock(), kept or ResponsesConfig()),
        middleware=middleware,
        exception_handlers={
            LoopwrightError: errors.on_loopwright_error,
            HTTPException: errors.on_http_exception,
            ClientDisconnect: errors.on_client_disconnect,
            Exception: errors.on_fault,
        },
    )
    app.state.max_body_bytes = max_body_bytes
    return app


def _routes(runs: Runs, clock: Clock, kept: ResponsesConfig) -> list[BaseRoute]:
    """Each path with what answers it."""
    generating = Generating(runs, clock)
    openai = OpenAIRoutes(generating)
    store = ResponseStore(clock, kept)
    responses = ResponseRoutes(generating, store)
    messages = MessageRoutes(generating)
    programs = ProgramRoutes(runs)
    texts = TextRoutes(generating)

    @takes(answer={"type": "object", "required": ["openapi", "paths"]})
    async def openapi(request: Request) -> Response:
        """GET /openapi.json: this description."""
        return json_response(openapi_document(routes))

    routes: list[BaseRoute] = [
        Route("/health", texts.health, methods=["GET"]),
        Route("/ready", texts.ready, methods=["GET"]),
        Route("/metrics", MetricsRoute(runs, store.series).metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/tokenize", texts.tokenize, methods=["POST"]),
        Route("/tokenizer_info", texts.tokenizer_info, methods=["GET"]),
        Route("/detokenize", texts.detokenize, methods=["POST"]),
        Route("/v1/models", openai.models, methods=["GET"]),
        Route("/v1/models/{model:path}", openai.model, methods=["GET"]),
        Route("/v1/chat/completions", openai.chat_completions, methods=["POST"]),
        Route("/v1/chat/completions/render", texts.render, methods=["POST"]),
        Route("/v1/completions", openai.completions, methods=["POST"]),
        Route("/v1/responses", responses.create_response, methods=["POST"]),
        Route("/v1/responses/input_tokens", responses.input_tokens, methods=["POST"]),
        Route("/v1/responses/{response_id}", responses.response, methods=["GET"]),
        Route("/v1/responses/{response_id}", responses.delete_response, methods=["DELETE"]),
        Route("/v1/responses/{response_id}/cancel", responses.cancel_response, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", responses.input_items, methods=["GET"]),
        Route("/v1/messages", messages.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=["POST"]),
        Route("/v1/programs", programs.programs, methods=["GET"]),
        Route("/v1/programs", programs.deploy, methods=["POST"]),
        Route("/v1/programs/{name}", programs.undeploy, methods=["DELETE"]),
        Route("/v1/programs/{name}/runs", programs.start_program, methods=["POST"]),
        Route("/v1/runs", programs.runs, methods=["GET"]),
        Route("/v1/runs", programs.start_source, methods=["POST"]),
        Route("/v1/runs/{run}", programs.cancel, methods=["DELETE"]),
        Route("/v1/runs/{run}/events", programs.events, methods=["GET"]),
        Route("/v1/runs/{run}/messages", programs.send, methods=["POST"]),
        Route("/v1/runs/{run}/cancel", programs.cancel, methods=["POST"]),
    ]
    for route in routes:
        if isinstance(route, Route) and route.methods and "POST" not in route.methods:
            route.app = KnownQuery(route.app, getattr(route.endpoint, "taken", Taken()).query)
    return routes
