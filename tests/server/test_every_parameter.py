"""Every parameter that OpenAI documents, and every extension of ours: honoured, inert or refused, as the table says."""

import json
from typing import Any

import anthropic_spec
import msgspec
import pytest
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from fake_runs import MODEL as PLAIN_MODEL
from openai.types.responses import response_create_params
from openai_spec import parameters

from loopwright.core.errors import BadRequest
from loopwright.server.body import parse_body
from loopwright.server.chat_request import ChatBody, chat_spec, read_chat
from loopwright.server.completion_request import CompletionBody, completion_spec, read_completion
from loopwright.server.message_parameters import MESSAGE_HONOURED, MESSAGE_INERT, MESSAGE_REFUSED
from loopwright.server.message_request import MessagesBody, PromptBody, message_spec, read_messages_request
from loopwright.server.parameters import HONOURED, INERT, REFUSED
from loopwright.server.response_parameters import RESPONSE_HONOURED, RESPONSE_INERT, RESPONSE_REFUSED
from loopwright.server.response_request import LOGPROBS, ResponseBody, read_response, response_spec

MODEL = msgspec.structs.replace(PLAIN_MODEL, template_options=("enable_thinking", "reasoning_effort"))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}

FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}

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
    "function_call": ({"functions": [{"name": "f"}]}, {"name": "f"}),
    "add_generation_prompt": False,
    "continue_final_message": ({"messages": [{"role": "assistant", "content": "x"}]}, True),
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
RESPONSE: dict[str, Any] = {
    **{
        name: BOTH[name] for name in BOTH if name not in ("n", "response_format", "prompt_logprobs", "return_token_ids")
    },
    "input": "other",
    "instructions": "Be brief.",
    "previous_response_id": "resp_1",
    "store": False,
    "stream_options": ({"stream": True}, {"include_obfuscation": False}),
    "max_output_tokens": 5,
    "text": {"format": {"type": "json_object"}},
    "include": [LOGPROBS],
    "top_logprobs": ({"include": [LOGPROBS]}, 3),
    "logprob_kind": ({"include": [LOGPROBS]}, "processed"),
    "tools": [FUNCTION],
    "tool_choice": ({"tools": [FUNCTION]}, {"type": "function", "name": "f"}),
    "parallel_tool_calls": ({"tools": [FUNCTION]}, False),
    "metadata": {"k": "v"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "service_tier": "flex",
    "max_tool_calls": 3,
    "background": True,
    "background_options": {"completion_window": "2h"},
    "truncation": "auto",
    "reasoning": {"effort": "high"},
    "enable_thinking": False,
    "chat_template_kwargs": {"enable_thinking": True},
    "conversation": "conv_1",
    "context_management": [{"type": "compaction"}],
    "prompt": {"id": "p"},
    "prompt_cache_options": {"ttl": "12h"},
    "prompt_cache_retention": "24h",
    "moderation": {"model": "m"},
    "access_programs": {"cyber": "standard"},
    "image": {"context_compression": "auto"},
}
CLIENT_TOOL = {"name": "f", "input_schema": SCHEMA}
MESSAGE: dict[str, Any] = {
    "model": "tiny2",
    "messages": [{"role": "user", "content": "other"}],
    "system": "Be brief.",
    "max_tokens": 5,
    "stream": True,
    "stop_sequences": ["x"],
    "temperature": 0.3,
    "top_p": 0.5,
    "top_k": 3,
    "seed": 7,
    "tools": [CLIENT_TOOL],
    "tool_choice": ({"tools": [CLIENT_TOOL]}, {"type": "any", "disable_parallel_tool_use": True}),
    "thinking": {"type": "disabled"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "service_tier": "standard_only",
    "cache_control": {"type": "ephemeral"},
    "container": "c",
    "inference_geo": "us",
    "mcp_servers": [{"type": "url", "name": "n", "url": "https://example.com"}],
    "context_management": {"edits": []},
    "compaction": {},
    "diagnostics": {},
    "speed": "fast",
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "fallbacks": ["m"],
    "fallback_credit_token": {},
    "billing_policy": {},
    "thread": {},
    "user_profile_id": "u",
    "workspace_id": "w",
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


def read_as_response(**fields: Any) -> Any:
    body = parse_body(json.dumps({"model": "tiny", "input": "x", **fields}).encode(), ResponseBody)
    before = [{"role": "user", "content": "before"}] if body.previous_response_id else []
    request = read_response(body, before, lambda *named: {})
    told = {name: getattr(body, name) for name in ("store", "metadata", "include", "stream_options", "background")}
    return request.chat.generation, (response_spec(request, MODEL), told)


def read_as_message(**fields: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **fields}
    request = read_messages_request(parse_body(json.dumps(body).encode(), MessagesBody))
    return request.chat.generation, message_spec(request, msgspec.structs.replace(MODEL, reasoning=("<t>", "</t>")))


CHATS = (HONOURED, INERT, REFUSED)
RESPONSES = (RESPONSE_HONOURED, RESPONSE_INERT, RESPONSE_REFUSED)
ROUTES = {
    "chat": (read_as_chat, CHAT, CHATS),
    "completion": (read_as_completion, COMPLETION, CHATS),
    "response": (read_as_response, RESPONSE, RESPONSES),
    "message": (read_as_message, MESSAGE, (MESSAGE_HONOURED, MESSAGE_INERT, MESSAGE_REFUSED)),
}
CASES = [(route, name) for route, (_, samples, _) in ROUTES.items() for name in samples]


@pytest.mark.parametrize(("route", "name"), CASES)
def test_a_parameter_is_what_the_table_says(route: str, name: str) -> None:
    read, samples, (honoured, _, refused) = ROUTES[route]
    beside, value = samples[name] if isinstance(samples[name], tuple) else ({}, samples[name])
    without = read(**beside)
    if name in refused:
        with pytest.raises(BadRequest) as caught:
            read(**beside, **{name: value})
        assert caught.value.field == name
        assert caught.value.message.startswith(f"{name}: ")
    else:
        generation, spec = read(**beside, **{name: value})
        changes = (spec, _shown(generation)) != (without[1], _shown(without[0]))
        assert changes == (name in honoured)


def _shown(generation: Any) -> Any:
    """All but what is for programs, which get a parameter whatever becomes of it."""
    fields = ("model", "is_streamed", "includes_usage", "logprob_kind", "num_top", "num_prompt_top", "shows_prompt_ids")
    return {name: getattr(generation, name) for name in fields}


NO_FIELDS = {"betas", "prefill"}
"""What the annotations of Anthropic's client have that is no field of a body: a header, and a line of an example."""


def test_every_parameter_that_openai_or_anthropic_documents_has_a_sample() -> None:
    assert sorted(set(parameters("CreateChatCompletionRequest")) - set(CHAT)) == []
    assert sorted(set(parameters("CreateCompletionRequest")) - set(COMPLETION)) == []
    assert sorted(set(parameters("CreateResponse")) - set(RESPONSE)) == []
    client_s = response_create_params.ResponseCreateParamsBase.__annotations__
    assert sorted(set(client_s) - set(RESPONSE)) == []
    assert sorted(set(anthropic_spec.parameters("CreateMessageParams")) - set(MESSAGE)) == []
    for params in (message_create_params, beta_message_create_params):
        client_s = params.MessageCreateParamsBase.__annotations__
        assert sorted(set(client_s) - set(MESSAGE) - NO_FIELDS) == []
    counted = anthropic_spec.parameters("CountMessageTokensParams")
    assert sorted(set(counted) - set(PromptBody.__struct_fields__)) == []


def test_every_parameter_that_a_body_has_is_in_the_table_once_and_has_a_sample() -> None:
    table = [*HONOURED, *INERT, *REFUSED]
    assert sorted(set(table)) == sorted(table)
    assert sorted(ChatBody.__struct_fields__) == sorted(CHAT)
    assert sorted(CompletionBody.__struct_fields__) == sorted(COMPLETION)
    assert {*CHAT, *COMPLETION} == set(table)
    assert sorted(ResponseBody.__struct_fields__) == sorted(RESPONSE)
    assert sorted(MessagesBody.__struct_fields__) == sorted(MESSAGE)
    assert sorted(MESSAGE) == sorted([*MESSAGE_HONOURED, *MESSAGE_INERT, *MESSAGE_REFUSED])
    assert sorted(RESPONSE) == sorted([*RESPONSE_HONOURED, *RESPONSE_INERT, *RESPONSE_REFUSED])
