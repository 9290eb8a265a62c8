"""The routes of /v1/responses: makes a response, tells a kept one again, lists what it was made from, forgets it.

Never generates: a response is the events of a chat's run. Used by app.
"""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, NotFound
from loopwright.core.ids import TenantId
from loopwright.server.answers import Answer
from loopwright.server.blocks import BlockStream, whole_message
from loopwright.server.body import read_body
from loopwright.server.chat_request import chat_of_program, chat_spec
from loopwright.server.errors import json_response
from loopwright.server.generating import Asked, Generating, field_names
from loopwright.server.identity import current_tenant
from loopwright.server.openapi import takes
from loopwright.server.response_form import ResponseForm
from loopwright.server.response_items import kept_item
from loopwright.server.response_request import ResponseBody, ResponseRequest, read_response
from loopwright.server.response_store import KeptResponse, ResponseStore

Json = dict[str, Any]
RESPONSE = {"type": "object", "required": ["id", "object", "created_at", "model", "status", "output"]}
MAX_LISTED = 100
_NAMES = {"type": "array", "items": {"type": "string"}}
INCLUDE = {"include": _NAMES, "include[]": _NAMES}


class ResponseRoutes:
    """What an OpenAI client talks to through `client.responses`."""

    def __init__(self, generating: Generating, store: ResponseStore) -> None:
        self._generating = generating
        self._store = store

    @takes(ResponseBody, answer=RESPONSE, streams=True)
    async def create_response(self, request: Request) -> Response:
        """POST /v1/responses: answers, and keeps the answer."""
        body = await read_body(request, ResponseBody)
        tenant = current_tenant()
        before: tuple[Json, ...] = ()
        if body.previous_response_id is not None:
            before = self._store.get(tenant, body.previous_response_id, "previous_response_id").items
        asked = read_response(body, before, lambda item_id, field: self._item(tenant, item_id, field))
        chat, by_own_fields = asked.chat, asked.renamed
        of_run = field_names(chat.generation, "messages", chat.tools)

        def form(answer: Answer) -> ResponseForm:
            return ResponseForm(answer, asked, self._generating.clock, self._keeper(tenant, asked, answer.run_id))

        return await self._generating.answer(
            request,
            Asked(
                chat.generation,
                lambda error: by_own_fields(of_run(error)),
                lambda model: chat_spec(chat, model),
                lambda program: chat_of_program(chat, program),
                lambda answer: BlockStream(answer, form(answer)),
                lambda answer, events: whole_message(answer, form(answer), events),
                has_tools=chat.tools is not None,
            ),
        )

    @takes(query={**INCLUDE, "stream": {"type": "string", "enum": ["true", "false"]}}, answer=RESPONSE)
    async def response(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}: a response that was kept."""
        kept = self._store.get(current_tenant(), request.path_params["response_id"])
        for name in ("stream", "starting_after", "include_obfuscation"):
            if request.query_params.get(name, "false") != "false":
                raise BadRequest(f"{name}: a response that was kept has ended, and is not streamed", field=name)
        return json_response(kept.response)

    @takes(answer={"type": "object", "required": ["id", "object", "deleted"]})
    async def delete_response(self, request: Request) -> Response:
        """DELETE /v1/responses/{response_id}: forgets a response. Those that went on from it stay."""
        response_id = request.path_params["response_id"]
        self._store.delete(current_tenant(), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @takes(answer=RESPONSE)
    async def cancel_response(self, request: Request) -> Response:
        """POST /v1/responses/{response_id}/cancel: refused, as what was kept has ended."""
        response_id = request.path_params["response_id"]
        self._store.get(current_tenant(), response_id)
        raise BadRequest(
            f"response_id: {response_id} has ended; there are no responses in the background",
            hint="to cancel one that is being made, close its connection",
            field="response_id",
        )

    @takes(
        query={
            **INCLUDE,
            "limit": {"type": "integer"},
            "order": {"type": "string", "enum": ["asc", "desc"]},
            "after": {"type": "string"},
        },
        answer={"type": "object", "required": ["object", "data", "has_more", "first_id", "last_id"]},
    )
    async def input_items(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}/input_items: what a response was made from, the newest first."""
        kept = self._store.get(current_tenant(), request.path_params["response_id"])
        return json_response(_listed(kept, request.query_params))

    def _keeper(self, tenant: TenantId, asked: ResponseRequest, run_id: str) -> Callable[[Json], None]:
        inputs = tuple(kept_item(one.item, f"item_{run_id}_in{number}") for number, one in enumerate(asked.items))

        def keep(response: Json) -> None:
            if asked.body.store is not False:
                items = (*asked.before, *inputs, *response["output"])
                self._store.put(tenant, KeptResponse(response, inputs, items))

        return keep

    def _item(self, tenant: TenantId, item_id: str, field: str) -> Json:
        """An item that a client refers to; its id has that of its response's run in the middle."""
        parts = item_id.split("_")
        if len(parts) == 3:
            kept = self._store.get(tenant, f"resp_{parts[1]}", field)
            for item in kept.items:
                if item["id"] == item_id:
                    return item
        raise NotFound(f"{field}: there is no item {item_id[:100]!r}", field=field)


def _listed(kept: KeptResponse, query: Mapping[str, str]) -> Json:
    """A page of the input, in the form of OpenAI's lists."""
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit) <= MAX_LISTED):
        raise BadRequest(f"limit: {limit[:20]!r} is not between 1 and {MAX_LISTED}", field="limit")
    if order not in ("asc", "desc"):
        raise BadRequest(f"order: {order[:20]!r} is neither asc nor desc", field="order")
    items = list(kept.inputs) if order == "asc" else list(reversed(kept.inputs))
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise NotFound(f"after: there is no item {after[:100]!r} in the input", field="after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    ids = [item["id"] for item in page] or [""]
    return {
        "object": "list",
        "data": page,
        "first_id": ids[0],
        "last_id": ids[-1],
        "has_more": len(items) > len(page),
    }
