"""Reads the body of a completion of OpenAI's and makes the run that answers it. Never starts it; pure.

Used by its route. A prompt of token ids runs as it is, whether or not the ids would come back from their text.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ProgramInfo, RunSpec
from loopwright.server.generation import (
    MAX_TOP,
    Generation,
    GenerationBody,
    TokenId,
    model_spec,
    program_spec,
    read_generation,
    refuse,
)
from loopwright.server.prompt_limits import check_ids, check_text

DEFAULT_MAX_TOKENS = 16
MAX_BEST_OF = 20
MAX_PROMPTS = 2048

TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Prompt = str | list[int]


class CompletionBody(GenerationBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent. `prompt` is a text or token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=MAX_BEST_OF)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request that can be honoured."""

    prompts: list[Prompt]
    generation: Generation


def read_completion(body: CompletionBody) -> CompletionRequest:
    """Raises BadRequest naming the field that cannot be honoured."""
    refuse(body)
    prompts, num_choices, best_of = _read_prompts(body), body.n or 1, body.best_of or 1
    echoes, max_tokens = body.echo is True, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.best_of and best_of < num_choices:
        raise BadRequest(f"best_of: {best_of} is less than n, which is {num_choices}", field="best_of")
    if best_of > num_choices and body.stream:
        raise BadRequest("best_of: which are the best is known at the end, so not with stream", field="best_of")
    if max_tokens == 0 and not echoes and body.prompt_logprobs is None:
        raise BadRequest("max_tokens: 0 is only allowed with echo or prompt_logprobs", field="max_tokens")
    if max_tokens == 0 and max(num_choices, best_of) > 1:
        field = "n" if num_choices > 1 else "best_of"
        raise BadRequest(f"{field}: with max_tokens 0 all choices would be the same", field=field)
    if len(prompts) * num_choices > MAX_PROMPTS:
        raise BadRequest(f"n: {len(prompts)} prompts times {num_choices}; the limit is {MAX_PROMPTS}", field="n")
    if echoes and max_tokens == 1 and body.logprobs is not None and body.ignore_eos is None:
        # Harnesses score a prompt so, and count on a log-probability for the one token too when it is the model's end.
        body = msgspec.structs.replace(body, ignore_eos=True)
    generation = read_generation(body, max_tokens=max_tokens, num_top=body.logprobs, best_of=best_of, echoes=echoes)
    return CompletionRequest(prompts, generation)


def completion_spec(request: CompletionRequest, model: ModelInfo) -> RunSpec:
    """The run of the built-in completion program that answers the request."""
    num_kept = request.generation.options.get("truncate_prompt_tokens")
    for prompt in request.prompts if num_kept is None else ():
        check = check_text if isinstance(prompt, str) else check_ids
        check("prompt", len(prompt), model)
    prompts = [one if isinstance(one, str) or num_kept is None else one[-num_kept:] for one in request.prompts]
    for prompt in prompts:
        if not isinstance(prompt, str) and (largest := max(prompt)) >= model.vocab_size:
            message = f"prompt: {largest} is no token id of {model.name}; ids end at {model.vocab_size - 1}"
            raise BadRequest(message, field="prompt")
    return model_spec("completion", {"prompts": prompts}, request.generation, model)


def completion_of_program(request: CompletionRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers it: as `program_spec`, with `prompt`."""
    text = request.prompts[0]
    if len(request.prompts) > 1 or not isinstance(text, str):
        raise BadRequest("prompt: a program takes one text", field="prompt")
    return program_spec(program, request.generation, "prompt", text, text.__str__)


def _read_prompts(body: CompletionBody) -> list[Prompt]:
    if isinstance(body.prompt, str):
        return [body.prompt]
    kinds = {type(one) for one in body.prompt}
    if len(kinds) > 1:
        raise BadRequest("prompt: a list holds texts, or token ids, or lists of token ids", field="prompt")
    if kinds == {int}:
        return [[one for one in body.prompt if isinstance(one, int)]]
    if len(body.prompt) > MAX_PROMPTS:
        raise BadRequest(f"prompt: {len(body.prompt)} prompts; the limit is {MAX_PROMPTS}", field="prompt")
    return [one for one in body.prompt if not isinstance(one, int)]
