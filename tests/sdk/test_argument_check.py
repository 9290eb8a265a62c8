"""Wrong arguments of the sdk's functions: refused where they are given, with the value and what it may be."""

import asyncio
import inspect
import types
import typing
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopwright import sdk
from loopwright.sdk import BadRequest, Context, Store, choice, http, speculate
from loopwright.sdk.argument_check import behind

INTERNAL = {
    sdk.Child: "made by spawn",
    sdk.Watched: "made by Context.watch",
    sdk.Distribution: "made by next_dist",
}
"""Classes that no program makes: their methods are checked, and nobody else calls their __init__."""

NOT_CALLED = {"running_in", "stop_running", "backoff_s", "retry_after_s"}
"""Of modules: what the sdk itself calls."""


class Wrong:
    def __repr__(self) -> str:
        return "<something wrong>"


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All that a program may call: functions, methods of classes that are no values, and those of modules."""
    for name in sdk.__all__:
        thing = getattr(sdk, name)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            yield from methods(name, thing)
        elif inspect.isfunction(thing):
            yield name, thing
        elif isinstance(thing, types.ModuleType) and name != "errors":
            for inner, one in vars(thing).items():
                is_own = getattr(one, "__module__", "") == thing.__name__
                if not inner.startswith("_") and inner not in NOT_CALLED and is_own and inspect.isfunction(one):
                    yield f"{name}.{inner}", one


def methods(name: str, thing: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for inner, one in vars(thing).items():
        function = one.__func__ if isinstance(one, classmethod) else one
        if not inspect.isfunction(function) or (thing is sdk.Queue and inner == "of_context"):
            continue
        if not inner.startswith("_") or (inner == "__init__" and thing not in INTERNAL):
            yield f"{name}.{inner}", function


VALUES = {"Model", "RunFacts", "Speculated", "Score", "ToolCall", "BrokenCall", "Turn", "Verified", "Chunk", "Grammar"}
VALUES |= {"WatchedToken", "Approximate", "Exact", "Cause", "Filled"}
"""Classes of what the sdk gives back: nobody gives them anything."""


def cases() -> Iterator[Any]:
    for name, function in functions():
        if name.partition(".")[0] in VALUES:
            continue
        hints = typing.get_type_hints(behind(function))
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name, Any)
            if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(hint) is typing.Unpack:
                options = typing.get_type_hints(typing.get_args(hint)[0])
                wanted = [(option, kind) for option, kind in options.items()]
            elif parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            else:
                wanted = [(parameter.name, hint)]
            for argument, kind in wanted:
                if argument not in ("self", "cls") and kind not in (Any, object):
                    yield pytest.param(function, argument, id=f"{name}({argument})")


CASES = list(cases())


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_whatever_is_given_to_the_sdk_is_refused_by_its_name_if_it_is_wrong(
    function: Callable[..., Any], argument: str
) -> None:
    parameters = inspect.signature(function).parameters
    if argument in parameters and parameters[argument].kind is inspect.Parameter.POSITIONAL_ONLY:
        call = lambda: function(Wrong())  # noqa: E731
    else:
        call = lambda: function(**({"self": None} if "self" in parameters else {}), **{argument: Wrong()})  # noqa: E731
    with pytest.raises(BadRequest, match=rf"^{argument}: <something wrong> is not [^ ]") as caught:
        call()
    assert caught.value.field == argument
    assert caught.value.hint.endswith("there")


def test_there_is_something_to_check_of_every_kind() -> None:
    names = {case.id for case in CASES}
    assert len(names) > 200
    assert names >= {
        "Context.__init__(seed)", "Context.generate(max_tokens)", "Context.watch(window)", "Queue.forward(mask)",
        "http.request(timeout_s)", "http.get(headers)", "tensor.kth(vector)", "spawn(program)", "speculate(top_p)",
        "Distribution.sample(random)", "subscribe.__init__(topic)", "Show.__init__(channel)", "sandbox.run(code)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (Context.generate, {"stop": ["a", 3]}, "stop[1]: 3 is not str"),
        (Context.generate, {"max_tokens": True}, "max_tokens: True is not int or None"),
        (Context.generate, {"logit_bias": {2.5: 1}}, "logit_bias: the key 2.5 is not int"),
        (Context.generate, {"logit_bias": {3: "a"}}, "logit_bias[3]: 'a' is not float"),
        (Context.generate, {"allowed": "abc"}, "allowed: 'abc' is not a list of int or None"),
        (Context.generate, {"allowed": {1: 2}}, "allowed: {1: 2} is not a list of int or None"),
        (Context.generate, {"logprobs": "rwa"}, "logprobs: 'rwa' is not 'raw' or 'processed' or None"),
        (Context.generate, {"tools": "search"}, "tools: 'search' is not a list of Tool"),
        (Context.place, {"content": "", "sees": [(1, "a")]}, "sees[0]: (1, 'a') is not (int, int) or a range"),
        (Context.hide, {"span": (1, 2, 3)}, "span: (1, 2, 3) is not (int, int) or a range"),
        (choice, {"options": "yes"}, "options: 'yes' is not a list of str"),
        (Context.append, {"content": b"x" * 100}, f"content: b'{'x' * 58}… is not str or a list of int"),
    ],
)
def test_what_is_wrong_is_said_as_far_in_as_it_is(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        function(None, **arguments) if function is not choice else function(**arguments)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (Context.generate, "max_token", "Context.generate takes no 'max_token'; did you mean 'max_tokens'?"),
        (http.get, "timeout", "get takes no 'timeout'; did you mean 'timeout_s'?"),
        (Store.get, "zzz", "Store.get takes no 'zzz'; it takes key"),
    ],
)
def test_a_name_that_a_function_does_not_take_is_answered_with_the_nearest(
    function: Callable[..., Any], name: str, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        function("self or url", **{name: 1})
    assert str(caught.value) == message


def test_what_somebody_forgot_to_await_is_said_to_be_so() -> None:
    waiting = asyncio.sleep(0)
    with pytest.raises(BadRequest) as caught:
        Context.user(None, waiting)  # type: ignore[arg-type]
    waiting.close()
    assert caught.value.hint == "write await before it"


def test_what_cannot_show_itself_is_shown_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError

    with pytest.raises(BadRequest, match=r"^text: a Shy is not str$"):
        Context.user(None, Shy())  # type: ignore[arg-type]


def test_what_fits_goes_through_as_it_is_and_an_iterator_is_not_used_up() -> None:
    class Log:
        given: Any = None

        def append(self, content: object) -> None:
            self.given = content

    context = Context.__new__(Context)
    context._log = Log()  # type: ignore[assignment]
    numbers: list[Any] = [[1, 2], (1, 2), range(1, 3), array("i", [1, 2]), {1: 0, 2: 0}.keys(), iter([1, 2])]
    for one in numbers:
        context.append(one)
        assert context._log.given == [1, 2]  # type: ignore[attr-defined]
    context.append("text")
    assert context._log.given == "text"  # type: ignore[attr-defined]


def test_a_function_that_is_checked_looks_as_before() -> None:
    assert inspect.iscoroutinefunction(behind(Context.generate))
    assert behind(len) is len
    assert Context.generate.__qualname__ == "Context.generate"
    assert "drafter" in inspect.signature(speculate).parameters
