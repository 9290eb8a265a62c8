"""Chat completions through the real openai package and a real server: whole, streamed, and of programs."""

import asyncio
from typing import Any

import openai
import pytest
from eventually import eventually
from fake_runs import FakeRun, FakeRuns
from live_server import Live, live_server

from loopwright.core.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    LoopwrightError,
    OutOfPages,
    Overloaded,
    PermissionDenied,
    ProgramError,
    Unauthenticated,
)
from loopwright.core.runs import Parameter, RunSpec

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
RESULT = {
    "choices": [{"candidate": 0, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    "seed": 7,
}


def say_hello(run: FakeRun) -> None:
    run.text("Hel", "lo")
    run.finish(RESULT)


async def test_a_completion_has_the_text_the_reason_and_the_usage() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        answer = await live.openai.chat.completions.create(model="tiny", messages=HI)
    assert answer.id == "chatcmpl-run-0"
    assert (answer.object, answer.created, answer.model) == ("chat.completion", 1234, "tiny")
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    usage = answer.usage.model_dump(exclude_none=True)
    details = {
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert usage == {**RESULT["usage"], **details}


async def test_a_request_is_the_run_of_the_chat_program() -> None:
    fake = FakeRuns(say_hello)
    async with live_server(fake) as live:
        await live.openai.chat.completions.create(
            model="tiny",
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c"},
            ],
            max_completion_tokens=5,
            temperature=0.5,
            top_p=0.9,
            seed=11,
            stop="\n",
            logit_bias={"17": -100},
            user="someone",
            metadata={"k": "v"},
            store=False,
            n=1,
            presence_penalty=0,
            response_format={"type": "text"},
            extra_body={"top_k": 40, "min_p": 0.1},
        )
    expected = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "c"},
        ],
        "options": {
            "max_tokens": 5,
            "sampling": {
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.1,
                "presence_penalty": 0,
                "logit_bias": {"17": -100.0},
            },
            "seed": 11,
            "stop": ["\n"],
            "n": 1,
            "best_of": 1,
        },
    }
    assert fake.started[0].spec == RunSpec(program="chat", arguments=expected, sandbox="native", model="tiny", seed=11)


async def test_a_stream_tells_the_role_then_the_text_then_the_reason() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        stream = await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "length"]
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {
        ("chatcmpl-run-0", "chat.completion.chunk", "tiny")
    }


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_a_stream_has_no_usage_unless_asked(options: dict[str, Any]) -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        body = {"model": "tiny", "messages": HI, "stream": True, **options}
        answer = await live.http.post("/v1/chat/completions", json=body)
    assert "usage" not in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_usage_comes_last_with_no_choices_and_then_done() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        body = {"model": "tiny", "messages": HI, "stream": True, "stream_options": {"include_usage": True}}
        answer = await live.http.post("/v1/chat/completions", json=body)
        stream = await live.openai.chat.completions.create(**body)
        chunks = [chunk async for chunk in stream]
    *_, usage, done, end = answer.text.split("\n\n")
    assert '"choices":[]' in usage
    assert (done, end) == ("data: [DONE]", "")
    assert answer.text.count('"usage"') == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5


async def test_text_comes_while_the_run_goes_on() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        stream = await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
        got = ""
        async for chunk in stream:
            got += chunk.choices[0].delta.content or ""
            if got == "a":
                fake.started[0].text("b")
                fake.started[0].finish(RESULT)
    assert got == "ab"


async def test_texts_that_come_together_become_one_chunk() -> None:
    fake = FakeRuns(lambda run: (run.text(*"abcdefgh"), run.finish(RESULT)))
    async with live_server(fake) as live:
        stream = await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
        contents = [chunk.choices[0].delta.content async for chunk in stream]
    assert "abcdefgh" in contents


