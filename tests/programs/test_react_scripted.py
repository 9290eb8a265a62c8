"""The ReACT agent with a model that says what a script says: which calls it makes, in which order and with what, what
it puts into its context, and that nothing it has run is run again."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from loopwright.core.events import Emit
from loopwright.core.runs import RunSpec
from loopwright.engine.scripted import NextToken, ScriptedExecutor
from system_rig import Outcome, RunningRun, byte_text, in_loop, program_source, system_over

pytestmark = pytest.mark.wasm

END_OF_TURN = 259

FACTS = {
    "river of Paris": "The Seine flows through Paris.",
    "Seine length": "The Seine is 777 km long.",
}

SCRIPT = {  # what the model writes after each of these texts; of several, the one that comes last counts
    "assistant\nThought:": " I must find the river.\n",
    "the river.\nAction: Search[": "river of Paris]",
    "flows through Paris.\nThought:": " Now its length.\n",
    "its length.\nAction:": " Search[",
    "its length.\nAction: Search[": "Seine length]",
    "777 km long.\nThought:": " That is all.\n",
    "That is all.\nAction:": " Finish\n",
    "Finish\nAnswer:": " The Seine, 777 km.\n",
}

TRANSCRIPT = """\
Thought: I must find the river.
Action: Search[river of Paris]
Observation: The Seine flows through Paris.
Thought: Now its length.
Action: Search[Seine length]
Observation: The Seine is 777 km long.
Thought: That is all.
Action: Finish
Answer: The Seine, 777 km.
"""


def test_the_agent_calls_its_tool_in_order_and_never_runs_its_context_again() -> None:
    async def scenario() -> None:
        engine = ScriptedExecutor(scripted(SCRIPT))
        try:
            async with system_over(engine, byte_text(engine)) as system, search_tool(FACTS) as (url, calls):
                arguments = {"question": "How long is the river of Paris?", "search_url": url}
                spec = RunSpec(source=program_source("react"), filename="react.py", arguments=arguments)
                outcome = await RunningRun(system.launcher, await system.launcher.start(spec)).outcome()
        finally:
            engine.close()
        assert outcome.result == "The Seine, 777 km."
        assert calls == [f"GET /search?q={query}" for query in FACTS]
        assert emitted(outcome) == [{"call": "search", "query": query} for query in FACTS]
        assert outcome.text == TRANSCRIPT
        assert written_context(engine) == TRANSCRIPT.removesuffix("\n")  # the end of the last line need not run

    in_loop(scenario)


def scripted(script: Mapping[str, str]) -> NextToken:
    """A model that continues the text it sees, byte by byte, as the script says, and then ends its turn."""

    def next_token(history: Sequence[int]) -> int:
        seen = as_text(history)
        cue = max((cue for cue in script if cue in seen), key=lambda one: seen.rindex(one) + len(one))
        written = seen[seen.rindex(cue) + len(cue) :]
        rest = script[cue].removeprefix(written)
        return ord(rest[0]) if script[cue] == written + rest and rest else END_OF_TURN

    return next_token


@asynccontextmanager
async def search_tool(facts: Mapping[str, str]) -> AsyncIterator[tuple[str, list[str]]]:
    """Its URL, and the requests that came, each as `METHOD /path?q=query`."""
    calls: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(maxsplit=2)
        url = urlsplit(target)
        (query,) = parse_qs(url.query)["q"]
        calls.append(f"{method} {url.path}?q={query}")
        body = facts[query].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/search", calls


def emitted(outcome: Outcome) -> list[Any]:
    return [event.value for event in outcome.events if isinstance(event, Emit)]


def written_context(engine: ScriptedExecutor) -> str:
    """What follows the prompt in the context, of which every token ran once."""
    rows = [row for batch in engine.batches for row in batch.all_rows]
    assert [position for row in rows for position in row.positions] == list(range(sum(row.num_tokens for row in rows)))
    return as_text([token_id for row in rows for token_id in row.token_ids]).rpartition("assistant\n")[2]


def as_text(ids: Sequence[int]) -> str:
    return bytes(token_id for token_id in ids if token_id < 256).decode()
