"""A program that is played while the runner is built, and once more in each instance that waits for a run, and the host
that answers it. Holds nothing of a user, and asks nothing of the real host but to be called.

So a run finds the code that programs go through specialised, caches filled, and pages that it will write copied.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

TYPICAL = """
from loopwright import Context

async def main(number: str, max_tokens: int) -> str:
    ctx = Context()
    ctx.system("A system prompt.")
    ctx.user(f"Something about the number {number}.")
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
"""
BROAD = """
import asyncio
from loopwright import Context, NotFound, detokenize, emit, import_context, lark

async def branch(ctx, text):
    async with await ctx.fork() as own:
        own.user(text)
        return await own.generate(max_tokens=4, stop=["."], temperature=0.8, ignore_eos=True)

async def main(number: str, max_tokens: int) -> str:
    try:
        ctx = await import_context("nobody's")
    except NotFound:
        ctx = Context()
    ctx.system("A system prompt.")
    await ctx.flush()
    ctx.user(f"Something about the number {number}.")
    turn = await ctx.generate(max_tokens=max_tokens, grammar=lark("start: /[a-z]+/"), emit=True)
    ctx.append("\\nThen: ")
    await ctx.flush()
    await asyncio.gather(*(branch(ctx, text) for text in ("one", "another")))
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
    verified = await ctx.verify([1000, 1001])
    for _ in range(2):
        dist = await ctx.next_dist(4)
        ctx.accept(dist.ids[0])
    text = await detokenize(verified.tokens)
    emit({"text": turn.text, "more": text})
    print(turn.reason)
    return turn.text
"""
ARGUMENTS = '{"number": "1234567", "max_tokens": 4}'

MODEL = {
    "name": "nobody's", "architecture": "llama", "traits": ["allocate", "forward"], "vocab_size": 49152,
    "max_context": 8192, "page_size": 16, "num_pages": 1024, "eos_ids": [2, 3], "bos_id": 1, "has_chat_template": True,
    "quantization": "BF16", "weights_sha256": "", "exactness": "reference", "license": "", "description": "",
    "template_sha256": "", "reasoning": None, "engine": "", "version": "", "service_id": 0,
}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "describe": {"run": "0123456789abcdef", "version": "", "seed": 1 << 52, "model": MODEL, "tool_format": "hermes"},
    "render_chat": {"tokens": list(range(1000, 1030))},
    "tokenize": {"tokens": [1000, 1001, 1002]},
    "detokenize": {"text": "so "},
    "exported_pages": {"exports": []},
}
DONE = {"result": "done"}


class Host(Protocol):
    """The real one, as far as it is called."""

    def submit(self, op: str) -> int: ...

    def wait(self, timeout_ms: int) -> str: ...


class SilentHost:
    """Answers every call at once with what a host might say. Calls and waits cross to `real` too, which is silent."""

    def __init__(self, real: Host | None = None) -> None:
        self.kept = ""
        self._real = real
        self._num_calls = 0
        self._events: list[tuple[int, str, dict[str, Any]]] = []

    def submit(self, op: str) -> int:
        self._num_calls += 1
        if self._real is not None:
            self._real.submit(op)
        call = json.loads(op)
        if call.get("answer", True):
            self._events.append((self._num_calls, "ok", answer_of(call)))
        return self._num_calls

    def wait(self, timeout_ms: int) -> str:
        if self._real is not None:
            self._real.wait(0)
        events, self._events = self._events, []
        return json.dumps(events)

    def log(self, stream: str, line: str) -> None:
        pass

    def keep(self, code: str) -> None:
        self.kept = code


def answer_of(call: dict[str, Any]) -> dict[str, Any]:
    """What a model of MODEL's kind would answer, with tokens that mean nothing."""
    if call["op"] == "segment":
        asked, num_new = call["generate"], 4
        kv_len = asked["kv_len"] + len(asked["tokens"]) + num_new - 1
        return {
            "tokens": list(range(1000, 1000 + num_new)), "logprobs": [-0.5] * num_new, "num_kept": num_new,
            "remainder": "", "reason": "length", "stop": None, "kv_len": kv_len, "num_pages": -(-kv_len // 16),
            "freed": [], "top_logprobs": [], "logprob_kind": "raw", "sampler_state": {}, "cached_tokens": 0,
            "text": "so it goes",
        }  # fmt: skip
    if call["op"] == "forward_text":
        kv_len = call["kv_len"] + len(call["tokens"]) - call.get("num_drafts", 0)
        sampled = {"token": 1000, "logprob": -0.5, "tokens": [1000], "logprobs": [-0.5], "logprob_kind": "raw"}
        listed = {"ids": "6AMAAA==", "logprobs": "AAAAvw==", "covered": 0.5, "tail_mass": 0.5, "truncated": True}
        dists = [listed for _ in call.get("distributions", ())]
        kv = {"kv_len": kv_len, "num_pages": -(-kv_len // 16)}
        return {"result": "forwarded", **kv, **sampled, "distributions": dists}
    return ANSWERS.get(call["op"], DONE)


class Player:
    """Plays programs by `execute(host, source, arguments, code)`; each is compiled once."""

    def __init__(self, execute: Callable[["SilentHost", str, str, str], None]) -> None:
        self._execute = execute
        self._codes: dict[str, str] = {}

    def play(self, source: str, num_times: int = 1, real: Host | None = None) -> None:
        for _ in range(num_times):
            host = SilentHost(real)
            self._execute(host, source, ARGUMENTS, self._codes.get(source, ""))
            self._codes.setdefault(source, host.kept)