async def test_an_empty_answer_is_an_empty_message() -> None:
    async with live_server(FakeRuns(lambda run: run.finish(RESULT))) as live:
        answer = await live.openai.chat.completions.create(model="tiny", messages=HI)
        stream = await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
    assert answer.choices[0].message.content == ""
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", None]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ContextTooLong("129 tokens; the model attends to 128", field="messages"), openai.BadRequestError),
        (ProgramError("KeyError: 'x'"), openai.UnprocessableEntityError),
        (OutOfPages("no page is left"), openai.InternalServerError),
        (DeadlineExceeded("300 s are over"), openai.InternalServerError),
        (InternalError("oh"), openai.InternalServerError),
    ],
)
async def test_an_error_before_the_first_text_is_an_http_status(
    error: Any, expected: type[openai.APIStatusError], is_streamed: bool
) -> None:
    async with live_server(FakeRuns(lambda run: run.fail(error))) as live:
        with pytest.raises(expected) as caught:
            await live.openai.chat.completions.create(model="tiny", messages=HI, stream=is_streamed)
    assert error.message in caught.value.message
    assert caught.value.response.headers["x-should-retry"] == ("true" if error.retryable else "false")


async def test_an_error_after_the_first_text_ends_the_stream_as_an_error() -> None:
    def script(run: FakeRun) -> None:
        run.text("a")
        run.fail(InternalError("the model worker died"))

    got: list[str] = []

    async def read(live: Live) -> None:
        async for chunk in await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True):
            got.append(chunk.choices[0].delta.content or "")

    async with live_server(FakeRuns(script)) as live:
        with pytest.raises(openai.APIError, match="the model worker died"):
            await read(live)
        body = {"model": "tiny", "messages": HI, "stream": True}
        answer = await live.http.post("/v1/chat/completions", json=body)
    assert "".join(got) == "a"
    assert "[DONE]" not in answer.text


async def test_a_full_server_says_when_to_come_back() -> None:
    fake = FakeRuns()
    fake.refuse_start = Overloaded("512 runs are live; at most 512 fit")
    async with live_server(fake) as live:
        with pytest.raises(openai.RateLimitError) as caught:
            await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
    assert caught.value.response.headers["retry-after"] == "1"


async def test_an_unknown_model_is_not_found() -> None:
    async with live_server(FakeRuns()) as live:
        for model in ("gpt-9", "program:none", "program:"):
            with pytest.raises(openai.NotFoundError) as caught:
                await live.openai.chat.completions.create(model=model, messages=HI)
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_models_are_the_model_and_each_program() -> None:
    fake = FakeRuns()
    fake.add_program("agent")
    async with live_server(fake) as live:
        models = [model async for model in live.openai.models.list()]
    assert [model.id for model in models] == ["tiny", "program:agent"]
    assert {model.object for model in models} == {"model"}


TEXT = Parameter("question", "str", is_required=True)


@pytest.mark.parametrize(
    ("parameters", "options", "arguments"),
    [
        ([Parameter("messages", "list", is_required=True), TEXT], {}, None),
        ([TEXT, Parameter("n", "int", is_required=False, default=3)], {}, {"question": "second"}),
        ([Parameter("style", "str", is_required=False, default=""), TEXT], {}, {"question": "second"}),
        ([Parameter("style", "str", is_required=False, default="")], {}, {"style": "second"}),
        ([], {"temperature": 1, "seed": 3}, {}),
        (
            [TEXT, Parameter("max_tokens", "int", is_required=True)],
            {"max_tokens": 4},
            {"question": "second", "max_tokens": 4},
        ),
    ],
)
async def test_a_program_gets_the_conversation_in_the_form_it_takes(
    parameters: list[Parameter], options: dict[str, Any], arguments: dict[str, Any] | None
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "third"},
    ]
    fake = FakeRuns(lambda run: run.finish("done"))
    fake.add_program("agent", *parameters)
    async with live_server(fake) as live:
        if arguments is None:
            with pytest.raises(openai.BadRequestError, match="question"):
                await live.openai.chat.completions.create(model="program:agent", messages=messages)
            return
        await live.openai.chat.completions.create(model="program:agent", messages=messages, **options)
    expected = RunSpec(program="agent", arguments=arguments, seed=options.get("seed"), has_input=False)
    assert fake.started[0].spec == expected


