"""pydantic-ai, over chat completions: text, streams, tools, each way of a typed result, and its exceptions."""

import asyncio

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, exceptions
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import KEY, LONG, PLAIN, TOO_LONG, Server


class Person(BaseModel):
    name: str
    age: int


def model(server: Server, name: str = "", key: str = KEY) -> OpenAIChatModel:
    client = AsyncOpenAI(base_url=server.v1, api_key=key, max_retries=0)
    return OpenAIChatModel(name or server.model, provider=OpenAIProvider(openai_client=client))


async def test_a_text_is_the_same_streamed_and_not(server: Server) -> None:
    agent = Agent(model(server))
    result = await agent.run("Hi")
    assert result.output == PLAIN
    assert result.usage.output_tokens == len(PLAIN) + 1
    async with agent.run_stream("Hi") as stream:
        assert "".join([delta async for delta in stream.stream_text(delta=True)]) == PLAIN


async def test_an_agent_calls_its_tool(server: Server) -> None:
    agent = Agent(model(server))

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    assert (await agent.run("add(2, 3)")).output == "The tool says 5."


async def test_a_typed_result_is_held_to_its_type(server: Server) -> None:
    native = Agent(model(server), output_type=NativeOutput(Person))
    assert (await native.run('Say: {"name": "Ada", "age": 36}')).output == Person(name="Ada", age=36)
    assert isinstance((await native.run("Hi")).output, Person)
    by_tool = Agent(model(server), output_type=Person)
    assert (await by_tool.run("final_result('Ada', 36)")).output == Person(name="Ada", age=36)


async def test_a_program_is_a_model(server: Server) -> None:
    assert (await Agent(model(server, "program:shout")).run("Hi")).output == "HI!"


async def test_faults_of_a_request_are_typed(server: Server) -> None:
    with pytest.raises(exceptions.ModelAuthenticationError):
        await Agent(model(server, key="wrong")).run("Hi")
    with pytest.raises(exceptions.ModelNotFoundError):
        await Agent(model(server, "none")).run("Hi")
    with pytest.raises(exceptions.ModelContextWindowExceededError):
        await Agent(model(server)).run(TOO_LONG)


async def test_a_client_that_goes_ends_its_run(server: Server) -> None:
    async with Agent(model(server)).run_stream(LONG) as stream:
        async for _ in stream.stream_text(delta=True):
            break
    assert await asyncio.to_thread(server.becomes_idle)


async def test_a_server_that_stops_is_an_error(stopping: Server) -> None:
    agent = Agent(model(stopping))
    with pytest.raises(exceptions.ModelAPIError, match="the server is stopping"):
        async with agent.run_stream(LONG) as stream:
            async for _ in stream.stream_text(delta=True):
                stopping.stop()
    with pytest.raises(exceptions.ModelAPIError):
        await agent.run("Hi")
