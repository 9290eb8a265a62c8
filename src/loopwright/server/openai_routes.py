"""The routes of OpenAI's clients that generate: chat completions and completions, and the models there are.

Never generates: an answer is the events of a run. Used by app.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.clock import Clock
from loopwright.core.errors import LoopwrightError, NotFound
from loopwright.core.events import Finished
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ProgramInfo, Runs, RunSpec
from loopwright.server.answers import Answer, ChunkStream, whole_answer
from loopwright.server.body import read_body
from loopwright.server.chat_request import ChatBody, chat_of_program, chat_spec, read_chat
from loopwright.server.completion_request import (
    CompletionBody,
    completion_of_program,
    completion_spec,
    read_completion,
)
from loopwright.server.disconnect import unless_disconnected
from loopwright.server.errors import json_response
from loopwright.server.forms import ChatForm, CompletionForm, Form
from loopwright.server.generation import Generation
from loopwright.server.live_run import LiveRun, events_to_end, started_run
from loopwright.server.openapi import takes
from loopwright.server.renaming import renamed
from loopwright.server.sse import SseResponse
from loopwright.server.tool_request import AskedTools

PROGRAM_PREFIX = "program:"
COMPLETION = {"type": "object", "required": ["id", "object", "created", "model", "choices"]}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: what was asked for, and the runs that could answer it."""

    generation: Generation
    form: Form
    prompt_field: str
    of_model: Callable[[ModelInfo], RunSpec]
    of_program: Callable[[ProgramInfo], RunSpec]
    tools: AskedTools | None = None

    def field_names(self) -> Mapping[str, str]:
        """The fields of calls that errors may name, and those of the request behind them."""
        constraint = self.generation.constraint
        names = {"positions": self.prompt_field, "tokens": self.prompt_field, "prompt": self.prompt_field}
        names |= {"stop_tokens": "stop_token_ids"}
        if self.tools is not None:
            names |= self.tools.field_names()
        return (
            names if constraint is None else {"grammar.source": constraint.field, "grammar": constraint.field, **names}
        )


class OpenAIRoutes:
    """What an OpenAI client talks to."""

    def __init__(self, runs: Runs, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._created_s = int(clock.wall_s())

    @takes(answer={"type": "object", "required": ["object", "data"]})
    async def models(self, request: Request) -> Response:
        """GET /v1/models: the models, and each deployed program as one."""
        return json_response({"object": "list", "data": [self._model_entry(name) for name in await self._names()]})

    @takes(answer={"type": "object", "required": ["id", "object", "created", "owned_by"]})
    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}: one of them."""
        name = request.path_params["model"]
        if name not in await self._names():
            raise _no_model(name)
        return json_response(self._model_entry(name))

    @takes(ChatBody, answer=COMPLETION, streams=True)
    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions: the next message of a chat."""
        chat = read_chat(await read_body(request, ChatBody))
        asked = Asked(
            chat.generation,
            ChatForm(chat.generation),
            "messages",
            lambda model: chat_spec(chat, model),
            lambda program: chat_of_program(chat, program),
            chat.tools,
        )
        return await self._answer(request, asked)

    @takes(CompletionBody, answer=COMPLETION, streams=True)
    async def completions(self, request: Request) -> Response:
        """POST /v1/completions: how texts go on."""
        completion = read_completion(await read_body(request, CompletionBody))
        asked = Asked(
            completion.generation,
            CompletionForm(completion.generation),
            "prompt",
            lambda model: completion_spec(completion, model),
            lambda program: completion_of_program(completion, program),
        )
        return await self._answer(request, asked)

    async def _answer(self, request: Request, asked: Asked) -> Response:
        spec, model = await self._find_spec(asked)
        generation, names = asked.generation, asked.field_names()

        def answer(run: LiveRun) -> Answer:
            return Answer(
                run.run_id,
                generation.model,
                int(self._clock.wall_s()),
                model.fingerprint,
                asked.form,
                lambda error: renamed(error, names),
                generation.model.startswith(PROGRAM_PREFIX),
                model.tool_format if asked.tools is not None else "",
            )

        async def chunks(run: LiveRun) -> AsyncGenerator[bytes]:
            num_ways = generation.options.get("n", 1)
            stream = ChunkStream(answer(run), includes_usage=generation.includes_usage, num_ways=num_ways)
            async for batch in run.batches():
                is_last = isinstance(finished := batch[-1], Finished)
                if chunk := stream.push(batch[:-1] if is_last else batch):
                    yield chunk
                if isinstance(finished, Finished):
                    yield stream.finish(finished)

        async def whole() -> Response:
            async with started_run(self._runs, spec) as run:
                return json_response(whole_answer(answer(run), await events_to_end(run)))

        if generation.is_streamed:
            return SseResponse(started_run(self._runs, spec), chunks)
        return await unless_disconnected(request.receive, whole())

    async def _find_spec(self, asked: Asked) -> tuple[RunSpec, ModelInfo]:
        """The run that answers, and the model that computes it. Raises NotFound for a model that is not served
        here."""
        name = asked.generation.model
        for model in self._runs.models():
            if model.name == name:
                return asked.of_model(model), model
        for program in await self._runs.programs():
            if PROGRAM_PREFIX + program.name == name:
                return asked.of_program(program), self._runs.models()[0]
        raise _no_model(name)

    async def _names(self) -> list[str]:
        names = [model.name for model in self._runs.models()]
        return names + [PROGRAM_PREFIX + program.name for program in await self._runs.programs()]

    def _model_entry(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "loopwright"}


def _no_model(name: str) -> LoopwrightError:
    return NotFound(f"the model {name!r} does not exist", hint="GET /v1/models lists those that do", field="model")
