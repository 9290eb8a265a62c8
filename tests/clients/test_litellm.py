"""litellm, with its provider for OpenAI's servers: chats, streams, tools, objects, completions, and its exceptions."""

import json
from typing import Any

import litellm
import pytest
from pydantic import BaseModel

from conftest import KEY, LONG, PLAIN, TOO_LONG, Server


class Person(BaseModel):
    name: str
    age: int


def options(server: Server, text: str = "Hi", model: str = "", **more: Any) -> dict[str, Any]:
    given = {"model": f"openai/{model or server.model}", "api_base": server.v1, "api_key": KEY, "max_retries": 0}
    return {**given, "messages": [{"role": "user", "content": text}], **more}


def test_a_chat_is_the_same_streamed_and_not(server: Server) -> None:
    answer = litellm.completion(**options(server))
    assert answer.choices[0].message.content == PLAIN
    assert answer.usage.completion_tokens == len(PLAIN) + 1
    chunks = list(litellm.completion(**options(server, stream=True)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PLAIN
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == PLAIN


def test_tools_and_objects(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "twice", "parameters": schema}}
    (call,) = litellm.completion(**options(server, "twice(4)", tools=[tool])).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("twice", {"a": 4})
    answer = litellm.completion(**options(server, 'Say: {"name": "Ada", "age": 36}', response_format=Person))
    assert Person.model_validate_json(answer.choices[0].message.content) == Person(name="Ada", age=36)


def test_a_text_completion_and_a_program(server: Server) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        api_base=server.v1,
        api_key=KEY,
        prompt="user\nSay: abc\nassistant\n",
        max_tokens=9,
    )
    assert answer.choices[0].text == "abc"
    assert litellm.completion(**options(server, model="program:shout")).choices[0].message.content == "HI!"


def test_faults_of_a_request_are_typed(server: Server) -> None:
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**options(server, api_key="wrong"))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options(server, model="none"))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**options(server, TOO_LONG))


def test_a_client_that_goes_ends_its_run(server: Server) -> None:
    stream = litellm.completion(**options(server, LONG, stream=True))
    next(iter(stream))
    stream.completion_stream.close()
    assert server.becomes_idle()


def test_a_server_that_stops_is_an_error(stopping: Server) -> None:
    stream = litellm.completion(**options(stopping, LONG, stream=True))
    next(iter(stream))
    stopping.stop()
    with pytest.raises(litellm.exceptions.MidStreamFallbackError, match="the server is stopping"):
        list(stream)
    with pytest.raises((litellm.APIConnectionError, litellm.InternalServerError)):
        litellm.completion(**options(stopping))
