"""Answers a request by a run: finds what answers it, starts that, and has the events written in the request's own form.

Never generates and knows no form. Used by the routes of OpenAI's and of Anthropic's clients.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.clock import Clock
from loopwright.core.errors import BadRequest, LimitExceeded, LoopwrightError, NotFound, from_info
from loopwright.core.events import Event, Finished
from loopwright.core.model_info import ModelInfo
from loopwright.core.nearest import did_you_mean
from loopwright.core.runs import ProgramInfo, Runs, RunSpec
from loopwright.server.answers import Answer
from loopwright.server.body import off_loop
from loopwright.server.disconnect import unless_disconnected
from loopwright.server.errors import json_response
from loopwright.server.generation import Generation
from loopwright.server.live_run import LiveRun, events_to_end, read_to_end, started_run
from loopwright.server.renaming import renamed
from loopwright.server.sse import EventStream, SseResponse
from loopwright.server.tool_request import AskedTools

PROGRAM_PREFIX = "program:"


class Writer(Protocol):
    """Writes the events of one run as those of one stream."""

    @property
    def alive(self) -> bytes:
        """What is said when there is nothing to say."""
        ...

    def push(self, events: Sequence[Event]) -> bytes:
        """All but the final event, in order; what comes together is written together."""
        ...

    def finish(self, finished: Finished) -> bytes:
        """All that comes after. Raises the error that ended the run, if one did."""
        ...

    def failed(self, error: LoopwrightError) -> bytes:
        """The end of a stream that has begun and cannot go on."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: what was asked for, the runs that could answer it, and how an answer is written."""

    generation: Generation
    names: Callable[[LoopwrightError], LoopwrightError]  # an error, by the request's own fields
    of_model: Callable[[ModelInfo], RunSpec]
    of_program: Callable[[ProgramInfo], RunSpec]
    writer: Callable[[Answer], Writer]
    whole: Callable[[Answer, Sequence[Event]], object]
    may_call: bool = False  # a tool of the client's


class Generating:
    """What every route does that generates."""

    def __init__(self, runs: Runs, clock: Clock) -> None:
        self.runs = runs
        self.clock = clock

    async def answer(self, request: Request, asked: Asked) -> Response:
        """The answer, whole or streamed. Leaving before its end cancels the run."""
        spec, model = await self.find_spec(request, asked)

        def begun(run: LiveRun) -> Answer:
            return self.begun(run, asked, model)

        async def whole() -> Response:
            async with started_run(self.runs, spec) as run:
                return json_response(asked.whole(begun(run), await events_to_end(run)))

        def stream(run: LiveRun) -> EventStream:
            writer = asked.writer(begun(run))
            return EventStream(written(run, writer), writer.failed, writer.alive)

        if asked.generation.is_streamed:
            return SseResponse(started_run(self.runs, spec), stream)
        return await unless_disconnected(request.receive, whole())

    def begun(self, run: LiveRun, asked: Asked, model: ModelInfo) -> Answer:
        """What is known of an answer when its run has started."""
        name = asked.generation.model
        return Answer(
            run.run_id,
            name,
            int(self.clock.wall_s()),
            model.fingerprint,
            asked.names,
            name.startswith(PROGRAM_PREFIX),
            model.tool_format if asked.may_call else "",
            asked.generation.constraint is not None,
        )

    async def find_spec(self, request: Request, asked: Asked) -> tuple[RunSpec, ModelInfo]:
        """The run that answers, and the model that computes it. Raises NotFound for a model that is not served here;
        BadRequest, by the request's own fields, for what it does not honour."""
        name = asked.generation.model
        try:
            for model in self.runs.models():
                if model.name == name:
                    return await off_loop(request, partial(asked.of_model, model)), model
            programs = await self.runs.programs()
            for program in programs:
                if PROGRAM_PREFIX + program.name == name:
                    return await off_loop(request, partial(asked.of_program, program)), self.runs.models()[0]
        except LoopwrightError as error:
            raise asked.names(error) from None
        models = [model.name for model in self.runs.models()]
        raise no_model(name, [*models, *(PROGRAM_PREFIX + program.name for program in programs)])

    def model(self, name: str | None) -> ModelInfo:
        """The model of that name; without a name, the server's first. Raises NotFound."""
        for model in self.runs.models():
            if name is None or model.name == name:
                return model
        raise no_model(name or "", [model.name for model in self.runs.models()])

    async def result(self, request: Request, program: str, model: ModelInfo, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """What a built-in program returns. Raises what ended it; ends it when the client goes."""
        spec = RunSpec(program=program, arguments=arguments, sandbox="native", model=model.name)

        async def result() -> Any:  # noqa: ANN401 (JSON)
            async with started_run(self.runs, spec) as run:
                _, finished = await read_to_end(run)
            if finished.error is not None:
                of_chat = {"tokens": "messages"} if arguments.get("messages") else {}
                raise renamed(from_info(finished.error), {"text": "prompt", **of_chat})
            return finished.result

        return await unless_disconnected(request.receive, result())


async def written(run: LiveRun, writer: Writer) -> AsyncGenerator[bytes]:
    """The stream of a run. Raises the error that ended it."""
    async for batch in run.batches():
        is_last = isinstance(finished := batch[-1], Finished)
        if chunk := writer.push(batch[:-1] if is_last else batch):
            yield chunk
        if isinstance(finished, Finished):
            yield writer.finish(finished)


def field_names(
    generation: Generation, prompt_field: str, tools: AskedTools | None = None
) -> Callable[[LoopwrightError], LoopwrightError]:
    """Gives an error of a run the fields of the request behind it, of a route that `generation` was read for."""
    names = {
        "positions": prompt_field,
        "tokens": prompt_field,
        "prompt": prompt_field,
        "stop_tokens": "stop_token_ids",
    }
    if (constraint := generation.constraint) is not None:
        names = {"grammar.source": constraint.field, "grammar": constraint.field, **names}
    if tools is not None:
        names |= tools.field_names()
    return lambda error: renamed(_of_request(error, prompt_field), names)


def _of_request(error: LoopwrightError, prompt_field: str) -> LoopwrightError:
    """What a built-in program could not send in one call is what its client sent."""
    if not (isinstance(error, LimitExceeded) and error.field == "max_message_bytes"):
        return error
    message = f"{prompt_field}: is too large: {error.message}"
    return BadRequest(message, hint="send less, or raise limits.max_message_bytes of the server", field=prompt_field)


def no_model(name: str, known: Iterable[str]) -> LoopwrightError:
    """`known` are the names of those that there are, programs included where one could have been meant."""
    near = did_you_mean(name, known)
    hint = f"{near} GET /v1/models lists those that do" if near else "GET /v1/models lists those that do"
    return NotFound(f"model: the model {name[:100]!r} does not exist", hint=hint, field="model")
