"""The openai package: chats, streams, objects, log-probabilities, completions, tools, responses, and its exceptions."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from conftest import KEY, LONG, PLAIN, TOO_LONG, Server

HI: Any = [{"role": "user", "content": "Hi"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Person(BaseModel):
    name: str
    age: int


def saying(text: str) -> Any:
    return [{"role": "user", "content": f"Say: {text}"}]


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key=KEY, max_retries=0)


def test_a_chat_is_the_same_streamed_and_not(client: OpenAI, server: Server) -> None:
    whole = client.chat.completions.create(model=server.model, messages=saying("Zürich 😀"))
    assert whole.choices[0].message.content == "Zürich 😀"
    assert whole.usage is not None
    stream = client.chat.completions.create(
        model=server.model, messages=saying("Zürich 😀"), stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Zürich 😀"
    assert (last.choices, last.usage.completion_tokens) == ([], whole.usage.completion_tokens)


def test_stream_and_parse_give_an_object(client: OpenAI, server: Server) -> None:
    messages = saying('{"name": "Ada", "age": 36}')
    parsed = client.chat.completions.parse(model=server.model, messages=messages, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    with client.chat.completions.stream(model=server.model, messages=messages, response_format=Person) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)
    assert {"content.delta", "content.done", "chunk"} <= kinds
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=server.model, messages=messages, response_format=Person, max_tokens=3)


def test_logprobs_choices_and_stop(client: OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=HI, n=2, logprobs=True, top_logprobs=2, stop=[","], seed=1
    )
    for choice in answer.choices:
        assert choice.message.content == PLAIN.partition(",")[0]
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
        assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)


def test_completions_and_models(client: OpenAI, server: Server) -> None:
    answer = client.completions.create(model=server.model, prompt=[[97, 98], [115]], max_tokens=4, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [one.id for one in client.models.list()] == [server.model, "program:shout"]
    assert client.models.retrieve(server.model).owned_by == "loopwright"


def test_tools_go_there_and_back(client: OpenAI, server: Server) -> None:
    messages: Any = [{"role": "user", "content": "add(2, 3)"}]
    first = client.chat.completions.create(model=server.model, messages=messages, tools=[ADD])
    (call,) = first.choices[0].message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
    with client.chat.completions.stream(model=server.model, messages=messages, tools=[ADD]) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert streamed.function.arguments == call.function.arguments
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    second = client.chat.completions.create(model=server.model, messages=messages, tools=[ADD])
    assert second.choices[0].message.content == "The tool says 5."


def test_a_program_is_a_model(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="program:shout", messages=HI)
    assert answer.choices[0].message.content == "HI!"
    stream = client.chat.completions.create(model="program:shout", messages=HI, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "HI!"


def test_embeddings_are_refused_by_name(client: OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings"):
        client.embeddings.create(model=server.model, input="x")


def test_faults_of_a_request_are_typed(client: OpenAI, server: Server) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.AuthenticationError) as no_key:
        client.with_options(api_key="wrong").chat.completions.create(model=server.model, messages=HI)
    assert no_key.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as no_model:
        create(model="none", messages=HI)
    assert (no_model.value.code, no_model.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="32768") as too_long:
        create(model=server.model, messages=[{"role": "user", "content": TOO_LONG}])
    assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as no_schema:
        create(
            model=server.model,
            messages=HI,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
        )
    assert no_schema.value.param == "response_format.json_schema.schema#/not"


def test_a_client_that_goes_ends_its_run(client: OpenAI, server: Server) -> None:
    stream = client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": LONG}], stream=True
    )
    next(iter(stream))
    assert server.num_running() == 1
    stream.close()
    assert server.becomes_idle()


def test_a_server_that_stops_is_an_error_that_may_be_retried(stopping: Server) -> None:
    client = OpenAI(base_url=stopping.v1, api_key=KEY, max_retries=0)
    stream = client.chat.completions.create(
        model=stopping.model, messages=[{"role": "user", "content": LONG}], stream=True
    )
    next(iter(stream))
    stopping.stop()
    with pytest.raises(openai.APIError, match="the server is stopping"):
        list(stream)
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model=stopping.model, messages=HI)


def test_responses_are_kept_streamed_and_parsed(client: OpenAI, server: Server) -> None:
    first = client.responses.create(model=server.model, input="Say: one")
    assert first.output_text == "one"
    assert client.responses.retrieve(first.id).output_text == "one"
    second = client.responses.create(model=server.model, input="Say: two", previous_response_id=first.id)
    assert second.output_text == "two"
    with client.responses.stream(model=server.model, input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == PLAIN
    parsed = client.responses.parse(model=server.model, input='Say: {"name": "Ada", "age": 36}', text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
