"""The routes of OpenAI's clients for chat completions and completions, and for the models there are.

Never generates: an answer is the events of a run. Used by app.
"""

from starlette.requests import Request
from starlette.responses import Response

from loopwright.server.answers import Answer, ChunkStream, whole_answer
from loopwright.server.body import off_loop, read_body
from loopwright.server.chat_request import ChatBody, chat_of_program, chat_spec, read_chat
from loopwright.server.completion_request import (
    CompletionBody,
    completion_of_program,
    completion_spec,
    read_completion,
)
from loopwright.server.errors import json_response
from loopwright.server.forms import ChatForm, CompletionForm, Form
from loopwright.server.generating import PROGRAM_PREFIX, Asked, Generating, field_names, no_model
from loopwright.server.generation import Generation
from loopwright.server.openapi import takes

COMPLETION = {"type": "object", "required": ["id", "object", "created", "model", "choices"]}


class OpenAIRoutes:
    """What an OpenAI client talks to."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating
        self._created_s = int(generating.clock.wall_s())

    @takes(answer={"type": "object", "required": ["object", "data"]})
    async def models(self, request: Request) -> Response:
        """GET /v1/models: the models, and each deployed program as one."""
        return json_response({"object": "list", "data": [self._model_entry(name) for name in await self._names()]})

    @takes(answer={"type": "object", "required": ["id", "object", "created", "owned_by"]})
    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}: one of them."""
        name = request.path_params["model"]
        if name not in await self._names():
            raise no_model(name)
        return json_response(self._model_entry(name))

    @takes(ChatBody, answer=COMPLETION, streams=True)
    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions: the next message of a chat."""
        body = await read_body(request, ChatBody)
        chat = await off_loop(request, lambda: read_chat(body))
        generation = chat.generation

        def form() -> ChatForm:
            return ChatForm(generation, is_legacy=chat.is_legacy)

        asked = Asked(
            generation,
            field_names(generation, "messages", chat.tools),
            lambda model: chat_spec(chat, model),
            lambda program: chat_of_program(chat, program),
            lambda answer: _chunk_stream(answer, form(), generation),
            lambda answer, events: whole_answer(answer, form(), events),
            may_call=chat.may_call,
        )
        return await self._generating.answer(request, asked)

    @takes(CompletionBody, answer=COMPLETION, streams=True)
    async def completions(self, request: Request) -> Response:
        """POST /v1/completions: how texts go on."""
        body = await read_body(request, CompletionBody)
        completion = await off_loop(request, lambda: read_completion(body))
        generation = completion.generation
        asked = Asked(
            generation,
            field_names(generation, "prompt"),
            lambda model: completion_spec(completion, model),
            lambda program: completion_of_program(completion, program),
            lambda answer: _chunk_stream(answer, CompletionForm(generation), generation),
            lambda answer, events: whole_answer(answer, CompletionForm(generation), events),
        )
        return await self._generating.answer(request, asked)

    async def _names(self) -> list[str]:
        runs = self._generating.runs
        names = [model.name for model in runs.models()]
        return names + [PROGRAM_PREFIX + program.name for program in await runs.programs()]

    def _model_entry(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "loopwright"}


def _chunk_stream(answer: Answer, form: Form, generation: Generation) -> ChunkStream:
    num_ways = generation.options.get("n", 1)
    return ChunkStream(answer, form, includes_usage=generation.includes_usage, num_ways=num_ways)
