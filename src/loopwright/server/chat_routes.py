"""The OpenAI routes: models and chat completions. Never generates: a completion is a run. Used by app."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.clock import Clock
from loopwright.core.errors import NotFound
from loopwright.core.events import Finished
from loopwright.core.runs import Runs, RunSpec
from loopwright.server.body import read_body
from loopwright.server.chat import Answer, ChunkStream, completion
from loopwright.server.chat_request import PROGRAM_PREFIX, ChatBody, ChatRequest, chat_spec, program_spec, read_chat
from loopwright.server.disconnect import unless_disconnected
from loopwright.server.errors import json_response
from loopwright.server.live_run import LiveRun, joined_text, read_to_end, started_run
from loopwright.server.sse import SseResponse


class ChatRoutes:
    """What an OpenAI client talks to."""

    def __init__(self, runs: Runs, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._created_s = int(clock.wall_s())

    async def models(self, request: Request) -> Response:
        """GET /v1/models: the models, and each deployed program as one."""
        names = [model.name for model in self._runs.models()]
        names += [PROGRAM_PREFIX + program.name for program in await self._runs.programs()]
        return json_response({"object": "list", "data": [self._model_entry(name) for name in names]})

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        chat = read_chat(await read_body(request, ChatBody))
        spec = await self._find_spec(chat)
        if not chat.is_streamed:
            body = await unless_disconnected(request.receive, self._complete(chat, spec))
            return json_response(body)

        async def chunks(run: LiveRun) -> AsyncGenerator[bytes]:
            stream = ChunkStream(self._answer(chat, run), includes_usage=chat.includes_usage)
            async for batch in run.batches():
                if text := joined_text(batch):
                    yield stream.push(text)
                if isinstance(finished := batch[-1], Finished):
                    yield stream.finish(finished)

        return SseResponse(started_run(self._runs, spec), chunks)

    async def _find_spec(self, chat: ChatRequest) -> RunSpec:
        """The run that answers. Raises NotFound for a model that is not served here."""
        for model in self._runs.models():
            if model.name == chat.model:
                return msgspec.structs.replace(chat_spec(chat, model), model=model.name)
        for program in await self._runs.programs():
            if PROGRAM_PREFIX + program.name == chat.model:
                return program_spec(chat, program)
        raise NotFound(
            f"the model {chat.model!r} does not exist", hint="GET /v1/models lists those that do", field="model"
        )

    async def _complete(self, chat: ChatRequest, spec: RunSpec) -> dict[str, Any]:
        async with started_run(self._runs, spec) as run:
            text, finished = await read_to_end(run)
            return completion(self._answer(chat, run), text, finished)

    def _answer(self, chat: ChatRequest, run: LiveRun) -> Answer:
        is_of_program = chat.model.startswith(PROGRAM_PREFIX)
        return Answer(run.run_id, chat.model, int(self._clock.wall_s()), is_of_program)

    def _model_entry(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "loopwright"}
