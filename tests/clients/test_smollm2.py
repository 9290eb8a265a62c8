"""Clients beside `loopwright serve` with the real default model: all get one greedy answer, and a form is held."""

import litellm
import pytest
from anthropic import Anthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import Server

ASK = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": ASK}]
NUM_TOKENS = 20


class City(BaseModel):
    name: str = Field(max_length=20)
    is_capital: bool
    million_people: int = Field(ge=1, le=30)


@pytest.fixture(scope="session")
def expected(smollm2: Server) -> str:
    client = OpenAI(base_url=smollm2.v1, api_key="unused", max_retries=0)
    answer = client.chat.completions.create(
        model=smollm2.model, messages=MESSAGES, temperature=0, max_tokens=NUM_TOKENS
    )
    text = answer.choices[0].message.content or ""
    assert "Paris" in text
    return text


def test_streams_and_responses_of_openai_s_client(smollm2: Server, expected: str) -> None:
    client = OpenAI(base_url=smollm2.v1, api_key="unused", max_retries=0)
    options = {"model": smollm2.model, "temperature": 0}
    stream = client.chat.completions.create(messages=MESSAGES, max_tokens=NUM_TOKENS, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected
    assert client.responses.create(input=ASK, max_output_tokens=NUM_TOKENS, **options).output_text == expected
    city = client.chat.completions.parse(messages=MESSAGES, response_format=City, **options).choices[0].message.parsed
    assert isinstance(city, City)


def test_langchain_litellm_and_anthropic(smollm2: Server, expected: str) -> None:
    chat = ChatOpenAI(
        model=smollm2.model, base_url=smollm2.v1, api_key="unused", temperature=0, max_tokens=NUM_TOKENS, max_retries=0
    )
    assert chat.invoke(ASK).content == expected
    answer = litellm.completion(
        model=f"openai/{smollm2.model}",
        api_base=smollm2.v1,
        api_key="unused",
        messages=MESSAGES,
        temperature=0,
        max_tokens=NUM_TOKENS,
    )
    assert answer.choices[0].message.content == expected
    client = Anthropic(base_url=smollm2.url, api_key="unused", max_retries=0)
    message = client.messages.create(
        model=smollm2.model, messages=MESSAGES, max_tokens=NUM_TOKENS, extra_body={"temperature": 0}
    )
    assert message.content[0].text == expected


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
async def test_pydantic_ai_over_both_of_openai_s_routes(smollm2: Server, expected: str, kind: type) -> None:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=smollm2.v1, api_key="unused", max_retries=0))
    settings = {"temperature": 0.0, "max_tokens": NUM_TOKENS}
    agent = Agent(kind(smollm2.model, provider=provider))
    assert (await agent.run(ASK, model_settings=settings)).output == expected
    typed = Agent(kind(smollm2.model, provider=provider), output_type=NativeOutput(City))
    assert isinstance((await typed.run(ASK, model_settings={"temperature": 0.0})).output, City)
