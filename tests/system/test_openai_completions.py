"""/v1/completions over the byte model: every token and log-probability is the one-request loop's, whatever is asked
beside it; what is streamed joins to what is whole; ids in are ids run and ids reported."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from http_rig import Served, served
from tools_rig import saying

from loopwright.engine.oracle import Oracle
from system_rig import WatchedExecutor, byte_oracle, byte_system, in_loop

IDS = [0xFF, 0xC3, 258, 0xC3, 0xA9, 0x80, 257, 0xF0, 0x9F]  # stray bytes, halves of characters, control tokens
TEXT = "The quick brown fox jumps over the lazy dog"
TEXT_IDS = [256, *TEXT.encode()]
ASCII_ONLY = {str(token): -100 for token in range(128, 260)}


async def complete(client: Served, **body: Any) -> dict[str, Any]:
    answer = await client.http.post("/v1/completions", json={"model": "byte", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def refused(client: Served, **body: Any) -> dict[str, Any]:
    answer = await client.http.post("/v1/completions", json={"model": "byte", **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]  # type: ignore[no-any-return]


def chunks_of(answer: httpx.Response) -> list[dict[str, Any]]:
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def streamed(client: Served, **body: Any) -> dict[int, dict[str, Any]]:
    """The choices of a stream, joined; each ends once, and nothing of it comes later."""
    answer = await client.http.post("/v1/completions", json={"model": "byte", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks_of(answer):
        for choice in chunk["choices"]:
            whole = found.setdefault(choice["index"], {"text": "", "finish_reason": None})
            assert whole["finish_reason"] is None
            whole["text"] += choice["text"]
            for name in ("finish_reason", "stop_reason"):
                whole[name] = choice.get(name)
            if "token_ids" in choice:
                whole["token_ids"] = whole.get("token_ids", []) + choice["token_ids"]
            if choice["logprobs"] is not None:
                joined = whole.setdefault("logprobs", {})
                for name, values in choice["logprobs"].items():
                    joined[name] = values if name == "logprob_kind" else joined.get(name, []) + values
            for name in ("prompt_token_ids", "prompt_logprobs"):
                if name in choice:
                    whole[name] = choice[name]
    return found


def assert_same(found: Any, expected: Any) -> None:
    """Equal, but for log-probabilities, which other shapes of steps may move within the reference class."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def log_softmax(row: Any) -> Any:
    wide = row.double().numpy()
    return wide - np.logaddexp.reduce(wide)


def reference(oracle: Oracle, ids: list[int]) -> Any:
    """The log-probabilities of what follows each of the ids: [num_tokens, vocab_size]."""
    return np.array([log_softmax(row) for row in oracle.logits(ids)])


def test_tokens_and_logprobs_are_the_one_request_loop_s() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"prompt": TEXT, "temperature": 0, "max_tokens": 12, "logprobs": 3, "logit_bias": ASCII_ONLY}
            answer = await complete(client, **body, return_token_ids=True)
            (choice,) = answer["choices"]
            ids = choice["token_ids"]
            rows = reference(byte_oracle(), [*TEXT_IDS, *ids])[len(TEXT_IDS) - 1 : -1]
            biased = rows.copy()
            biased[:, 128:260] -= 100
            assert ids == biased.argmax(axis=1).tolist()
            assert choice["text"] == bytes(ids).decode()
            told = choice["logprobs"]
            assert told["logprob_kind"] == "raw"
            assert told["tokens"] == [chr(token) for token in ids]
            np.testing.assert_allclose(
                told["token_logprobs"], [row[t] for row, t in zip(rows, ids, strict=True)], atol=1e-5
            )
            for row, token, top in zip(rows, ids, told["top_logprobs"], strict=True):
                expected = {*np.argsort(-row)[:3].tolist(), token}
                np.testing.assert_allclose(sorted(top.values()), sorted(row[list(expected)]), atol=1e-5)
            assert told["text_offset"] == list(range(12))
            assert choice["prompt_token_ids"] == TEXT_IDS
            assert answer["usage"]["prompt_tokens"] == len(TEXT_IDS)
            assert answer["usage"]["completion_tokens"] == 12

    in_loop(scenario)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ids and logprobs": {"logprobs": 2, "return_token_ids": True},
    "stop": {"stop": ["e", "q7"], "logprobs": 0, "return_token_ids": True, "logit_bias": ASCII_ONLY},
    "stop ids": {"stop_token_ids": list(range(97, 123)), "logprobs": 1, "return_token_ids": True},
    "echo": {"echo": True, "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True},
    "several": {"n": 3, "logprobs": 1, "return_token_ids": True},
    "several prompts": {"prompt": ["one", "two"], "n": 2, "echo": True},
    "grammar": {"guided_regex": "(ab|[0-9]é){2,5}", "logprobs": 1, "return_token_ids": True},
    "processed": {"logprobs": 3, "logprob_kind": "processed", "top_p": 0.9, "temperature": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_streamed_joins_to_what_is_whole(name: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for seed in range(3):
                body = {"prompt": TEXT, "max_tokens": 40, "seed": seed, **OPTIONS[name]}
                whole = (await complete(client, **body))["choices"]
                parts = await streamed(client, **body)
                assert len(parts) == len(whole)
                for choice in whole:
                    given = {key: value for key, value in choice.items() if key != "index" and value is not None}
                    told = {key: value for key, value in parts[choice["index"]].items() if value is not None}
                    assert_same(told, given)

    in_loop(scenario)


def test_no_part_of_a_stop_is_in_text_or_logprobs_and_ids_are_all_that_ran() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"prompt": TEXT, "max_tokens": 60, "seed": 5, "logit_bias": ASCII_ONLY, "return_token_ids": True}
            free = (await complete(client, **body))["choices"][0]["text"]
            stop = free[20:23]
            answer = await complete(client, **body, stop=[stop, "never"], logprobs=0)
            (choice,) = answer["choices"]
            assert choice["text"] == free[: free.index(stop)]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
            assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
            assert bytes(choice["token_ids"]).decode() == choice["text"] + stop
            assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])

    in_loop(scenario)


