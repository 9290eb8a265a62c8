"""Cases B1, B3, B4, B7 and D1 for calls: real grammars, the byte model in the real engine, a real control."""

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from calls_rig import ByteRig, call_under, naive
from grammar_rig import assert_valid
from schemas import ENFORCED, REFUSED

from loopwright.core.errors import ErrorInfo
from loopwright.core.grammars import Grammar
from loopwright.core.results import Segment
from loopwright.engine.byte_model import byte_model
from loopwright.engine.oracle import Oracle

if TYPE_CHECKING:
    from loopwright.core.calls import Generate

NUM_SEEDS = 20
NUM_AT_ONCE = 128

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 1, "maximum": 5},
        "color": {"enum": ["red", "green"]},
    },
    "required": ["name", "age", "color"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar("json_schema", json.dumps(PERSON)),
    Grammar("json_schema", json.dumps({"type": "array", "items": {"type": "boolean"}, "maxItems": 4})),
    Grammar("regex", "[a-c]{2,6}(?:xyz|[0-9]+)"),
    Grammar("lark", 'start: "(" start ")" | "[" start "]" | "nothing"'),
    Grammar("choice", '["yes", "no", "not at all"]'),
    Grammar("json_object"),
]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(byte_model())


def source_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def text_of(segment: Segment) -> bytes:
    return bytes(token for token in segment.tokens[: segment.num_kept])


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda one: one.kind)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.0, "frequency_penalty": 1.0}]
)
def test_a_segment_equals_the_oracle_in_tokens_and_log_probabilities(
    grammar: Grammar, options: dict, oracle: Oracle
) -> None:
    """Case D1 too: log-probabilities under a grammar are real, also those of tokens that it forced."""
    with ByteRig() as rig:
        for kind in ("raw", "processed"):
            bias = {ord("a"): 2.0, ord("b"): -3.0}
            noise = 1e-5 / (options.get("temperature") or 1.0)  # of processed logits, which a low temperature spreads
            call = call_under(grammar, seed=7, logprobs=kind, top_logprobs=3, logit_bias=bias, **options)
            segment, expected = rig.solo(call), naive(oracle, call)
            assert segment.tokens == expected.tokens
            assert segment.logprob_kind == kind
            assert segment.logprobs == pytest.approx(expected.logprobs, abs=noise)
            for one, other in zip(segment.top_logprobs, expected.top_logprobs, strict=True):
                assert [token for token, _ in one] == [token for token, _ in other]
                assert [value for _, value in one] == pytest.approx([value for _, value in other], abs=noise)


def test_case_b1_a_schema_is_refused_with_a_pointer_or_every_whole_text_validates() -> None:
    asked = [(schema, seed) for schema in ENFORCED for seed in range(NUM_SEEDS)]
    num_whole = 0
    with ByteRig(num_blocks=8192) as rig:
        for start in range(0, len(asked), NUM_AT_ONCE):
            calls = [
                (schema, call_under(Grammar("json_schema", source_of(schema)), seed, max_tokens=100))
                for schema, seed in asked[start : start + NUM_AT_ONCE]
            ]
            runs = [(schema, run := rig.open(str(number)), run.submit(call)) for number, (schema, call) in
                    enumerate(calls)]  # fmt: skip
            rig.compile_all(*(call for _, call in calls))
            rig.drain()
            for schema, run, number in runs:
                segment = run.segment(number)
                assert segment.reason in ("grammar_end", "stop_token", "length")
                if segment.reason != "length":
                    assert_valid(schema, text_of(segment))
                    num_whole += 1
                run.session.close()
    assert num_whole > len(asked) / 2


def test_case_b1_what_is_refused_names_the_place() -> None:
    with ByteRig() as rig:
        for schema, pointer in REFUSED:
            error = rig.solo(call_under(Grammar("json_schema", source_of(schema))))
            assert isinstance(error, ErrorInfo), schema
            assert (error.code, error.field) == ("bad_request", f"grammar.source#{pointer}"), schema


