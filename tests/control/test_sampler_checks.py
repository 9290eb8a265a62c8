"""What control refuses of a traced sampler, by the operation's name and the limit."""

import msgspec
import pytest

from loopwright.core.calls import QueueCall, Sampling
from loopwright.core.samplers import (
    MAX_SAMPLER_COST,
    MAX_SAMPLER_ENTRIES,
    OPERATION_COSTS,
    SamplerNode,
    TracedSampler,
    TracedState,
)
from loopwright.core.watch_calls import Watch

from .fake_executor import VOCAB_SIZE
from .rig import Rig, generate

SCORES = SamplerNode("scores")


def error_of(nodes, result=None, states=(), initial=None, sampling=None):
    rig = Rig()
    run = rig.open("a")
    sampler = TracedSampler(tuple(nodes), len(nodes) - 1 if result is None else result, tuple(states))
    call = msgspec.structs.replace(
        generate((5, 6), sampling=sampling or Sampling()), sampler=sampler, sampler_state=initial or {}
    )
    return run.error(run.submit(call))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([SCORES, SamplerNode("add", (0,))], "sampler.nodes[1]: add takes 2 inputs, and 1 are given"),
        ([SCORES, SamplerNode("exp", (1,))], "sampler.nodes[1]: exp reads node 1, which does not come before it"),
        (
            [SCORES, SamplerNode("argmax", (0,)), SamplerNode("sum", (1,))],
            "sampler.nodes[2]: sum takes a vector as input 0, and node 1 is a number",
        ),
        ([SCORES, SamplerNode("take", (0, 0))], "sampler.nodes[1]: take takes a number as index"),
        ([SCORES, SamplerNode("kth", (0,), k=65)], "kth: k is 65, which is not from 1 to the vocabulary's 64"),
        ([SamplerNode("constant")], "sampler.nodes[0]: constant: None is not a number"),
        ([SamplerNode("state", name="x")], "sampler.nodes[0]: state: 'x' is not one of []"),
        ([SamplerNode("sparse", entries=((64, 1.0),))], "sparse: token 64 is not in the vocabulary of 64"),
        ([SamplerNode("sparse", entries=((3, float("inf")),))], "sparse: inf of token 3 is not finite"),
    ],
)
def test_an_operation_that_cannot_be_is_refused_by_its_place_and_name(nodes, message) -> None:
    error = error_of(nodes)
    assert error.type == "BadRequest"
    assert message in error.message
    assert error.field.startswith("sampler.nodes[")


def test_a_sampler_that_costs_too_much_is_refused_by_the_operation_that_passes_the_limit() -> None:
    num_possible = MAX_SAMPLER_COST // OPERATION_COSTS["mass_before"]
    error = error_of([SCORES, *[SamplerNode("mass_before", (0, 0))] * (num_possible + 1)])
    assert error.type == "LimitExceeded"
    assert f"sampler.nodes[{num_possible}]: mass_before brings" in error.message
    assert str(MAX_SAMPLER_COST) in error.message


def test_a_sampler_of_too_many_entries_is_refused() -> None:
    half = tuple((token % VOCAB_SIZE, 1.0) for token in range(MAX_SAMPLER_ENTRIES // 2 + 1))
    error = error_of([SamplerNode("sparse", entries=half)] * 2)
    assert (error.type, str(MAX_SAMPLER_ENTRIES) in error.message) == ("LimitExceeded", True)


def test_states_must_be_what_the_sampler_carries_and_of_its_shape() -> None:
    number, vector = TracedState("x", False, 0), TracedState("x", True, 0)
    nodes = [SCORES]
    assert "sampler_state: [] are given, and the sampler carries ['x']" in error_of(nodes, 0, [vector]).message
    assert "'x' is a number, and what it becomes is a vector" in error_of(nodes, 0, [number], {"x": 1.0}).message
    assert "16 bytes; a vector has 512" in error_of(nodes, 0, [vector], {"x": bytes(16)}).message
    assert "nan is not finite" in error_of(nodes, 0, [vector], {"x": float("nan")}).message
    assert error_of(nodes, 5).field == "sampler.result"
    assert error_of(nodes, 0, [TracedState("x", True, 9)], {"x": 1.0}).field == "sampler.states.x"


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 1.0), ("top_k", 3), ("typical_p", 0.5), ("top_p", 0.5), ("min_p", 0.1), ("logprobs", "processed")],
)
def test_what_acts_on_scores_is_refused_beside_a_sampler_that_gives_the_token_itself(field: str, value) -> None:
    error = error_of([SCORES, SamplerNode("argmax", (0,))], sampling=Sampling(**{field: value}))
    assert error.field == f"sampling.{field}"
    rig = Rig()
    run = rig.open("a")
    scores_out = msgspec.structs.replace(
        generate((5, 6), sampling=Sampling(**{field: value})), sampler=TracedSampler((SCORES,), 0)
    )
    call = run.submit(scores_out)
    assert run.final(call) is None  # it waits for its turn


def test_a_state_without_a_sampler_is_refused() -> None:
    rig = Rig()
    run = rig.open("a")
    call = run.submit(msgspec.structs.replace(generate((5, 6)), sampler_state={"x": 1.0}))
    assert run.error(call).field == "sampler_state"


def test_a_call_with_a_sampler_crosses_processes_and_the_sandboxs_boundary_unchanged() -> None:
    nodes = (SCORES, SamplerNode("constant", value="-inf"), SamplerNode("sparse", entries=((3, -0.5),)))
    sampler = TracedSampler((*nodes, SamplerNode("where", (2, 0, 1))), 3, (TracedState("x", True, 0),))
    call = msgspec.structs.replace(
        generate((5, 6)), sampler=sampler, sampler_state={"x": bytes(range(64)) * 8, "y": 2.0}, watch=Watch(3)
    )
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(call), type=QueueCall) == call