def test_an_end_of_turn_is_an_id_that_ran_and_no_text() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            end = system.text.info.eos_ids[0]
            body = {
                "prompt": TEXT,
                "max_tokens": 5,
                "logit_bias": {str(end): 100},
                "return_token_ids": True,
                "logprobs": 1,
            }
            (choice,) = (await complete(client, **body))["choices"]
            assert (choice["token_ids"], choice["text"], choice["finish_reason"]) == ([end], "", "stop")
            assert (choice["logprobs"]["tokens"], choice["stop_reason"]) == ([], None)
            (choice,) = (await complete(client, **body, ignore_eos=True))["choices"]
            assert (choice["token_ids"], choice["text"], choice["finish_reason"]) == ([end] * 5, "", "length")
            assert choice["logprobs"]["tokens"] == ["<|eos|>"] * 5

    in_loop(scenario)


def test_one_token_behind_an_echo_has_its_logprob_also_when_it_is_the_model_s_end() -> None:
    """A harness that scores a prompt takes the last entry away, whatever it is."""

    async def scenario() -> None:
        async with saying("ab") as client:
            asked = {"prompt": "assistant\nab", "echo": True, "logprobs": 1, "temperature": 0}
            (scored,) = (await complete(client, **asked, max_tokens=1))["choices"]
            assert (scored["text"], len(scored["logprobs"]["tokens"])) == (
                "assistant\nab",
                1 + len("assistant\nab") + 1,
            )
            assert scored["logprobs"]["tokens"][-1] == "<|im_end|>"
            for options in ({"max_tokens": 2}, {"max_tokens": 1, "ignore_eos": False}):
                (other,) = (await complete(client, **asked, **options))["choices"]
                assert other["finish_reason"] == "stop"
                assert other["logprobs"]["tokens"] == scored["logprobs"]["tokens"][:-1]

    in_loop(scenario)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_d2_prompts_scored_in_two_orders_with_the_cache_on_are_the_loop_s(max_tokens: int) -> None:
    prompts = [[256, *(TEXT * 3).encode()], [256, *(TEXT * 2).encode(), 1, 2, 3], IDS * 9]

    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for prompt in prompts:  # what is behind an answer that nobody scored must not be taken for scored
                await complete(client, prompt=prompt, max_tokens=1)
            asked = {"max_tokens": max_tokens, "echo": True, "logprobs": 2, "prompt_logprobs": 1, "temperature": 0}
            first = [await complete(client, prompt=prompt, **asked) for prompt in prompts]
            second = [await complete(client, prompt=prompt, **asked) for prompt in reversed(prompts)][::-1]
            at_once = (await complete(client, prompt=prompts, **asked))["choices"]
            for prompt, one, other, third in zip(prompts, first, second, at_once, strict=True):
                told = one["choices"][0]
                assert_same(told, other["choices"][0])
                assert third["text"] == told["text"]
                np.testing.assert_allclose(
                    third["logprobs"]["token_logprobs"][1:], told["logprobs"]["token_logprobs"][1:], atol=1e-5
                )
                rows = reference(byte_oracle(), prompt)
                expected = [rows[place][token] for place, token in enumerate(prompt[1:])]
                found = told["logprobs"]["token_logprobs"]
                assert found[0] is None
                np.testing.assert_allclose(found[1 : len(prompt)], expected, atol=1e-5)
                assert len(found) == len(prompt) + max_tokens
                for row, token, top in zip(rows[:-1], prompt[1:], told["prompt_logprobs"][1:], strict=True):
                    best = int(row.argmax())
                    assert {*top} == {str(best), str(token)}
                    np.testing.assert_allclose(top[str(best)]["logprob"], row[best], atol=1e-5)
                    assert top[str(best)]["rank"] == 1
                    assert top[str(token)]["rank"] == 1 + (row > row[token]).sum()

    in_loop(scenario)


