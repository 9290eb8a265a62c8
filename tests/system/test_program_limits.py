"""Every limit of a run, passed in the real sandbox: an error of its own type that names the value, the limit and the
line of metadata that raises it; and what a program asks for beyond the server's caps is the cap."""

import re
from typing import Any

import pytest

from loopwright.compose.config import RuntimeConfig
from loopwright.core.errors import ErrorInfo
from loopwright.runtime import launcher
from loopwright.runtime.limits import Limits
from system_rig import Outcome, System, byte_system, in_loop

pytestmark = pytest.mark.wasm

PORT = """
import asyncio
from loopwright.sdk.port import current_port

async def main():
    port = current_port()
    port.post({"op": "create_queue", "queue": 1})
    async def call(op, **fields):
        return await port.issue({"op": op, **({} if op in ('tokenize', 'store_set') else {"queue": 1}), **fields})
    async def many(op):
        rows = [{"pages": [], "grow_from": n, "kv_len": 0, "tokens": [1], "positions": [0]} for n in range(20)]
        await asyncio.gather(*(call(op, **row) for row in rows))
    """

# Each limit: what it is set to, a program that passes it, and what the error says.
PASSED: dict[str, tuple[Any, str, str]] = {
    "memory_mb": (24, "kept = [bytearray(1 << 20) for _ in range(100)]", "its limit is 24 MiB"),
    "cpu_seconds": (0.2, "while True: pass", r"computed for \d\.\d s; its limit is 0\.2 s"),
    "seconds": (0.3, "await asyncio.sleep(1000)", r"longer than its 0\.3 s"),
    "max_pages": (3, "await call('allocate_pages', pages=[0, 1, 2, 3])", "holds 0 pages and asks for 4 more.* 3$"),
    "max_embeds": (3, "await call('allocate_embeds', embeds=[0, 1, 2, 3])", "holds 0 embeds and asks for 4.* 3$"),
    "max_queues": (1, "await call('create_queue', queue=2)", "has 1 queues; the limit is 1"),
    "max_queue_depth": (4, "await many('forward_text')", "queue 1 has 4 open calls; the limit is 4"),
    "max_open_calls": (4, "await many('forward_text')", "4 calls are open; the limit is 4"),
    "max_output_bytes": (1000, "print('x' * 2000)", "output has 2000 bytes; its limit is 1000"),
    "max_message_bytes": (1000, "await call('tokenize', text='x' * 2000)", r"has 2\d{3} characters; the limit is 1000"),
    "max_open_bytes": (
        100_000,
        "await asyncio.gather(*(call('tokenize', text='x' * 60_000) for _ in range(2)))",
        r"a call has 60\d{3} characters, and those that are open hold 60\d{3}; the limit is 100000 together",
    ),
    "max_state_bytes": (1000, "await call('store_set', key='a', value='x' * 2000)", r"hold 2\d{3} bytes; .* is 1000$"),
    "max_file_bytes": (
        10_000,
        "open('x', 'w').write('x' * 20_000)\n    await asyncio.sleep(1000)",
        r"files have \d{5} .* 10000$",
    ),
    "max_unread_bytes": (
        100_000,
        'while True: port._submit(\'{"op": "vocabulary"}\')',
        r"^1\d{5} bytes of answers wait for the program; the limit is 100000",
    ),
    "max_log_lines_per_s": (5, "while True: print('x')", r"logged \d+ lines in .* is 5 a second, after 50 at once"),
}
TESTED_WITH_CHILDREN = {"max_children", "tree_memory_mb"}


def program(limits: dict[str, Any], body: str) -> str:
    table = ", ".join(f"{name} = {value}" for name, value in limits.items())
    return f"# /// program\n# limits = {{ {table} }}\n# ///\n{PORT}{body}\n"


def error_of(outcome: Outcome) -> ErrorInfo:
    assert outcome.final.error is not None, outcome.final
    return outcome.final.error


def check_passed(name: str, limit: float, message: str, error: ErrorInfo) -> None:
    assert error.type == {"seconds": "DeadlineExceeded", "max_pages": "OutOfPages"}.get(name, "LimitExceeded"), error
    assert error.code == ("deadline" if name == "seconds" else "limit")
    assert re.search(message, error.message), error
    (line,) = re.findall(r"limits = \{ (\w+) = ([\d.]+) \}$", error.hint)
    assert line[0] == name
    assert float(line[1]) > limit


def test_every_limit_has_a_case() -> None:
    assert set(Limits.__struct_fields__) == PASSED.keys() | TESTED_WITH_CHILDREN


def test_each_limit_of_the_metadata_ends_in_an_error_that_says_how_to_raise_it() -> None:
    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            for name, (limit, body, message) in PASSED.items():
                outcome = await system.run(program({name: limit}, body), sandbox="wasm")
                check_passed(name, limit, message, error_of(outcome))

    in_loop(scenario)


def test_each_cap_of_the_server_holds_against_a_program_that_asks_for_more() -> None:
    caps = Limits(**{name: limit for name, (limit, _, _) in PASSED.items() if name not in ("memory_mb", "seconds")})

    async def scenario(system: System, name: str) -> None:
        limit, body, message = PASSED[name]
        outcome = await system.run(program({name: limit * 1000}, body), sandbox="wasm")
        check_passed(name, limit, message, error_of(outcome))

    async def with_cap(name: str) -> None:
        capped = Limits(**{name: getattr(caps, name)})
        async with byte_system(runtime=RuntimeConfig(caps=capped)) as system:
            await scenario(system, name)

    async def all_caps() -> None:
        for name in ("cpu_seconds", "max_open_calls", "max_log_lines_per_s"):
            await with_cap(name)

    in_loop(all_caps)


def test_a_program_within_its_limits_is_not_told_of_them() -> None:
    limits = {name: limit for name, (limit, _, _) in PASSED.items() if name not in ("seconds", "cpu_seconds")}
    body = (
        "for n in range(40): print(n)\n    for n in range(100): await port.issue({'op': 'vocabulary'})\n"
        "    return await call('allocate_pages', pages=[0, 1, 2])"
    )

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            outcome = await system.run(program(limits, body), sandbox="wasm")
            assert outcome.final.code == "ok", outcome.final.error

    in_loop(scenario)


def test_a_limit_that_nobody_knows_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            with pytest.raises(Exception, match="max_dreams"):
                await system.start(program({"max_dreams": 1}, "pass"), sandbox="wasm")

    in_loop(scenario)


def test_what_ended_runs_wrote_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAX_FINISHED_BYTES", 10_000)

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig(allows_native=True, needs_wasm=False)) as system:
            source = "from loopwright import emit_text\nasync def main(): emit_text('x' * 4000)\n"
            for _ in range(6):
                assert (await system.run(source)).final.code == "ok"
            assert 3 <= len(await system.launcher.runs()) <= 4  # two fit; the last one or two came after the look

    in_loop(scenario)
