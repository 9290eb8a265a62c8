"""`loopwright new`: every template is clean, runs, and never replaces a file."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.cli.check import sandbox_modules
from loopwright.cli.new import template_names, template_source
from loopwright.core.events import Text
from loopwright.runtime.program_check import check_program
from loopwright.weights import store
from system_rig import byte_system, in_loop

pytestmark = pytest.mark.wasm


def test_there_is_a_template_of_each_kind():
    assert {"completion", "chat", "agent", "sampler", "fork", "fetch"} <= set(template_names())


@pytest.mark.parametrize("name", template_names())
def test_a_template_passes_check_and_runs_in_the_sandbox(name: str):
    source = template_source(name)
    assert check_program(source, f"{name}.py", sandbox_modules(store.no_progress)) == []

    async def scenario() -> None:
        async with byte_system() as system, page_server() as url:
            arguments = {"url": url} if name == "fetch" else {}
            outcome = await system.run(source, "wasm", **arguments)
            assert isinstance(outcome.result, str)
            if name not in ("agent", "fork"):
                assert outcome.result == "".join(one.text for one in outcome.events if isinstance(one, Text))

    in_loop(scenario)


def test_the_sampler_template_never_repeats_a_token():
    async def scenario() -> None:
        source = template_source("sampler").replace("return turn.text", "return list(turn.tokens)")
        async with byte_system() as system:
            tokens = (await system.run(source, "wasm")).result
        assert len(tokens) > 2
        assert all(one != other for one, other in itertools.pairwise(tokens))

    in_loop(scenario)


def test_a_file_is_written_once(tmp_path: Path, capsys):
    path = tmp_path / "mine.py"
    assert main(["new", str(tmp_path / "mine"), "--template", "fork"]) == 0
    assert path.read_text() == template_source("fork")
    assert str(path) in capsys.readouterr().out
    path.write_text("# my work\n")
    assert main(["new", str(path), "--template", "chat"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "# my work\n"


def test_a_template_that_does_not_exist_is_wrong_usage(tmp_path: Path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["new", str(tmp_path / "mine"), "--template", "novel"])
    assert end.value.code == 2
    assert "invalid choice: 'novel'" in capsys.readouterr().err


@asynccontextmanager
async def page_server() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\nHello there")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
