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
    "a host in a formatted text": (
        ["await http.post(f'http://a.example:8080/{ctx}')"],
        [(4, 21, "permission", "the program may not reach a.example:8080; permitted: nothing")],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_place(case: str) -> None:
    lines, findings = WRONG[case]
    assert found_in(in_main(*lines)) == findings


RIGHT = {
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
