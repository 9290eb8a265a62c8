"""What `check` says of an await that is missing or too much, and that it is silent of what may be right."""

import pytest

from loopwright.runtime.program_check import check_program

MODULES = frozenset({"asyncio", "functools", "loopwright"})


def found_in(*lines: str) -> list[tuple[int, str, str]]:
    """Line within main, message and hint."""
    body = "".join(f"    {line}\n" for line in lines)
    source = f"import asyncio\nfrom loopwright import Context, Store, emit, http, tokenize\nasync def main():\n{body}"
    found = [one for one in check_program(source, "p.py", MODULES) if one.code == "await"]
    return [(one.line - 3, one.message, one.hint) for one in found]


NOT_AWAITED = "tokenize(…) is not awaited: it is no value yet"

MISSING = {
    "in a text": "x = f'{tokenize(1)}'",
    "an item of it": "x = tokenize('a')[0]",
    "in a sum": "x = tokenize('a') + [1]",
    "compared": "x = tokenize('a') == []",
    "as a condition": "x = 1 if tokenize('a') else 2",
    "negated": "x = not tokenize('a')",
    "spread": "x = [*tokenize('a')]",
    "looped over": "x = [one for one in tokenize('a')]",
    "unpacked": "x, y = tokenize('a')",
    "counted": "x = len(tokenize('a'))",
    "printed": "print(tokenize('a'))",
    "emitted": "emit(tokenize('a'))",
    "as an argument by name": "await Store().set('k', value=tokenize('a'))",
    "looped over, as many": "for one in tokenize('a'): pass",
}


@pytest.mark.parametrize("case", MISSING)
def test_a_value_that_has_to_be_awaited_first(case: str) -> None:
    assert [(line, message) for line, message, _ in found_in(MISSING[case])] == [(1, NOT_AWAITED)]


def test_it_is_followed_by_name_and_the_hint_says_what_to_write() -> None:
    assert found_in("ids = tokenize('a')", "return len(ids)") == [(2, NOT_AWAITED, "write (await ids)")]


def test_main_returns_values() -> None:
    (found,) = found_in("return tokenize('a')")
    assert found[:2] == (1, "main returns tokenize(…), which is not awaited")
    assert found_in("def inner(): return tokenize('a')", "return await inner()") == []


def test_an_async_function_of_the_program_is_awaited_too() -> None:
    lines = ("async def ask(): return 1", "ask()", "x = ask() + 1", "y = await ask()", "t = asyncio.create_task(ask())")
    assert [(line, message) for line, message, _ in found_in(*lines)] == [
        (2, "ask(…) is never awaited: it does nothing"),
        (3, "ask(…) is not awaited: it is no value yet"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("await emit(1)", "emit needs no await: it returns at once"),
        ("await Context()", "Context needs no await: it returns at once"),
        ("await Context().user('a')", "Context.user needs no await: it returns at once"),
    ],
)
def test_an_await_too_much(line: str, message: str) -> None:
    assert found_in(line) == [(1, message, "take the await away")]


def test_loops_and_blocks_that_wait() -> None:
    lines = ("ctx = Context()", "with ctx.watch() as v: pass", "async with ctx.watch() as w:", "    for one in w: pass")
    assert found_in(*lines) == [
        (2, "Watched is not for 'with'", "write async with"),
        (4, "Watched is not for 'for'", "write async for"),
    ]
    right = ("ctx = Context()", "async with ctx.watch() as w:", "    async for one in w: pass", "async with ctx: pass")
    assert found_in(*right, "async for one in ctx.stream(): pass") == []


RIGHT = {
    "together": ("a, b = await asyncio.gather(tokenize('a'), tokenize('b'))",),
    "in a list, for later": ("later = [tokenize('a'), tokenize('b')]", "x = await asyncio.gather(*later)"),
    "bound to two things": ("x = tokenize('a')", "x = await x", "print(len(x))"),
    "asked whether it is there": ("x = tokenize('a')", "if x is not None: await x"),
    "a builtin of another meaning": ("def len(x): return x", "await len(tokenize('a'))"),
    "given to a function of the program": ("async def run(work): return await work", "await run(tokenize('a'))"),
    "an async generator": ("async def many(): yield 1", "async for one in many(): print(one)"),
    "a decorated function": ("import functools", "@functools.cache", "async def ask(): return 1", "ask()"),
    "two functions of one name": ("async def f(): return 1", "def f(): return 2", "f()"),
    "types of values": ("x = tokenize('a')", "print(isinstance(await x, list))", "type(tokenize('a'))"),
    "not known": ("x = await something()", "await x.close()"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_said_of_what_may_be_right(case: str) -> None:
    assert found_in(*RIGHT[case]) == []
