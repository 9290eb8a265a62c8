"""Makes responses of requests: reads them, says how they are answered and written, and what is kept of them in the end.

Never generates. Used by the routes of Responses and by those that are made in the background.
"""

from typing import Any

from starlette.requests import Request

from loopwright.core.errors import BadRequest, LoopwrightError, NotFound
from loopwright.core.ids import TenantId
from loopwright.server.answers import Answer
from loopwright.server.blocks import BlockStream, whole_message
from loopwright.server.body import off_loop
from loopwright.server.chat_request import prompt_arguments
from loopwright.server.generating import Asked, Generating, field_names
from loopwright.server.response_form import ResponseForm
from loopwright.server.response_items import kept_item
from loopwright.server.response_request import (
    ResponseBody,
    ResponseRequest,
    read_response,
    response_of_program,
    response_spec,
)
from loopwright.server.response_store import Begun, KeptResponse, ResponseStore

Json = dict[str, Any]


class ResponseMaking:
    """Over the store that responses go to."""

    def __init__(self, generating: Generating, store: ResponseStore) -> None:
        self.generating = generating
        self.store = store

    def read(self, tenant: TenantId, body: ResponseBody, before: KeptResponse | None) -> ResponseRequest:
        """`before` is what it goes on from. Raises BadRequest; NotFound for an item that is not there."""
        if before is not None and before.is_being_made:
            field = "previous_response_id"
            raise BadRequest(f"{field}: {before.response['id']} is being made still", field=field)
        items = () if before is None else before.items
        return read_response(body, items, lambda item_id, field: self._item(tenant, item_id, field))

    def asked(self, tenant: TenantId, request: ResponseRequest) -> Asked:
        """What answers a request, and how that is written."""
        chat, by_own_fields = request.chat, request.renamed
        of_run = field_names(chat.generation, "messages", chat.tools)

        def own(error: LoopwrightError) -> LoopwrightError:
            return by_own_fields(of_run(error))

        return Asked(
            chat.generation,
            own,
            lambda model: response_spec(request, model),
            lambda program: response_of_program(request, program),
            lambda answer: BlockStream(answer, self.form(tenant, answer, request)),
            lambda answer, events: whole_message(answer, self.form(tenant, answer, request), events),
            may_call=chat.may_call,
        )

    def form(self, tenant: TenantId, answer: Answer, request: ResponseRequest, after: int = -1) -> ResponseForm:
        """A form whose response is kept as it ends, if it is to be. Its events are those behind number `after`."""

        def keep(response: Json) -> None:
            if response["store"]:
                self.store.put(tenant, _kept(response, Begun(answer, request)))

        return ResponseForm(answer, request, keep, after)

    async def count(self, http: Request, request: ResponseRequest) -> int:
        """How many tokens the prompt of a response would have."""
        model = self.generating.model(request.body.model)
        try:
            arguments = await off_loop(http, lambda: prompt_arguments(response_spec(request, model, is_counted=True)))
        except LoopwrightError as error:
            raise request.renamed(error) from None
        return len((await self.generating.result(http, "tokenize", model, arguments))["tokens"])

    def keep_begun(self, tenant: TenantId, begun: Begun) -> None:
        """Keeps a response that is being made."""
        response = self.form(tenant, begun.answer, begun.request).response("in_progress", ())
        self.store.put(tenant, _kept(response, begun))

    def _item(self, tenant: TenantId, item_id: str, field: str) -> Json:
        """An item that a client refers to; its id has that of its response's run in the middle."""
        parts = item_id.split("_")
        if len(parts) == 3:
            kept = self.store.get(tenant, f"resp_{parts[1]}", field)
            for item in kept.items:
                if item["id"] == item_id:
                    return item
        raise NotFound(f"{field}: there is no item {item_id[:100]!r}", field=field)


def _kept(response: Json, begun: Begun) -> KeptResponse:
    """A response with all that went before it."""
    request = begun.request
    inputs = tuple(
        kept_item(one.item, f"item_{begun.answer.run_id}_in{number}") for number, one in enumerate(request.items)
    )
    items = (*request.before, *inputs, *response["output"])
    return KeptResponse(response, inputs, items, begun if response["background"] else None)
