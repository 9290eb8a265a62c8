"""How long a large request holds the event loop, by kind of body: the longest turn of the loop while it was served.

`make pauses` prints the table of docs/large-requests.md. Each body is as large as the server takes by default, or as
told. What a thread does meanwhile counts only as far as it holds the interpreter.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from loopwright.compose.config import RuntimeConfig
from loopwright.compose.model_parts import load_tokenizer, model_text
from loopwright.control.config import ControlConfig
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.server.app import create_app
from loopwright.weights.store import resolve
from system_rig import make_info, system_over

CHUNK_BYTES = 64 << 10  # as a socket gives them
MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Pauses:
    """The longest turns of the loop while a request was served, and how it was answered."""

    wall_s: float
    cpu_s: float
    status: int
    said: str


class Probe:
    """Takes each turn of the loop, and notes the longest."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self._handle: asyncio.Handle | None = None
        self._last = (0.0, 0.0)

    def __enter__(self) -> "Probe":
        self._last = (time.perf_counter(), time.thread_time())
        self._turn(is_first=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._turn()
        assert self._handle is not None
        self._handle.cancel()

    def _turn(self, *, is_first: bool = False) -> None:
        now = (time.perf_counter(), time.thread_time())
        if not is_first:
            self.wall_s, self.cpu_s = max(self.wall_s, now[0] - self._last[0]), max(self.cpu_s, now[1] - self._last[1])
        self._last = now
        self._handle = asyncio.get_running_loop().call_soon(self._turn)


async def measured(app: Any, path: str, payload: bytes) -> Pauses:
    """Sends one request to the application, in the pieces that a socket gives."""
    pieces = [payload[at : at + CHUNK_BYTES] for at in range(0, len(payload), CHUNK_BYTES)]
    waiting: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": one, "more_body": one is not pieces[-1]} for one in pieces]
    )
    answer: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if (piece := next(waiting, None)) is not None:
            return piece
        return await asyncio.Future()  # the client stays

    async def send(message: dict[str, Any]) -> None:
        answer.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"},
        **{"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)},
    }
    gc.collect()
    with Probe() as probe:
        await app(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in answer[1:])
    return Pauses(probe.wall_s, probe.cpu_s, answer[0]["status"], _said(body))


def _said(body: bytes) -> str:
    try:
        error = json.loads(body).get("error") or {}
    except ValueError:
        return ""
    return str(error.get("message", ""))[:90]


Body: TypeAlias = tuple[str, Callable[[], bytes]]
"""The path, and what makes a body for it."""

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROSE = "The river runs through the old town, and nobody counts its bridges. "
MESSAGE = {"role": "user", "content": "x"}


def bodies(num_bytes: int) -> dict[str, Body]:
    """By what is many or large in it: the path, and a body of about that size."""
    return chat_bodies(num_bytes) | other_bodies(num_bytes)


