"""Every parameter that OpenAI documents, and every extension of ours: honoured, inert or refused, as the table says."""

import json
from typing import Any

import pytest
from fake_runs import MODEL
from openai_spec import parameters

from loopwright.core.errors import BadRequest
from loopwright.server.body import parse_body
from loopwright.server.chat_request import ChatBody, chat_spec, read_chat
from loopwright.server.completion_request import CompletionBody, completion_spec, read_completion
from loopwright.server.parameters import HONOURED, INERT, REFUSED

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

BOTH: dict[str, Any] = {
    "model": "tiny2",
    "stream": True,
    "n": 2,
    "temperature": 0.3,
    "top_p": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"3": 5},
    "seed": 7,
    "stop": ["x", "y"],
    "user": "someone",
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "stop_token_ids": [3],
    "ignore_eos": True,
    "prompt_logprobs": 2,
    "return_token_ids": True,
    "truncate_prompt_tokens": 5,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'start: "a"',
}
CHAT: dict[str, Any] = {
    **BOTH,
    "messages": [{"role": "user", "content": "other"}],
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "logprobs": True,
    "top_logprobs": ({"logprobs": True}, 3),
    "logprob_kind": ({"logprobs": True}, "processed"),
    "metadata": {"k": "v"},
    "parallel_tool_calls": ({"tools": [TOOL]}, False),
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": True,
    "tools": [TOOL],
    "tool_choice": ({"tools": [TOOL]}, "required"),
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "moderation": {"type": "auto"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"ttl": "1h"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "enable_thinking": False,
    "chat_template_kwargs": {"enable_thinking": True},
    "verbosity": "low",
    "web_search_options": {},
}
COMPLETION: dict[str, Any] = {
    **BOTH,
    "prompt": [1, 2],
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "max_tokens": 5,
    "best_of": 3,
    "echo": True,
    "logprobs": 2,
    "logprob_kind": ({"logprobs": 1}, "processed"),
    "suffix": "x",
}
"""For each parameter a value that asks for something; or, in a pair, after what else it takes."""


def read_as_chat(**fields: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
    request = read_chat(parse_body(json.dumps(body).encode(), ChatBody))
    return request.generation, chat_spec(request, MODEL)


def read_as_completion(**fields: Any) -> Any:
    body = {"model": "tiny", "prompt": "x", **fields}
    request = read_completion(parse_body(json.dumps(body).encode(), CompletionBody))
    return request.generation, completion_spec(request, MODEL)


ROUTES = {"chat": (read_as_chat, CHAT), "completion": (read_as_completion, COMPLETION)}
CASES = [(route, name) for route, (_, samples) in ROUTES.items() for name in samples]


@pytest.mark.parametrize(("route", "name"), CASES)
def test_a_parameter_is_what_the_table_says(route: str, name: str) -> None:
    read, samples = ROUTES[route]
    beside, value = samples[name] if isinstance(samples[name], tuple) else ({}, samples[name])
    without = read(**beside)
    if name in REFUSED:
        with pytest.raises(BadRequest) as caught:
            read(**beside, **{name: value})
        assert caught.value.field == name
        assert caught.value.message.startswith(f"{name}: ")
    else:
        generation, spec = read(**beside, **{name: value})
        changes = (spec, _shown(generation)) != (without[1], _shown(without[0]))
        assert changes == (name in HONOURED)


def _shown(generation: Any) -> Any:
    """All but what is for programs, which get a parameter whatever becomes of it."""
    fields = ("model", "is_streamed", "includes_usage", "logprob_kind", "num_top", "num_prompt_top", "shows_prompt_ids")
    return {name: getattr(generation, name) for name in fields}


def test_every_parameter_that_openai_documents_has_a_sample() -> None:
    assert sorted(set(parameters("CreateChatCompletionRequest")) - set(CHAT)) == []
    assert sorted(set(parameters("CreateCompletionRequest")) - set(COMPLETION)) == []


def test_every_parameter_that_a_body_has_is_in_the_table_once_and_has_a_sample() -> None:
    table = [*HONOURED, *INERT, *REFUSED]
    assert sorted(set(table)) == sorted(table)
    assert sorted(ChatBody.__struct_fields__) == sorted(CHAT)
    assert sorted(CompletionBody.__struct_fields__) == sorted(COMPLETION)
    assert {*CHAT, *COMPLETION} == set(table)
