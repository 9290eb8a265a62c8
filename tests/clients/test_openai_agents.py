"""openai-agents, over chat completions: an agent with tools, a typed result, a stream, and its exceptions."""

import asyncio
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel

from conftest import KEY, LONG, PLAIN, TOO_LONG, Server


class Person(BaseModel):
    name: str
    age: int


@function_tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def agent(server: Server, model: str = "", key: str = KEY, **options: Any) -> Agent:
    client = AsyncOpenAI(base_url=server.v1, api_key=key, max_retries=0)
    chat = OpenAIChatCompletionsModel(model=model or server.model, openai_client=client)
    return Agent(name="tested", instructions="Be brief.", model=chat, **options)


async def test_an_agent_calls_its_tool_and_says_what_came_of_it(server: Server) -> None:
    result = await Runner.run(agent(server, tools=[add]), "add(2, 3)")
    assert result.final_output == "The tool says 5."
    assert result.context_wrapper.usage.requests == 2


async def test_the_responses_api_which_agents_take_by_default_works_too(server: Server) -> None:
    client = AsyncOpenAI(base_url=server.v1, api_key=KEY, max_retries=0)
    one = Agent(name="tested", model=OpenAIResponsesModel(model=server.model, openai_client=client), tools=[add])
    assert (await Runner.run(one, "add(2, 3)")).final_output == "The tool says 5."
    result = Runner.run_streamed(one, "Hi")
    assert [event async for event in result.stream_events()]
    assert result.final_output == PLAIN


async def test_a_stream_of_an_agent_is_its_text(server: Server) -> None:
    result = Runner.run_streamed(agent(server, tools=[add]), "Hi")
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == result.final_output == PLAIN


async def test_a_typed_result_is_held_to_its_type(server: Server) -> None:
    result = await Runner.run(agent(server, output_type=Person), 'Say: {"name": "Ada", "age": 36}')
    assert result.final_output == Person(name="Ada", age=36)
    assert isinstance((await Runner.run(agent(server, output_type=Person), "Hi")).final_output, Person)


async def test_a_program_is_a_model(server: Server) -> None:
    plain = Agent(name="tested", model=agent(server, "program:shout").model)
    assert (await Runner.run(plain, "Hi")).final_output == "HI!"


async def test_faults_are_those_of_openai(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        await Runner.run(agent(server, key="wrong"), "Hi")
    with pytest.raises(openai.NotFoundError):
        await Runner.run(agent(server, "none"), "Hi")
    with pytest.raises(openai.BadRequestError, match="32768"):
        await Runner.run(agent(server), TOO_LONG)


async def test_a_run_that_is_cancelled_ends_at_the_server(server: Server) -> None:
    result = Runner.run_streamed(agent(server), LONG)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            break
    result.cancel()
    assert await asyncio.to_thread(server.becomes_idle)


async def test_a_server_that_stops_is_an_error(stopping: Server) -> None:
    one = agent(stopping)
    result = Runner.run_streamed(one, LONG)
    is_told = False
    with pytest.raises(openai.APIError, match="the server is stopping"):
        async for event in result.stream_events():
            if not is_told and event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                is_told = True
                stopping.stop()
    with pytest.raises(openai.APIConnectionError):
        await Runner.run(one, "Hi")