def test_d5_ids_in_are_ids_run_and_ids_reported() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            odd = {str(token): 100 for token in (0xFF, 0xC3, 0x80)}
            body = {"prompt": IDS, "max_tokens": 12, "logit_bias": odd, "seed": 1, "return_token_ids": True}
            (whole,) = (await complete(client, **body))["choices"]
            part = (await streamed(client, **body))[0]
            for choice in (whole, part):
                assert choice["prompt_token_ids"] == IDS
                assert len(choice["token_ids"]) == 12
                assert {*choice["token_ids"]} <= {0xFF, 0xC3, 0x80}
            assert whole["token_ids"] == part["token_ids"]
            assert isinstance(system.executor, WatchedExecutor)
            rows = [row for batch in system.executor.batches for row in batch.all_rows]
            assert list(rows[0].token_ids) == IDS
            assert [row.token_ids[0] for row in rows[1:12]] == whole["token_ids"][:-1]

    in_loop(scenario)


def test_a_choice_depends_on_its_number_and_on_no_neighbour() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"max_tokens": 20, "seed": 9, "temperature": 1.0, "return_token_ids": True}

            async def ids(**more: Any) -> list[list[int]]:
                return [choice["token_ids"] for choice in (await complete(client, **{**body, **more}))["choices"]]

            alone = {text: await ids(prompt=text, n=3) for text in ("one", "two")}
            assert len({*map(tuple, alone["one"])}) == 3
            assert (await ids(prompt="one", n=1)) == alone["one"][:1]
            assert (await ids(prompt=["one", "two"], n=3)) == alone["one"] + alone["two"]
            free = [await ids(prompt=["x", "x"], n=2, seed=None) for _ in range(2)]
            assert len({tuple(one) for found in free for one in found}) == 8

    in_loop(scenario)


def test_best_of_gives_the_most_probable_by_token_and_counts_all() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"prompt": TEXT, "max_tokens": 10, "seed": 2, "logprobs": 0, "ignore_eos": True}
            every = (await complete(client, **body, n=5))["choices"]
            best = await complete(client, **body, n=2, best_of=5)

            def mean(choice: dict[str, Any]) -> float:
                return float(np.mean(choice["logprobs"]["token_logprobs"]))

            expected = sorted(every, key=mean, reverse=True)[:2]
            assert_same([choice["logprobs"] for choice in best["choices"]], [one["logprobs"] for one in expected])
            assert [choice["index"] for choice in best["choices"]] == [0, 1]
            assert best["usage"]["completion_tokens"] == 50
            assert best["usage"]["prompt_tokens"] == len(TEXT_IDS)
            assert (await refused(client, **body, n=2, best_of=5, stream=True))["param"] == "best_of"

    in_loop(scenario)


def test_e4_a_prompt_too_long_is_refused_with_both_numbers_and_cut_only_if_asked() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=300) as system, served(system) as client:
            prompt = [1] * 4000 + [2] * 97
            error = await refused(client, prompt=prompt, max_tokens=4)
            assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
            assert "4097" in error["message"]
            assert "4096" in error["message"]
            body = {"max_tokens": 4, "temperature": 0, "return_token_ids": True}
            answer = await complete(client, prompt=prompt, truncate_prompt_tokens=200, **body)
            assert answer["choices"][0]["prompt_token_ids"] == prompt[-200:]
            assert answer["usage"]["prompt_tokens"] == 200
            short = await complete(client, prompt=prompt[-200:], **body)
            assert short["choices"] == answer["choices"]

    in_loop(scenario)


def test_usage_says_what_was_cached() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for n in (1, 3):
                prompt = [n, *range(99)]
                found = [(await complete(client, prompt=prompt, n=n, max_tokens=2))["usage"] for _ in range(2)]
                cached = [one["prompt_tokens_details"]["cached_tokens"] for one in found]
                assert cached == [0, 96]
                assert [one["prompt_tokens"] for one in found] == [100, 100]

    in_loop(scenario)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "guided_json": {"properties": {"a": {"type": "nope"}}}}, "guided_json#/properties/a/type"),
        ({"prompt": "x", "guided_regex": "foo**"}, "guided_regex"),
        ({"prompt": "x", "stop_token_ids": [260]}, "stop_token_ids"),
        ({"prompt": "x", "logit_bias": {"260": 1}}, "logit_bias"),
        ({"prompt": [1, 260]}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": "x", "echo": True, "max_tokens": 0, "n": 2}, "n"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "logprob_kind": "processed"}, "logprob_kind"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "suffixx": 1}, "suffixx"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            error = await refused(client, **body)
            assert error["param"] == param
            assert error["type"] == "invalid_request_error"

    in_loop(scenario)
