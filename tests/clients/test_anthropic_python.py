"""The anthropic package: messages, streams, tools, token counts, and its exceptions."""

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from conftest import KEY, LONG, PLAIN, TOO_LONG, Server

ADD: Any = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def saying(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


def test_a_message_is_the_same_streamed_and_not(client: Anthropic, server: Server) -> None:
    whole = client.messages.create(model=server.model, max_tokens=100, messages=saying("Hi"), system="Be brief.")
    assert (whole.content[0].text, whole.stop_reason) == (PLAIN, "end_turn")
    with client.messages.stream(
        model=server.model, max_tokens=100, messages=saying("Hi"), system="Be brief."
    ) as stream:
        assert "".join(stream.text_stream) == PLAIN
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    cut = client.messages.create(model=server.model, max_tokens=5, messages=saying("Hi"))
    assert (cut.content[0].text, cut.stop_reason) == (PLAIN[:5], "max_tokens")


def test_tools_go_there_and_back(client: Anthropic, server: Server) -> None:
    messages = saying("add(2, 3)")
    first = client.messages.create(model=server.model, max_tokens=200, messages=messages, tools=[ADD])
    (call,) = first.content
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "add", {"a": 2, "b": 3})
    with client.messages.stream(model=server.model, max_tokens=200, messages=messages, tools=[ADD]) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=server.model, max_tokens=200, messages=messages, tools=[ADD])
    assert second.content[0].text == "The tool says 5."


def test_tokens_are_counted_as_they_run(client: Anthropic, server: Server) -> None:
    counted = client.messages.count_tokens(model=server.model, messages=saying("Hi"))
    ran = client.messages.create(model=server.model, max_tokens=5, messages=saying("Hi")).usage
    assert counted.input_tokens == ran.input_tokens + (ran.cache_read_input_tokens or 0)


def test_a_program_is_a_model(client: Anthropic) -> None:
    answer = client.messages.create(model="program:shout", max_tokens=100, messages=saying("Hi"))
    assert answer.content[0].text == "HI!"


def test_faults_of_a_request_are_typed(client: Anthropic, server: Server) -> None:
    def ask(one: Anthropic, text: str = "Hi", model: str = "") -> None:
        one.messages.create(model=model or server.model, max_tokens=10, messages=saying(text))

    with pytest.raises(anthropic.AuthenticationError):
        ask(client.with_options(api_key="wrong"))
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="none")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, TOO_LONG)


def test_a_client_that_goes_ends_its_run(client: Anthropic, server: Server) -> None:
    with client.messages.stream(model=server.model, max_tokens=30000, messages=saying(LONG)) as stream:
        next(iter(stream.text_stream))
    assert server.becomes_idle()


def test_a_server_that_stops_is_an_error_that_may_be_retried(stopping: Server) -> None:
    client = Anthropic(base_url=stopping.url, api_key=KEY, max_retries=0)
    with client.messages.stream(model=stopping.model, max_tokens=30000, messages=saying(LONG)) as stream:
        texts = iter(stream.text_stream)
        next(texts)
        stopping.stop()
        with pytest.raises(anthropic.APIStatusError, match="the server is stopping"):
            list(texts)
    with pytest.raises(anthropic.APIConnectionError):
        client.messages.create(model=stopping.model, max_tokens=10, messages=saying("Hi"))
