"""Tracing: what becomes of a sampler function, and what it says of one that cannot be traced."""

import math
from pathlib import Path

import pytest

from loopwright.sdk import tensor
from loopwright.sdk.errors import Untraceable
from loopwright.sdk.tracing import MAX_NODES, state_fields, state_of, trace


def line_of(function, text: str) -> int:
    """The number of the line of this file, at or after the function's first, that holds the text."""
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(number for number, line in enumerate(lines, start=1) if number >= first and text in line)


def test_equal_operations_are_one_node_and_what_is_not_used_is_left_out() -> None:
    def sampler(scores):
        unused = tensor.exp(scores)
        assert unused is not None
        return (scores + 1) * (scores + 1)

    assert [node["op"] for node in trace(sampler, {}, 9)["nodes"]] == ["scores", "constant", "add", "multiply"]


def test_python_numbers_loops_and_lengths_that_are_known_before_are_computed_while_tracing() -> None:
    def sampler(scores):
        for token in (1, 2):
            scores = scores + tensor.at({token: math.sqrt(len(scores))})
        return scores

    nodes = trace(sampler, {}, 16)["nodes"]
    assert [node["entries"] for node in nodes if node["op"] == "sparse"] == [((1, 4.0),), ((2, 4.0),)]


def test_infinite_constants_are_words_for_json_has_no_number_for_them() -> None:
    nodes = trace(lambda scores: tensor.where(scores > 0, scores, -math.inf), {}, 9)["nodes"]
    assert [node["value"] for node in nodes if node["op"] == "constant"] == [0.0, "-inf"]


def branches(scores):
    best = tensor.argmax(scores)
    if best > 3:  # here it branches
        return best
    return scores


def takes_a_float(scores):
    return scores * math.exp(scores[0])  # here it takes a float


def loops(scores):
    return sum(one for one in scores)  # here it loops


def unknown(scores):
    return scores.sort()  # here it is unknown


def unknown_operator(scores):
    return scores**2  # here it is an operator


def wrong_shape(scores):
    return tensor.argmax(tensor.argmax(scores))  # here it is a number


def deep(scores):
    def inner(value):
        return value if value else scores  # here, inside

    return inner(scores[2])


def too_large(scores):
    for number in range(MAX_NODES):
        scores = scores + number  # here it grows
    return scores


def not_a_number(scores):
    return scores + math.nan  # here it is not a number


@pytest.mark.parametrize(
    ("function", "mark", "why"),
    [
        (branches, "here it branches", "it needs a branch"),
        (takes_a_float, "here it takes a float", "its value as a Python number"),
        (loops, "here it loops", "a loop over its values"),
        (unknown, "here it is unknown", "'Tensor' object has no attribute 'sort'"),
        (unknown_operator, "here it is an operator", "unsupported operand"),
        (wrong_shape, "here it is a number", "argmax takes a vector"),
        (deep, "here, inside", "it needs a branch"),
        (too_large, "here it grows", f"operation {MAX_NODES + 1}; the limit is {MAX_NODES}"),
        (not_a_number, "here it is not a number", "a constant that is not a number"),
    ],
)
def test_what_cannot_be_traced_says_which_line_and_why(function, mark: str, why: str) -> None:
    with pytest.raises(Untraceable) as caught:
        trace(function, {}, 9)
    assert why in caught.value.message
    assert f"{function.__name__} cannot be traced: line {line_of(function, mark)}:" in caught.value.message
    assert "sampler_fallback" in caught.value.hint


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda scores, state: scores, "returns (token or scores, {name: next value})"),
        (lambda scores, state: (scores, {}), "returned state []; it was given ['x']"),
        (lambda scores, state: (scores, {"x": 0.0, "y": 1.0}), "returned state ['x', 'y']"),
        (lambda scores, state: (scores, {"x": scores}), "state 'x' begins as a number and becomes a vector"),
    ],
)
def test_a_state_must_come_back_as_it_was_given(function, why: str) -> None:
    with pytest.raises(Untraceable) as caught:
        trace(function, {"x": 1.0}, 9)
    assert why in caught.value.message


def test_a_tensor_of_an_earlier_call_is_not_carried_behind_the_state() -> None:
    kept = []

    def sampler(scores):
        kept.append(scores)
        return kept[0] + scores

    trace(sampler, {}, 9)
    with pytest.raises(Untraceable) as caught:
        trace(sampler, {}, 9)
    assert "from an earlier call" in caught.value.message


def test_states_go_out_as_data_and_come_back() -> None:
    fields = state_fields({"a": 2, "b": [1.0, 2.5], "c": tensor.filled(3)}, 2)
    assert (fields["a"], fields["c"]) == (2.0, 3.0)
    back = state_of(fields)
    assert (back["a"], list(back["b"])) == (2.0, [1.0, 2.5])
    with pytest.raises(ValueError, match="state 'b' has 2 numbers; the vocabulary has 3"):
        state_fields({"b": [1.0, 2.5]}, 3)
