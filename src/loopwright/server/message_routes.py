"""The routes of Anthropic's clients: messages, and how many tokens one would have.

Never generates: a message is the events of a chat's run. Used by app.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.server.blocks import BlockStream, whole_message
from loopwright.server.body import off_loop, read_body
from loopwright.server.chat_request import prompt_arguments
from loopwright.server.errors import AnthropicErrorBody, json_response
from loopwright.server.generating import Asked, Generating, field_names
from loopwright.server.message_form import MessageForm
from loopwright.server.message_request import (
    MessagesBody,
    PromptBody,
    message_of_program,
    message_spec,
    read_messages_request,
)
from loopwright.server.openapi import takes

VERSIONS = ("2023-06-01", "2026-10-21")
"""Of Anthropic's API. What differs of messages is what it no longer takes: how to sample, which is honoured of both."""

MESSAGE = {"type": "object", "required": ["id", "type", "role", "content", "model", "stop_reason", "usage"]}


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class MessageRoutes:
    """What an Anthropic client talks to."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    @takes(MessagesBody, answer=MESSAGE, streams=True, error=AnthropicErrorBody)
    async def messages(self, request: Request) -> Response:
        """POST /v1/messages: the next message of a conversation, for Anthropic's clients."""
        _check_version(request)
        body = await read_body(request, MessagesBody)
        asked = await off_loop(request, lambda: read_messages_request(body))
        chat, by_own_fields = asked.chat, asked.renamed
        of_run = field_names(chat.generation, "messages", chat.tools)
        return await self._generating.answer(
            request,
            Asked(
                chat.generation,
                lambda error: by_own_fields(of_run(error)),
                lambda model: message_spec(asked, model),
                lambda program: message_of_program(asked, program),
                lambda answer: BlockStream(answer, MessageForm(answer)),
                lambda answer, events: whole_message(answer, MessageForm(answer), events),
                may_call=chat.may_call,
            ),
        )

    @takes(PromptBody, answer=TokenCount, error=AnthropicErrorBody)
    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens: how many tokens the prompt of a message has."""
        _check_version(request)
        body = await read_body(request, PromptBody)
        asked = await off_loop(request, lambda: read_messages_request(body))
        model = self._generating.model(asked.chat.body.model)
        try:
            arguments = await off_loop(request, lambda: prompt_arguments(message_spec(asked, model, is_counted=True)))
        except LoopwrightError as error:
            raise asked.renamed(error) from None
        found = await self._generating.result(request, "tokenize", model, arguments)
        return json_response(TokenCount(len(found["tokens"])))


def _check_version(request: Request) -> None:
    """Without the header it is any."""
    name = "anthropic-version"
    if (version := request.headers.get(name, VERSIONS[0])) not in VERSIONS:
        raise BadRequest(f"{name}: {version[:50]!r} is not supported, {' and '.join(VERSIONS)} are", field=name)
