"""langchain-openai: langchain's own standard tests of a chat model, over chat completions, and its exceptions."""

from typing import Any

import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from conftest import KEY, LONG, TOO_LONG, Server


class TestChatOpenAI(ChatModelIntegrationTests):
    """What langchain asks of every chat model."""

    @pytest.fixture(autouse=True)
    def _at_the_server(self, server: Server) -> None:
        type(self).server = server

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        at_the_server = {"model": self.server.model, "base_url": self.server.v1, "api_key": KEY, "max_retries": 0}
        return {**at_the_server, "stream_usage": True}  # which it asks for by itself at OpenAI's own address only

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "program:shout"


def chat(server: Server, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": server.model, "base_url": server.v1, "api_key": KEY, "max_retries": 0, **options})


def test_a_program_is_a_model(server: Server) -> None:
    model = chat(server, model="program:shout")
    assert model.invoke("Hi").content == "HI!"
    assert "".join(str(chunk.content) for chunk in model.stream("Hi")) == "HI!"


def test_logprobs_come_with_the_message(server: Server) -> None:
    answer = chat(server, logprobs=True, top_logprobs=1).invoke("Say: abc")
    assert [one["token"] for one in answer.response_metadata["logprobs"]["content"]] == ["a", "b", "c"]


def test_faults_of_a_request_are_those_of_openai(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        chat(server, api_key="wrong").invoke("Hi")
    with pytest.raises(openai.NotFoundError):
        chat(server, model="none").invoke("Hi")
    with pytest.raises(openai.BadRequestError, match="32768") as caught:
        chat(server).invoke(TOO_LONG)
    assert type(caught.value).__name__ == "OpenAIContextOverflowError"  # langchain's own, which its middleware handles


def test_a_client_that_goes_ends_its_run(server: Server) -> None:
    stream = chat(server).stream(LONG)
    next(stream)
    stream.close()
    assert server.becomes_idle()


def test_a_server_that_stops_is_an_error(stopping: Server) -> None:
    model = chat(stopping)
    stream = model.stream(LONG)
    next(stream)
    stopping.stop()
    with pytest.raises(openai.APIError, match="the server is stopping"):
        list(stream)
    with pytest.raises(openai.APIConnectionError):
        model.invoke("Hi")