def sent(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def chat(**fields: Any) -> bytes:
    return sent(**{"model": MODEL, "max_tokens": 1, "messages": [MESSAGE], **fields})


def text(num_bytes: int, of: str = PROSE) -> str:
    return (of * (num_bytes // len(of.encode()) + 1))[: num_bytes * len(of) // len(of.encode()) - 400]


def many(num_bytes: int, one: object) -> list[Any]:
    return [one] * (num_bytes // (len(json.dumps(one, separators=(",", ":"))) + 1) - 20)


def chat_bodies(size: int) -> dict[str, Body]:
    def said(content: object) -> bytes:
        return chat(messages=[{"role": "user", "content": content}])

    part = {"type": "text", "text": "x"}
    tool = {"type": "function", "function": {"name": "f"}}
    made: dict[str, Callable[[], bytes]] = {
        "one text": lambda: said(text(size)),
        "one text of CJK": lambda: said(text(size, "水の流れ、")),
        "spaces": lambda: said(text(size, " ")),
        "one word": lambda: said(text(size, "a")),
        "messages": lambda: chat(messages=many(size, MESSAGE)),
        "parts": lambda: said(many(size, part)),
        "[] in an audio part": lambda: said([{"type": "input_audio", "input_audio": many(size, [])}]),
        "tools": lambda: chat(tools=many(size, tool)),
        "a schema": lambda: chat(guided_json={"type": "object", "enum": many(size, {"a": 1})}),
        "a call's arguments": lambda: chat(
            messages=[MESSAGE, _calling(json.dumps({"a": many(size, [])}, separators=(",", ":"))), MESSAGE]
        ),
        "logit_bias": lambda: chat(logit_bias={str(one): 1 for one in range(size // 11)}),
    }
    return {f"chat, {name}": (CHATS, make) for name, make in made.items()}


def other_bodies(size: int) -> dict[str, Body]:
    def response(given: object) -> bytes:
        return sent(model=MODEL, input=given, max_output_tokens=16)

    def messages(given: list[Any]) -> bytes:
        return sent(model=MODEL, max_tokens=1, messages=given)

    def completion(prompt: object) -> bytes:
        return sent(model=MODEL, prompt=prompt, max_tokens=1)

    def run(given: object) -> bytes:
        return sent(source=PROGRAM, arguments={"given": given}, stream=False)

    return {
        "completion, one text": (COMPLETIONS, lambda: completion(text(size))),
        "completion, ids": (COMPLETIONS, lambda: completion(many(size, 7))),
        "completion, lists of ids": (COMPLETIONS, lambda: completion(many(size, [7]))),
        "responses, one text": ("/v1/responses", lambda: response(text(size))),
        "responses, items": ("/v1/responses", lambda: response(many(size, MESSAGE))),
        "messages, one text": ("/v1/messages", lambda: messages([{"role": "user", "content": text(size)}])),
        "messages, messages": ("/v1/messages", lambda: messages(many(size, MESSAGE))),
        "tokenize, one text": ("/tokenize", lambda: sent(prompt=text(size))),
        "tokenize, one text, with strings": ("/tokenize", lambda: sent(prompt=text(size), return_token_strs=True)),
        "tokenize, messages": ("/tokenize", lambda: sent(messages=many(size, MESSAGE))),
        "detokenize": ("/detokenize", lambda: sent(tokens=many(size, 777))),
        "render, one text": (
            "/v1/chat/completions/render",
            lambda: chat(messages=[{"role": "user", "content": text(size)}]),
        ),
        "a program's source": ("/v1/programs", lambda: sent(name="large", source="x = 1\n" * (size // 8))),
        "a run, a text": ("/v1/runs", lambda: run(text(size))),
        "a run, []": ("/v1/runs", lambda: run(many(size, []))),
        "no JSON": (CHATS, lambda: b"[" * size),
        "an unknown field": (CHATS, lambda: chat(unknown=many(size, []))),
    }


PROGRAM = "async def main(given: object = None) -> int:\n    return len(given)\n"


def _calling(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@asynccontextmanager
async def application(max_context: int, **options: Any) -> AsyncIterator[Any]:
    """The default model's text side over a scripted engine that answers at once."""
    files = resolve(MODEL)
    tokenizer = load_tokenizer(files)
    executor = ScriptedExecutor(
        lambda history: 0, vocab_size=len(tokenizer.token_bytes), max_context=max_context, num_blocks=1 << 14
    )
    info = make_info(executor, tokenizer, MODEL, has_template=True)
    try:
        async with system_over(
            executor, model_text(info, tokenizer), runtime=RuntimeConfig(allows_native=True), control=ControlConfig()
        ) as system:
            gc.freeze()  # as `loopwright serve` does
            yield create_app(system.launcher, **options)
            gc.unfreeze()
    finally:
        executor.close()


async def main(num_bytes: int, max_context: int, only: str) -> None:
    async with application(max_context) as app:
        for small in ({}, {"guided_json": {"type": "object"}}):  # what is made once
            asked = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **small}
            await measured(app, "/v1/chat/completions", json.dumps(asked).encode())
        mib = num_bytes / (1 << 20)
        sys.stdout.write(f"| body of {mib:g} MiB | longest turn, ms | of it CPU, ms | answer |\n|---|---|---|---|\n")
        for name, (path, make) in bodies(num_bytes).items():
            if only in name:
                found = await measured(app, path, make())
                row = (name, f"{found.wall_s * 1e3:.0f}", f"{found.cpu_s * 1e3:.0f}", f"{found.status} {found.said}")
                sys.stdout.write(f"| {' | '.join(row)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4 << 20)
    parser.add_argument("--max-context", type=int, default=8192)
    parser.add_argument("--only", default="", help="bodies with this in their names")
    asked = parser.parse_args()
    asyncio.run(main(asked.bytes, asked.max_context, asked.only))
