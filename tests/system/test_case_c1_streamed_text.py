"""Case C1. Whatever characters, stop strings and token borders meet, a chat's streamed deltas join to the text of the
whole answer, and both are what a five-line reference says: no half character, no part of a stop string, nothing lost.
While the text grows, only a proper prefix of a stop or of a character is kept back; at the end all of it comes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from http_rig import Served, served
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loopwright.compose.config import RuntimeConfig
from loopwright.compose.model_parts import model_text
from loopwright.control.config import ControlConfig
from loopwright.engine.scripted import ScriptedExecutor, scripted_tokens
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import CHATML, in_loop, make_info, system_over

AS_A_SYSTEM = settings(max_examples=20, deadline=None, phases=set(Phase) - {Phase.shrink})  # each example is a server
NATIVE_ONLY = RuntimeConfig(needs_wasm=False)

# Emoji of one and of several code points, combining marks, and pieces that often begin or make a stop.
PIECES = (*"ab\né🙂中\ufeff", "ab", "e\u0301", "n\u0303", "👩\u200d🚀", "🇫🇷", "👍🏽", "<|im_end|>")
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
stops = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), max_size=3)
cuts = st.lists(st.integers(1, 9), max_size=20)


@dataclass(frozen=True)
class Answer:
    """What the model will write: `text`, in tokens that end at the cuts, which may fall inside a character."""

    text: str
    stops: tuple[str, ...]
    cuts: tuple[int, ...]

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of each token."""
        data, pieces = self.text.encode(), []
        for size in self.cuts:
            pieces.append(data[:size])
            data = data[size:]
        return [piece for piece in [*pieces, data] if piece]


answers = st.builds(Answer, texts, stops.map(tuple), cuts.map(tuple))


def reference(answer: Answer) -> str:
    """The text before the first stop to be complete; of those complete at once, the longest."""
    data = answer.text.encode()
    for end in range(len(data) + 1):
        if found := [stop for stop in map(str.encode, answer.stops) if data[:end].endswith(stop)]:
            return data[: end - max(map(len, found))].decode()
    return answer.text


@AS_A_SYSTEM
@given(st.lists(answers, min_size=1, max_size=6))
def test_streamed_deltas_join_to_the_whole_text_and_both_are_the_reference_s(cases: list[Answer]) -> None:
    async def check(client: Served, number: int, answer: Answer) -> None:
        asked: dict[str, Any] = {"model": client.model, "messages": question(number), "stop": list(answer.stops)}
        whole = await client.openai.chat.completions.create(**asked)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in await client.openai.chat.completions.create(**asked, **options)]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].message.content == reference(answer)
        assert "\ufffd" not in text
        assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "stop"
        assert whole.usage == chunks[-1].usage

    async def scenario() -> None:
        async with scripted_chat(cases) as client:
            await asyncio.gather(*(check(client, number, answer) for number, answer in enumerate(cases)))

    in_loop(scenario)


@AS_A_SYSTEM
@given(answers)
def test_what_is_certain_is_shown_before_the_next_token_is_made(answer: Answer) -> None:
    pace = Pace(answer)

    async def scenario() -> None:
        async with scripted_chat([answer], pace) as client:
            asked: dict[str, Any] = {"model": client.model, "messages": question(0), "stop": list(answer.stops)}
            async for chunk in await client.openai.chat.completions.create(stream=True, **asked):
                pace.show("".join(choice.delta.content or "" for choice in chunk.choices))
            assert pace.shown == reference(answer)
            assert pace.shown_before == pace.certain_before

    in_loop(scenario)


class Pace:
    """Lets the model go on to the next token only when the client has all that the tokens so far make certain."""

    def __init__(self, answer: Answer) -> None:
        self.shown = ""
        self.shown_before: list[str] = []  # by token: what the client had when it was made
        self.certain_before: list[str] = []  # and what it should have had
        self._answer = answer
        self._news = threading.Condition()

    def show(self, delta: str) -> None:
        """Called where the client reads."""
        with self._news:
            self.shown += delta
            self._news.notify_all()

    def wait(self, num_tokens: int) -> None:
        """Called where the model runs, before it makes the token after `num_tokens`."""
        certain = certain_text(self._answer, num_tokens)
        with self._news:
            if self.shown_before == self.certain_before:  # once is enough to fail
                self._news.wait_for(lambda: len(self.shown) >= len(certain), timeout=20)
            self.shown_before.append(self.shown)
            self.certain_before.append(certain)


def certain_text(answer: Answer, num_tokens: int) -> str:
    """All but the longest end that is a proper prefix of a stop, and a character that is not complete."""
    data = b"".join(answer.pieces[:num_tokens])
    prefixes = (stop.encode()[:size] for stop in answer.stops for size in range(len(stop.encode())))
    num_held = max((len(prefix) for prefix in prefixes if data.endswith(prefix)), default=0)
    return data[: len(data) - num_held].decode(errors="ignore")


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Say {number}."}]


@asynccontextmanager
async def scripted_chat(cases: Sequence[Answer], pace: Pace | None = None) -> AsyncIterator[Served]:
    """A served system whose model answers question i as case i says, with a token of its own for each piece."""
    plain = byte_tokenizer(CHATML)
    tokenizer = replace(plain, token_bytes=(*plain.token_bytes, *(piece for one in cases for piece in one.pieces)))
    scripts: dict[tuple[int, ...], Sequence[int]] = {}

    def next_token(history: tuple[int, ...]) -> int:
        if pace is not None:
            pace.wait(len(history) - len(next(iter(scripts))))
        return scripted_tokens(scripts, tokenizer.eos_ids[0])(history)

    executor = ScriptedExecutor(next_token, vocab_size=tokenizer.vocab_size)
    text = model_text(make_info(executor, tokenizer, "scripted", has_template=True), tokenizer)
    assert text.chat_template is not None
    next_id = plain.vocab_size
    for number, answer in enumerate(cases):
        prompt = text.chat_template.render(question(number), add_generation_prompt=True)
        scripts[tuple(prompt)] = range(next_id, next_id + len(answer.pieces))
        next_id += len(answer.pieces)
    try:
        control = ControlConfig(prefix_cache=False)  # so that a request says the same of its usage the second time
        async with (
            system_over(executor, text, runtime=NATIVE_ONLY, control=control) as system,
            served(system) as client,
        ):
            yield client
    finally:
        executor.close()
