"""The routes of /v1/responses: makes a response, tells a kept one again, lists what it was made from, forgets it.

Never generates: a response is the events of a chat's run. Used by app.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, NotFound
from loopwright.core.ids import TenantId
from loopwright.server.body import off_loop, read_body
from loopwright.server.errors import json_response
from loopwright.server.generating import Generating
from loopwright.server.identity import current_tenant
from loopwright.server.openapi import takes
from loopwright.server.response_background import BackgroundResponses
from loopwright.server.response_making import ResponseMaking
from loopwright.server.response_request import InputTokensBody, ResponseBody
from loopwright.server.response_store import KeptResponse, ResponseStore

Json = dict[str, Any]
RESPONSE = {"type": "object", "required": ["id", "object", "created_at", "model", "status", "output"]}
MAX_LISTED = 100
MAX_DIGITS = 9  # of a number that is short enough to be read
_NAMES = {"type": "array", "items": {"type": "string"}}
INCLUDE = {"include": _NAMES, "include[]": _NAMES}


class InputTokens(msgspec.Struct, frozen=True, tag_field="object", tag="response.input_tokens"):
    input_tokens: int


class ResponseRoutes:
    """What an OpenAI client talks to through `client.responses`."""

    def __init__(self, generating: Generating, store: ResponseStore) -> None:
        self._making = ResponseMaking(generating, store)
        self._background = BackgroundResponses(self._making)

    @takes(ResponseBody, answer=RESPONSE, streams=True)
    async def create_response(self, request: Request) -> Response:
        """POST /v1/responses: answers, and keeps the answer."""
        body = await read_body(request, ResponseBody)
        tenant = current_tenant()
        before = await self._before(tenant, body.previous_response_id)
        asked = await off_loop(request, lambda: self._making.read(tenant, body, before))
        if body.background:
            return await self._background.begin(request, tenant, asked)
        return await self._making.generating.answer(request, self._making.asked(tenant, asked))

    @takes(InputTokensBody, answer=InputTokens)
    async def input_tokens(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens: how many tokens the input of a response would have."""
        body = await read_body(request, InputTokensBody)
        tenant = current_tenant()
        fields = {name: getattr(body, name) for name in body.__struct_fields__}
        fields["model"] = self._making.generating.model(body.model).name
        before = await self._before(tenant, body.previous_response_id)
        asked = await off_loop(request, lambda: self._making.read(tenant, ResponseBody(**fields), before))
        return json_response(InputTokens(await self._making.count(request, asked)))

    @takes(
        query={
            **INCLUDE,
            "stream": {"type": "string", "enum": ["true", "false"]},
            "starting_after": {"type": "integer"},
            "include_obfuscation": {"type": "string", "enum": ["false"]},
        },
        answer=RESPONSE,
        streams=True,
    )
    async def response(self, request: Request) -> Response:
        """GET /v1/responses/{response_id}: a response that was kept; of one in the background its events, if asked."""
        tenant, query = current_tenant(), request.query_params
        kept = await self._background.get(tenant, request.path_params["response_id"])
        is_streamed = _read_flag(query, "stream")
        if _read_flag(query, "include_obfuscation"):
            raise BadRequest("include_obfuscation: only false is supported", field="include_obfuscation")
        if not is_streamed and "starting_after" in query:
            raise BadRequest("starting_after: only allowed when stream is true", field="starting_after")
        if is_streamed:
            return self._background.follow(tenant, kept, _read_number(query, "starting_after"))
        return json_response(kept.response)

    @takes(answer={"type": "object", "required": ["id", "object", "deleted"]})
    async def delete_response(self, request: Request) -> Response:
        """DELETE /v1/responses/{response_id}: forgets a response. Those that went on from it stay."""
        tenant, response_id = current_tenant(), request.path_params["response_id"]
        await self._background.forget(tenant, self._making.store.get(tenant, response_id))
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @takes(answer=RESPONSE)
    async def cancel_response(self, request: Request) -> Response:
        """POST /v1/responses/{response_id}/cancel: ends a response that is being made in the background."""
        tenant = current_tenant()
        kept = await self._background.get(tenant, request.path_params["response_id"])
        return json_response((await self._background.cancel(tenant, kept)).response)

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
        kept = self._making.store.get(current_tenant(), request.path_params["response_id"])
        return json_response(_listed(kept, request.query_params))

    async def _before(self, tenant: TenantId, response_id: str | None) -> KeptResponse | None:
        """The response that one goes on from."""
        if response_id is None:
            return None
        return await self._background.get(tenant, response_id, "previous_response_id")


def _read_flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(f"{name}: {value[:50]!r} is neither true nor false", field=name)
    return value == "true"


def _read_number(query: Mapping[str, str], name: str) -> int:
    """-1 without it."""
    value = query.get(name, "-1")
    try:
        return int(value)
    except ValueError:
        raise BadRequest(f"{name}: {value[:50]!r} is not a number", field=name) from None


def _listed(kept: KeptResponse, query: Mapping[str, str]) -> Json:
    """A page of the input, in the form of OpenAI's lists."""
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= MAX_DIGITS and 1 <= int(limit) <= MAX_LISTED):
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