async def test_a_program_that_takes_messages_gets_them_all() -> None:
    fake = FakeRuns(lambda run: run.finish("done"))
    fake.add_program("agent", Parameter("messages", "list", is_required=True))
    async with live_server(fake) as live:
        await live.openai.chat.completions.create(model="program:agent", messages=HI)
        messages: list[Any] = [*HI, {"role": "user", "content": None}]
        with pytest.raises(openai.BadRequestError, match=r"messages\[1\]\.content: is required"):
            await live.openai.chat.completions.create(model="program:agent", messages=messages)
    assert [run.spec.arguments for run in fake.started] == [{"messages": HI}]


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"max_tokens": 3}, {"stop": ["x"]}])
async def test_an_option_that_a_program_does_not_take_is_refused_by_name(options: dict[str, Any]) -> None:
    fake = FakeRuns()
    fake.add_program("agent", TEXT)
    async with live_server(fake) as live:
        with pytest.raises(openai.BadRequestError) as caught:
            await live.openai.chat.completions.create(model="program:agent", messages=HI, **options)
    assert caught.value.param == next(iter(options))


@pytest.mark.parametrize(
    ("texts", "result", "content"),
    [
        (["a", "b"], "ignored", "ab"),
        ([], "returned", "returned"),
        ([], {"n": 1}, '{"n":1}'),
        ([], None, "null"),
        ([], ["half a pair: \ud800"], '["half a pair: \\ud800"]'),
    ],
)
async def test_a_program_s_message_is_what_it_emitted_or_else_returned(texts: Any, result: Any, content: str) -> None:
    def script(run: FakeRun) -> None:
        run.text(*texts)
        run.finish(result)

    fake = FakeRuns(script)
    fake.add_program("agent", TEXT)
    async with live_server(fake) as live:
        answer = await live.openai.chat.completions.create(model="program:agent", messages=HI)
        stream = await live.openai.chat.completions.create(model="program:agent", messages=HI, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert answer.choices[0].message.content == streamed == content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0


TRACEBACK = 'Traceback:\n  File "agent.py", line 9, in main\n  File "agent.py", line 4, in ask\n'


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("max_tokens: -1 is refused", hint="write 1", field="max_tokens", traceback=TRACEBACK),
        PermissionDenied("the program may not reach x", hint="list it", traceback=TRACEBACK),
        Unauthenticated("as if the key were wrong", hint="so a program may claim", traceback=TRACEBACK),
    ],
)
async def test_what_a_program_did_wrongly_is_no_fault_of_the_request(error: LoopwrightError) -> None:
    fake = FakeRuns(lambda run: (run.text("a"), run.fail(error)))
    fake.add_program("agent", TEXT)
    message = f"the program failed: {type(error).__name__}: {error.message} (agent.py, line 4); {error.hint}"
    async with live_server(fake) as live:
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await live.openai.chat.completions.create(model="program:agent", messages=HI)
        body = caught.value.body
        assert body == {"message": message, "type": "program_error", "param": None, "code": "program_error"}
        assert len(fake.started) == 1  # the client did not try again
        with pytest.raises(openai.APIError) as told:
            async for _ in await live.openai.chat.completions.create(model="program:agent", messages=HI, stream=True):
                pass
        assert told.value.body == body
        with pytest.raises(openai.APIStatusError) as of_model:
            await live.openai.chat.completions.create(model="tiny", messages=HI)
    assert of_model.value.status_code in (400, 401, 403)  # a built-in program's mistakes are the request's


async def test_a_conversation_that_is_too_long_for_a_program_s_model_is_the_request_s() -> None:
    fake = FakeRuns(lambda run: run.fail(ContextTooLong("5000 tokens of 4096", field="tokens")))
    fake.add_program("agent", TEXT)
    async with live_server(fake) as live:
        with pytest.raises(openai.BadRequestError) as caught:
            await live.openai.chat.completions.create(model="program:agent", messages=HI)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_fifty_streams_at_once_do_not_mix() -> None:
    fake = FakeRuns()
    async with live_server(fake) as live:

        async def ask(number: int) -> str:
            messages: list[Any] = [{"role": "user", "content": str(number)}]
            stream = await live.openai.chat.completions.create(model="tiny", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        asking = [asyncio.create_task(ask(number)) for number in range(50)]
        await eventually(lambda: len(fake.started) == 50)
        for step in range(20):
            for run in fake.started:
                run.text(f"{run.spec.arguments['messages'][0]['content']}/{step} ")
            await asyncio.sleep(0)
        for run in fake.started:
            run.finish(RESULT)
        answers = await asyncio.gather(*asking)
    assert answers == ["".join(f"{number}/{step} " for step in range(20)) for number in range(50)]
