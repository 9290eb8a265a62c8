"""What chat completions and completions have in common: the parameters, and what they mean for a run. Pure.

Every parameter is honoured, inert, or refused by name; null is the same as absent. Never starts a run. Used by
`chat_request` and `completion_request`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import Parameter, ProgramInfo, RunSpec
from loopwright.server.constraints import Constraint, GuidedBody, ResponseFormat, read_constraint
from loopwright.server.parameters import INERT, REFUSED
from loopwright.server.prompt_limits import MAX_BIASES, MAX_STOP_CHARS, check_number

MAX_CHOICES = 128
MAX_TOP = 20
MAX_TOKEN_DIGITS = 18

NonEmpty = Annotated[str, Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]

ProgramOptions = Mapping[str, Any]
"""What a request set, by the names of its parameters: what a deployed program may take."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingBody(GuidedBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How tokens are chosen and what ends an answer, of every route of OpenAI's. What comes after `user` is not theirs,
    but an extension."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**62)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Meta(max_length=16)] | None = None
    user: str | None = None  # inert

    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    logprob_kind: Literal["raw", "processed"] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1)] | None = None


class GenerationBody(SamplingBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a body that chats and completions take. The last two are extensions."""

    model: NonEmpty
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    response_format: ResponseFormat | None = None

    prompt_logprobs: Top | None = None
    return_token_ids: bool | None = None


SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias",
)  # fmt: skip
"""Parameters that the engine knows by the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was asked for. `options` are for the built-in programs, `given` for deployed ones."""

    model: str
    options: dict[str, Any]
    given: ProgramOptions
    constraint: Constraint | None
    is_streamed: bool
    includes_usage: bool
    shows_prompt_ids: bool
    logprob_kind: str
    num_top: int | None  # how many of the most probable tokens to show of each place; None shows no log-probabilities
    num_prompt_top: int | None  # the same of the prompt
    echoes: bool = False


def read_generation(
    body: GenerationBody, *, max_tokens: int | None, num_top: int | None, best_of: int = 1, echoes: bool = False
) -> Generation:
    """`num_top` is how many of the most probable tokens are shown of each place; None is no log-probability at all.
    Raises BadRequest naming the field that cannot be honoured."""
    _check(body, num_top, echoes=echoes)
    constraint = read_constraint(body.response_format, body)
    sampling = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    if num_top is not None:
        sampling |= {"logprobs": body.logprob_kind or "raw", "top_logprobs": num_top}
    wanted_top = body.prompt_logprobs
    if echoes and num_top is not None:
        wanted_top = max(num_top, body.prompt_logprobs or 0)
    options = {
        "max_tokens": max_tokens,
        "sampling": {"temperature": 1.0, **sampling},
        "seed": body.seed,
        "stop": _listed(body.stop) or None,
        "stop_tokens": body.stop_token_ids or None,
        "ignore_eos": body.ignore_eos or None,
        "grammar": None if constraint is None else {"kind": constraint.kind, "source": constraint.source},
        "n": body.n,
        "best_of": max(best_of, body.n or 1),
        "shows_tokens": body.return_token_ids or None,
        "shows_logprobs": num_top is not None or None,
        "shows_prompt": echoes or body.return_token_ids or None,
        "prompt_logprobs": wanted_top,
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
    }
    return Generation(
        model=body.model,
        options={name: value for name, value in options.items() if value is not None},
        given=_given(body, max_tokens),
        constraint=constraint,
        is_streamed=body.stream is True,
        includes_usage=body.stream_options is not None and body.stream_options.include_usage is True,
        logprob_kind=body.logprob_kind or "raw",
        num_top=num_top,
        num_prompt_top=body.prompt_logprobs,
        shows_prompt_ids=body.return_token_ids is True,
        echoes=echoes,
    )


def _check(body: GenerationBody, num_top: int | None, *, echoes: bool) -> None:
    if body.stream_options is not None and body.stream is not True:
        raise BadRequest("stream_options: only allowed when stream is true", field="stream_options")
    if body.logprob_kind is not None and num_top is None:
        raise BadRequest("logprob_kind: only allowed with logprobs", field="logprob_kind")
    if body.logprob_kind == "processed" and echoes:
        raise BadRequest("logprob_kind: of an echoed prompt only raw is known", field="logprob_kind")
    check_number("logit_bias", len(body.logit_bias or ()), MAX_BIASES, "tokens")
    check_number("stop", sum(map(len, _listed(body.stop) or ())), MAX_STOP_CHARS, "characters")
    for token in body.logit_bias or {}:
        if not (token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_DIGITS):
            raise BadRequest(f"logit_bias: {token[:50]!r} is no token id", field="logit_bias")


def model_spec(program: str, arguments: Mapping[str, Any], generation: Generation, model: ModelInfo) -> RunSpec:
    """The run of a built-in program that answers a request to a model."""
    for token in generation.options["sampling"].get("logit_bias", {}):
        if int(token) >= model.vocab_size:
            message = f"logit_bias: {token} is no token id of {model.name}; ids end at {model.vocab_size - 1}"
            raise BadRequest(message, field="logit_bias")
    return RunSpec(
        program=program,
        arguments={**arguments, "options": generation.options},
        sandbox="native",
        model=model.name,
        seed=generation.options.get("seed"),
    )


def program_spec(
    program: ProgramInfo, generation: Generation, request_name: str, whole: object, last_text: Callable[[], str]
) -> RunSpec:
    """The run of a deployed program that answers a request.

    A parameter of the name `request_name` gets `whole`; without one, the first text parameter gets the last text. Other
    parameters get what the request says under their names. Raises BadRequest when something given or required has no
    place."""
    parameters = {parameter.name: parameter for parameter in program.parameters}
    arguments: dict[str, Any] = {}
    for name, value in generation.given.items():
        if name in parameters:
            arguments[name] = value
        elif name not in INERT and name != "seed" and value not in ASKS_NOTHING.get(name, ()):
            message = f"{name}: the main of {generation.model} has no parameter of that name"
            raise BadRequest(message, hint=f"leave {name} out", field=name)
    if request_name in parameters:
        arguments[request_name] = whole
    elif (parameter := _text_parameter(program.parameters)) is not None:
        arguments[parameter.name] = last_text()
    for parameter in program.parameters:
        if parameter.is_required and parameter.name not in arguments:
            raise BadRequest(
                f"the main of {generation.model} requires {parameter.name!r}, which the request does not give",
                hint=f"use POST /v1/programs/{program.name}/runs",
                field="model",
            )
    return RunSpec(program=program.name, arguments=arguments, seed=generation.options.get("seed"), has_input=False)


def refuse(
    body: msgspec.Struct, names: Iterable[str] = REFUSED, nothing: Mapping[str, Sequence[object]] | None = None
) -> None:
    """Raises BadRequest for a parameter that a model does not honour, unless its value asks for `nothing`."""
    for name in names:
        values = (ASKS_NOTHING if nothing is None else nothing).get(name, ())
        value = getattr(body, name, None)
        if value is None or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values):
            continue
        allowed = " or ".join(msgspec.json.encode(one).decode() for one in values)
        message = f"{name}: only {allowed} is supported" if allowed else f"{name}: not supported"
        raise BadRequest(message, hint=f"leave {name} out", field=name)


ASKS_NOTHING: Mapping[str, Sequence[object]] = {
    "n": (1,), "best_of": (0, 1), "temperature": (1,), "top_p": (1,), "top_k": (0,), "min_p": (0,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},),
    "stop": ([],), "stop_token_ids": ([],), "ignore_eos": (False,), "return_token_ids": (False,), "echo": (False,),
    "response_format": ({"type": "text"},), "tools": ([],), "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,), "functions": ([],), "verbosity": ("medium",), "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "function_call": ("none", "auto"), "modalities": (["text"],), "suffix": ("",),
}  # fmt: skip
"""Values that mean the same as leaving the parameter out."""

_OF_THE_ROUTE = (
    "model",
    "stream",
    "stream_options",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "seed",
)


def _given(body: GenerationBody, max_tokens: int | None) -> ProgramOptions:
    given: dict[str, Any] = {"max_tokens": max_tokens, "seed": body.seed}
    given |= {name: getattr(body, name) for name in body.__struct_fields__ if name not in _OF_THE_ROUTE}
    if "stop" in given:
        given["stop"] = _listed(body.stop)
    return {name: msgspec.to_builtins(value) for name, value in given.items() if value is not None}


def _listed(stop: str | list[str] | None) -> list[str] | None:
    return [stop] if isinstance(stop, str) else stop


def _text_parameter(parameters: Sequence[Parameter]) -> Parameter | None:
    """The first text parameter that must be given, or else the first one at all."""
    texts = [parameter for parameter in parameters if parameter.type == "str"]
    return next((parameter for parameter in texts if parameter.is_required), texts[0] if texts else None)
