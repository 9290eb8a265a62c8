"""What `check` finds in a program before it runs, and that it says nothing of what is right."""

import sys
from pathlib import Path

import pytest

from loopwright.runtime.program_check import Finding, check_program
from system_rig import PROGRAMS

MODULES = frozenset(
    {*sys.stdlib_module_names, "xml.etree.ElementTree", "os.path", "collections.abc", "loopwright", "loopwright.sdk"}
)


def found_in(source: str) -> list[tuple[int, int, str, str]]:
    return [(one.line, one.column, one.code, one.message) for one in check_program(source, "p.py", MODULES)]


def in_main(*lines: str, top: str = "from loopwright import Context, http, tensor") -> str:
    return "\n".join([top, "async def main():", "    ctx = Context()", *(f"    {line}" for line in lines)]) + "\n"


TYPES = "null, boolean, integer, number, string, array, object"
WRONG = {
    "a call that does not exist": (["await ctx.generat()"], [(4, 15, "name", "Context has no 'generat'")]),
    "a function of a module": (["await http.gett('x')"], [(4, 16, "name", "http has no 'gett'")]),
    "an option": (
        ["await ctx.generate(max_token=5)"],
        [(4, 24, "argument", "Context.generate takes no 'max_token'")],
    ),
    "an option of a request": (["await http.get('x', timeout=5)"], [(4, 25, "argument", "get takes no 'timeout'")]),
    "a field of a result": (
        ["turn = await ctx.generate()", "return turn.txt"],
        [(5, 17, "name", "Turn has no 'txt'")],
    ),
    "a forked context": (["fork = await ctx.fork()", "fork.clos()"], [(5, 10, "name", "Context has no 'clos'")]),
    "an argument that is missing": (["ctx.append()"], [(4, 5, "argument", "Context.append needs 'content'")]),
    "one argument too many": (
        ["ctx.user('a', 'b')"],
        [(4, 19, "argument", "Context.user takes 1 positional argument, not 2")],
    ),
    "an argument given twice": (["ctx.user('a', text='b')"], [(4, 19, "argument", "Context.user gets 'text' twice")]),
    "a call that nobody awaits": (
        ["ctx.generate()"],
        [(4, 5, "await", "Context.generate(…) is never awaited: it does nothing")],
    ),
    "a result that nobody awaits": (
        ["return ctx.generate().text"],
        [(4, 12, "await", "Context.generate(…) is not awaited: it has no 'text'")],
    ),
    "what a block binds": (
        ["async with ctx.watch() as watched:", "    async for token in watched:", "        print(token.idd)"],
        [(6, 25, "name", "WatchedToken has no 'idd'")],
    ),
    "what a constructor takes": (["Context(sed=1)"], [(4, 13, "argument", "Context takes no 'sed'")]),
    "a host that is not permitted": (
        ["await http.get_text('https://api.example.org/x')"],
        [(4, 25, "permission", "the program may not reach api.example.org:443; permitted: nothing")],
    ),
    "a channel": (
        ["from loopwright import subscribe", "subscribe('news')"],
        [(5, 15, "permission", "the program may not use the channel 'news'; permitted: nothing")],
    ),
    "a named store": (
        ["from loopwright import Store", "await Store('notes').get('x')"],
        [(5, 17, "permission", "the program may not use the store 'notes'; permitted: nothing")],
    ),
    "a child": (
        ["from loopwright import spawn", "await spawn('other')", "await spawn(main)"],
        [
            (5, 17, "permission", "the program may not spawn other; permitted: nothing"),
            (6, 17, "permission", "the program may not spawn @self; permitted: nothing"),
        ],
    ),
    "a tool of the server": (
        ["from loopwright import tools", "await tools.call('weather', city='Oslo')"],
        [(5, 22, "permission", "the program may not use the tool 'weather'; permitted: none")],
    ),
    "a choice among tools": (
        [
            "from loopwright import tool",
            "@tool",
            "def rain(): 'Rains.'",
            "await ctx.generate(tools=[rain], tool_choice='snow')",
        ],
        [(7, 50, "argument", "tool_choice is one of auto, none, required, rain, not 'snow'")],
    ),
    "a loop over what is awaited": (
        ["parts = ctx.stream(max_tokens=3)", "for part in parts:", "    print(part.text)"],
        [(5, 17, "await", "TokenStream is not for 'for'")],
    ),
    "a comprehension over what is awaited": (
        ["[part.text for part in ctx.stream()]"],
        [(4, 28, "value", "TokenStream is not for 'for'")],
    ),
    "a list of what is awaited": (
        ["list(ctx.stream())"],
        [(4, 10, "value", "TokenStream is not for 'list': its parts are awaited")],
    ),
    "a part of a stream with tools": (
        [
            "from loopwright import ToolCall",
            "async for part in ctx.stream(tools=[]):",
            "    print(part.anything)",
            "async for chunk in ctx.stream():",
            "    print(chunk.name)",
        ],
        [(8, 21, "name", "Chunk has no 'name'")],
    ),
    "a block that is not entered": (
        ["async for token in ctx.watch():", "    print(token)"],
        [(4, 24, "value", "ctx.watch(…) is not entered")],
    ),
    "options of another type": (
        ["await ctx.generate(max_tokens='ten', stop=3, until=None, logit_bias={2.5: 1})"],
        [
            (4, 35, "argument", "max_tokens: 'ten' is not int or None"),
            (4, 47, "argument", "stop: 3 is not str or a list of str"),
            (4, 73, "argument", "logit_bias: the key 2.5 is not int"),
        ],
    ),
    "options beyond their limits": (
        ["await ctx.generate(until='', top_p=1.5, stop=['a', ''], max_tokens=0)", "ctx.watch(temperature=-1)"],
        [
            (4, 30, "argument", "until: '' is refused: Expected `str` of length >= 1"),
            (4, 40, "argument", "top_p: 1.5 is refused: Expected `float` <= 1.0"),
            (4, 50, "argument", "stop: ['a', ''] is refused: Expected `str` of length >= 1"),
            (4, 72, "argument", "max_tokens: 0 is refused: Expected `int` >= 1"),
            (5, 27, "argument", "temperature: -1 is refused: Expected `float` >= 0.0"),
        ],
    ),
    "one text for several": (
        ["from loopwright import choice", "choice('yes')"],
        [(5, 12, "argument", "options: 'yes' is not a list of str")],
    ),
    "a tool that is in no list": (
        ["from loopwright import tool", "@tool", "def rain(x: int): 'Rains.'", "await ctx.generate(tools=rain)"],
        [(7, 30, "argument", "tools: a Tool is not a list of Tool")],
    ),
    "a tool without types": (
        ["from loopwright import tool", "@tool", "def rain(where, when: str = ''): 'Rains.'"],
        [(6, 14, "argument", "the tool rain: where has no type")],
    ),
    "a tool that nobody awaits": (
        ["from loopwright import tool", "@tool", "async def rain(): 'Rains.'", "rain()"],
        [(7, 5, "await", "Tool(…) is never awaited: it does nothing")],
    ),
    "an answer for its text": (
        [
            "from loopwright import emit",
            "turn = await ctx.generate()",
            "ctx.user(turn)",
            "emit({'a': [1, turn], **{}})",
            "if ctx.tokens: return {'turn': turn, 'text': turn.text}",
            "return turn",
        ],
        [
            (6, 14, "argument", "text: a Turn is not str"),
            (7, 20, "argument", "a Turn is no JSON value; its .text is"),
            (8, 36, "argument", "a Turn is no JSON value; its .text is"),
            (9, 12, "argument", "a Turn is no JSON value; its .text is"),
        ],
    ),
    "what is sent and is no JSON": (
        ["from loopwright import emit", "emit(await ctx.generate())", "emit({'a': {1}})", "emit(turn := 3)"],
        [
            (5, 10, "argument", "a Turn is no JSON value; its .text is"),
            (6, 10, "argument", "a: {1} is no JSON value; a list of it is"),
        ],
    ),
    "a coroutine for a function": (
        ["from loopwright import speculate", "async def draft(): ...", "await speculate(ctx, draft())"],
        [(6, 26, "argument", "drafter: draft(…) is not a function")],
    ),
    "an answer as a text": (
        [
            "turn = await ctx.generate()",
            "turn + '!'",
            "'!' + turn",
            "turn[0]",
            "turn == 'yes'",
            "'y' in turn",
            "turn()",
        ],
        [
            (5, 5, "value", "a Turn is not for an operator"),
            (6, 11, "value", "a Turn is not for an operator"),
            (7, 5, "value", "a Turn has no parts to take with []"),
            (8, 5, "value", "a Turn never equals 'yes'"),
            (9, 12, "value", "a Turn has nothing in it to look for"),
            (10, 5, "value", "a Turn is no function"),
        ],
    ),
    "a loop over an answer": (
        ["for word in await ctx.generate(): ..."],
        [(4, 17, "value", "a Turn has no parts to go through")],
    ),
    "a main that yields": (["yield 3"], [(4, 5, "argument", "main yields, and a run has one result")]),
    "asyncio's own that nobody awaits": (
        ["import asyncio", "asyncio.sleep(1)"],
        [(5, 5, "await", "asyncio.sleep(…) is never awaited: it does nothing")],
    ),
    "what the sandbox has not": (
        [
            "import subprocess, asyncio, socket as s",
            "from threading import Timer as Pool",
            "subprocess.run(['ls'])",
            "Pool()",
            "s.create_connection(('x', 80))",
            "asyncio.run(main())",
            "input()",
            "breakpoint()",
        ],
        [
            (6, 5, "sandbox", "subprocess.run: the sandbox has no processes"),
            (7, 5, "sandbox", "Pool: the sandbox has no threads"),
            (8, 5, "sandbox", "s.create_connection: the sandbox has no sockets"),
            (9, 5, "sandbox", "asyncio.run: main runs in a loop already"),
            (10, 5, "sandbox", "input: the sandbox has no keyboard"),
            (11, 5, "sandbox", "breakpoint: the sandbox has no debugger"),
        ],
    ),
    "what the sandbox's Python has not": (
        [
            "import argparse, os, sys, time, threading",
            "from pathlib import Path",
            "argparse.ArgumentParser()",
            "os.environ['HOME'], os.getenv('KEY'), sys.argv[1]",
            "time.sleep(1)",
            "threading.Thread(target=print).start()",
            "with open('notes.txt') as file: ...",
            "Path('a').read_text()",
        ],
        [
            (6, 5, "sandbox", "argparse.ArgumentParser: a program has no command line"),
            (7, 5, "sandbox", "os.environ['HOME']: the sandbox has no environment"),
            (7, 25, "sandbox", "os.getenv: the sandbox has no environment"),
            (7, 43, "sandbox", "sys.argv[1]: a program has no command line"),
            (8, 5, "sandbox", "time.sleep holds up the whole program, its other tasks too"),
            (9, 5, "sandbox", "threading.Thread: the sandbox has no threads"),
            (10, 10, "sandbox", "open: the sandbox has none of this machine's files"),
            (11, 5, "sandbox", "read_text: the sandbox has none of this machine's files"),
        ],
    ),
    "what its event loop has not": (
        [
            "import asyncio, signal",
            "loop = asyncio.get_running_loop()",
            "await loop.run_in_executor(None, print)",
            "loop.run_until_complete(ctx.flush())",
            "asyncio.get_event_loop().add_signal_handler(signal.SIGINT, print)",
        ],
        [
            (6, 11, "sandbox", "loop.run_in_executor: the sandbox has no threads"),
            (7, 5, "sandbox", "loop.run_until_complete: main runs in a loop already"),
            (8, 5, "sandbox", "asyncio.get_event_loop().add_signal_handler: the sandbox has no signals"),
        ],
    ),
    "futures that nobody awaits": (
        [
            "import asyncio",
            "asyncio.gather(ctx.generate(), ctx.flush())",
            "texts = asyncio.gather(ctx.generate())",
            "[one for one in texts], texts[0]",
            "task = asyncio.create_task(ctx.generate())",
            "ctx.user(task)",
            "task.text",
            "return task",
        ],
        [
            (5, 5, "await", "asyncio.gather(…) is never awaited: main may end before it"),
            (7, 21, "await", "asyncio.gather(…) is not awaited: it is no value yet"),
            (7, 29, "await", "asyncio.gather(…) is not awaited: it is no value yet"),
            (9, 14, "await", "asyncio.create_task(…) is not awaited: it is no value yet"),
            (10, 5, "await", "asyncio.create_task(…) is not awaited: it has no 'text'"),
            (11, 12, "await", "main returns asyncio.create_task(…), which is not awaited"),
        ],
    ),
    "a result that nobody reads or awaits": (
        ["turn = ctx.generate()"],
        [(4, 12, "await", "Context.generate(…) is never awaited: it does nothing")],
    ),
    "a list of what nobody awaits": (
        [
            "turns = [ctx.generate() for _ in range(3)]",
            "for turn in turns: print(turn.text)",
            "[one.text for one in turns]",
        ],
        [
            (5, 30, "await", "Context.generate(…) is not awaited: it has no 'text'"),
            (6, 6, "await", "Context.generate(…) is not awaited: it has no 'text'"),
        ],
    ),
    "an answer in the place of its text": (
        [
            "import json, re",
            "turn = await ctx.generate()",
            "ctx.user(f'It said {turn} {turn!s}')",
            "ctx.user('{}'.format(turn) + str(turn))",
            "json.loads(turn), re.search('a', turn), int(turn), len(turn)",
            "', '.join([turn])",
            "turn.text()",
        ],
        [
            (6, 25, "text", "a Turn becomes a text with all of its fields here"),
            (6, 32, "text", "a Turn becomes a text with all of its fields here"),
            (7, 26, "text", "a Turn becomes a text with all of its fields here"),
            (7, 38, "text", "a Turn becomes a text with all of its fields here"),
            (8, 16, "text", "a Turn is no text"),
            (8, 38, "text", "a Turn is no text"),
            (8, 49, "text", "a Turn is not for 'int'"),
            (8, 60, "text", "a Turn is not for 'len'"),
            (9, 15, "text", "a Turn is no text"),
            (10, 5, "text", "Turn.text is a str, and no function"),
        ],
    ),
    "grammars and patterns that are none": (
        [
            "import re",
            "from loopwright import regex, json_schema, lark, choice",
            "regex('[a-z'), re.compile('(')",
            "schema = {'type': 'objekt'}",
            "json_schema(schema)",
            "lark('start: missing')",
            "choice([])",
        ],
        [
            (6, 11, "grammar", "regular expression '[a-z', character 0: '[' is never closed"),
            (6, 31, "grammar", "'(' is no regular expression: missing ), unterminated subpattern at position 0"),
            (8, 17, "grammar", f'JSON schema at #/type: "objekt" is not a type; types are {TYPES}'),
            (9, 10, "grammar", 'grammar: at 1(8): unknown name: "missing"'),
            (10, 12, "grammar", "the choices must be a list of 1 to 4096 strings"),
        ],
    ),
    "loops that nothing ends": (
        [
            "done, found = False, []",
            "while not done:",
            "    pass",
            "while True:",
            "    found.append(1)",
        ],
        [
            (5, 5, "loop", "nothing in this loop can end it"),
            (7, 5, "loop", "this loop has no break, no return and no await"),
        ],
    ),
    "a name that nothing binds": (
        ["turn = await ctx.generate()", "return tunr.text"],
        [(5, 12, "name", "'tunr' is bound nowhere")],
    ),
    "a host in a formatted text": (
        ["await http.post(f'http://a.example:8080/{ctx}')"],
        [(4, 21, "permission", "the program may not reach a.example:8080; permitted: nothing")],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_place(case: str) -> None:
    lines, findings = WRONG[case]
    assert found_in(in_main(*lines)) == findings


SAMPLERS = {
    "a branch": ("if tensor.highest(scores) > 3: return 1", 1),
    "a branch on what was made of it": ("rest = more = scores * 2; low = rest[3] < 0\n    if low: return 1", 1),
    "a loop": ("while scores[3] > 0: scores = scores - 1", 1),
    "and, or, not": ("return 1 if not scores[0] else (scores[1] and 2)", 2),
    "its state": ("if state['n'] > 3: return 1, state", 1),
    "its value": ("return float(scores[0])", 1),
    "going through it": ("return max(one for one in scores)", 1),
    "its size": ("if len(scores) > 3: return 1", 0),
    "what is no tensor": ("k = 3\n    if k > 2 and tensor is not None: return scores", 0),
    "what may be one or not": ("k = 3\n    k = scores[0]\n    if k: return scores", 0),
    "all of tensor's own": ("return tensor.where(scores > 0, scores, -1.0) if K else scores", 0),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler_that_looks_at_its_values_is_found_unless_it_may(case: str) -> None:
    body, number = SAMPLERS[case]
    source = (
        f"from loopwright import Context, tensor\nK = 1\ndef s(scores, state=None):\n    {body}\n    return scores\n"
    )
    main = "async def main():\n    await Context().generate(sampler=s{})\n"
    found = found_in(source + main.format(""))
    assert [code for _, _, code, _ in found] == ["sampler"] * number
    assert all(message == "the sampler s looks at a value that is not there yet" for *_, message in found)
    assert found_in(source + main.format(", sampler_fallback=True")) == []


def test_a_sampler_is_no_async_function() -> None:
    lines = ["async def s(scores): return scores", "await ctx.generate(sampler=s)"]
    top = "from loopwright import Context\nasync def s(scores): return scores"
    assert found_in(in_main(lines[1], top=top)) == [(5, 32, "sampler", "a sampler is no async function, as s is")]


def test_an_await_outside_of_an_async_function_is_found() -> None:
    source = in_main("return ask(ctx)", top="def ask(ctx): return (await ctx.generate()).text")
    assert found_in(source) == [(1, 23, "syntax", "'await' outside async function")]


def test_parameters_that_no_argument_can_be_are_found() -> None:
    source = """from datetime import date as day
from pathlib import Path
from loopwright import Context
class Item: ...
class Kind(str): ...
async def main(
    a: Item, b: day | None, c: list[Path], d: "Context", e: Context,
    f: set[int] = [], g: list[str] = [], h: Kind = "", i: dict[str, int] = {}, *, j: bytes = "",
): ...
"""
    kinds = [("a", "Item"), ("b", "date"), ("c", "Path"), ("e", "Context"), ("f", "set"), ("j", "bytes")]
    messages = [f"{name}: main's arguments are JSON, which has no {kind}" for name, kind in kinds]
    assert [(code, message) for _, _, code, message in found_in(source)] == [("parameter", one) for one in messages]


def test_who_goes_through_an_answer_is_told_of_streams() -> None:
    (found,) = check_program(in_main("async for part in ctx.generate(): print(part)"), "p.py", MODULES)
    assert found.hint == "write async for … in ctx.stream(…), which gives the text as it comes"


def test_a_program_with_files_of_its_own_may_open_them() -> None:
    top = "# /// program\n# limits = { max_file_bytes = 1000 }\n# ///\nfrom loopwright import Context"
    assert found_in(in_main("open('notes.txt', 'w').close()", top=top)) == []


RIGHT = {
    "futures that are awaited in the end": [
        "import asyncio",
        "task = asyncio.create_task(ctx.generate())",
        "asyncio.create_task(ctx.flush())",
        "both = asyncio.gather(task, asyncio.sleep(1))",
        "if task.done() or both.cancelled(): task.cancel()",
        "done, waiting = await asyncio.wait({task, both})",
        "if task in done and task: print(task, f'{task}')",
        "turn, _ = await both",
        "turns = [ctx.generate() for _ in range(2)]",
        "[one.text for one in await asyncio.gather(*turns)]",
        "later = [ctx.generate() for _ in range(2)]",
        "[(await one).text for one in later]",
        "_ = await ctx.flush()",
    ],
    "answers that a person is shown": [
        "turn = await ctx.generate()",
        "print(f'{turn} {turn.text}', str(turn), '{}'.format(turn))",
        "text = f'{turn!r} {turn=} {turn.text} {len(turn.text)}'",
        "if not turn.text: raise ValueError(f'{turn}')",
        "turn.text.strip(), ', '.join([turn.text]), str(3), int(turn.text), text",
    ],
    "what is of a script, or has a default": [
        "import os, sys, asyncio, time",
        "os.getenv('KEY', ''), os.environ.get('KEY', 'x'), sys.argv[0], sys.argv[1:]",
        "os.environ['MINE'] = 'x'",
        "os.environ['MINE']",
        "def plain(): time.sleep(0)",
        "if __name__ == '__main__': asyncio.run(main())",
    ],
    "grammars and patterns": [
        "import re",
        "from loopwright import regex, json_schema, lark, choice",
        "pattern = str(ctx)",
        "schema = {}",
        "schema['type'] = 'object'",
        "regex(r'[a-z]+'), regex(pattern), json_schema(schema), choice(['a', 'b']), re.compile('a|b')",
        "json_schema({'type': 'object', 'properties': {'é': {'type': 'integer'}}, 'required': ['é']})",
        "lark('start: WORD\\nWORD: /[a-z]+/')",
    ],
    "loops that something ends": [
        "it, n = iter([1, 2]), 0",
        "while n < 3: n += 1",
        "while True:",
        "    await ctx.generate(max_tokens=1)",
        "    if n: break",
        "try:",
        "    while True: next(it)",
        "except StopIteration: ...",
        "while not ctx.tokens: ...",
        "while n: break",
        "while True: return n",
    ],
    "names that are bound in odd places": [
        "match ctx:",
        "    case {'a': one, **rest}: print(one, rest)",
        "    case [first, *others] | (first as others): print(first, others)",
        "try: ...",
        "except* ValueError as error: print(error)",
        "if (found := [x for x in range(3) if x]): print(found, __name__, __file__)",
        "def inner(*args, key=3, **more: int): return args, key, more, later",
        "later = 3",
        "class Kind:",
        "    a: int = 1",
        "    b = [a]",
        "    def method(self): return __class__, Kind",
        "del later",
    ],
    "values that may be anything": [
        "turn = await ctx.generate()",
        "turn = turn.text",
        "turn + 'a', turn[0], turn == 'a', 'a' in turn",
        "other = await ctx.generate()",
        "other == turn, other != other, other.tokens[0], len(other.tokens)",
        "dist = await ctx.next_dist(4)",
        "[one for one in dist], list(dist), len(dist)",
    ],
    "a block that is entered": [
        "from loopwright import subscribe",
        "watched = ctx.watch()",
        "async with watched:",
        "    async for token in watched: print(token.id)",
        "[part.text async for part in ctx.stream()]",
    ],
    "what may not be there": ["try:", "    import socket", "    socket.socket()", "except OSError: ..."],
    "a function of one's own by a name": ["def input(x): return x", "input('a')"],
    "limits themselves": [
        "await ctx.generate(max_tokens=1, top_p=1, min_p=0.0, stop='x', stop_tokens=[], temperature=None, until='x')",
        "await ctx.generate(stop=['a'] * 64, logit_bias={'5': 1.0}, allowed=range(3), logprobs='raw')",
    ],
    "a name that is bound twice": ["ctx = object()", "ctx.generat()"],
    "keywords out of a dict": ["options = {}", "await ctx.generate(**options)", "ctx.append(*[1])"],
    "a task": [
        "import asyncio",
        "task = asyncio.create_task(ctx.generate())",
        "await asyncio.gather(ctx.flush(), task)",
    ],
    "a name of a function": ["def http(x): return x", "http.anything(1)"],
    "a comprehension": ["[ctx.anything for ctx in ()]"],
    "private names": ["ctx._log"],
    "a host that is only computed": ["url = str(ctx)", "await http.get(url)", "await http.get(f'http://{url}/')"],
    "a text that is no URL of a call": ["ctx.append('https://not.called.example/')"],
    "a module that may be absent": ["try:", "    import numpy", "except ImportError:", "    numpy = None"],
    "tools that are found, and their names": [
        "from loopwright import tool, tools",
        "found = await tools.list()",
        "await ctx.generate(tools=[*found], tool_choice='x')",
        "await ctx.generate(tools=[found[0]], tool_choice='x')",
        "await tools.call(found[0].name)",
        "@tool",
        "def rain(): 'Rains.'",
        "await ctx.generate(tools=[rain], tool_choice='rain')",
        "await ctx.generate(tools=[rain], tool_choice=str('x'))",
    ],
    "the run's own store": ["from loopwright import Store", "await Store().get('x')"],
    "a traced sampler": ["await ctx.generate(sampler=lambda scores: tensor.argmax(scores), state={}, emit=True)"],
    "an attribute of a response": [
        "r = await http.get(str(1))",
        "r.status, r.headers, r.text, r.json(), r.raise_for_status().text",
    ],
}


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_said_of_what_may_be_right(case: str) -> None:
    assert found_in(in_main(*RIGHT[case])) == []


def test_a_host_counts_in_the_default_of_a_parameter_and_in_a_constant() -> None:
    source = (
        "from loopwright import http\nURL = 'http://one.example/'\n"
        "async def main(url: str = 'http://two.example/'):\n    await http.get(url)\n    await http.get(URL)\n"
    )
    assert [(line, code) for line, _, code, _ in found_in(source)] == [(4, "permission"), (5, "permission")]
    permitted = '# /// program\n# permissions = { http = ["*.example"] }\n# ///\n' + source
    assert found_in(permitted) == []


def test_the_line_to_add_is_in_the_hint() -> None:
    (finding,) = check_program(in_main("await http.get('http://a.example/')"), "p.py", MODULES)
    assert 'permissions = { http = ["a.example:80"] }' in finding.hint
    called = in_main("await tools.call('cal.add')", top="from loopwright import Context, tools")
    (finding,) = check_program(called, "p.py", MODULES)
    assert 'permissions = { tools = ["cal.add"] }' in finding.hint
    assert (
        check_program('# /// program\n# permissions = { tools = ["cal.*"] }\n# ///\n' + called, "p.py", MODULES) == []
    )
    (finding,) = check_program(in_main("await ctx.generat()"), "p.py", MODULES)
    assert finding.hint == "did you mean 'generate'?"


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import numpy\nasync def main(): ...\n", (1, 1, "module", "the sandbox has no module 'numpy'")),
        (
            "from xml.etree import Nothing\nasync def main(): ...\n",
            (1, 1, "module", "the sandbox has no module 'xml.etree'"),
        ),
        ("from . import other\nasync def main(): ...\n", (1, 1, "module", "the sandbox has no module '.'")),
        ("from loopwright import Contex\nasync def main(): ...\n", (1, 24, "name", "loopwright has no 'Contex'")),
        ("import loopwright\nasync def main(): loopwright.cli\n", (2, 30, "name", "loopwright has no 'cli'")),
        ("async def main(:\n", (1, 16, "syntax", "invalid syntax")),
        ("type X = int\nasync def main(): ...\n", (1, 6, "syntax", "invalid syntax")),
        ("\n\ndef main(): ...\n", (3, 1, "program", "main is not async")),
        ("x = 1\n", (1, 1, "program", "p.py has no main")),
        (
            "# hi\n# /// program\n# limits = {\n# ///\nasync def main(): ...\n",
            (3, 13, "program", "the metadata block is not TOML"),
        ),
    ],
)
def test_files_that_are_no_programs(source: str, finding: tuple[int, int, str, str]) -> None:
    (found,) = found_in(source)
    if "limits" not in source and "type" not in source:  # where TOML and a newer parser see them is theirs
        assert found[:2] == finding[:2]
    assert found[2] == finding[2]
    assert finding[3] in found[3] or "type" in source


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_clean(path: Path) -> None:
    assert check_program(path.read_text("utf-8"), path.name, MODULES) == []


def test_findings_come_by_line_and_are_data() -> None:
    source = in_main("ctx.generat()", top="import numpy\nfrom loopwright import Context")
    found = check_program(source, "p.py", MODULES)
    assert [one.line for one in found] == [1, 5]
    assert found[0] == Finding(
        1, 1, "module", "the sandbox has no module 'numpy'",
        "it has Python's standard library and loopwright; a program is one file",
    )  # fmt: skip
