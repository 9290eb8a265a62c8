"""instructor, in each of its modes for OpenAI's servers: objects, partial ones, retries, and its exceptions."""

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel, Field

from conftest import KEY, LONG, TOO_LONG, Server

MODES = [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON]


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)


def client(server: Server, mode: instructor.Mode, key: str = KEY) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=server.v1, api_key=key, max_retries=0), mode=mode)


def asking(mode: instructor.Mode, tool: str = "Person") -> list[dict[str, str]]:
    by_tool = mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT)
    text = f"{tool}('Ada', 36)" if by_tool else 'Say: {"name": "Ada", "age": 36}'
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("mode", MODES)
def test_an_object_comes_in_each_mode(server: Server, mode: instructor.Mode) -> None:
    found = client(server, mode).chat.completions.create(
        model=server.model, messages=asking(mode), response_model=Person, max_retries=0
    )
    assert found.model_dump() == {"name": "Ada", "age": 36}


@pytest.mark.parametrize("mode", [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS])
def test_a_partial_object_grows(server: Server, mode: instructor.Mode) -> None:
    *_, last = client(server, mode).chat.completions.create_partial(
        model=server.model, messages=asking(mode, "PartialPerson"), response_model=Person
    )
    assert last.model_dump() == {"name": "Ada", "age": 36}


def test_whatever_the_model_would_say_the_object_is_of_its_type(server: Server) -> None:
    found = client(server, instructor.Mode.JSON_SCHEMA).chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": "Hi"}], response_model=Person, max_retries=0
    )
    assert 0 <= found.age <= 150


@pytest.mark.parametrize(
    ("key", "model", "text", "expected"),
    [
        ("wrong", "", "Hi", openai.AuthenticationError),
        (KEY, "none", "Hi", openai.NotFoundError),
        (KEY, "", TOO_LONG, openai.BadRequestError),
    ],
)
def test_faults_carry_the_typed_exception(
    server: Server, key: str, model: str, text: str, expected: type[Exception]
) -> None:
    with pytest.raises((expected, InstructorRetryException)) as caught:
        client(server, instructor.Mode.JSON_SCHEMA, key).chat.completions.create(
            model=model or server.model,
            messages=[{"role": "user", "content": text}],
            response_model=Person,
            max_retries=0,
        )
    assert any(isinstance(one, expected) for one in causes(caught.value)), causes(caught.value)


def test_a_client_that_goes_ends_its_run(server: Server) -> None:
    stream = client(server, instructor.Mode.JSON_SCHEMA).client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": LONG}], stream=True
    )
    next(iter(stream))
    stream.close()
    assert server.becomes_idle()


def causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
