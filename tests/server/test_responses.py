"""/v1/responses through the real openai package and a real server: whole, streamed, kept, gone on from, refused."""

import asyncio
import json
from typing import Any

import openai
import pytest
from eventually import eventually
from fake_runs import FakeRun, FakeRuns
from live_server import Live, live_server
from openai_spec import check, check_event

from loopwright.core.errors import ContextTooLong, InternalError
from loopwright.core.events import TokenLogprob
from loopwright.core.ids import RunId
from loopwright.core.runs import Parameter

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PATH = "/v1/responses"
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
RESULT = {"choices": [{"candidate": 0, "finish_reason": "stop"}], "usage": USAGE}
CUT = {"choices": [{"candidate": 0, "finish_reason": "length"}], "usage": USAGE}
EVENTS_OF_A_TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


FUNCTION = {"type": "function", "name": "f", "parameters": None, "strict": None}


def say_hello(run: FakeRun) -> None:
    run.text("Hel", "lo")
    run.finish(RESULT)


def think_and_say(run: FakeRun) -> None:
    run.tokens(text="Hm.", channel="reasoning")
    run.tokens(
        text="Yes", logprobs=(TokenLogprob(5, "Yes", (89, 101, 115), -0.5, (TokenLogprob(6, "No", None, -1.0),)),)
    )
    run.finish(RESULT)