def malformed(rng: random.Random) -> Grammar:
    schema, _ = rng.choice(REFUSED)
    pattern = rng.choice(["foo**", "^hello\\!$", "(", "[z-a]", "(?=x)", "a{99999}", "\\b"])
    chain = "\n".join(f"r{n}: r{n + 1}" for n in range(rng.randrange(1500, 9000)))
    return rng.choice(
        [
            Grammar("json_schema", source_of(schema) + " " * rng.randrange(50)),
            Grammar("regex", pattern + str(rng.randrange(1000))),
            Grammar("lark", f'start: start "{rng.randrange(1000)}"'),
            Grammar("lark", f'start: a\na: b "{rng.randrange(1000)}"\nb: a "y"'),
            Grammar("lark", "start: " + "(" * rng.randrange(1, 5000)),
            Grammar("lark", f"start: r0\n{chain}"),
            Grammar("lark", f"start: <[{rng.randrange(260)}]>"),
            Grammar("choice", "[" * rng.randrange(1, 9000)),
            Grammar("json_object", str(rng.random())),
        ]
    )


def test_case_b3_five_hundred_malformed_grammars_leave_three_streams_as_they_are() -> None:
    rng = random.Random(0)
    calls = [call_under(GRAMMARS[0], 1, 60), call_under(None, 2, 60), call_under(GRAMMARS[2], 3, 60)]
    with ByteRig() as rig:
        alone = [rig.solo(call) for call in calls]
        streams = [(run := rig.open(f"stream {n}"), run.submit(call)) for n, call in enumerate(calls)]
        bad, sent = rig.open("bad"), []
        while len(sent) < 500:
            batch = [call_under(malformed(rng)) for _ in range(20)]
            sent += [bad.submit(call) for call in batch]
            rig.compile_all(*batch)
            rig.step()
        rig.drain()
        for (run, number), one in zip(streams, alone, strict=True):
            assert_is_solo(run.final(number), one, was_interrupted=False)
        errors = [bad.error(number) for number in sent]
        assert {error.code for error in errors} == {"bad_request"}
        for run in (bad, *(run for run, _ in streams)):
            run.session.close()


def test_case_b4_rows_under_grammars_and_without_join_and_leave_in_any_order() -> None:
    rng = random.Random(4)
    calls: list[Generate] = [call_under(one, 11, 24) for one in (GRAMMARS[0], None, GRAMMARS[1])]
    with ByteRig() as rig:
        alone = [rig.solo(call) for call in calls]
        rig.compile_all(*calls)
        for order in range(200):
            waiting = sorted((rng.randrange(12), rng.random(), number) for number in range(len(calls)))
            leaving = {rng.randrange(len(calls)): rng.randrange(3, 20)} if order % 2 else {}
            running, step = {}, 0
            while waiting or rig.step():
                while waiting and waiting[0][0] <= step:
                    number = waiting.pop(0)[2]
                    running[number] = (run := rig.open(f"{order} {number}"), run.submit(calls[number]))
                for number, left_at in leaving.items():
                    if step == left_at and number in running:
                        running[number][0].session.interrupt(running[number][1])
                rig.step()
                step += 1
            for number, (run, call) in running.items():
                assert_is_solo(run.final(call), alone[number], was_interrupted=number in leaving)
                run.session.close()


def assert_is_solo(completion: Any, alone: Segment, was_interrupted: bool) -> None:
    if was_interrupted and (completion.error is not None or completion.result.reason == "interrupted"):
        tokens = () if completion.error is not None else completion.result.tokens
        assert tokens == alone.tokens[: len(tokens)]
        return
    assert completion.error is None, completion.error
    segment = completion.result
    assert (segment.tokens, segment.reason, segment.kv_len) == (alone.tokens, alone.reason, alone.kv_len)
    assert segment.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_case_b7_bounds_listed_properties_and_enums_are_kept() -> None:
    with ByteRig() as rig:
        for seed in range(20):
            segment = rig.solo(call_under(GRAMMARS[0], seed, max_tokens=120))
            assert segment.reason == "grammar_end"
            value = json.loads(text_of(segment))
            assert list(value) == ["name", "age", "color"]
            assert value["age"] in range(1, 6)
            assert value["color"] in ("red", "green")