async def events_of(live: Live, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each checked against OpenAI's specification and named as its type says."""
    answer = await live.http.post(PATH, json={"model": "tiny", "input": "Hi", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    *written, end = answer.text.split("\n\n")
    assert end == ""
    found = []
    for one in written:
        name, data = one.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        check_event(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def post(live: Live, **body: Any) -> dict[str, Any]:
    answer = await live.http.post(PATH, json={"model": "tiny", "input": "Hi", **body})
    assert answer.status_code == 200, answer.text
    check("Response", answer.json())
    return answer.json()  # type: ignore[no-any-return]


def messages(run: FakeRun) -> Any:
    return run.spec.arguments["messages"]


async def test_a_response_has_the_text_the_status_and_the_usage() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        answer = await live.openai.responses.create(model="tiny", input="Hi", metadata={"k": "v"}, temperature=0.5)
    assert (answer.id, answer.object, answer.created_at, answer.model) == ("resp_run-0", "response", 1234, "tiny")
    assert (answer.output_text, answer.status, answer.error) == ("Hello", "completed", None)
    assert [item.type for item in answer.output] == ["message"]
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }
    assert (answer.metadata, answer.temperature, answer.top_p, answer.tools) == ({"k": "v"}, 0.5, 1.0, [])


async def test_a_request_is_the_run_of_the_chat_program() -> None:
    fake = FakeRuns(say_hello)
    async with live_server(fake) as live:
        await live.openai.responses.create(
            model="tiny",
            instructions="Be brief.",
            input=[
                {"role": "developer", "content": "a"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},  # type: ignore[list-item,misc,typeddict-item]
                {"role": "user", "content": "d"},
            ],
            max_output_tokens=7,
            temperature=0,
            top_p=0.9,
            text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            extra_body={"seed": 11, "top_k": 40, "stop": "x"},
        )
    arguments = fake.started[0].spec.arguments
    assert arguments["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    options = arguments["options"]
    assert options["sampling"] == {
        "temperature": 0, "top_p": 0.9, "top_k": 40, "logprobs": "raw", "top_logprobs": 2,
    }  # fmt: skip
    assert (options["max_tokens"], options["seed"], options["stop"]) == (7, 11, ["x"])
    assert options["grammar"] == {"kind": "json_schema", "source": '{"type": "object"}'}


async def test_the_events_of_a_text_come_in_the_documented_order() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        events = await events_of(live)
    assert [event["type"] for event in events] == EVENTS_OF_A_TEXT
    added, part, delta, done, part_done, item_done = events[2:8]
    assert (added["item"]["status"], added["item"]["content"], part["part"]["text"]) == ("in_progress", [], "")
    assert (delta["delta"], done["text"], part_done["part"]["text"]) == ("Hello", "Hello", "Hello")
    assert item_done["item"] == events[-1]["response"]["output"][0]
    assert {event["item_id"] for event in (part, delta, done, part_done)} == {added["item"]["id"]}
    assert "usage" not in events[0]["response"]
    assert events[0]["response"]["status"] == "in_progress"


@pytest.mark.parametrize("script", [say_hello, think_and_say, lambda run: run.finish(CUT)])
async def test_a_stream_ends_with_the_response_that_would_have_come_whole(script: Any) -> None:
    async with live_server(FakeRuns(script)) as live:
        body: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "store": False}
        whole = await post(live, **body)
        streamed = (await events_of(live, **body))[-1]["response"]
    assert json.loads(json.dumps(streamed).replace("run-1", "run-0")) == whole


async def test_thoughts_are_an_item_of_their_own_with_events_of_their_own() -> None:
    async with live_server(FakeRuns(think_and_say)) as live:
        events = await events_of(live, include=["message.output_text.logprobs"], top_logprobs=1)
    assert [event["type"].removeprefix("response.") for event in events[2:8]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    reasoning, message = events[-1]["response"]["output"]
    assert (reasoning["type"], reasoning["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "Hm."}])
    assert message["content"][0]["logprobs"] == [
        {
            "token": "Yes",
            "logprob": -0.5,
            "bytes": [89, 101, 115],
            "top_logprobs": [{"token": "No", "logprob": -1.0, "bytes": []}],
        }
    ]


async def test_a_cut_response_is_incomplete_and_says_why() -> None:
    def script(run: FakeRun) -> None:
        run.text("Hel")
        run.finish(CUT)

    async with live_server(FakeRuns(script)) as live:
        events = await events_of(live)
        whole = await post(live)
    for response in (events[-1]["response"], whole):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"


async def test_the_client_s_own_stream_gathers_the_text() -> None:
    async with (
        live_server(FakeRuns(think_and_say)) as live,
        live.openai.responses.stream(model="tiny", input="Hi") as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Yes"


async def test_one_goes_on_from_another() -> None:
    fake = FakeRuns(think_and_say)
    async with live_server(fake) as live:
        first = await live.openai.responses.create(model="tiny", input="one", instructions="Gone later.")
        second = await live.openai.responses.create(model="tiny", input="two", previous_response_id=first.id)
        await live.openai.responses.delete(first.id)
        await live.openai.responses.create(model="tiny", input="three", previous_response_id=second.id)
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "Yes"}]
    assert messages(fake.started[1]) == [*said, {"role": "user", "content": "two"}]
    again = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "Yes"}]
    assert messages(fake.started[2]) == [*said, *again, {"role": "user", "content": "three"}]
    assert second.previous_response_id == first.id


async def test_what_was_answered_can_be_sent_as_input() -> None:
    fake = FakeRuns(think_and_say)
    async with live_server(fake) as live:
        first = await live.openai.responses.create(model="tiny", input="one", include=["message.output_text.logprobs"])
        input_items: list[Any] = [{"role": "user", "content": "one"}, *first.output, {"role": "user", "content": "two"}]
        await live.openai.responses.create(model="tiny", input=input_items)
        references: list[Any] = [{"type": "item_reference", "id": first.output[1].id}, {"role": "user", "content": "x"}]
        await live.openai.responses.create(model="tiny", input=references)
    one, yes, two = (
        {"role": role, "content": text} for role, text in (("user", "one"), ("assistant", "Yes"), ("user", "two"))
    )
    assert messages(fake.started[1]) == [one, yes, two]
    assert messages(fake.started[2]) == [yes, {"role": "user", "content": "x"}]


async def test_a_kept_response_can_be_asked_for_again_and_forgotten() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        made = await live.openai.responses.create(model="tiny", input="Hi")
        streamed = (await events_of(live))[-1]["response"]
        assert await live.openai.responses.retrieve(made.id) == made
        assert (await live.http.get(f"{PATH}/{streamed['id']}")).json() == streamed
        await live.openai.responses.delete(made.id)
        for ask in (live.openai.responses.retrieve, live.openai.responses.delete, live.openai.responses.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                await ask(made.id)
            assert caught.value.param == "response_id"


async def test_what_is_not_to_be_kept_is_not() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        made = await live.openai.responses.create(model="tiny", input="Hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await live.openai.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await live.openai.responses.create(model="tiny", input="Hi", previous_response_id=made.id)
    assert caught.value.param == "previous_response_id"


async def test_the_input_of_a_response_is_listed_in_pages() -> None:
    given: list[Any] = [{"role": "user", "content": str(number)} for number in range(5)]
    given.append({"role": "assistant", "content": "x"})
    async with live_server(FakeRuns(say_hello)) as live:
        made = await live.openai.responses.create(model="tiny", input=given)
        answer = await live.http.get(f"{PATH}/{made.id}/input_items")
        listed = live.openai.responses.input_items.list(made.id, order="asc", limit=2)
        contents = [item.content[0].text async for item in listed]  # type: ignore[union-attr]
        newest = answer.json()["data"][0]
        bad = [
            await live.http.get(f"{PATH}/{made.id}/input_items?{one}")
            for one in ("limit=0", f"limit={'9' * 5000}", "order=up", "after=x")
        ]
    check("ResponseItemList", answer.json())
    assert contents == ["0", "1", "2", "3", "4", "x"]
    assert (newest["role"], newest["content"][0]["type"]) == ("assistant", "output_text")
    assert [one.json()["error"]["param"] for one in bad] == ["limit", "limit", "order", "after"]
    assert [one.status_code for one in bad] == [400, 400, 400, 404]


async def test_a_response_that_was_waited_for_is_neither_streamed_again_nor_cancelled() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        made = await live.openai.responses.create(model="tiny", input="Hi")
        with pytest.raises(openai.BadRequestError, match="stream: "):
            await live.openai.responses.retrieve(made.id, stream=True)
        with pytest.raises(openai.BadRequestError, match="is not being made"):
            await live.openai.responses.cancel(made.id)


async def test_a_response_in_the_background_is_made_whatever_its_client_does() -> None:
    fake = FakeRuns(lambda run: run.text("Hel"))
    async with live_server(fake) as live:
        responses = live.openai.responses
        begun = await responses.create(model="tiny", input="one", background=True)
        assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
        assert (await responses.retrieve(begun.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="previous_response_id: "):
            await responses.create(model="tiny", input="two", previous_response_id=begun.id)
        fake.started[0].text("lo")
        fake.started[0].finish(RESULT)
        made = await responses.retrieve(begun.id)
        assert (made.status, made.output_text, made.completed_at) == ("completed", "Hello", 1003)
        fake.on_start = say_hello
        await responses.create(model="tiny", input="two", previous_response_id=begun.id)
        check("Response", (await live.http.get(f"{PATH}/{begun.id}")).json())
    assert [one["content"] for one in messages(fake.started[1])] == ["one", "Hello", "two"]
    assert fake.cancelled == []


async def test_the_events_of_one_in_the_background_can_be_taken_up_anywhere() -> None:
    fake = FakeRuns(lambda run: (run.text("a", "b"), run.tokens(text="Hm.", channel="reasoning"), run.text("c")))
    async with live_server(fake) as live:
        stream = await live.openai.responses.create(model="tiny", input="Hi", background=True, stream=True)
        first = [event async for event, _ in azip(stream, range(6))]
        await stream.close()
        await eventually(lambda: fake.num_reading == 0)
        response_id = first[0].response.id
        taken_up = asyncio.create_task(read_all(live, response_id, first[-1].sequence_number))
        await eventually(lambda: fake.num_reading == 1)
        fake.started[0].text("d")
        fake.started[0].finish(RESULT)
        rest = await taken_up
        again = await read_all(live, response_id, -1)
        nothing = await read_all(live, response_id, 1000)
    assert fake.cancelled == []
    assert [*(event.to_dict() for event in first), *rest] == again
    assert nothing == []
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    deltas = [event["delta"] for event in again if event["type"] == "response.output_text.delta"]
    assert deltas == ["a", "b", "c", "d"]
    assert again[-1]["type"] == "response.completed"


async def test_one_in_the_background_can_be_cancelled_or_fail_or_be_forgotten() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        responses = live.openai.responses
        ids = [(await responses.create(model="tiny", input="x", background=True)).id for _ in range(4)]
        cancelled = await responses.cancel(ids[0])
        fake.started[1].fail(InternalError("the model worker died"))
        failed = await responses.retrieve(ids[1])
        await responses.delete(ids[2])
        del fake.by_id[RunId("run-3")]
        for response_id in ids[2:]:
            with pytest.raises(openai.NotFoundError):
                await responses.retrieve(response_id)
        with pytest.raises(openai.BadRequestError):
            await responses.cancel(ids[0])
        check("Response", (await live.http.get(f"{PATH}/{ids[0]}")).json())
    assert (cancelled.status, cancelled.output_text, cancelled.error) == ("cancelled", "a", None)
    assert (failed.status, failed.output_text) == ("failed", "a")
    assert failed.error is not None
    assert fake.cancelled == ["run-0", "run-2"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("stream=maybe", "stream"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("include_obfuscation=true", "include_obfuscation"),
    ],
)
async def test_what_is_wrong_with_a_question_is_named(query: str, field: str) -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        made = await live.openai.responses.create(model="tiny", input="x", background=True)
        answer = await live.http.get(f"{PATH}/{made.id}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_tokens_of_an_input_are_counted() -> None:
    fake = FakeRuns(say_hello)
    async with live_server(fake) as live:
        made = await live.openai.responses.create(model="tiny", input="one")
        fake.on_start = lambda run: run.finish({"tokens": [1, 2, 3]})
        count = await live.openai.responses.input_tokens.count(
            input="two",
            instructions="S",
            previous_response_id=made.id,
            tools=[FUNCTION],  # type: ignore[list-item]
        )
        bad = await live.http.post(f"{PATH}/input_tokens", json={"input": [{"role": "user"}]})
    assert (count.object, count.input_tokens) == ("response.input_tokens", 3)
    spec = fake.started[1].spec
    assert [one["content"] for one in spec.arguments["messages"]] == ["S", "one", "Hello", "two"]
    assert [one["name"] for one in spec.arguments["tools"]] == ["f"]
    assert bad.json()["error"]["param"] == "input[0].content"


async def azip(stream: Any, numbers: range) -> Any:
    """The first events of a stream, each with its number."""
    for number in numbers:
        yield await anext(aiter(stream)), number


async def read_all(live: Live, response_id: str, after: int) -> list[dict[str, Any]]:
    stream = await live.openai.responses.retrieve(response_id, stream=True, starting_after=after)
    return [event.to_dict() async for event in stream]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_error_before_the_first_text_names_the_request_s_own_field(is_streamed: bool) -> None:
    error = ContextTooLong("positions: 129 tokens; the model attends to 128", field="positions")
    async with live_server(FakeRuns(lambda run: run.fail(error))) as live:
        with pytest.raises(openai.BadRequestError) as caught:
            await live.openai.responses.create(model="tiny", input="Hi", stream=is_streamed)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


async def test_an_error_after_the_first_text_is_a_failed_response_that_is_kept() -> None:
    def script(run: FakeRun) -> None:
        run.text("a")
        run.fail(InternalError("the model worker died"))

    async with live_server(FakeRuns(script)) as live:
        events = await events_of(live)
        kept = await live.openai.responses.retrieve(events[-1]["response"]["id"])
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the model worker died"}
    assert (kept.status, kept.output_text) == ("failed", "a")
    assert kept.output[0].status == "incomplete"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "user"}]}, "input[1].content"),
        ({"input": [{"role": "user", "content": "a", "color": "red"}]}, "input[0].color"),
        ({"input": [{"type": "item_reference", "id": "msg_run-9_0"}]}, "input[0].id"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        (
            {
                "input": [
                    {"role": "assistant", "content": "a"},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1"},
                ]
            },
            "input[1].arguments",
        ),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"model": "gpt-9"}, "model"),
        ({"background": True, "store": False}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_what_cannot_be_honoured_is_named(body: dict[str, Any], field: str) -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        answer = await live.http.post(PATH, json={"model": "tiny", "input": "Hi", **body})
    assert answer.status_code in (400, 404)
    check("ErrorResponse", answer.json())
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["message"].startswith(field) or field == "model"


async def test_a_program_is_a_model_of_responses_too() -> None:
    fake = FakeRuns(lambda run: run.finish({"n": 1}))
    fake.add_program("agent", Parameter("messages", "list", is_required=True))
    async with live_server(fake) as live:
        whole = await live.openai.responses.create(model="program:agent", input="Hi")
        events = await events_of(live, model="program:agent")
        refused = await live.http.post(PATH, json={"model": "program:agent", "input": "Hi", "truncation": "auto"})
    assert refused.json()["error"]["param"] == "truncation"
    assert fake.started[0].spec.arguments == {"messages": [{"role": "user", "content": "Hi"}]}
    assert whole.output_text == '{"n":1}'
    assert [event["type"] for event in events] == EVENTS_OF_A_TEXT


async def test_text_comes_while_the_run_goes_on() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        got = ""
        async for event in await live.openai.responses.create(model="tiny", input="Hi", stream=True):
            if event.type == "response.output_text.delta":
                got += event.delta
            if got == "a" and not fake.started[0].is_done:
                fake.started[0].text("b")
                fake.started[0].finish(RESULT)
    assert got == "ab"
